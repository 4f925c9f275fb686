// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    /// Carries log messages from the native queue to sinks, on a thread of its own: threads of libdt
    /// never enter the runtime, whose garbage collector would have to stop them.
    internal static class LogPump
    {
        static readonly object gate = new object();
        static readonly List<Action<LogLevel, string>> sinks = new List<Action<LogLevel, string>>();
        static long queue;  // this domain's, native code's
        static LibraryThread thread;

        internal static void Connect(Config config, Action<LogLevel, string> sink)
        {
            if (sink == null)
            {
                Raw.Native.config_unqueue_log(config);
                return;
            }
            lock (gate)
            {
                Start();
                sinks.Add(sink);
                try
                {
                    Raw.Native.config_queue_log(config, queue, sinks.Count - 1);
                }
                catch
                {
                    sinks.RemoveAt(sinks.Count - 1);
                    throw;
                }
            }
        }

        static void Start()
        {
            if (thread != null) return;
            if (queue == 0) queue = Raw.Native.log_queue_create();
            // What is in the queue when it stops still reaches its sink.
            thread = new LibraryThread("dt log", Run, () => Raw.Native.log_queue_stop(queue), Completions.CheckUnload);
        }

        static void Run()
        {
            for (;;)
            {
                Unpacker packed = new Unpacker(Raw.Native.log_queue_next(queue));
                if (!packed.More) return;
                int index = (int)packed.Number();
                LogLevel level = (LogLevel)packed.Number();
                long lost = packed.Number();
                string message = packed.Text();
                Action<LogLevel, string> sink;
                lock (gate) sink = sinks[index];
                try
                {
                    if (lost > 0) sink(LogLevel.Warning, lost + " log messages were lost: the sink is too slow");
                    sink(level, message);
                }
                catch (Exception error)
                {
                    LibraryThread.Report(() => "dt: a log sink threw " + error.GetType().Name + ": " +
                        error.Message.Replace('\n', ' '));
                }
            }
        }
    }
}
