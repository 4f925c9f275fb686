// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/**
 * An ordered set of ranks that runs operations together. Any thread may call it, but the order of
 * operations must match on all ranks: issue them from one thread.
 *
 * <p>An operation returns when the result is there, or on a GPU when it is ordered on the stream.
 * Its other form, named Async, returns a {@link Work} at once; the tensors belong to dt until that
 * is done, and may not be arrays. Wrong arguments are an {@link InvalidArgumentException} before
 * anything happens.
 *
 * <p>After closing it every call is refused; operations under way go on. {@link #on},
 * {@link #named} and {@link #withTimeout} give views of the same communicator: to close one of them
 * closes all.
 */
public final class Comm extends Collectives {
  /** Null: not the world communicator. */
  private final CommState.World world;

  Comm(long number, CommState state, CommState.World world) {
    super(number, state);
    this.world = world;
  }

  Comm(Comm of, Named by, long stream, long timeoutMs, byte[] name) {
    super(of, by, stream, timeoutMs, name);
    world = of.world;
  }

  /**
   * World rank of a rank of this communicator.
   *
   * @param rank in [0, size)
   * @return in [0, world size)
   */
  public int worldRank(int rank) {
    return call(number -> Raw.comm_world_rank(number, rank));
  }

  /**
   * A view whose operations are ordered on a CUDA stream. Of host memory it changes nothing.
   *
   * @param stream a cudaStream_t, which makes what is sent and uses what is received
   * @return the same communicator
   */
  public Comm on(long stream) {
    return new Comm(this, launcher.by, stream, launcher.timeoutMs, launcher.name);
  }

  /**
   * A view whose operations have a name in messages, traces and metrics.
   *
   * @param name "loss", for example; equal on all ranks; null: none
   * @return the same communicator
   */
  public Comm named(String name) {
    String text = Checks.optionalText("Comm.named", "name", name);
    return new Comm(
        this, launcher.by, launcher.stream, launcher.timeoutMs,
        text == null ? null : text.getBytes(StandardCharsets.UTF_8));
  }

  /**
   * A view whose operations have a limit of their own, and then fail as {@link #setTimeout} says.
   *
   * @param timeout zero: none; negative: the communicator's
   * @return the same communicator
   */
  public Comm withTimeout(Duration timeout) {
    long ms = Checks.milliseconds("Comm.withTimeout", timeout);
    return new Comm(
        this, launcher.by, launcher.stream, ms < 0 ? 0 : ms == 0 ? -1 : ms, launcher.name);
  }

  /**
   * Limit of each later operation, which then fails naming the ranks that did not come.
   *
   * @param timeout zero: none; negative: as the settings say
   */
  public void setTimeout(Duration timeout) {
    long ms = Checks.milliseconds("Comm.setTimeout", timeout);
    run(number -> Raw.comm_set_timeout(number, ms));
  }

  /**
   * An eventfd for epoll and the like in native code: readable when works of the communicator have
   * completed since it was last read; each completion adds 1. Futures do without it.
   *
   * @return owned by the communicator, the same at every call; not to be closed
   */
  public int workFd() {
    return call(Raw::work_fd);
  }

  /** Returns if the communicator is whole, otherwise throws the error that broke it. */
  public void check() {
    run(Raw::comm_check);
  }

  /**
   * Ranks with equal colors form a new communicator, ordered by key and rank. Collective.
   *
   * @param color negative: this rank is in none
   * @param key order inside the new communicator
   * @return to be closed; null where the color is negative
   */
  public Comm split(int color, int key) {
    long made = call(number -> Raw.comm_split(number, color, key));
    return made == 0 ? null : new Comm(made, new CommState(), null);
  }

  /**
   * The same ranks over host memory, in a job on GPUs for what lies there. Over GPUs it has an order
   * of its own, the same on all ranks for it, {@link Job#agree} and {@link #split}.
   *
   * @return to be closed
   */
  public Comm host() {
    return call(this::host);
  }

  /** Over host memory it is another handle of this communicator, with the same group. */
  private Comm host(long number) {
    long made = Raw.comm_host(number);
    Comm host = null;
    try {
      host =
          Raw.same_comm(number, made)
              ? new Comm(made, state, world)
              : new Comm(made, new CommState(), null);
      return host;
    } finally {
      if (host == null) Raw.comm_destroy(made);
    }
  }

  /**
   * The ranks that are left after a failure, as a communicator of their own, in the same order: the
   * job outlives its ranks. Collective over the ranks that live. This one stays broken.
   *
   * @return to be closed
   */
  public Comm shrink() {
    if (world != null) return call(number -> world.shrink(number, state));
    return new Comm(call(Raw::comm_shrink), new CommState(), null);
  }

  /**
   * Memory that all ranks of this host can reach, so that reductions read it where it lies; of a
   * communicator over GPUs, memory of this rank's GPU.
   *
   * @param count elements, at least 1
   * @param type of the elements
   * @return zeroed; {@link Tensor#close} gives it back
   */
  public Tensor allocate(long count, DataType type) {
    return Tensor.allocate(this, count, type);
  }

  /**
   * Begins a group: operations until {@link #groupEnd} are carried out as one. Those that would
   * wait return at once, and groupEnd waits for them; works may not be waited for before.
   */
  public void groupBegin() {
    run(state::beginGroup);
  }

  /** Ends the group and carries it out; throws the first error of its operations. */
  public void groupEnd() {
    run(state::endGroup);
  }

  /**
   * Ends the group and carries it out, without waiting.
   *
   * @return done when all operations of the group are, also those with a work of their own; its
   *     error is that of the first that failed
   */
  public Work groupEndAsync() {
    return call(state::endGroupAsync);
  }

  /**
   * Throws on all ranks a {@link MismatchException} that names those which differ, unless all hold
   * the same elements. Collective; the communicator stays usable.
   *
   * @param data may be an array
   * @param name what it is, for messages; compared, too; null: none
   */
  public void checkEqual(Tensor data, String name) {
    Tensor memory = Checks.notNull("Comm.checkEqual", "data", data).direct("Comm.checkEqual");
    String text = name == null ? "" : Checks.text("Comm.checkEqual", "name", name);
    memory.use(
        () -> run(
            number ->
                Raw.check_equal(number, memory.place(), memory.bytes(), text, launcher.stream)));
  }
}
