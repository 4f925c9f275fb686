// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * The part of a parameter that this rank updates. Its buffers are in native order, and keep the
 * memory of a closed {@link Shard}.
 *
 * @param offset elements from the parameter's start
 * @param count elements; 0: this rank has none of the parameter, and both buffers are empty
 * @param param those of the parameter
 * @param gradient those of the gradient, valid from {@link Reducer#finish()} to the next step; null
 *     before the first
 */
public record Piece(long offset, long count, ByteBuffer param, ByteBuffer gradient) {}
