// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.List;
import java.util.stream.LongStream;

/**
 * One parameter of a model, as a {@link Reducer} or a {@link Shard} knows it.
 *
 * @param name for messages; may be empty
 * @param count elements
 * @param type of its gradient
 * @param uses calls of {@link Reducer#ready} in a step, each with a part of the gradient
 * @param shape in the file of {@link Shard#save}; its product is the count; empty: one dimension
 */
public record Param(String name, long count, DataType type, int uses, List<Long> shape) {
  /**
   * One of one dimension.
   *
   * @param name for messages; may be empty
   * @param count elements
   * @param type of its gradient
   * @param uses calls of {@link Reducer#ready} in a step, each with a part of the gradient
   */
  public Param(String name, long count, DataType type, int uses) {
    this(name, count, type, uses, List.of());
  }

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

  /**
   * The same with a shape.
   *
   * @param sizes of the dimensions, whose product is the count
   * @return a new one
   */
  public Param withShape(long... sizes) {
    return new Param(name, count, type, uses, LongStream.of(sizes).boxed().toList());
  }

  /** In the order of Raw.reducer_create. */
  static void pack(String method, Packing packing, List<Param> params) {
    for (Param each : Checks.notNull(method, "params", params)) {
      Checks.notNull(method, "a parameter", each);
      packing.add(each.count).add(Checks.notNull(method, "type", each.type).number());
      packing.add(each.uses);
      packing.add(Checks.notNull(method, "a parameter's shape", each.shape).size());
      for (long size : each.shape) packing.add(size);
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
