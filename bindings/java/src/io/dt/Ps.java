// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;

/**
 * A worker's connection to the parameter servers of its job, or an evaluator's. Any thread, but clock one at a time.
 *
 * <pre>{@code
 * try (Ps ps = new Ps(null, PsOptions.DEFAULT)) {
 *   PsVariable weight = ps.variable("w", 1000, 64, new PsSpec(PsOptimizer.ADAGRAD, 0.1));
 *   weight.pull(Tensor.of(values), rows);
 *   weight.push(Tensor.of(gradients), rows);
 *   ps.leave();
 * }
 * }</pre>
 *
 * <p>Without {@link #leave} the servers take this worker for lost. Closing it ends what is under way
 * with {@link AbortedException}.
 */
public final class Ps extends Handle {
  final Outstanding outstanding = new Outstanding();
  /** Whether the poller has the eventfd. */
  private volatile boolean watched;

  /**
   * Connects to all servers.
   *
   * @param config ps.servers, job.id; null: those around the process
   * @param options as {@link PsOptions#DEFAULT}
   */
  public Ps(Config config, PsOptions options) {
    super(connect(config, options), Raw::ps_destroy);
  }

  private static long connect(Config config, PsOptions options) {
    Loader.load();
    Checks.notNull("Ps", "options", options);
    try {
      return Waiting.call(
          settings ->
              Raw.ps_connect(
                  settings, options.worker(), options.connectMs(), options.timeoutMs(),
                  options.queueBytes()),
          config == null ? 0 : config.number());
    } finally {
      Reference.reachabilityFence(config);
    }
  }

  /**
   * What this process is in a job with parameter servers: a program that is all of them makes a
   * {@link PsServer} or a Ps by it.
   *
   * @param config as in {@link #Ps}
   * @return said by dt run --servers N, by TF_CONFIG, or by ps.servers, ps.index and ps.workers
   */
  public static PsPlace info(Config config) {
    Loader.load();
    try {
      return PsPlace.unpack(Raw.ps_info(config == null ? 0 : config.number()));
    } finally {
      Reference.reachabilityFence(config);
    }
  }

  /**
   * Makes a variable, or finds the one that another worker has made of the same.
   *
   * @param name of 1 byte or more
   * @param rows at least 1
   * @param columns at least 1
   * @param spec how it begins and is updated
   * @return a view of it
   */
  public PsVariable variable(String name, long rows, int columns, PsSpec spec) {
    String text = Checks.text("Ps.variable", "name", name);
    byte[] packed = Checks.notNull("Ps.variable", "spec", spec).pack();
    int number = call(ps -> Raw.ps_variable(ps, text, rows, columns, packed));
    return new PsVariable(this, number, name, rows, columns);
  }

  /**
   * Ends a step of this worker. Returns once no worker that is connected is more than {@code ahead}
   * steps behind; then a pull sees all that they pushed up to that step.
   *
   * @param ahead 0: steps are in step; -1: counts the step and does not wait
   */
  public void clock(long ahead) {
    run(ps -> Raw.ps_clock(ps, ahead));
  }

  /** Makes every server write a checkpoint, and waits for that. */
  public void save() {
    run(Raw::ps_save);
  }

  /**
   * Says goodbye to the servers, behind all that is under way. They end when all workers have. A
   * second call does nothing.
   */
  public void leave() {
    run(Raw::ps_leave);
  }

  /**
   * What this worker did so far.
   *
   * @return a copy
   */
  public PsStatistics statistics() {
    return PsStatistics.unpack(call(Raw::ps_stats));
  }

  /**
   * An eventfd that is readable when works have ended since it was last read.
   *
   * @return this one's own: do not close it
   */
  public int workFd() {
    return call(Raw::ps_fd);
  }

  void watch() {
    if (watched) return;
    try {
      CompletionPoller.watch(workFd());
    } catch (RuntimeException e) {
      number(); // throws where another thread has closed this meanwhile, and its eventfd with it
      throw e;
    }
    watched = true;
  }
}
