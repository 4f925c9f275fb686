// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * Mean and variance of each channel over the batches of all ranks.
 *
 * @param mean one for each channel
 * @param variance likewise, without Bessel's correction
 * @param count elements of each channel
 */
public record BatchMoments(double[] mean, double[] variance, long count) {}
