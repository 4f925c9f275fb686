// SPDX-License-Identifier: Apache-2.0
using System;
using System.IO;
using System.Threading;
using Dt;
#if NETCOREAPP
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
#endif

/// Application domains that use one libdt and come and go: each gets its own errors, messages and
/// completions, and takes nothing along that another needs. On .NET, which has no domains, collectible
/// contexts, of which nothing stays.
static class Domains
{
#if NETCOREAPP
    sealed class Context : AssemblyLoadContext
    {
        internal Context() : base("other", true)
        {
        }

        /// This program and Dt.dll once more; what belongs to .NET is shared.
        protected override Assembly Load(AssemblyName name)
        {
            string path = Path.Combine(AppDomain.CurrentDomain.BaseDirectory, name.Name + ".dll");
            return File.Exists(path) ? LoadFromAssemblyPath(path) : null;
        }
    }

    internal static int Run()
    {
        for (int round = 0; round < 5; ++round)
        {
            WeakReference other = WorkElsewhere();
            Work();
            AwaitGone(other);
        }
        AwaitGone(Unload());
        return 0;
    }

    static void AwaitGone(WeakReference context) =>
        Suite.WaitFor(() =>
        {
            Suite.Collect();
            return !context.IsAlive;
        }, "the context is gone");

    /// Nothing on the caller's stack may keep the context.
    [MethodImpl(MethodImplOptions.NoInlining)]
    static WeakReference WorkElsewhere()
    {
        Context other = new Context();
        Call(other, "Work");
        Work();  // while the other is there
        other.Unload();
        return new WeakReference(other);
    }

    static object Call(Context other, string method, params object[] arguments) =>
        other.LoadFromAssemblyPath(typeof(Domains).Assembly.Location).GetType("Domains")
            .GetMethod(method, BindingFlags.NonPublic | BindingFlags.Static).Invoke(null, arguments);

    /// While libdt uses an array of the other context its unloading fails after some seconds; then it works.
    [MethodImpl(MethodImplOptions.NoInlining)]
    static WeakReference Unload()
    {
        using (StoreServer server = Ranks.Serve(2))
        {
            Context other = new Context();
            Thread rank = new Thread(() => Call(other, "Leave", server.Port));
            rank.Start();
            using (Config config = Ranks.Settings(1, 2, server.Port))
            using (Job job = new Job(config))
            using (Comm world = job.World())
            {
                Suite.Check(rank.Join(60000), "the other rank has issued its operation");
                // The class of the error is the other context's.
                Exception refused = Suite.Throws<Exception>(() => other.Unload(), "operations are under way", "AssemblyLoadContext");
                Suite.Equal("DtInvalidStateException", refused.GetType().Name, "class");
                int[] buffer = new int[1 << 20];
                world.AllReduce(buffer, Sum());
                Suite.Equal(5, buffer[buffer.Length - 1], "sum with a context that could not be unloaded");
                world.Send(new int[1], 0);
                other.Unload();
            }
            return new WeakReference(other);
        }
    }
#else
    const string PortKey = "port";

    internal static int Run()
    {
        int heard = 0;
        using (Config config = Talkative())
        {
            config.SetLogSink((level, line) => Interlocked.Increment(ref heard));
            for (int round = 0; round < 5; ++round)
            {
                AppDomain other = AppDomain.CreateDomain("other " + round);
                other.DoCallBack(Work);
                Work();  // while the other is there
                AppDomain.Unload(other);
                int before = Volatile.Read(ref heard);
                new Job(config).Dispose();
                Suite.WaitFor(() => Volatile.Read(ref heard) > before, "messages of this domain");
                Work();
            }
        }
        Unload();
        return 0;
    }

    /// The other domain is unloaded while libdt still uses its array: that waits.
    static void Unload()
    {
        using (StoreServer server = Ranks.Serve(2))
        {
            AppDomain other = AppDomain.CreateDomain("with a rank");
            other.SetData(PortKey, server.Port);
            Thread rank = new Thread(() => other.DoCallBack(LeaveAtPort));
            rank.Start();
            using (Config config = Ranks.Settings(1, 2, server.Port))
            using (Job job = new Job(config))
            using (Comm world = job.World())
            {
                Suite.Check(rank.Join(60000), "the other rank has issued its operation");
                bool unloading = false, unloaded = false;
                Thread unload = new Thread(() =>
                {
                    Volatile.Write(ref unloading, true);
                    AppDomain.Unload(other);
                    Volatile.Write(ref unloaded, true);
                });
                unload.Start();
                Suite.WaitFor(() => Volatile.Read(ref unloading), "the unloading begins");
                int[] buffer = new int[1 << 20];
                world.AllReduce(buffer, Sum());
                Suite.Equal(5, buffer[buffer.Length - 1], "sum with a domain that is unloaded");
                Suite.Check(!Volatile.Read(ref unloaded), "it is there while it waits for a message");
                try { world.Send(new int[1], 0); }
                catch (DtPeerLostException) { }  // the other rank has it and is gone, without leaving
                Suite.Check(unload.Join(60000) && Volatile.Read(ref unloaded), "the domain is unloaded");
            }
        }
    }

    static void LeaveAtPort()
    {
        Leave((int)AppDomain.CurrentDomain.GetData(PortKey));
    }
#endif

    static Work forgotten, last;  // of the domain or context that runs Leave

    static void Leave(int port)
    {
        Job job = new Job(Ranks.Settings(0, 2, port));
        int[] buffer = new int[1 << 20];
        for (int i = 0; i < buffer.Length; ++i) buffer[i] = 5;
        forgotten = job.World().AllReduceAsync(buffer, Sum());
        last = job.World().RecvAsync(new int[1], 1);
        Suite.Check(!forgotten.Test() && !last.Test(), "both wait for their peer");
    }

    /// Its jobs warn of a key that a newer release may know.
    static Config Talkative()
    {
        string path = Path.GetTempFileName();
        File.WriteAllText(path, "schema = 99\nother = 1\n");
        try
        {
            return new Config(path).Set("job.rank", "0").Set("job.world_size", "1");
        }
        finally
        {
            File.Delete(path);
        }
    }

    static void Work()
    {
        int heard = 0;
        using (Config config = Talkative())
        {
            config.SetLogSink((level, line) => Interlocked.Increment(ref heard));
            using (Job job = new Job(config))
            using (Comm world = job.World())
            {
                Suite.Throws<DtInvalidArgumentException>(() => world.Broadcast(new float[1], 7), "root", "7");
                float[] buffer = { 3 };
                Suite.Check(world.AllReduceAsync(buffer).AsTask().Wait(60000), "a task in time");
                Suite.Equal(3f, buffer[0], "sum");
                int[] whole = { 4 };
                world.AllReduce(whole, Sum());
                job.Leave();
            }
            Suite.Throws<DtConfigException>(() => config.Set("no.such_key", "1"), "no.such_key");
            Suite.WaitFor(() => Volatile.Read(ref heard) > 0, "messages of this job");
        }
    }

    /// A function of this domain.
    static Combine Sum() =>
        Combine.Of<int>((given, inOut) =>
        {
            for (int i = 0; i < given.Length; ++i) inOut[i] += given[i];
        });
}
