// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * Where a job is in its epoch: what a checkpoint holds. It does not depend on the number of ranks.
 *
 * @param epoch at least 0
 * @param consumed samples of the epoch's order that all ranks together have taken
 * @param size samples of the data set
 * @param order tells another seed, order or weights apart
 */
public record SamplerState(long epoch, long consumed, long size, long order) {}
