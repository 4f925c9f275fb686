// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * One parameter of a model, as a {@link Reducer} knows it.
 *
 * @param name for messages; may be empty
 * @param count elements
 * @param type of its gradient
 * @param uses calls of {@link Reducer#ready} in a step, each with a part of the gradient
 */
public record Param(String name, long count, DataType type, int uses) {
  /**
   * One whose gradient is ready at once.
   *
   * @param name for messages; may be empty
   * @param count elements
   * @param type of its gradient
   */
  public Param(String name, long count, DataType type) {
    this(name, count, type, 1);
  }
}
