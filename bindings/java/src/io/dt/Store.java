// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Keys and values that all ranks of a job share. A key has 1 to 1024 bytes of UTF-8, a value up to
 * 16 MiB. A call that waits throws {@link DtTimeoutException} when the time is over. Any thread may
 * use it; it keeps its job reachable.
 */
public final class Store {
  private final Job job;
  private final long timeoutMs;

  Store(Job job) {
    this(job, -1);
  }

  private Store(Job job, long timeoutMs) {
    this.job = job;
    this.timeoutMs = timeoutMs;
  }

  /**
   * The same store with another limit for each call.
   *
   * @param timeout negative: rendezvous.timeout_ms, as at first
   * @return another view
   */
  public Store withTimeout(Duration timeout) {
    return new Store(job, Checks.milliseconds("Store.withTimeout", timeout));
  }

  /**
   * Sets a key, replacing its value.
   *
   * @param key of the value
   * @param value any bytes
   */
  public void set(String key, byte[] value) {
    job.run(number -> Raw.store_set(number, key("set", key), value("set", value), timeoutMs));
  }

  /**
   * Waits until a key exists.
   *
   * @param key of the value
   * @return the value
   */
  public byte[] get(String key) {
    return job.call(number -> Raw.store_get(number, key("get", key), timeoutMs));
  }

  /**
   * Adds to a number kept as decimal text; an absent key counts as 0.
   *
   * @param key of the number
   * @param delta may be negative
   * @return the number afterwards
   */
  public long add(String key, long delta) {
    return job.call(number -> Raw.store_add(number, key("add", key), delta, timeoutMs));
  }

  /**
   * Waits until all keys exist.
   *
   * @param keys 1 to 65536
   */
  public void await(List<String> keys) {
    job.run(number -> Raw.store_wait(number, packed("await", keys), timeoutMs));
  }

  /**
   * Sets a key only if its value is the expected one.
   *
   * @param key of the value
   * @param expected null: the key must be absent
   * @param desired the new value
   * @return whether it was set
   */
  public boolean compareSet(String key, byte[] expected, byte[] desired) {
    String name = key("compareSet", key);
    byte[] both = new Packing().add(expected).add(value("compareSet", desired)).take();
    return job.call(number -> Raw.store_compare_set(number, name, both, timeoutMs));
  }

  /**
   * Removes a key.
   *
   * @param key of the value
   * @return whether it existed
   */
  public boolean delete(String key) {
    return job.call(number -> Raw.store_delete(number, key("delete", key), timeoutMs));
  }

  /**
   * The keys that begin with a prefix.
   *
   * @param prefix may be empty
   * @return in the order of their bytes
   */
  public List<String> list(String prefix) {
    String text = Checks.text("Store.list", "prefix", prefix);
    byte[] packed = job.call(number -> Raw.store_list(number, text, timeoutMs));
    List<String> keys = new ArrayList<>();
    int from = 0;
    for (int i = 0; i < packed.length; i++) {
      if (packed[i] != 0) continue;
      keys.add(new String(packed, from, i - from, StandardCharsets.UTF_8));
      from = i + 1;
    }
    return keys;
  }

  /**
   * Sets several keys at once: others see all of them or none.
   *
   * @param values 1 to 65536
   */
  public void multiSet(Map<String, byte[]> values) {
    Packing packing = new Packing();
    Checks.notNull("Store.multiSet", "values", values).forEach(
        (key, value) -> packing.add(key("multiSet", key)).add(value("multiSet", value)));
    job.run(number -> Raw.store_multi_set(number, packing.take(), timeoutMs));
  }

  /**
   * Reads several keys at once, without waiting for absent ones.
   *
   * @param keys 1 to 65536
   * @return their values in that order, null for an absent key
   */
  public List<byte[]> multiGet(List<String> keys) {
    byte[] wanted = packed("multiGet", keys);
    var packed =
        Packing.read(job.call(number -> Raw.store_multi_get(number, wanted, timeoutMs)));
    List<byte[]> values = new ArrayList<>();
    while (packed.hasRemaining()) values.add(Packing.item(packed));
    return values;
  }

  /**
   * Returns when as many callers have reached the barrier of this name. Needs no communicator.
   *
   * @param name as a key
   * @param count callers; 0: the world size
   */
  public void barrier(String name, int count) {
    String text = Checks.text("Store.barrier", "name", name);
    job.run(number -> Raw.store_barrier(number, text, count, timeoutMs));
  }

  private static String key(String method, String key) {
    return Checks.text("Store." + method, "key", key);
  }

  private static byte[] value(String method, byte[] value) {
    return Checks.notNull("Store." + method, "value", value);
  }

  private static byte[] packed(String method, List<String> keys) {
    Packing packing = new Packing();
    for (String each : Checks.notNull("Store." + method, "keys", keys)) {
      packing.add(key(method, each));
    }
    return packing.take();
  }
}
