// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>Settings of a job before it starts. Jobs made from it outlive it.</summary>
    public sealed class Config : DtObject
    {
        /// <summary>Reads all sources of configuration: environment, this file or ./dt.toml,
        /// defaults.</summary>
        public Config(string path = null)
            : base(new Handle(Loader.Ready(Raw.Native.config_create, path), Raw.NativePINVOKE.config_destroy)) { }

        /// <summary>Sets one key, written as in an environment variable: "26214400", "true",
        /// "debug". This wins over every other source.</summary>
        /// <returns>This config, so that calls can be chained.</returns>
        public Config Set(string key, string value)
        {
            Raw.Native.config_set(this, key, value);
            return this;
        }

        /// <summary>The merged value of a key as text.</summary>
        public string Get(string key) => Raw.Native.config_get(this, key);

        /// <summary>Every key as JSON: {key: {"value":, "source":}}.</summary>
        public string Dump() => Raw.Native.config_dump(this);

        /// <summary>Gives the log messages of jobs made from this config to the sink instead of
        /// stderr; null: stderr again. The sink runs on one thread of this library for all sinks,
        /// shortly after the message was written, and is kept for ever. What it throws is reported
        /// on stderr in one line.</summary>
        public void SetLogSink(Action<LogLevel, string> sink) => LogPump.Connect(this, sink);
    }
}
