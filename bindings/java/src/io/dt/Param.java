// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * One parameter of a model, as a {@link Reducer} knows it.
 *
 * @param name for messages; may be empty
 * @param count elements
 * @param type of its gradient
 */
public record Param(String name, long count, DataType type) {}
