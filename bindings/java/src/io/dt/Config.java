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
    this(create(Checks.notNull("Config", "file", file).toString()));
  }

  private Config(long number) {
    super(number, Raw::config_destroy);
  }

  private static long create(String file) {
    Loader.load();
    return Raw.config_create(Checks.optionalText("Config", "file", file));
  }

  /**
   * Sets one key; this wins over every other source.
   *
   * @param key "reducer.bucket_cap_bytes", for example
   * @param value as it would be written in an environment variable
   * @return this
   */
  public Config set(String key, String value) {
    String keyText = Checks.text("Config.set", "key", key);
    String valueText = Checks.text("Config.set", "value", value);
    run(number -> Raw.config_set(number, keyText, valueText));
    return this;
  }

  /**
   * Reads one key's merged value.
   *
   * @param key as in {@link #set}
   * @return as text
   */
  public String get(String key) {
    String text = Checks.text("Config.get", "key", key);
    return call(number -> Raw.config_get(number, text));
  }

  /**
   * Every key with its value and where it came from.
   *
   * @return JSON: {key: {"value":, "source":}}
   */
  public String dump() {
    return call(Raw::config_dump);
  }

  /**
   * Sends the log messages of jobs made from this config to a sink instead of stderr. The sink is
   * kept for good.
   *
   * @param sink null: stderr again
   * @return this
   */
  public Config setLogSink(LogSink sink) {
    run(number -> Raw.config_set_log_sink(number, sink == null ? null : LogRelay.keep(sink)));
    return this;
  }
}
