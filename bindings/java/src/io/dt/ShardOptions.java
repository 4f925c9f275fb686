// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.file.Path;
import java.util.List;

/** What each rank keeps, and how gradients are reduced. Each {@code with} gives a changed copy. */
public final class ShardOptions {
  /** The defaults: stage 1. */
  public static final ShardOptions DEFAULT =
      new ShardOptions(1, 1, 0, ReducerOptions.DEFAULT, new long[0], new int[0], null);

  private final int stage;
  private final int prefetch;
  private final int shardRanks;
  private final ReducerOptions reducer;
  private final long[] granules;
  private final int[] units;
  private final String offload;

  private ShardOptions(
      int stage,
      int prefetch,
      int shardRanks,
      ReducerOptions reducer,
      long[] granules,
      int[] units,
      String offload) {
    this.stage = stage;
    this.prefetch = prefetch;
    this.shardRanks = shardRanks;
    this.reducer = reducer;
    this.granules = granules;
    this.units = units;
    this.offload = offload;
  }

  /** In the order of Raw.shard_create. */
  void pack(String method, Packing packing, List<Param> params) {
    Checks.oneEach(method, "granules", granules.length, params);
    Checks.oneEach(method, "units", units.length, params);
    if (!reducer.gradients().isEmpty()) {
      throw Checks.refused(
          method, "options.reducer", "has gradients of your own",
          "leave them out: a shard's lie where Reducer.gradient says");
    }
    packing.add(stage).add(prefetch).add(shardRanks).add(granules.length);
    for (long each : granules) packing.add(each);
    packing.add(units.length);
    for (int each : units) packing.add(each);
    reducer.pack(packing);
  }

  /** Null: none. */
  String offload() {
    return offload;
  }

  /**
   * With another stage. Results are the same bits on one host.
   *
   * @param stage 0: every rank updates all parameters; 1: each rank updates its own pieces, and
   *     keeps what an optimizer knows of those alone; 2: gradients, too, have memory until they are
   *     reduced only, but for those of its pieces; 3: parameters likewise, from {@link Shard#gather}
   *     to {@link Shard#release}
   * @return a changed copy
   */
  public ShardOptions withStage(int stage) {
    return new ShardOptions(stage, prefetch, shardRanks, reducer, granules, units, offload);
  }

  /**
   * With another number of units that stage 3 gathers ahead, in the order of the step before.
   *
   * @param prefetch at least 0; the default is 1
   * @return a changed copy
   */
  public ShardOptions withPrefetch(int prefetch) {
    return new ShardOptions(stage, prefetch, shardRanks, reducer, granules, units, offload);
  }

  /**
   * With several replicas (HSDP): so many ranks, those of a host, say, have all pieces among them,
   * and the next ones the same again.
   *
   * @param shardRanks a divisor of the communicator's size; 0, the default: all ranks
   * @return a changed copy
   */
  public ShardOptions withShardRanks(int shardRanks) {
    return new ShardOptions(stage, prefetch, shardRanks, reducer, granules, units, offload);
  }

  /**
   * With other options of the gradients' reducer, whose plan stays as it is.
   *
   * @param reducer where the first bucket is like the others
   * @return a changed copy
   */
  public ShardOptions withReducer(ReducerOptions reducer) {
    Checks.notNull("ShardOptions.withReducer", "reducer", reducer);
    return new ShardOptions(stage, prefetch, shardRanks, reducer, granules, units, offload);
  }

  /**
   * With parameters that are cut between rows, say, and not anywhere.
   *
   * @param granules one for each parameter, which is cut at multiples of it only; 0 is 1; none: all
   *     are 1
   * @return a changed copy
   */
  public ShardOptions withGranules(long... granules) {
    long[] own = Checks.notNull("ShardOptions.withGranules", "granules", granules).clone();
    return new ShardOptions(stage, prefetch, shardRanks, reducer, own, units, offload);
  }

  /**
   * With parameters that are gathered together, see {@link Shard#gather}.
   *
   * @param units one for each parameter, at least 0, numbered as the forward pass comes to them;
   *     none: all are 0
   * @return a changed copy
   */
  public ShardOptions withUnits(int... units) {
    int[] own = Checks.notNull("ShardOptions.withUnits", "units", units).clone();
    return new ShardOptions(stage, prefetch, shardRanks, reducer, granules, own, offload);
  }

  /**
   * With optimizers' state, and in stage 3 this rank's pieces of the parameters, in files without a
   * name, which the system writes and reads back as it needs memory. It may differ between ranks.
   * On GPUs the host then updates the pieces, and has them with stage 3, in pinned memory.
   *
   * @param directory on a disk of this host; null: they are in memory
   * @return a changed copy
   */
  public ShardOptions withOffload(Path directory) {
    String path = directory == null ? null : directory.toString();
    return new ShardOptions(stage, prefetch, shardRanks, reducer, granules, units, path);
  }
}
