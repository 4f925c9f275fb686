// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Reflection;

namespace Dt
{
    /// The end of this assembly's code: with the process, or before, when its application domain or its
    /// AssemblyLoadContext is unloaded. Threads of this assembly must have ended by then.
    internal static class CodeEnd
    {
        struct Handlers
        {
            internal EventHandler Stop, Unload;
        }

        static readonly object gate = new object();
        static readonly List<Handlers> added = new List<Handlers>();

        /// `stop` is called at the end of the process, `unload` before an unloading, which it may refuse by an
        /// exception; it is called again when the unloading is tried again.
        internal static void Add(EventHandler stop, EventHandler unload)
        {
            AppDomain.CurrentDomain.ProcessExit += stop;
            AppDomain.CurrentDomain.DomainUnload += unload;
            lock (gate)
            {
                if (added.Count == 0) AwaitUnloading();
                added.Add(new Handlers { Stop = stop, Unload = unload });
            }
        }

        /// By reflection, because .NET Framework and .NET Standard have no AssemblyLoadContext.
        static void AwaitUnloading()
        {
            Type type = Type.GetType("System.Runtime.Loader.AssemblyLoadContext, System.Runtime.Loader", false);
            PropertyInfo collectible = type == null ? null : type.GetProperty("IsCollectible");
            if (collectible == null) return;
            object context = type.GetMethod("GetLoadContext").Invoke(null, new object[] { typeof(CodeEnd).Assembly });
            if (context == null || !(bool)collectible.GetValue(context)) return;
            EventInfo unloading = type.GetEvent("Unloading");
            Action<object> handler = OnUnloading;
            unloading.AddEventHandler(context, Delegate.CreateDelegate(unloading.EventHandlerType, handler.Method));
        }

        static void OnUnloading(object context)
        {
            Handlers[] all;
            lock (gate) all = added.ToArray();
            try
            {
                foreach (Handlers each in all) each.Unload(context, EventArgs.Empty);
            }
            catch (Exception)
            {
                AwaitUnloading();  // the event has forgotten its handlers, but the context stays
                throw;
            }
            foreach (Handlers each in all)
            {
                // The process would keep what waits for its end.
                AppDomain.CurrentDomain.ProcessExit -= each.Stop;
                AppDomain.CurrentDomain.DomainUnload -= each.Unload;
            }
        }
    }
}
