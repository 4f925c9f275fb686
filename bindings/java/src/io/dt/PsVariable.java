// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;

/**
 * A matrix of floats on the servers: what {@link Ps#variable} gives.
 *
 * <p>Tensors are of F32 in host memory, rows by columns elements, or as many rows as are named. Rows
 * may be in any order; null: all. A call returns when it is done; its other form, named Async,
 * returns a {@link Work} at once. Pushes of one thread take effect in their order. Any thread.
 */
public final class PsVariable {
  private final Ps ps;
  private final int number;
  private final String name;
  private final long rows;
  private final int columns;

  /** In the order of Raw.ps_rows. */
  private enum Action {
    PUSH, PULL, SET
  }

  PsVariable(Ps ps, int number, String name, long rows, int columns) {
    this.ps = ps;
    this.number = number;
    this.name = name;
    this.rows = rows;
    this.columns = columns;
  }

  /**
   * As all workers call it.
   *
   * @return not empty
   */
  public String name() {
    return name;
  }

  /**
   * How many rows it has.
   *
   * @return at least 1
   */
  public long rows() {
    return rows;
  }

  /**
   * How many columns it has.
   *
   * @return at least 1
   */
  public int columns() {
    return columns;
  }

  /**
   * Gives the servers gradients, with which they update all rows.
   *
   * @param gradients of all rows
   */
  public void push(Tensor gradients) {
    push(gradients, null, -1);
  }

  /**
   * Gives the servers gradients, with which they update rows. Gradients of equal rows are added up;
   * a row without a gradient stays as it is.
   *
   * @param gradients of the rows
   * @param rows null: all
   */
  public void push(Tensor gradients, long[] rows) {
    push(gradients, rows, -1);
  }

  /**
   * As {@link #push(Tensor, long[])}, with a rate of its own.
   *
   * @param gradients of the rows
   * @param rows null: all
   * @param rate of learning; negative: the variable's
   */
  public void push(Tensor gradients, long[] rows, double rate) {
    issue(Action.PUSH, "PsVariable.push", "gradients", gradients, rows, rate, true);
  }

  /**
   * As {@link #push(Tensor, long[], double)}, without waiting.
   *
   * @param gradients copied before it returns, so they may be an array
   * @param rows null: all
   * @param rate of learning; negative: the variable's
   * @return the operation under way
   */
  public Work pushAsync(Tensor gradients, long[] rows, double rate) {
    return start(Action.PUSH, "PsVariable.pushAsync", "gradients", gradients, rows, rate);
  }

  /**
   * Reads all rows, behind this worker's earlier pushes.
   *
   * @param values the result
   */
  public void pull(Tensor values) {
    pull(values, null);
  }

  /**
   * Reads rows, behind this worker's earlier pushes.
   *
   * @param values the result
   * @param rows null: all
   */
  public void pull(Tensor values, long[] rows) {
    issue(Action.PULL, "PsVariable.pull", "values", values, rows, -1, true);
  }

  /**
   * As {@link #pull(Tensor, long[])}, without waiting.
   *
   * @param values the result, no array; dt's until the work is done
   * @param rows null: all
   * @return the operation under way
   */
  public Work pullAsync(Tensor values, long[] rows) {
    return start(Action.PULL, "PsVariable.pullAsync", "values", values, rows, -1);
  }

  /**
   * Writes rows, and leaves what the optimizer keeps of them. Of equal rows the last one counts.
   *
   * @param values of the rows
   * @param rows null: all
   */
  public void set(Tensor values, long[] rows) {
    issue(Action.SET, "PsVariable.set", "values", values, rows, -1, true);
  }

  /**
   * As {@link #set}, without waiting.
   *
   * @param values copied before it returns, so they may be an array
   * @param rows null: all
   * @return the operation under way
   */
  public Work setAsync(Tensor values, long[] rows) {
    return start(Action.SET, "PsVariable.setAsync", "values", values, rows, -1);
  }

  private Work start(
      Action action, String method, String argument, Tensor values, long[] rows, double rate) {
    Tensor kept = action == Action.PULL ? Checks.notNull(method, argument, values) : null;
    if (kept != null && kept.onHeap()) {
      throw Checks.refused(
          method, argument, "is an array, which the garbage collector moves",
          "give a direct buffer");
    }
    Tensor.acquire(kept, null);
    boolean begun = false;
    try {
      ps.watch();
      // Made before the call: once the operation has begun nothing may fail.
      Pending pending = new Pending(null, kept, null, true);
      pending.by = ps;
      Work work = new Work(pending);
      pending.issued(issue(action, method, argument, values, rows, rate, false));
      begun = true;
      ps.outstanding.add(pending);
      return work;
    } finally {
      if (!begun) Tensor.release(kept);
    }
  }

  /** With copies of arrays: see Launcher. Gives a work, unless it waits. */
  private long issue(
      Action action, String method, String argument, Tensor values, long[] rows, double rate,
      boolean waits) {
    boolean onHeap = Checks.notNull(method, argument, values).onHeap();
    if (action == Action.PULL) values.checkWritable(method, argument);
    long rowBytes = rows == null ? 0 : 8L * rows.length;
    long rowCount = rows == null ? -1 : rows.length;
    long copy = 0;
    values.acquire();
    try {
      copy = Raw.copy_allocate(rowBytes + (onHeap ? values.bytes() : 0));
      long rowsAt = copy;
      if (rows != null) Raw.copy_in(rows, 0, rowsAt, rowBytes);
      long place = onHeap ? copy + rowBytes : values.place();
      if (onHeap && action != Action.PULL) values.copyIn(place);
      long work =
          ps.call(
              on -> {
                if (!waits) {
                  return Raw.ps_rows_async(
                      on, number, this.rows, columns, action.ordinal(), rowsAt, rowCount, place,
                      values.count(), values.type().number(), rate);
                }
                Raw.ps_rows(
                    on, number, this.rows, columns, action.ordinal(), rowsAt, rowCount, place,
                    values.count(), values.type().number(), rate);
                return 0L;
              });
      if (onHeap && action == Action.PULL) values.copyOut(place);
      return work;
    } finally {
      Raw.copy_free(copy);
      Tensor.release(values);
      Reference.reachabilityFence(values);
    }
  }

  /** For messages and logs. */
  @Override
  public String toString() {
    return "PsVariable \"" + name + "\" of " + rows + " rows, " + columns + " columns";
  }
}
