// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * Takes operations by name, from any thread and in any order, as Horovod does: {@code
 * named.under("layer3.weight").allReduceAsync(gradient)}. An operation runs once every rank has
 * submitted the same under its name, which is free again once the work is done. The time-out limits
 * the wait for the other ranks, and then the operation. After a time-out or the loss of a rank all
 * works end with that error, and so do later calls: make a new one.
 */
public final class Named extends Handle {
  final CommState operations;
  /** The group that this view collects operations for; null outside a group. */
  final Batch batch;
  private final Comm comm;

  /**
   * With the default options. Collective.
   *
   * @param comm over host memory; to be left open as long as operations are submitted
   */
  public Named(Comm comm) {
    this(comm, NamedOptions.DEFAULT);
  }

  /**
   * With options. Collective.
   *
   * @param comm over host memory; to be left open as long as operations are submitted
   * @param options the same on all ranks
   */
  public Named(Comm comm, NamedOptions options) {
    super(create(comm, options), Raw::named_destroy);
    this.comm = comm;
    operations = new CommState();
    batch = null;
  }

  private Named(Named of) {
    super(of);
    comm = of.comm;
    operations = of.operations;
    batch = new Batch();
  }

  private static long create(Comm comm, NamedOptions options) {
    byte[] packed = Checks.notNull("Named", "options", options).pack();
    return Checks.notNull("Named", "comm", comm).call(number -> Raw.named_create(number, packed));
  }

  /**
   * The communicator, whose operations are submitted under a name: allReduce, broadcast, allGather,
   * reduceScatter and allToAll, without blocks and with a {@link ReduceOp}.
   *
   * @param name 1 to 1000 bytes
   * @return a view, as of {@link Comm#named}; everything else of it is as it was
   */
  public Comm under(String name) {
    byte[] text = Checks.text("Named.under", "name", name).getBytes(StandardCharsets.UTF_8);
    number();
    return new Comm(comm, this, 0, comm.launcher.timeoutMs, text);
  }

  /**
   * Submits operations that run together, once all ranks have submitted all of them.
   *
   * @param operations submits to what it is given, by methods that end in Async; what it throws is
   *     thrown here, nothing is submitted then, and the works' futures fail with it
   * @return their works, in the order of the calls
   */
  public List<Work> group(Consumer<Named> operations) {
    number();
    Named part = new Named(this);
    try {
      Checks.notNull("Named.group", "operations", operations).accept(part);
      part.batch.over = true;
      if (!part.batch.works.isEmpty()) {
        byte[] packed = part.batch.packing.take();
        part.batch.issued(call(number -> Raw.named_submit_group(number, packed)));
      }
    } catch (Throwable e) {
      part.batch.fail(e);
      throw e;
    }
    for (Work each : part.batch.works) this.operations.outstanding.add(each.pending());
    return part.batch.works;
  }

  /**
   * For uneven inputs: this rank has no more, and gives zeros to what others submit until all have
   * called this; these may be allReduce of sum, avg, bor and bxor only.
   *
   * @param timeout negative: none
   * @return the rank that joined last; -1 when the time was over first: this rank stays joined, and
   *     may call it again to go on waiting
   */
  public int join(Duration timeout) {
    long ms = Checks.milliseconds("Named.join", timeout);
    return call(number -> Raw.named_join(number, ms));
  }

  /**
   * The names that wait for other ranks, a line each, as rank 0 knows them.
   *
   * @param timeout for the answer of rank 0; negative: none
   * @return empty where none waits
   */
  public String report(Duration timeout) {
    long ms = Checks.milliseconds("Named.report", timeout);
    return call(number -> Raw.named_report(number, ms));
  }

  /**
   * What this rank did by name so far.
   *
   * @return a copy
   */
  public NamedStatistics statistics() {
    return call(number -> NamedStatistics.unpack(Raw.named_stats(number)));
  }

  /** Drops it. What is not carried out yet ends with {@link AbortedException}, on all ranks. */
  @Override
  public void close() {
    super.close();
  }

  void checkWaits(OperationKind kind) {
    if (batch == null) return;
    throw Checks.refused(
        kind.method(), "the call", "waits, but its group is submitted later",
        "call " + kind.method() + "Async");
  }

  /** What a group will submit. */
  static final class Batch {
    final Packing packing = new Packing();
    final List<Work> works = new ArrayList<>();
    private boolean over;

    void add(Work work, byte[] name, long... fields) {
      if (over) throw Checks.refused("Named.group", "the group", "has ended", "begin another one");
      for (long each : fields) packing.add(each);
      packing.add(name);
      works.add(work);
    }

    void issued(byte[] handles) {
      ByteBuffer packed = Packing.read(handles);
      for (Work each : works) each.pending().issued(packed.getLong());
    }

    /** Nothing was submitted. */
    void fail(Throwable cause) {
      over = true;
      for (Work each : works) each.pending().fail(cause);
    }
  }
}
