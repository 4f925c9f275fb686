// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
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
    return new Store(job, Checks.milliseconds(timeout));
  }

  /**
   * Sets a key, replacing its value.
   *
   * @param key of the value
   * @param value any bytes
   */
  public void set(String key, byte[] value) {
    try {
      Raw.store_set(job.number(), key("set", key), value("set", value), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  /**
   * Waits until a key exists.
   *
   * @param key of the value
   * @return the value
   */
  public byte[] get(String key) {
    try {
      return Raw.store_get(job.number(), key("get", key), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  /**
   * Adds to a number kept as decimal text; an absent key counts as 0.
   *
   * @param key of the number
   * @param delta may be negative
   * @return the number afterwards
   */
  public long add(String key, long delta) {
    try {
      return Raw.store_add(job.number(), key("add", key), delta, timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  /**
   * Waits until all keys exist.
   *
   * @param keys 1 to 65536
   */
  public void await(List<String> keys) {
    try {
      Raw.store_wait(job.number(), packed("wait", keys), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
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
    byte[] both = new Packing().add(expected).add(value("compare_set", desired)).take();
    try {
      return Raw.store_compare_set(job.number(), key("compare_set", key), both, timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  /**
   * Removes a key.
   *
   * @param key of the value
   * @return whether it existed
   */
  public boolean delete(String key) {
    try {
      return Raw.store_delete(job.number(), key("delete", key), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  /**
   * The keys that begin with a prefix.
   *
   * @param prefix may be empty
   * @return in the order of their bytes
   */
  public List<String> list(String prefix) {
    byte[] packed;
    try {
      packed =
          Raw.store_list(
              job.number(), Checks.text("dt_store_list", "prefix", prefix), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
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
    values.forEach(
        (key, value) -> packing.add(key("multi_set", key)).add(value("multi_set", value)));
    try {
      Raw.store_multi_set(job.number(), packing.take(), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  /**
   * Reads several keys at once, without waiting for absent ones.
   *
   * @param keys 1 to 65536
   * @return their values in that order, null for an absent key
   */
  public List<byte[]> multiGet(List<String> keys) {
    byte[] bytes;
    try {
      bytes = Raw.store_multi_get(job.number(), packed("multi_get", keys), timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
    var packed = Packing.read(bytes);
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
    try {
      Raw.store_barrier(
          job.number(), Checks.text("dt_store_barrier", "name", name), count, timeoutMs);
    } finally {
      Reference.reachabilityFence(job);
    }
  }

  private static String key(String function, String key) {
    return Checks.text("dt_store_" + function, "key", key);
  }

  private static byte[] value(String function, byte[] value) {
    if (value != null) return value;
    throw DtException.invalidArgument("dt_store_" + function + ": a value is null; give bytes");
  }

  private static byte[] packed(String function, List<String> keys) {
    Packing packing = new Packing();
    for (String each : keys) packing.add(key(function, each));
    return packing.take();
  }
}
