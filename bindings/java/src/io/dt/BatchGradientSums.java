// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * What the gradient of a normalised batch needs of all ranks.
 *
 * @param sum of each channel's gradient
 * @param product of each channel's gradient times the normalised input
 */
public record BatchGradientSums(double[] sum, double[] product) {}
