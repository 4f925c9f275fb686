// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;

/**
 * Averages (or sums) gradients in buckets while the backward pass runs. Each step: {@code ready}
 * for each parameter as its gradient is complete, then {@link #finish()}.
 *
 * <p>A gradient is written where {@link #gradient} says, without a copy, or given to
 * {@link #ready(int, Buffer)}, which copies it in; finish copies the mean back.
 *
 * <p>{@code ready} may be called by any thread, but not while finish or rebuild runs; the other
 * methods by one thread at a time.
 */
public final class Reducer extends Handle {
  private final List<Param> params;
  /** Gradients that finish() writes; kept until one has returned. */
  private final Object[] borrowed;
  /** Parameters that finish() reads. */
  private final Object[] watched;

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
    super(create(comm, params, options), Raw::reducer_destroy);
    this.params = List.copyOf(params);
    borrowed = new Object[params.size()];
    watched = new Object[params.size()];
  }

  private static long create(Comm comm, List<Param> params, ReducerOptions options) {
    Packing packing = new Packing();
    for (Param each : params) {
      packing.add(each.count()).add(each.dtype().number());
      packing.add(Checks.text("dt_reducer_create", "a parameter's name", each.name()));
    }
    try {
      return Raw.reducer_create(
          comm.number(), packing.take(), options.sum(), options.keepPlan(),
          options.bucketCapBytes(), options.firstBucketBytes());
    } finally {
      Reference.reachabilityFence(comm);
    }
  }

  /**
   * Memory where a gradient is to be written, in its bucket, in native order. After
   * {@link #rebuild()} has returned true take it anew: what an old buffer holds is no gradient any
   * more. It keeps a closed reducer's memory.
   *
   * @param index of the parameter
   * @return a buffer with its own position and limit
   */
  public ByteBuffer gradient(int index) {
    long address = gradientAddress(index);
    Param param = params.get(index);
    int bytes = Foreign.size("Reducer.gradient", param.count() * param.dtype().bytes());
    State state = state();
    Leases from = leases;
    if (!state.retain()) throw DtException.invalidArgument("dt_reducer_grad: reducer is closed");
    ByteBuffer root = Foreign.buffer(address, bytes);
    if (root == null) {
      state.release();
      throw Foreign.onDevice("Reducer.gradient");
    }
    from.add();
    CLEANER.register(
        root,
        () -> {
          from.remove();
          state.release();
        });
    return root.duplicate().order(root.order()); // which keeps the root reachable
  }

  /**
   * As {@link #gradient}, for libraries that take addresses.
   *
   * @param index of the parameter
   * @return aligned to 256 bytes; valid until {@link #rebuild()} returns true or this is closed
   */
  public long gradientAddress(int index) {
    try {
      return Raw.reducer_grad(number(), index);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Says that a gradient is complete, and was written where {@link #gradient} said.
   *
   * @param index of the parameter; once per step
   */
  public void ready(int index) {
    ready(index, 0, 0);
  }

  /**
   * Says that a gradient is complete. It is kept, and belongs to dt, until {@link #finish()}
   * has returned normally.
   *
   * @param index of the parameter; once per step
   * @param gradient direct, as long as the parameter; finish writes the result into it
   */
  public void ready(int index, Buffer gradient) {
    if (index < 0 || index >= borrowed.length) {
      ready(index, 0, 0); // dt says what is wrong
      return;
    }
    Param param = params.get(index);
    long count = Buffers.writableCount("ready", "gradient", gradient, param.dtype());
    Buffers.wanted("ready", "gradient", count, param.count());
    ready(index, Buffers.address(gradient), 0);
    borrowed[index] = gradient;
    Reference.reachabilityFence(gradient);
  }

  /**
   * As {@link #ready(int, Buffer)} for memory by its address, also a GPU's.
   *
   * @param index of the parameter; once per step
   * @param gradient the caller's to keep until {@link #finish()}; 0: written in place
   * @param stream CUDA stream that produces it; ignored on a host communicator
   */
  public void ready(int index, long gradient, long stream) {
    try {
      Raw.reducer_ready(number(), index, gradient, stream);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Has {@link #finish()} compare a parameter itself between ranks, as often as the setting
   * reducer.check_steps says (by default never): a {@link MismatchException} on all ranks names the
   * parameter and the ranks that have diverged.
   *
   * @param index of the parameter
   * @param parameter direct; its elements between position and limit; kept; null: no longer
   */
  public void watch(int index, Buffer parameter) {
    if (parameter == null) {
      watch(index, 0, 0);
    } else {
      long bytes = Buffers.bytes("watch", "parameter", parameter);
      watch(index, Buffers.address(parameter), bytes);
    }
    watched[index] = parameter;
  }

  /**
   * As {@link #watch(int, Buffer)} for memory by its address, also a GPU's.
   *
   * @param index of the parameter
   * @param parameter the caller's to keep; 0: no longer
   * @param bytes at least 0
   */
  public void watch(int index, long parameter, long bytes) {
    try {
      Raw.reducer_watch(number(), index, parameter, bytes);
    } finally {
      Reference.reachabilityFence(this);
    }
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
      Raw.reducer_finish(number(), stream);
      Arrays.fill(borrowed, null); // a refused call may leave the step open, and dt uses them on
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Re-plans the buckets by the order in which gradients arrived in the last step, for users of
   * {@link #gradient}, between steps. Collective.
   *
   * @return true: take all buffers and addresses of {@link #gradient} anew
   */
  public boolean rebuild() {
    try {
      long begin = Long.MAX_VALUE;
      long end = 0;
      for (int i = 0; leases.any() && i < params.size(); i++) {
        long address = Raw.reducer_grad(number(), i);
        begin = Math.min(begin, address);
        end = Math.max(end, address + params.get(i).count() * params.get(i).dtype().bytes());
      }
      boolean changed = Raw.reducer_rebuild(number());
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
   * In which bucket a parameter lies.
   *
   * @param index of the parameter
   * @return in the order of their launch
   */
  public int bucket(int index) {
    try {
      return Raw.reducer_bucket(number(), index);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * What the reducer did so far.
   *
   * @return a copy
   */
  public ReducerStatistics statistics() {
    try {
      return ReducerStatistics.unpack(Raw.reducer_stats(number()));
    } finally {
      Reference.reachabilityFence(this);
    }
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
