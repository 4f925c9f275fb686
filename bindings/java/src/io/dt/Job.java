// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.time.Duration;

/**
 * This process's (or thread's) membership in a distributed run. Any thread may use it.
 *
 * <pre>{@code
 * try (Job job = Job.init(); Comm world = job.world()) {
 *   world.allReduce(gradients, ReduceOp.AVG);
 *   job.leave();
 * }
 * }</pre>
 *
 * <p>Closing it without {@link #leave} is a death to the other ranks, and does not wait for them.
 */
public final class Job extends Handle {
  private final CommState.World world = new CommState.World();

  private Job(long number) {
    super(number, Raw::job_destroy);
  }

  /**
   * Joins the job that started this process, with the settings that stand around it. Returns when
   * all ranks are there. A process that nobody launched becomes rank 0 of 1.
   *
   * @return to be closed
   */
  public static Job init() {
    return init(null);
  }

  /**
   * Joins a job with these settings.
   *
   * @param config null: those around the process
   * @return to be closed
   */
  public static Job init(Config config) {
    Loader.load();
    try {
      return new Job(Waiting.call(Raw::job_init, config == null ? 0 : config.number()));
    } finally {
      Reference.reachabilityFence(config);
    }
  }

  /**
   * Where this rank stands.
   *
   * @return a copy
   */
  public Place place() {
    return call(number -> Place.unpack(Raw.job_place(number)));
  }

  /**
   * The communicator of all ranks. Waits while another thread is in {@link Comm#shrink} of it.
   *
   * @return a new handle of it, to be closed
   */
  public Comm world() {
    return call(world::open);
  }

  /**
   * A communicator of some ranks, which they alone make: the others are not asked. Collective over
   * those ranks.
   *
   * @param ranks in the world, each once; their order is that of the new communicator
   * @param name for messages and traces, the same on all of them; null: none
   * @return to be closed
   */
  public Comm createComm(int[] ranks, String name) {
    Packing members = new Packing();
    for (int rank : Checks.notNull("createComm", "ranks", ranks)) members.add(rank);
    String label = Checks.optionalText("createComm", "name", name);
    return call(
        number -> new Comm(Raw.comm_create(number, members.take(), label), new CommState(), null));
  }

  /**
   * The keys and values that all ranks of the job share.
   *
   * @return a view; there is nothing to close
   */
  public Store store() {
    return new Store(this);
  }

  /**
   * Fails the job on every rank with {@link AbortedException}. Returns at once.
   *
   * @param message why; may be null
   */
  public void abort(String message) {
    String text = Checks.optionalText("Job.abort", "message", message);
    run(number -> Raw.job_abort(number, text));
  }

  /**
   * Writes the last operations of this rank into a file for the command dt trace.
   *
   * @param directory where; null: as trace.dir says
   */
  public void traceDump(String directory) {
    String text = Checks.optionalText("Job.traceDump", "directory", directory);
    run(number -> Raw.job_trace_dump(number, text));
  }

  /**
   * What this rank did so far, on all communicators and in all reducers.
   *
   * @return the counters of this moment
   */
  public JobStatistics statistics() {
    return call(number -> JobStatistics.unpack(Raw.job_stats(number)));
  }

  /**
   * How long calls of this rank were held up by another one.
   *
   * @param rank that one, in the world
   * @return the counters of this moment
   */
  public PeerStatistics peerStatistics(int rank) {
    return call(number -> PeerStatistics.unpack(Raw.job_peer_stats(number, rank)));
  }

  /**
   * This rank will be away on purpose, as for a checkpoint: until {@link #busyEnd} the others wait
   * for it instead of timing out, and its silence is no death.
   *
   * @param what for texts; may be null
   * @param most how long at most
   */
  public void busyBegin(String what, Duration most) {
    String text = Checks.optionalText("Job.busyBegin", "what", what);
    long ms = Checks.milliseconds("Job.busyBegin", most);
    run(number -> Raw.job_busy_begin(number, text, ms));
  }

  /** This rank is back. */
  public void busyEnd() {
    run(Raw::job_busy_end);
  }

  /**
   * A vote of all ranks, as whether a step is kept.
   *
   * @param agreed this rank's vote
   * @return true where every rank says so
   */
  public boolean agree(boolean agreed) {
    return call(number -> Raw.job_agree(number, agreed));
  }

  /** Asks all ranks to stop: their {@link #stopRequested} says so from the next call on. */
  public void requestStop() {
    run(Raw::job_request_stop);
  }

  /**
   * Whether to stop, in the same step on all ranks: a rank called {@link #requestStop}, or dt run
   * was told to stop. All ranks call it in the same order as operations of the world communicator.
   *
   * @return whether to stop
   */
  public boolean stopRequested() {
    return call(Raw::job_stop_requested);
  }

  /** Leaves the job together with the others, waiting as long as the settings say. */
  public void leave() {
    leave(Duration.ofMillis(-1));
  }

  /**
   * Leaves the job together: returns when every rank has called it. Afterwards calls
   * on the job and its communicators are refused. The job has ended also if this throws.
   *
   * @param timeout how long to wait for the others; negative: as the settings say
   */
  public void leave(Duration timeout) {
    long ms = Checks.milliseconds("Job.leave", timeout);
    run(number -> Raw.job_finalize(number, ms));
  }
}
