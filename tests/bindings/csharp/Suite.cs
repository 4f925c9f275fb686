// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Text.RegularExpressions;
using System.Threading;
using Dt;

/// Tests by name, and what they check with.
static class Suite
{
    static readonly List<KeyValuePair<string, Action>> cases = new List<KeyValuePair<string, Action>>();

    internal static void Add(string name, Action body)
    {
        cases.Add(new KeyValuePair<string, Action>(name, body));
    }

    /// Runs those whose name begins with the prefix.
    internal static int Run(string prefix)
    {
        int failed = 0, run = 0;
        foreach (KeyValuePair<string, Action> each in cases)
        {
            if (!each.Key.StartsWith(prefix, StringComparison.Ordinal)) continue;
            ++run;
            try
            {
                each.Value();
            }
            catch (Exception error)
            {
                ++failed;
                Console.WriteLine("FAILED " + each.Key + ": " + error);
            }
        }
        Console.WriteLine(prefix + ": " + (run - failed) + " passed, " + failed + " failed");
        return failed == 0 && run > 0 ? 0 : 1;
    }

    internal static void Check(bool held, string what)
    {
        if (!held) throw new Exception("not so: " + what);
    }

    internal static void Equal<T>(T expected, T found, string what)
    {
        if (!EqualityComparer<T>.Default.Equals(expected, found))
        {
            throw new Exception(what + ": expected " + expected + ", found " + found);
        }
    }

    static readonly Regex wordsOfC = new Regex(@"\bdt_[a-z]|\bNULL\b|->|dt\.h");

    /// The call throws this class, with a message that holds each text.
    internal static E Throws<E>(Action call, params string[] texts) where E : Exception
    {
        try
        {
            call();
        }
        catch (E error)
        {
            foreach (string text in texts) Check(error.Message.Contains(text), "'" + text + "' in '" + error.Message + "'");
            Check(!(error is DtException) || !wordsOfC.IsMatch(Regex.Replace(error.Message, "\"[^\"]*\"", "")), "words of C in '" + error.Message + "'");
            return error;
        }
        throw new Exception("nothing was thrown, expected " + typeof(E).Name);
    }

    /// All garbage, with its finalizers run. One thread at a time: of two that wait for the finalizers
    /// Mono 6.8 wakes one, and the other waits for ever.
    internal static void Collect()
    {
        lock (cases)
        {
            for (int i = 0; i < 3; ++i)
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
            }
        }
    }

    /// Mono's collector takes what lies on a stack for a reference. Threads that wait may keep a few so, of however many
    /// there were.
    internal static void WaitForGarbage(WeakReference[] objects, string what) => WaitFor(() =>
    {
        Collect();
        return Array.FindAll(objects, each => each.IsAlive).Length <= 12;
    }, "nobody keeps " + what);

    internal static void WaitFor(Func<bool> condition, string what)
    {
        DateTime deadline = DateTime.UtcNow.AddSeconds(60);
        while (!condition())
        {
            Check(DateTime.UtcNow < deadline, what + " within a minute");
            Thread.Yield();
        }
    }
}

/// Ranks on threads of this process.
sealed class Ranks
{
    internal Job job;
    internal Comm world;
    internal int rank, size;

    internal static Config Settings(int rank, int size, int port)
    {
        return new Config().Set("job.id", "test").Set("job.rank", rank.ToString())
            .Set("job.world_size", size.ToString()).Set("job.master_addr", "127.0.0.1")
            .Set("job.master_port", port.ToString()).Set("job.store_served", "true")
            .Set("reducer.check_steps", "1")
            .Set("rendezvous.timeout_ms", "60000").Set("collective.timeout_ms", "60000");
    }

    internal static StoreServer Serve(int size)
    {
        using (Config config = new Config().Set("job.id", "test").Set("job.world_size", size.ToString()))
        {
            return new StoreServer(config);
        }
    }

    /// Runs `body` on each rank; afterwards all finalize.
    internal static void Run(int size, Action<Ranks> body)
    {
        Exception[] errors = new Exception[size];
        Thread[] threads = new Thread[size];
        using (StoreServer server = Serve(size))
        {
            for (int i = 0; i < size; ++i)
            {
                int rank = i;
                threads[i] = new Thread(() =>
                {
                    try
                    {
                        One(rank, size, server.Port, body);
                    }
                    catch (Exception error)
                    {
                        errors[rank] = error;
                    }
                });
                threads[i].IsBackground = true;
                threads[i].Start();
            }
            foreach (Thread thread in threads)
            {
                Suite.Check(thread.Join(120000), "ranks end within two minutes");
            }
        }
        for (int i = 0; i < size; ++i)
        {
            if (errors[i] != null) throw new Exception("rank " + i + ": " + errors[i]);
        }
    }

    static void One(int rank, int size, int port, Action<Ranks> body)
    {
        using (Config config = Settings(rank, size, port))
        using (Job job = new Job(config))
        using (Comm world = job.World())
        {
            try
            {
                body(new Ranks { job = job, world = world, rank = rank, size = size });
            }
            catch (Exception error)
            {
                try
                {
                    job.Abort("rank " + rank + ": " + error.Message);
                }
                catch (DtInvalidStateException)  // it has left already
                {
                }
                throw;
            }
            job.Leave();
        }
    }

    /// This process alone.
    internal static void Alone(Action<Job, Comm> body)
    {
        using (Config config = new Config().Set("job.rank", "0").Set("job.world_size", "1"))
        using (Job job = new Job(config))
        using (Comm world = job.World())
        {
            body(job, world);
            job.Leave();
        }
    }
}

static class Program
{
    static int Main(string[] arguments)
    {
        if (arguments.Length > 1 && arguments[0] == "program") return Programs.Run(arguments[1]);
        CoreTests.Add();
        CollectiveTests.Add();
        BlockTests.Add();
        MatrixTests.Add();
        SafetyTests.Add();
        AsyncTests.Add();
        CombineTests.Add();
        TrainingTests.Add();
        ShardTests.Add();
        NamedTests.Add();
        PsTests.Add();
        StoreTests.Add();
        int code = Suite.Run(arguments[0]);
        Console.Out.Flush();
        return code;
    }
}
