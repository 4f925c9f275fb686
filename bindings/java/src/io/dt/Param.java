// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.List;

/**
 * One parameter of a model, as a {@link Reducer} or a {@link Shard} knows it.
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

  /** In the order of Raw.reducer_create. */
  static void pack(String method, Packing packing, List<Param> params) {
    for (Param each : Checks.notNull(method, "params", params)) {
      Checks.notNull(method, "a parameter", each);
      packing.add(each.count).add(Checks.notNull(method, "type", each.type).number());
      packing.add(each.uses);
      packing.add(Checks.text(method, "a parameter's name", each.name));
    }
  }

  static Param at(String method, List<Param> params, int index) {
    if (index >= 0 && index < params.size()) return params.get(index);
    throw Checks.refused(
        method, "index", "is " + index + ", but there are " + params.size() + " parameters",
        "give one of 0 to " + (params.size() - 1));
  }

  long bytes() {
    return count * type.bytes();
  }

  void checkFits(String method, String name, Tensor tensor) {
    if (tensor.type() == type && tensor.count() == count) return;
    throw Checks.refused(
        method, name,
        "has " + tensor.count() + " elements of " + tensor.type() + ", but the parameter " + count
            + " of " + type,
        "give as many of the same type");
  }
}
