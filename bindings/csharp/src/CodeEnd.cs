// SPDX-License-Identifier: Apache-2.0
using System;
using System.Reflection;

namespace Dt
{
    /// The end of this assembly's code: with the process, or before, when its application domain or its
    /// AssemblyLoadContext is unloaded. Threads of this assembly must have ended by then.
    internal static class CodeEnd
    {
        /// `stop` is called at the end of the process, `unload` before an unloading, which it may refuse by an
        /// exception.
        internal static void Add(EventHandler stop, EventHandler unload)
        {
            AppDomain.CurrentDomain.ProcessExit += stop;
            AppDomain.CurrentDomain.DomainUnload += unload;
            OnUnloading(() =>
            {
                unload(null, EventArgs.Empty);
                // The process keeps what waits for its end.
                AppDomain.CurrentDomain.ProcessExit -= stop;
                AppDomain.CurrentDomain.DomainUnload -= unload;
            });
        }

        /// By reflection, because .NET Framework and .NET Standard have no AssemblyLoadContext.
        static void OnUnloading(Action ends)
        {
            Type type = Type.GetType("System.Runtime.Loader.AssemblyLoadContext, System.Runtime.Loader", false);
            PropertyInfo collectible = type == null ? null : type.GetProperty("IsCollectible");
            if (collectible == null) return;
            object context = type.GetMethod("GetLoadContext").Invoke(null, new object[] { typeof(CodeEnd).Assembly });
            if (context == null || !(bool)collectible.GetValue(context)) return;
            EventInfo unloading = type.GetEvent("Unloading");
            Action<object> handler = given => ends();
            unloading.AddEventHandler(context,
                Delegate.CreateDelegate(unloading.EventHandlerType, handler.Target, handler.Method));
        }
    }
}
