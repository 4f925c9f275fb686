// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;
using Dt;

/// Programs of their own processes, which run_test.py starts.
static class Programs
{
    // Static, so that the runtime's end finds them.
    static object[] kept;

    internal static int Run(string name)
    {
        switch (name)
        {
            case "collectives": return Collectives();
            case "peer-death": return PeerDeath();
            case "leave-open": return LeaveOpen();
            case "domains": return Domains.Run();
            case "version": return Version();
            case "compile": return Compile();
            case "overhead": return Overhead.Run(20000);
            default: return 2;
        }
    }

    static int Version()
    {
        try
        {
            using (Config config = new Config()) Console.WriteLine(Library.Version);
        }
        catch (DtException error)
        {
            Console.WriteLine(error.GetType().Name + ": " + error.Message);
        }
        return 0;
    }

    /// Has all of Dt.dll compiled, so that each type and member that it uses is found in this runtime.
    static int Compile()
    {
        const BindingFlags Own = BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Instance |
            BindingFlags.Static | BindingFlags.DeclaredOnly;
        int compiled = 0;
        foreach (Type type in typeof(Job).Assembly.GetTypes())
        {
            RuntimeTypeHandle[] ofType = Elements(type.GetGenericArguments());
            List<MethodBase> members = new List<MethodBase>(type.GetMethods(Own));
            members.AddRange(type.GetConstructors(Own));
            if (type.TypeInitializer != null) members.Add(type.TypeInitializer);
            foreach (MethodBase member in members)
            {
                if (member.IsAbstract || member.GetMethodBody() == null) continue;
                List<RuntimeTypeHandle> all = new List<RuntimeTypeHandle>(ofType);
                if (member.IsGenericMethod) all.AddRange(Elements(member.GetGenericArguments()));
                RuntimeHelpers.PrepareMethod(member.MethodHandle, all.Count == 0 ? null : all.ToArray());
                ++compiled;
            }
        }
        Console.WriteLine(compiled + " methods");
        return compiled > 500 ? 0 : 1;
    }

    /// A type that fits each parameter.
    static RuntimeTypeHandle[] Elements(Type[] parameters)
    {
        RuntimeTypeHandle[] handles = new RuntimeTypeHandle[parameters.Length];
        for (int i = 0; i < parameters.Length; ++i)
        {
            bool value = (parameters[i].GenericParameterAttributes & GenericParameterAttributes.NotNullableValueTypeConstraint) != 0;
            handles[i] = (value ? typeof(float) : typeof(string)).TypeHandle;
        }
        return handles;
    }

    static int Collectives()
    {
        using (Job job = new Job())
        using (Comm world = job.World())
        {
            Place place = job.Place;
            Suite.Equal("dt run", place.Launcher, "launcher");
            FollowRanks(place, world);
            double[] buffer = new double[10000];
            for (int i = 0; i < buffer.Length; ++i) buffer[i] = place.Rank + i;
            world.AllReduce(buffer);
            double ranks = place.WorldSize * (place.WorldSize - 1) / 2;
            for (int i = 0; i < buffer.Length; ++i) Suite.Equal(ranks + place.WorldSize * i, buffer[i], "sum");
            world.AllReduceAsync(buffer, ReduceOp.Avg).AsTask().Wait(60000);
            Suite.Equal(ranks, buffer[0], "mean");
            job.Leave();
        }
        return 0;
    }

    /// Blocks lie, and roots are found, in the order of the ranks, whatever the local ranks are.
    static void FollowRanks(Place place, Comm world)
    {
        int me = int.Parse(Environment.GetEnvironmentVariable("DT_RANK"));
        Suite.Equal(me, world.Rank, "rank");
        Suite.Equal(int.Parse(Environment.GetEnvironmentVariable("DT_LOCAL_RANK")), place.LocalRank, "local rank");
        int[] mine = new int[world.Size], all = new int[world.Size];
        for (int i = 0; i < mine.Length; ++i) mine[i] = 100 * me + i;
        world.AllGather(new int[] { mine[0] }, all);
        for (int i = 0; i < all.Length; ++i) Suite.Equal(100 * i, all[i], "allgather");
        world.AllToAll(mine, all);
        for (int i = 0; i < all.Length; ++i) Suite.Equal(100 * i + me, all[i], "alltoall");
        for (int root = 0; root < world.Size; ++root)
        {
            int[] one = { me };
            world.Broadcast(one, root);
            Suite.Equal(root, one[0], "broadcast");
        }
    }

    /// Rank 1 is killed while rank 0 waits for it.
    static int PeerDeath()
    {
        Job job = new Job();
        Comm world = job.World();
        int rank = world.Rank;
        float[] buffer = new float[100];
        world.AllReduce(buffer);
        if (rank == 1)
        {
            Console.WriteLine("pid " + Process.GetCurrentProcess().Id);
            Console.Out.Flush();
            job.StoreGet("waits");
            Process.GetCurrentProcess().Kill();
        }
        System.Threading.Tasks.Task task = world.AllReduceAsync(buffer).AsTask();
        job.StoreSet("waits", new byte[0]);
        try
        {
            task.Wait(60000);
        }
        catch (AggregateException error)
        {
            DtPeerLostException lost = (DtPeerLostException)error.InnerException;
            Console.WriteLine("lost " + lost.Rank + " " + lost.Pid + " " + lost.Host + " " + (job.Place.Host == lost.Host) + " " + lost.Status);
        }
        try
        {
            world.AllReduce(buffer);
        }
        catch (DtPeerLostException lost)
        {
            Console.WriteLine("again " + lost.Rank + " " + lost.Pid);
        }
        Comm left = world.Shrink();
        for (int i = 0; i < buffer.Length; ++i) buffer[i] = i;
        left.AllReduce(buffer);
        Console.WriteLine("left " + left.Rank + " " + left.Size + " " + buffer[7]);
        Console.Out.Flush();
        return 0;
    }

    /// Ends with everything open and work under way: no output, exit code 0.
    static int LeaveOpen()
    {
        Config config = new Config().Set("job.rank", "0").Set("job.world_size", "1").Set("log.level", "debug");
        config.SetLogSink((level, line) => { });
        Job job = new Job(config);
        Comm world = job.World();
        Comm part = world.Split(0, 0);
        Work work = part.AllReduceAsync(new float[100000]);
        Reducer reducer = new Reducer(part, new Param[] { new Param(5) });
        reducer.Ready(0, new float[5]);
        LeaveCombining();
        StoreServer server = new StoreServer(config);
        StoreServer waited = Ranks.Serve(2);
        kept = new object[] { config, job, world, part, work, work.AsTask(), reducer, server, waited,
            world.Allocate<byte>(100), new Sampler(2, 0, 10), world.BarrierAsync() };
        Thread late = new Thread(() =>
        {
            for (;;) world.AllReduce(new float[1000]);
        });
        late.IsBackground = true;
        late.Start();
        return kept.Length > 0 ? 0 : 1;
    }

    /// Operations whose functions run while the process ends.
    static void LeaveCombining()
    {
        StoreServer server = Ranks.Serve(2);
        Thread[] ranks = new Thread[2];
        for (int i = 0; i < ranks.Length; ++i)
        {
            int rank = i;
            ranks[i] = new Thread(() =>
            {
                Job job = new Job(Ranks.Settings(rank, 2, server.Port));
                job.World().AllReduceAsync(new byte[1 << 18], new Combine((given, inOut, count) => Thread.SpinWait(1000000)));
            });
            ranks[i].Start();
        }
        foreach (Thread rank in ranks) rank.Join();
    }
}
