// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Threading;

namespace Dt
{
    /// Carries log messages from the native queue to sinks, on a thread of its own: threads of libdt
    /// never enter the runtime, whose garbage collector would have to stop them.
    internal static class LogPump
    {
        const int ExitLimitMs = 5000;  // a sink that hangs does not keep the process

        static readonly object gate = new object();
        static readonly List<Action<LogLevel, string>> sinks = new List<Action<LogLevel, string>>();
        static long queue;  // this domain's, native code's
        static Thread thread;

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
            Thread pump = new Thread(Run);
            pump.IsBackground = true;
            pump.Name = "dt log";
            pump.Start();
            CodeEnd.Add(Stop, Unload);
            thread = pump;
        }

        static void Unload(object sender, EventArgs arguments)
        {
            Completions.CheckUnload();
            Stop(sender, arguments);
        }

        /// What is in the queue by now still reaches its sink.
        static void Stop(object sender, EventArgs arguments)
        {
            Raw.Native.log_queue_stop(queue);
            if (Thread.CurrentThread != thread) thread.Join(ExitLimitMs);
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
                    Report(error);
                }
            }
        }

        static void Report(Exception error)
        {
            try
            {
                Console.Error.WriteLine("dt: a log sink threw " + error.GetType().Name + ": " +
                    error.Message.Replace('\n', ' '));
            }
            catch (Exception)
            {
                // There is nobody left to tell.
            }
        }
    }
}
