// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;

/**
 * Averages (or sums) gradients in buckets while the backward pass runs. Each step: {@code ready}
 * for each parameter as its gradient is complete, then {@link #finish()}.
 *
 * <p>A gradient is written where {@link #gradient} says, without a copy, or given to
 * {@link #ready(int, Tensor)}, which copies it in; finish copies the mean back.
 *
 * <p>{@code ready} may be called by any thread, but not while finish or rebuild runs; the other
 * methods by one thread at a time.
 */
public final class Reducer extends Handle {
  private final List<Param> params;
  private final Retained retained;
  private final boolean ofShard;
  private final long[] rowElements;
  /** Here, because {@link Retained} may not keep it reachable: it may refer to this reducer. */
  private volatile BucketHook hook;
  private Leases leases = new Leases();

  /**
   * Plans buckets, and checks on all ranks that the model is the same. Collective.
   *
   * @param comm whose ranks
   * @param params 1 to 1048576, in the order of registration
   */
  public Reducer(Comm comm, List<Param> params) {
    this(comm, params, ReducerOptions.DEFAULT);
  }

  /**
   * Plans buckets with options.
   *
   * @param comm whose ranks
   * @param params 1 to 1048576, in the order of registration
   * @param options of the reducer
   */
  public Reducer(Comm comm, List<Param> params, ReducerOptions options) {
    this(
        create(comm, params, options), params, options.rowElements(), false,
        new Retained(params.size(), options.gradients()));
  }

  Reducer(long number, List<Param> params, boolean ofShard) {
    this(number, params, new long[0], ofShard, new Retained(params.size(), List.of()));
  }

  private Reducer(
      long number, List<Param> params, long[] rowElements, boolean ofShard, Retained retained) {
    super(number, retained::destroy);
    this.retained = retained;
    this.rowElements = rowElements;
    this.params = List.copyOf(params);
    this.ofShard = ofShard;
  }

  private static long create(Comm comm, List<Param> params, ReducerOptions options) {
    List<Tensor> gradients = Checks.notNull("Reducer", "options", options).gradients();
    check(gradients, Checks.notNull("Reducer", "params", params));
    int kept = 0;
    boolean made = false;
    try {
      for (Tensor each : gradients) {
        if (each != null) each.acquire();
        ++kept;
      }
      Packing packing = new Packing();
      options.pack(packing);
      Param.pack("Reducer", packing, params);
      long reducer =
          Checks.notNull("Reducer", "comm", comm)
              .call(number -> Raw.reducer_create(number, packing.take()));
      made = true;
      return reducer;
    } finally {
      if (!made) gradients.subList(0, kept).forEach(Tensor::release);
    }
  }

  /** Those of {@link ReducerOptions#withGradients}. */
  private static void check(List<Tensor> gradients, List<Param> params) {
    if (!gradients.isEmpty() && gradients.size() != params.size()) {
      throw Checks.refused(
          "Reducer", "options", "have " + gradients.size() + " gradients",
          "give one for each of " + params.size() + " parameters");
    }
    for (int i = 0; i < gradients.size(); ++i) {
      Tensor gradient = gradients.get(i);
      if (gradient == null) continue;
      String what = "options.gradients[" + i + "]";
      gradient.checkWritable("Reducer", what);
      if (gradient.onHeap()) {
        throw Checks.refused(
            "Reducer", what, "is an array, which the garbage collector moves",
            "give a direct buffer, or memory of Comm.allocate");
      }
      Param param = params.get(i);
      if (gradient.count() != param.count() || gradient.type() != param.type()) {
        throw Checks.refused(
            "Reducer", what, "has " + gradient.count() + " elements of " + gradient.type(),
            "give " + param.count() + " of " + param.type());
      }
    }
  }

  /**
   * Memory where a gradient is to be written, in its bucket, in native order. After
   * {@link #rebuild()} has returned true take it anew: what an old buffer holds is no gradient any
   * more. It keeps a closed reducer's memory.
   *
   * <p>Of a shard from stage 2 on take it anew in each step, which may wait for the reduction of an
   * earlier bucket. It is valid until the step's last {@code ready} of it; a later write may damage
   * other gradients. Its values are undefined before the first.
   *
   * @param index of the parameter
   * @return a buffer with its own position and limit
   */
  public ByteBuffer gradient(int index) {
    long address = gradientAddress(index);
    Leases from = leases;
    ByteBuffer buffer =
        Memory.behind(this, "Reducer.gradient", address, params.get(index).bytes(), from::remove);
    from.add();
    return buffer;
  }

  /**
   * As {@link #gradient}, for libraries that take addresses.
   *
   * @param index of the parameter
   * @return aligned to 256 bytes, or what withGradients says; valid until {@link #rebuild()} returns true or this is closed, of
   *     a shard from stage 2 on until the step's last {@code ready} of it
   */
  public long gradientAddress(int index) {
    return gradientAddress(index, 0);
  }

  /**
   * As {@link #gradientAddress(int)} for memory of a GPU.
   *
   * @param index of the parameter
   * @param stream CUDA stream that will write there, and waits for what used the memory before;
   *     ignored on a host communicator
   * @return an address
   */
  public long gradientAddress(int index, long stream) {
    return call(number -> Raw.reducer_grad(number, index, stream));
  }

  /**
   * Says that a gradient is complete, and was written where {@link #gradient} said.
   *
   * @param index of the parameter; once per step
   */
  public void ready(int index) {
    arrive(false, index, 0, 0);
  }

  /**
   * Adds rows to the gradient of a parameter with {@link ReducerOptions#withRowElements}, such as an
   * embedding of which a step uses some rows. Rows may come several times, and in several calls;
   * each rank calls it at least once per step, with empty arrays if it has none.
   *
   * @param index of the parameter
   * @param rows indices
   * @param values of these rows, copied
   */
  public void readyRows(int index, long[] rows, Tensor values) {
    Checks.notNull("Reducer.readyRows", "rows", rows);
    Checks.notNull("Reducer.readyRows", "values", values);
    long width = rowWidth(index);
    if (width > 0
        && (values.count() != rows.length * width || values.type() != params.get(index).type())) {
      throw Checks.refused(
          "Reducer.readyRows",
          "values",
          "has " + values.count() + " elements of " + values.type(),
          "give " + rows.length + " rows of " + width + " " + params.get(index).type());
    }
    values.acquire();
    long copy = 0;
    try {
      long rowBytes = 8L * rows.length;
      copy = Raw.copy_allocate(rowBytes + (values.onHeap() ? values.bytes() : 0));
      long at = copy;
      Raw.copy_in(rows, 0, at, rowBytes);
      if (values.onHeap()) values.copyIn(at + rowBytes);
      long place = values.onHeap() ? at + rowBytes : values.place();
      run(number -> Raw.reducer_ready_rows(number, index, at, rows.length, place));
    } finally {
      Raw.copy_free(copy);
      Tensor.release(values);
      Reference.reachabilityFence(values);
    }
  }

  /**
   * The rows that any rank gave in the last step, with their means.
   *
   * @param index of the parameter
   * @return copies
   */
  public Rows rows(int index) {
    long width = rowWidth(index);
    long bytes = width == 0 ? 0 : width * params.get(index).type().bytes();
    ByteBuffer packed = Packing.read(call(number -> Raw.reducer_rows(number, index, bytes)));
    long[] indices = new long[Math.toIntExact(packed.getLong())];
    for (int i = 0; i < indices.length; i++) indices[i] = packed.getLong();
    return new Rows(indices, Packing.read(Packing.item(packed)));
  }

  /** 0: the gradient does not come as rows. */
  private long rowWidth(int index) {
    return index >= 0 && index < rowElements.length ? rowElements[index] : 0;
  }

  /**
   * Some rows of a matrix.
   *
   * @param indices ascending
   * @param values of these rows, in native order
   */
  public record Rows(long[] indices, ByteBuffer values) {}

  /**
   * Turns accumulation on or off, for steps of several backward passes. While it is on,
   * {@code ready} adds to what the parameter has of this step, and completes nothing; turn it off
   * before the last pass, which adds once more.
   *
   * @param on whether
   */
  public void accumulate(boolean on) {
    run(number -> Raw.reducer_accumulate(number, on));
  }

  /**
   * Has a function reduce the buckets, the same on all ranks; between steps. What it throws comes
   * out of the call that ran it; other ranks get a {@link MismatchException} or an {@link
   * AbortedException} that names this one.
   *
   * @param hook null: none
   */
  public void setHook(BucketHook hook) {
    HookCalls calls = hook == null ? null : new HookCalls(hook);
    HookCalls old = calls;
    boolean entered = false;
    try {
      hold();
      entered = true;
      run(number -> Raw.reducer_set_hook_upcall(number, calls == null ? 0 : calls.number));
      old = retained.setHook(calls);
      this.hook = hook;
    } finally {
      HookCalls.delete(old);
      if (entered) letGo();
    }
  }

  /**
   * Has gradients travel as products of two thin matrices, the same on all ranks.
   *
   * @param rows of each parameter as a matrix; 0: it is none
   * @param options how
   */
  public void powerSgd(long[] rows, PowerSgd options) {
    String method = "Reducer.powerSgd";
    if (Checks.notNull(method, "rows", rows).length != params.size()) {
      throw Checks.refused(
          method, "rows", "has " + rows.length + " numbers for " + params.size() + " parameters",
          "give one each");
    }
    Checks.notNull(method, "options", options);
    Checks.notNull(method, "options.wire", options.wire());
    Packing packing = new Packing().add(options.rank()).add(options.startStep());
    packing.add(options.minCompression()).add(options.errorFeedback() ? 0 : 1);
    packing.add(options.warmStart() ? 0 : 1).add(options.seed()).add(options.wire().ordinal());
    for (long each : rows) packing.add(each);
    run(number -> Raw.reducer_power_sgd(number, packing.take()));
  }

  /**
   * Writes the errors that steps carry on, of 8 bits and of PowerSGD, in the layout of safetensors,
   * between steps. Not collective.
   *
   * @param path of this rank alone; replaced once all is on the disk
   */
  public void save(Path path) {
    String file = Checks.notNull("Reducer.save", "path", path).toString();
    run(number -> Raw.reducer_save(number, file));
  }

  /**
   * Reads what {@link #save} wrote on this rank, before the first step. The same bits as without
   * the break need the same plan as well: {@link ReducerOptions#withOrder}. Collective.
   *
   * @param path of this rank
   */
  public void load(Path path) {
    String file = Checks.notNull("Reducer.load", "path", path).toString();
    run(number -> Raw.reducer_load(number, file));
  }

  /**
   * Says that this rank has no gradient for a parameter in this step; it takes part with zeros.
   * Needs {@link ReducerOptions#withUnused}. What is neither ready nor unused at {@link #finish()}
   * counts as unused. The average is where {@link #gradient} says, or zeros. With {@link
   * ReducerOptions#withStaticGraph} no call is needed.
   *
   * @param index of the parameter; once per step
   */
  public void unused(int index) {
    arrive(true, index, 0, 0);
  }

  /**
   * As {@link #unused(int)}, with a place for the average.
   *
   * @param index of the parameter; once per step
   * @param gradient receives it if another rank has a gradient, and stays as it is if none has
   * @param stream CUDA stream that used it last; ignored on a host communicator
   */
  public void unused(int index, Tensor gradient, long stream) {
    arrive(true, index, gradient, stream);
  }

  /**
   * Whether any rank had a gradient for a parameter in the last step.
   *
   * @param index of the parameter
   * @return whether
   */
  public boolean used(int index) {
    return call(number -> Raw.reducer_used(number, index));
  }

  /**
   * How many ranks had a gradient at all in the last step. A rank that has run out of batches goes
   * on with {@link #finish()} alone, and all stop at 0. Needs {@link ReducerOptions#withUnused}.
   *
   * @return ranks
   */
  public int active() {
    return call(Raw::reducer_active);
  }

  /**
   * Says that a gradient is complete. It is kept, and belongs to dt, until {@link #finish()}
   * has returned normally.
   *
   * @param index of the parameter; once per step, or as often as its uses
   * @param gradient as many elements as the parameter; finish writes the result into it; no array
   */
  public void ready(int index, Tensor gradient) {
    ready(index, gradient, 0);
  }

  /**
   * As {@link #ready(int, Tensor)} for memory of a GPU.
   *
   * @param index of the parameter; once per step
   * @param gradient as many elements as the parameter; finish writes the result into it
   * @param stream CUDA stream that produces it; ignored on a host communicator
   */
  public void ready(int index, Tensor gradient, long stream) {
    arrive(false, index, gradient, stream);
  }

  private void arrive(boolean unused, int index, Tensor gradient, long stream) {
    String method = unused ? "Reducer.unused" : "Reducer.ready";
    Param param = Param.at(method, params, index);
    refuseArray(method, "gradient", gradient);
    gradient.checkWritable(method, "gradient");
    param.checkFits(method, "gradient", gradient);
    hold();
    try {
      gradient.acquire();
      try {
        arrive(unused, index, gradient.place(), stream);
      } finally {
        retained.addGradient(gradient); // also after a failure: dt may have taken the address
      }
    } finally {
      letGo();
    }
  }

  private void arrive(boolean unused, int index, long gradient, long stream) {
    hold();
    try {
      run( // which may wait: the hook for other ranks, and a bucket for memory
          number -> {
            if (unused) {
              Raw.reducer_unused(number, index, gradient, stream);
            } else {
              Raw.reducer_ready(number, index, gradient, stream);
            }
          });
    } catch (DtException | ClosedException e) {
      throw HookCalls.of(retained.hook(), e);
    } finally {
      letGo();
    }
  }

  /**
   * Has {@link #finish()} compare a parameter itself between ranks, as often as the setting
   * reducer.check_steps says (by default never): a {@link MismatchException} on all ranks names the
   * parameter and the ranks that have diverged.
   *
   * @param index of the parameter
   * @param parameter kept; null: no longer; no array
   */
  public void watch(int index, Tensor parameter) {
    Param.at("Reducer.watch", params, index);
    if (parameter != null) refuseArray("Reducer.watch", "parameter", parameter);
    hold();
    try {
      if (parameter != null) parameter.acquire();
      Tensor old = parameter;
      try {
        long address = parameter == null ? 0 : parameter.place();
        long bytes = parameter == null ? 0 : parameter.bytes();
        run(number -> Raw.reducer_watch(number, index, address, bytes));
        old = retained.watch(index, parameter);
      } finally {
        Tensor.release(old);
      }
    } finally {
      letGo();
    }
  }

  private static void refuseArray(String method, String name, Tensor tensor) {
    if (!Checks.notNull(method, name, tensor).onHeap()) return;
    throw Checks.refused(method, name, "is an array on the heap", "give a direct buffer");
  }

  /** Ends the step: waits until every bucket is reduced. Collective. */
  public void finish() {
    finish(0);
  }

  /**
   * Ends the step, on a GPU by making a stream wait.
   *
   * @param stream CUDA stream that will use the gradients; ignored on a host communicator
   */
  public void finish(long stream) {
    try {
      useFor(
          number -> {
            Raw.reducer_finish(number, stream);
            retained.releaseGradients(); // not after a failure: the step may be open still
          });
    } catch (DtException e) {
      throw HookCalls.of(retained.hook(), e);
    }
  }

  /**
   * Scales the last step's gradients so that their norm over all parameters is at most a limit.
   * Where the norm is not finite nothing is scaled. Collective only for a shard; each rank gets the
   * same bits.
   *
   * @param maxNorm the limit
   * @return the norm of before
   */
  public double clipNorm(double maxNorm) {
    return clipNorm(maxNorm, 2);
  }

  /**
   * As {@link #clipNorm(double)} with another norm.
   *
   * @param maxNorm the limit
   * @param normType at least 1; infinity for the largest
   * @return the norm of before
   */
  public double clipNorm(double maxNorm, double normType) {
    return use(number -> Raw.reducer_clip_norm(number, maxNorm, normType, 0, 0));
  }

  /**
   * As {@link #clipNorm(double)} over GPUs, where nothing waits for the norm.
   *
   * @param maxNorm the limit
   * @param norm one F32 of the GPU, which receives the norm of before
   * @param stream CUDA stream behind that of finish
   */
  public void clipNorm(double maxNorm, Tensor norm, long stream) {
    clipNorm(maxNorm, 2, norm, stream);
  }

  /**
   * As {@link #clipNorm(double, Tensor, long)} with another norm.
   *
   * @param maxNorm the limit
   * @param normType at least 1; infinity for the largest
   * @param norm one F32 of the GPU, which receives the norm of before
   * @param stream CUDA stream behind that of finish
   */
  public void clipNorm(double maxNorm, double normType, Tensor norm, long stream) {
    String method = "Reducer.clipNorm";
    refuseArray(method, "norm", norm);
    norm.checkWritable(method, "norm");
    if (norm.count() < 1 || norm.type() != DataType.F32) {
      throw Checks.refused(
          method, "norm", "has " + norm.count() + " elements of " + norm.type(), "give one of F32");
    }
    useFor(
        number ->
            norm.use(() -> Raw.reducer_clip_norm(number, maxNorm, normType, norm.place(), stream)));
  }

  /**
   * Re-plans the buckets by the order in which gradients arrived in the last step, for users of
   * {@link #gradient}, between steps. Collective. The buckets of a shard stay as they are.
   *
   * @return true: take all buffers and addresses of {@link #gradient} anew
   */
  public boolean rebuild() {
    try {
      long begin = Long.MAX_VALUE;
      long end = 0;
      // A shard's buckets never move; from stage 2 on asking for places would lend memory to each.
      for (int i = 0; !ofShard && leases.any() && i < params.size(); i++) {
        if (rowWidth(i) > 0) continue; // no place in a bucket: dt would refuse this rank alone
        long address = Raw.reducer_grad(number(), i, 0);
        begin = Math.min(begin, address);
        end = Math.max(end, address + params.get(i).bytes());
      }
      boolean changed = call(Raw::reducer_rebuild);
      if (changed) {
        if (begin < end) leases.outlive(begin, end - begin);
        leases = new Leases();
      }
      return changed;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * By which the plan in use was made, for {@link ReducerOptions#withOrder} of a later run.
   *
   * @return the parameters' indices
   */
  public int[] order() {
    ByteBuffer packed =
        Packing.read(call(number -> Raw.reducer_order(number, params.size())));
    int[] order = new int[params.size()];
    for (int i = 0; i < order.length; i++) order[i] = (int) packed.getLong();
    return order;
  }

  /**
   * In which bucket a parameter lies.
   *
   * @param index of the parameter
   * @return in the order of their launch
   */
  public int bucket(int index) {
    return call(number -> Raw.reducer_bucket(number, index));
  }

  /**
   * What the reducer did so far.
   *
   * @return a copy
   */
  public ReducerStatistics statistics() {
    return call(number -> ReducerStatistics.unpack(Raw.reducer_stats(number)));
  }

  /** Buffers over the memory of one plan. */
  private static final class Leases {
    private int count;
    private long address;
    private long bytes; // of the pages that have taken the memory's place; 0: none

    synchronized boolean any() {
      return count > 0;
    }

    synchronized void add() {
      count++;
    }

    synchronized void remove() {
      if (--count == 0 && bytes > 0) Raw.vacate(address, bytes);
    }

    /** The memory is gone; who still writes to an old buffer must not end the process. */
    synchronized void outlive(long address, long bytes) {
      if (count == 0 || !Raw.occupy(address, bytes)) return;
      this.address = address;
      this.bytes = bytes;
    }
  }
}
