// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * The part of a parameter that this rank updates, by its addresses, as over GPUs.
 *
 * @param offset elements from the parameter's start
 * @param count elements; 0: this rank has none of the parameter, and both addresses are 0
 * @param param where those of the parameter lie
 * @param gradient where those of the gradient lie, valid from {@link Reducer#finish()} to the next
 *     step; 0 before the first
 */
public record PieceAddresses(long offset, long count, long param, long gradient) {}
