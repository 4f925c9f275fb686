// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.Consumer;

/** How a reducer works. Each {@code with} gives a changed copy. */
public final class ReducerOptions implements Cloneable {
  /** The defaults. */
  public static final ReducerOptions DEFAULT = new ReducerOptions();

  private boolean sum;
  private boolean keepPlan;
  private boolean findUnused;
  private boolean staticGraph;
  private int tuneSteps;
  private boolean divideByUsers;
  private long bucketCapBytes;
  private long firstBucketBytes;
  private Wire wire = Wire.SAME;
  private double predivide;
  private int[] order = {};
  private long[] rowElements = {};
  private List<Tensor> gradients = List.of();

  private ReducerOptions() {}

  private ReducerOptions with(Consumer<ReducerOptions> change) {
    try {
      ReducerOptions copy = (ReducerOptions) clone();
      change.accept(copy);
      return copy;
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  long[] rowElements() {
    return rowElements;
  }

  List<Tensor> gradients() {
    return gradients;
  }

  /** In the order of Raw.reducer_create. */
  void pack(Packing packing) {
    packing.add(sum ? 1 : 0).add(keepPlan ? 1 : 0).add(findUnused ? 1 : 0);
    packing.add(bucketCapBytes).add(firstBucketBytes).add(divideByUsers ? 1 : 0);
    packing.add(wire.ordinal()).add(predivide).add(staticGraph ? 1 : 0).add(tuneSteps);
    packing.add(order.length);
    for (int each : order) packing.add(each);
    packing.add(rowElements.length);
    for (long each : rowElements) packing.add(each);
    packing.add(gradients.size());
    for (Tensor each : gradients) packing.add(each == null ? 0 : each.place());
  }

  /**
   * With other caps of buckets; 0: as the settings say.
   *
   * @param cap of each, in bytes
   * @param first of the first of each dtype, in bytes
   * @return a changed copy
   */
  public ReducerOptions withBucketBytes(long cap, long first) {
    return with(
        options -> {
          options.bucketCapBytes = cap;
          options.firstBucketBytes = first;
        });
  }

  /**
   * With a tuned cap: a quarter, a sixteenth and four times of the one asked for are used for so many
   * steps each, and the fastest stays. After {@link Reducer#gradient} each change waits for {@link
   * Reducer#rebuild}.
   *
   * @param steps with each cap, more than 2; 0: it is not tuned
   * @return a changed copy
   */
  public ReducerOptions withTuneSteps(int steps) {
    return with(options -> options.tuneSteps = steps);
  }

  /**
   * With sums instead of means.
   *
   * @return a changed copy
   */
  public ReducerOptions withSum() {
    return with(options -> options.sum = true);
  }

  /**
   * With the first plan for good: never rebuilt by arrival order.
   *
   * @return a changed copy
   */
  public ReducerOptions withKeptPlan() {
    return with(options -> options.keepPlan = true);
  }

  /**
   * For models some of whose parameters have no gradient in a step, see {@link Reducer#unused}.
   *
   * @return a changed copy
   */
  public ReducerOptions withUnused() {
    return with(options -> options.findUnused = true);
  }

  /**
   * For models whose steps all have the gradients of step 1, each of them in as many parts: those and
   * the parameters that a rank never uses are learned there.
   *
   * @return a changed copy
   */
  public ReducerOptions withStaticGraph() {
    return with(options -> options.staticGraph = true);
  }

  /**
   * With means over the ranks that had a gradient; as {@link #withUnused} unless {@link
   * #withStaticGraph} was asked for.
   *
   * @return a changed copy
   */
  public ReducerOptions withUsersOnly() {
    return (staticGraph ? this : withUnused()).with(options -> options.divideByUsers = true);
  }

  /**
   * With another dtype on the way.
   *
   * @param wire what gradients of F32 travel as
   * @return a changed copy
   */
  public ReducerOptions withWire(Wire wire) {
    Checks.notNull("ReducerOptions.withWire", "wire", wire);
    return with(options -> options.wire = wire);
  }

  /**
   * With a division before the sum, and the rest of the mean's after it.
   *
   * @param predivide positive; 0: averaged as an allReduce does
   * @return a changed copy
   */
  public ReducerOptions withPredivide(double predivide) {
    return with(options -> options.predivide = predivide);
  }

  /**
   * For parameters of whose gradient a step has some rows only, see {@link Reducer#readyRows}.
   *
   * @param rowElements for each parameter how many elements a row has; 0: it is dense
   * @return a changed copy
   */
  public ReducerOptions withRowElements(long[] rowElements) {
    long[] own =
        Checks.notNull("ReducerOptions.withRowElements", "rowElements", rowElements).clone();
    return with(options -> options.rowElements = own);
  }

  /**
   * For gradients that lie in memory of your own, in which they are reduced, without a copy: {@link
   * Reducer#gradient} gives that. Neighbours in one buffer, such as slices of a flat one, share
   * buckets. The reducer keeps them until it is closed.
   *
   * @param gradients for each parameter a direct buffer, or memory of {@link Comm#allocate}; null:
   *     it has no elements, or comes as rows
   * @return a changed copy
   */
  public ReducerOptions withGradients(List<Tensor> gradients) {
    List<Tensor> own =
        Collections.unmodifiableList(
            new ArrayList<>(
                Checks.notNull("ReducerOptions.withGradients", "gradients", gradients)));
    return with(options -> options.gradients = own);
  }

  /**
   * With the plan of an earlier run, which stays.
   *
   * @param order of {@link Reducer#order}
   * @return a changed copy
   */
  public ReducerOptions withOrder(int[] order) {
    int[] own = Checks.notNull("ReducerOptions.withOrder", "order", order).clone();
    return with(options -> options.order = own);
  }
}
