// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Reflection;
using System.Threading;

namespace Dt
{
    /// A thread of this assembly. It ends with the assembly's code: with the process, or before, when the
    /// application domain or the AssemblyLoadContext is unloaded.
    internal sealed class LibraryThread
    {
        const int ExitLimitMs = 5000;  // a function of the program that hangs does not keep the process

        static readonly object gate = new object();
        static readonly List<LibraryThread> started = new List<LibraryThread>();

        readonly Thread thread;
        readonly Action stop, unload;

        /// `stop` makes `run` return. `unload` is called before an unloading, which it may refuse by an
        /// exception; it is called again when the unloading is tried again.
        internal LibraryThread(string name, ThreadStart run, Action stop, Action unload)
        {
            this.stop = stop;
            this.unload = unload;
            thread = new Thread(run) { IsBackground = true, Name = name };
            thread.Start();
            AppDomain.CurrentDomain.ProcessExit += Stop;
            AppDomain.CurrentDomain.DomainUnload += Unload;
            lock (gate)
            {
                if (started.Count == 0) AwaitUnloading();
                started.Add(this);
            }
        }

        void Stop(object sender, EventArgs arguments)
        {
            stop();
            if (Thread.CurrentThread != thread) thread.Join(ExitLimitMs);
        }

        void Unload(object sender, EventArgs arguments)
        {
            unload();
            Stop(sender, arguments);
        }

        /// A line on stderr; throws nothing.
        internal static void Report(Func<string> line)
        {
            try
            {
                Console.Error.WriteLine(line());
            }
            catch (Exception)
            {
                // There is nobody left to tell.
            }
        }

        /// By reflection, because .NET Framework and .NET Standard have no AssemblyLoadContext.
        static void AwaitUnloading()
        {
            Type type = Type.GetType("System.Runtime.Loader.AssemblyLoadContext, System.Runtime.Loader", false);
            PropertyInfo collectible = type == null ? null : type.GetProperty("IsCollectible");
            if (collectible == null) return;
            object context = type.GetMethod("GetLoadContext").Invoke(null, new object[] { typeof(LibraryThread).Assembly });
            if (context == null || !(bool)collectible.GetValue(context)) return;
            EventInfo unloading = type.GetEvent("Unloading");
            Action<object> handler = OnUnloading;
            unloading.AddEventHandler(context, Delegate.CreateDelegate(unloading.EventHandlerType, handler.Method));
        }

        static void OnUnloading(object context)
        {
            LibraryThread[] all;
            lock (gate) all = started.ToArray();
            try
            {
                foreach (LibraryThread each in all) each.Unload(context, EventArgs.Empty);
            }
            catch (Exception)
            {
                AwaitUnloading();  // the event has forgotten its handlers, but the context stays
                throw;
            }
            foreach (LibraryThread each in all)
            {
                // The process would keep what waits for its end.
                AppDomain.CurrentDomain.ProcessExit -= each.Stop;
                AppDomain.CurrentDomain.DomainUnload -= each.Unload;
            }
        }
    }
}
