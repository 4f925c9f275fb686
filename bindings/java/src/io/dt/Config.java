// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.file.Path;

/**
 * Settings of a job before it starts: the environment, the files dt.toml and the defaults, read
 * once when it is made. Any thread may use it.
 */
public final class Config extends Handle {
  /** Reads all sources. */
  public Config() {
    this(create(null));
  }

  /**
   * Reads this file instead of ./dt.toml.
   *
   * @param file in TOML
   */
  public Config(Path file) {
    this(create(file.toString()));
  }

  private Config(long number) {
    super(number, Raw::config_destroy);
  }

  private static long create(String file) {
    Loader.load();
    return Raw.config_create(file == null ? null : Checks.text("dt_config_create", "path", file));
  }

  /**
   * Sets one key; this wins over every other source.
   *
   * @param key "reducer.bucket_cap_bytes", for example
   * @param value as it would be written in an environment variable
   * @return this
   */
  public Config set(String key, String value) {
    try {
      Raw.config_set(
          number(), Checks.text("dt_config_set", "key", key),
          Checks.text("dt_config_set", "value", value));
    } finally {
      Reference.reachabilityFence(this);
    }
    return this;
  }

  /**
   * Reads one key's merged value.
   *
   * @param key as in {@link #set}
   * @return as text
   */
  public String get(String key) {
    try {
      return Raw.config_get(number(), Checks.text("dt_config_get", "key", key));
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Every key with its value and where it came from.
   *
   * @return JSON: {key: {"value":, "source":}}
   */
  public String dump() {
    try {
      return Raw.config_dump(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Sends the log messages of jobs made from this config to a sink instead of stderr. The sink is
   * kept for good.
   *
   * @param sink null: stderr again
   * @return this
   */
  public Config setLogSink(LogSink sink) {
    try {
      Raw.config_set_log_sink(number(), sink == null ? null : LogRelay.keep(sink));
    } finally {
      Reference.reachabilityFence(this);
    }
    return this;
  }
}
