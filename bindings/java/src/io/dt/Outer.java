// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * An outer optimizer, for slow networks: local SGD and DiLoCo, with fragments and a delay as in
 * streaming DiLoCo. Each rank trains by itself with an inner optimizer, and calls {@link #step}
 * behind each of its steps; in turns the mean of what ranks have changed is the gradient of a step
 * of SGD on global parameters.
 *
 * <p>Where several ranks train one model together, the communicator joins those with the same
 * parameters of different groups; call {@link Shard#updated} behind a step that gives true.
 *
 * <p>One thread at a time, and nothing else writes to parameters meanwhile.
 */
public final class Outer extends Handle {
  /**
   * Begins with parameters that have the same values on all ranks. Collective.
   *
   * @param comm over host memory
   * @param params kept until this is closed; dt writes to them in calls of this
   * @param options the same on all ranks
   */
  public Outer(Comm comm, List<OuterParam> params, OuterOptions options) {
    this(new Params(comm, params, options));
  }

  private Outer(Params params) {
    super(params.number, params::destroy);
  }

  /** The parameters, which must not go before the handle. */
  private static final class Params {
    final long number;
    private final List<Tensor> tensors = new ArrayList<>();

    Params(Comm comm, List<OuterParam> params, OuterOptions options) {
      Packing packing = new Packing();
      Checks.notNull("Outer", "options", options).pack(packing);
      boolean made = false;
      try {
        for (OuterParam each : Checks.notNull("Outer", "params", params)) add(packing, each);
        number =
            Checks.notNull("Outer", "comm", comm)
                .call(on -> Raw.outer_create(on, packing.take()));
        made = true;
      } finally {
        if (!made) release();
      }
    }

    private void add(Packing packing, OuterParam param) {
      String what = "params[" + tensors.size() + "]";
      Tensor data = Checks.notNull("Outer", what, param).data();
      if (Checks.notNull("Outer", what + ".data", data).onHeap()) {
        throw Checks.refused(
            "Outer", what + ".data", "is an array, which the garbage collector moves",
            "give a direct buffer, or memory of Comm.allocate");
      }
      data.checkWritable("Outer", what + ".data");
      data.acquire();
      tensors.add(data);
      packing.add(data.place()).add(data.count()).add(data.type().number());
      packing.add(Checks.text("Outer", what + ".name", param.name()));
    }

    void destroy(long handle) {
      Raw.outer_destroy(handle);
      release();
    }

    private void release() {
      for (Tensor each : tensors) Tensor.release(each);
    }
  }

  /**
   * To be called behind each step of the inner optimizer. Collective where it is a fragment's turn,
   * or a mean is due. A step that fails has changed nothing: after the loss of a rank go on with
   * {@link #move}.
   *
   * @return whether parameters were changed
   */
  public boolean step() {
    return use(Raw::outer_step);
  }

  /**
   * Gives every fragment a turn at once, as before an evaluation: behind it all ranks have the
   * global parameters. It counts no step. Collective.
   */
  public void sync() {
    useFor(Raw::outer_sync);
  }

  /**
   * How many steps there were. {@link #load} sets what the file has, {@link #move} what the ranks
   * have that are ahead.
   *
   * @return the number
   */
  public long steps() {
    return use(Raw::outer_steps);
  }

  /**
   * Goes on over another communicator, such as that of {@link Comm#shrink}. Ranks that have had
   * fewer means get the state of the others, also as their own parameters; a mean under way is
   * dropped. Collective over it.
   *
   * @param comm over host memory
   */
  public void move(Comm comm) {
    Checks.notNull("Outer.move", "comm", comm);
    useFor(number -> comm.run(to -> Raw.outer_move(number, to)));
  }

  /**
   * Writes the global parameters, the momentum and the number of steps to a file, in the layout of
   * safetensors. Not collective: all ranks would write the same, so let one do it.
   *
   * @param path replaced once all is on the disk
   */
  public void save(Path path) {
    String file = Checks.notNull("Outer.save", "path", path).toString();
    useFor(number -> Raw.outer_save(number, file));
  }

  /**
   * Reads what {@link #save} wrote; its parameters become the rank's own. Any number of ranks and
   * any options may read it, but for a momentum where the file has none. Collective.
   *
   * @param path the same file on all ranks
   */
  public void load(Path path) {
    String file = Checks.notNull("Outer.load", "path", path).toString();
    useFor(number -> Raw.outer_load(number, file));
  }
}
