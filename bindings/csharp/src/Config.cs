// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>Settings of a job before it starts. Any thread.</summary>
    public sealed class Config : IDisposable
    {
        internal readonly ConfigHandle handle;

        /// <summary>Reads all sources of configuration: environment, dt.toml files,
        /// defaults.</summary>
        public Config() : this(null) { }

        /// <summary>Reads this file instead of ./dt.toml; null: ./dt.toml.</summary>
        public Config(string path)
        {
            Loader.Ensure();
            handle = new ConfigHandle(Raw.Native.config_create(path));
        }

        /// <summary>Sets one key, written as in an environment variable: "26214400", "true",
        /// "debug". This wins over every other source.</summary>
        /// <returns>This config, so that calls can be chained.</returns>
        public Config Set(string key, string value)
        {
            Raw.Native.config_set(handle.Number, key, value);
            GC.KeepAlive(this);
            return this;
        }

        /// <summary>The merged value of a key as text.</summary>
        public string Get(string key)
        {
            string value = Raw.Native.config_get(handle.Number, key);
            GC.KeepAlive(this);
            return value;
        }

        /// <summary>Every key as JSON: {key: {"value":, "source":}}.</summary>
        public string Dump()
        {
            string text = Raw.Native.config_dump(handle.Number);
            GC.KeepAlive(this);
            return text;
        }

        /// <summary>Gives the log messages of jobs made from this config to the sink instead of
        /// stderr; null: stderr again. The sink runs on one thread of this library for all sinks,
        /// shortly after the message was written, and is kept for ever. What it throws is reported
        /// on stderr in one line.</summary>
        public void SetLogSink(Action<LogLevel, string> sink)
        {
            LogPump.Connect(handle.Number, sink);
            GC.KeepAlive(this);
        }

        /// <summary>Drops the handle; jobs made from this config are unaffected.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }
    }
}
