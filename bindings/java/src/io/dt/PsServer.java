// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.time.Duration;

/** The parameter server that this process is. It serves once this is made: then {@link #await}. */
public final class PsServer extends Handle {
  /**
   * Serves.
   *
   * @param config ps.servers (port 0: any), ps.index, ps.workers, job.id; null: those around the
   *     process
   * @param options as {@link PsServerOptions#DEFAULT}
   */
  public PsServer(Config config, PsServerOptions options) {
    super(serve(config, options), Raw::ps_server_destroy);
  }

  private static long serve(Config config, PsServerOptions options) {
    Loader.load();
    Checks.notNull("PsServer", "options", options);
    String path = options.checkpoint() == null ? null : options.checkpoint().toString();
    try {
      return Raw.ps_serve(
          config == null ? 0 : config.number(), path, options.saveEveryMs(), options.absentMs(),
          options.arrivalMs());
    } finally {
      Reference.reachabilityFence(config);
    }
  }

  /**
   * Where it serves.
   *
   * @return in [1, 65535]
   */
  public int port() {
    return call(Raw::ps_server_port);
  }

  /** Blocks until all workers have left, or were lost for long; the last checkpoint is there. */
  public void await() {
    await(Duration.ofMillis(-1));
  }

  /**
   * The same, or until the time is over.
   *
   * @param timeout negative: no limit
   * @return false when the time was over first
   */
  public boolean await(Duration timeout) {
    long timeoutMs = Checks.milliseconds("PsServer.await", timeout);
    return call(number -> Raw.ps_server_wait(number, timeoutMs));
  }

  /**
   * What it did so far.
   *
   * @return a copy
   */
  public PsServerStatistics statistics() {
    return PsServerStatistics.unpack(call(Raw::ps_server_stats));
  }
}
