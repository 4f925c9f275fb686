// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * Where a rank stands.
 *
 * @param rank in [0, worldSize)
 * @param worldSize number of ranks
 * @param localRank index on this host
 * @param localSize ranks on this host
 * @param nodeRank index of this host
 * @param nodeCount hosts of the job
 * @param attempt how often the job was started before
 * @param masterPort where the store is served; 0 at world size 1
 * @param masterAddr likewise; empty at world size 1
 * @param jobId equal on all ranks
 * @param host this host's name
 * @param launcher who started the process: "dt run", "slurm", "single", ...
 */
public record Place(
    int rank, int worldSize, int localRank, int localSize, int nodeRank, int nodeCount,
    int attempt, int masterPort, String masterAddr, String jobId, String host, String launcher) {

  static Place unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    int[] n = new int[8];
    for (int i = 0; i < n.length; i++) n[i] = (int) packed.getLong();
    return new Place(
        n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], Packing.text(packed),
        Packing.text(packed), Packing.text(packed), Packing.text(packed));
  }
}
