// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;

/**
 * A store served by this process, for a job whose ranks are threads of it or are started by it.
 * They get job.master_addr, job.master_port and job.store_served = true.
 */
public final class StoreServer extends Handle {
  /**
   * Serves a store.
   *
   * @param config job.id, job.world_size, store.bind, job.master_port (0: any); null: those around
   *     the process
   */
  public StoreServer(Config config) {
    super(serve(config), Raw::store_server_destroy);
  }

  private static long serve(Config config) {
    Loader.load();
    try {
      return Raw.store_serve(config == null ? 0 : config.number());
    } finally {
      Reference.reachabilityFence(config);
    }
  }

  /**
   * Where it listens.
   *
   * @return in [1, 65535]
   */
  public int port() {
    return call(Raw::store_server_port);
  }
}
