// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * A parameter of an {@link Outer}, or this rank's piece of one.
 *
 * @param name for messages and files; may be empty
 * @param data of F32, F16 or BF16 in host memory; no array
 */
public record OuterParam(String name, Tensor data) {}
