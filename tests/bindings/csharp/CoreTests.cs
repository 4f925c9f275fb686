// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Reflection;
using System.Text.RegularExpressions;
using System.Threading;
using Dt;

static class CoreTests
{
    internal static void Add()
    {
        Suite.Add("core: version and ABI", () =>
        {
            Suite.Equal(3, Library.Version.Split('.').Length, "parts of the version");
            Suite.Equal(0, Library.AbiVersion, "ABI");
            Suite.Check(Library.BuildInfo.Contains("compiler"), "the build is described");
            Suite.Equal("DT_ERR_PEER_LOST", Library.NameOf(Status.PeerLost), "a status' name");
            Suite.Equal("DT_ERR_UNKNOWN", Library.NameOf((Status)999), "an unknown status' name");
        });
        Suite.Add("core: the native libraries are those of the package", NativeLibraries);
        Suite.Add("core: bad arguments are named", BadArguments);
        // Mono does not look for them inside an assembly.
        if (Type.GetType("Mono.Runtime") == null) Suite.Add("core: an exception names a line of Dt's sources", Lines);
        Suite.Add("core: messages name members that there are", Names);
        Suite.Add("core: texts are UTF-8 in both directions", Texts);
        Suite.Add("core: bytes that are no text in a message", InvalidBytes);
        Suite.Add("core: allreduce at world size 1", WorldSizeOne);
        Suite.Add("core: destroy in the wrong order", WrongOrder);
        Suite.Add("core: abort reaches the others with its message", AbortReaches);
        Suite.Add("core: votes, pauses and stops", Votes);
        Suite.Add("core: operations are counted", Counts);
        Suite.Add("core: split, world ranks and timeouts", Splits);
        Suite.Add("core: groups of sends and receives", Groups);
        Suite.Add("core: a group is that of all handles of a communicator", SameGroup);
        Suite.Add("core: a group that ends after its job", () => Ranks.Run(2, GroupAfterLeave));
        Suite.Add("core: the log sink receives and may throw", LogSink);
        Suite.Add("core: memory of the communicator", MemoryOfComm);
    }

    static void NativeLibraries()
    {
        Suite.Equal(0, Library.AbiVersion, "ABI");
        SortedSet<string> found = new SortedSet<string>(StringComparer.Ordinal);
        foreach (string line in File.ReadAllLines("/proc/self/maps"))
        {
            int path = line.IndexOf('/');
            string name = path < 0 ? "" : Path.GetFileName(line.Substring(path));
            foreach (string each in new[] { "libcrypto.", "libssl.", "libuv.", "libdt.", "libdtcs." })
            {
                if (name.StartsWith(each, StringComparison.Ordinal)) found.Add(line.Substring(path));
            }
        }
        string folder = AppDomain.CurrentDomain.BaseDirectory;
        string[] wanted = { "libdt.so.0", "libdtcs.so" };
        for (int i = 0; i < wanted.Length; ++i) wanted[i] = Path.Combine(folder, wanted[i]);
        Suite.Equal(string.Join(" ", wanted), string.Join(" ", found), "what is loaded");
    }

    static void Lines()
    {
        using (Config config = new Config())
        {
            DtException error = Suite.Throws<DtConfigException>(() => config.Set("no.such", "1"), "no.such");
            Suite.Check(Regex.IsMatch(error.StackTrace, @"\bsrc/Config\.cs:line [1-9]"), error.StackTrace);
        }
    }

    static void BadArguments()
    {
        using (Config config = new Config())
        {
            DtException error = Suite.Throws<DtConfigException>(
                () => config.Set("reducer.bucket_cap_byte", "1"), "reducer.bucket_cap_byte");
            Suite.Equal(Status.Config, error.Status, "status");
            Suite.Equal(-1, error.Rank, "rank");
            Suite.Equal("", error.Host, "host");
            Suite.Equal(-1L, error.Sequence, "sequence");
            Suite.Throws<DtConfigException>(() => config.Set("reducer.bucket_cap_bytes", "many"));
            Suite.Throws<DtInvalidArgumentException>(() => config.Set(null, "1"), "null");
            Suite.Throws<DtInvalidArgumentException>(() => config.Set("job.id", "a\0b"), "NUL");
            Suite.Throws<DtConfigException>(() => new Config("/nowhere/dt.toml"), "/nowhere/dt.toml");
            config.Set("collective.timeout_ms", "1234");
            Suite.Equal("1234", config.Get("collective.timeout_ms"), "what was set");
            Suite.Check(config.Dump().Contains("\"collective.timeout_ms\""), "the dump names keys");
        }
    }

    /// Functions of libdt that no message names.
    static readonly HashSet<string> absent = new HashSet<string>
    {
        "dt_status_name", "dt_last_error", "dt_last_error_info", "dt_collective_launch"
    };

    static void Names()
    {
        Type[] types = typeof(Job).Assembly.GetExportedTypes();
        MethodInfo said = typeof(Job).Assembly.GetType("Dt.Words").GetMethod("InCSharp", BindingFlags.Static | BindingFlags.NonPublic);
        string map = File.ReadAllText(Path.Combine(AppDomain.CurrentDomain.BaseDirectory, "libdt.map"));
        List<string> wrong = new List<string>();
        foreach (Match each in Regex.Matches(map, @"\bdt_\w+(?=;)"))
        {
            string name = (string)said.Invoke(null, new object[] { Status.InvalidArgument, each.Value });
            bool found = Array.Exists(types, type => type.Name == name || type.GetMember(name).Length > 0);
            if (found == absent.Contains(each.Value)) wrong.Add(each.Value + " is " + name);
        }
        Suite.Equal("", string.Join(", ", wrong), "wrong names");
    }

    const string Wide = "gr\u00fc\u00df \u4f60\u597d \U0001F600\U00010348";

    static void Texts()
    {
        using (Config config = new Config())
        {
            config.Set("job.id", Wide);
            Suite.Equal(Wide, config.Get("job.id"), "a text with characters of 1 to 4 bytes");
            Suite.Throws<DtConfigException>(() => config.Set("job." + Wide, "x"), Wide);
            config.Set("job.id", "half \ud83d surrogate");
            Suite.Equal("half \ufffd surrogate", config.Get("job.id"), "half a pair");
        }
        Ranks.Run(2, each =>
        {
            if (each.rank == 0) each.job.StoreSet("wait", new byte[1]);
            DtException error = Suite.Throws<DtTimeoutException>(
                () => each.job.StoreWait(new string[] { Wide }, TimeSpan.FromMilliseconds(1)), Wide);
            Suite.Equal(Status.Timeout, error.Status, "status");
        });
    }

    static void InvalidBytes()
    {
        string path = Path.GetTempFileName();
        try
        {
            List<byte> bytes = new List<byte>(System.Text.Encoding.UTF8.GetBytes("[job]\nid = \""));
            bytes.AddRange(new byte[] { 0xff, 0xfe, 0xc0, 0x80 });
            bytes.AddRange(System.Text.Encoding.UTF8.GetBytes("\"\n"));
            File.WriteAllBytes(path, bytes.ToArray());
            Suite.Throws<DtConfigException>(() => new Config(path), path);
        }
        finally
        {
            File.Delete(path);
        }
        // Keys may be any bytes: those of a native program come back as replacement characters.
        Ranks.Alone((job, world) =>
        {
            job.StoreSet("k\ufffd", new byte[] { 1 });
            Suite.Equal("k\ufffd", job.StoreList("k")[0], "a key");
        });
    }

    static void WorldSizeOne()
    {
        Ranks.Alone((job, world) =>
        {
            Place place = job.Place;
            Suite.Equal(0, place.Rank, "rank");
            Suite.Equal(1, place.WorldSize, "world size");
            Suite.Equal(0, place.MasterPort, "port");
            Suite.Check(place.Host.Length > 0, "the host has a name");
            float[] send = { 1, 2, 3 }, recv = new float[3];
            world.AllReduce(send, recv);
            for (int i = 0; i < 3; ++i) Suite.Equal(send[i], recv[i], "element");
            using (Work work = world.AllReduceAsync(recv, ReduceOp.Avg)) Suite.Check(work.Wait(), "done");
            Suite.Equal(3f, recv[2], "in place");
        });
    }

    static void WrongOrder()
    {
        Ranks.Run(2, each =>
        {
            float[] buffer = { each.rank };
            Comm part = each.world.Split(0, each.rank);
            Dt.Memory memory = part.Allocate<float>(16);
            Reducer reducer = new Reducer(part, new Param[] { new Param(1) });
            Work work = part.AllReduceAsync(buffer);
            part.Dispose();
            Suite.Check(work.Wait(), "a work outlives its communicator");
            Suite.Equal(1f, buffer[0], "sum");
            reducer.Dispose();
            memory.Dispose();
            memory.Dispose();
            work.Dispose();
            work.Dispose();
            part.Dispose();
        });
        Config config = new Config().Set("job.world_size", "1").Set("job.rank", "0");
        Job job = new Job(config);
        config.Dispose();
        Comm world = job.World();
        Work last = world.BarrierAsync();
        job.Dispose();
        Suite.Equal(1, world.Size, "the communicator keeps what it needs");
        world.Dispose();
        Suite.Check(last.Wait(), "and so does the work");
        last.Dispose();
    }

    static void AbortReaches()
    {
        using (StoreServer server = Ranks.Serve(2))
        {
            DtException seen = null;
            Thread other = new Thread(() =>
            {
                using (Config config = Ranks.Settings(1, 2, server.Port))
                using (Job job = new Job(config))
                using (Comm world = job.World())
                {
                    job.StoreSet("joined", new byte[0]);
                    try
                    {
                        world.Barrier();
                    }
                    catch (DtException error)
                    {
                        seen = error;
                    }
                }
            });
            other.Start();
            using (Config config = Ranks.Settings(0, 2, server.Port))
            using (Job job = new Job(config))
            {
                job.StoreGet("joined");
                job.Abort("no more dt_agree, NULL " + Wide);
                Suite.Check(other.Join(60000), "the other rank returns");
            }
            Suite.Check(seen is DtAbortedException, "the class: " + seen);
            Suite.Check(seen.Message.Contains("no more dt_agree, NULL " + Wide), "the message: " + seen.Message);
            Suite.Equal(0, seen.Rank, "who aborted");
        }
    }

    static void Votes()
    {
        Ranks.Run(3, each =>
        {
            Suite.Check(each.job.Agree(true), "all agree");
            Suite.Check(!each.job.Agree(each.rank != 1), "one does not");
            Suite.Throws<DtInvalidArgumentException>(() => each.job.BusyBegin("checkpoint", TimeSpan.Zero));
            each.job.BusyBegin(null, TimeSpan.FromSeconds(1));
            each.job.BusyBegin("checkpoint " + Wide, TimeSpan.FromMinutes(1));
            each.job.BusyEnd();
            Suite.Check(!each.job.StopRequested(), "nobody asked");
            if (each.rank == 2)
            {
                each.job.RequestStop();
            }
            Suite.Check(each.job.StopRequested(), "one asked");
            Suite.Throws<DtInvalidArgumentException>(() => each.job.TraceDump());
            string folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
            each.job.TraceDump(folder);
            File.Delete(Path.Combine(folder, "rank-0000" + each.rank + ".dttrace"));
            Directory.Delete(folder);
        });
        Job closed = new Job();
        closed.Dispose();
        Suite.Throws<ObjectDisposedException>(() => closed.RequestStop());
    }

    static void Counts()
    {
        Ranks.Run(2, each =>
        {
            float[] values = new float[250];
            for (int i = 0; i < 3; ++i)
            {
                each.world.AllReduce(values, ReduceOp.Sum);
            }
            JobStatistics statistics = each.job.Statistics;
            Suite.Equal(0, statistics.Restarts, "restarts");
            Suite.Equal(1.0, statistics.HiddenShare, "share");
            Suite.Equal(16, statistics.Operations.Count, "kinds");
            OperationStatistics allreduces = statistics.Operations[OperationKind.AllReduce];
            Suite.Equal(3L, allreduces.Operations, "operations");
            Suite.Equal(0L, allreduces.Failures, "failures");
            Suite.Equal(3000L, allreduces.Bytes, "bytes");
            Suite.Equal(3000L, allreduces.BusBytes, "bus bytes");
            Suite.Check(allreduces.BusyNs > 0 && allreduces.BusbwGbs > 0, "they took some time");
            Suite.Equal(0L, each.job.PeerStatistics(each.rank).Waits, "waits for oneself");
            Suite.Throws<DtInvalidArgumentException>(() => each.job.PeerStatistics(2));
        });
    }

    static void Splits()
    {
        Ranks.Run(3, each =>
        {
            using (Comm part = each.world.Split(each.rank == 1 ? -1 : 7, -each.rank))
            {
                Suite.Equal(each.rank == 1, part == null, "rank 1 is in none");
                if (part != null)
                {
                    Suite.Equal(2, part.Size, "size");
                    Suite.Equal(each.rank == 2 ? 0 : 1, part.Rank, "ordered by key");
                    Suite.Equal(2, part.WorldRank(0), "world rank");
                    Suite.Throws<DtInvalidArgumentException>(() => part.WorldRank(2));
                    part.Check();
                    part.Barrier(); // the other rank has checked, too
                    part.SetTimeout(TimeSpan.FromMilliseconds(1));
                    if (part.Rank == 0)
                    {
                        DtException error = Suite.Throws<DtTimeoutException>(() => part.Barrier());
                        Suite.Equal("barrier", error.Operation, "operation");
                        Suite.Check(error.Sequence >= 0, "sequence");
                        Suite.Throws<DtTimeoutException>(() => part.Check());
                    }
                }
                each.world.Barrier();
            }
        });
    }

    static void Groups()
    {
        Ranks.Run(2, each =>
        {
            int[] send = { each.rank + 10 }, recv = new int[1];
            int peer = 1 - each.rank;
            each.world.Group(() =>
            {
                each.world.Send(send, peer);
                each.world.Recv(recv, peer);
                Suite.Throws<DtInvalidStateException>(() => each.world.GroupBegin(), "group");
#if DT_SPAN
                Suite.Throws<DtInvalidArgumentException>(
                    () => each.world.Send(new ReadOnlySpan<int>(send), peer), "span");
#endif
                send = null;
                GC.Collect();
            });
            Suite.Equal(peer + 10, recv[0], "exchanged");
            Suite.Throws<DtInvalidStateException>(() => each.world.GroupEnd());
            each.world.GroupBegin();
            float[] sum = { 1 };
            Work work = each.world.AllReduceAsync(sum);
            System.Threading.Tasks.Task task = work.AsTask();
            Suite.Check(!task.IsFaulted, "a work in a group is not failed");
            each.world.GroupEnd();
            Suite.Check(task.Wait(60000), "the task completes after the group");
            Suite.Equal(2f, sum[0], "sum");
            GroupWork(each, peer);
        });
    }

    static void SameGroup()
    {
        Ranks.Run(2, each =>
        {
            using (Comm host = each.world.Host())
            using (Comm again = host.Host())
            {
                Grouped(each.world, host);
                Grouped(again, each.world);
            }
            using (Comm before = each.job.World())
            using (Comm small = each.world.Shrink())
            using (Comm now = each.job.World())
            using (Comm host = now.Host())
            {
                Grouped(small, now);
                Grouped(host, small);
                using (Comm other = before.Shrink())  // of what was the world
                using (Comm still = each.job.World())
                {
                    Grouped(small, still);
                    int[] sum = { 1 };
                    other.GroupBegin();
                    still.AllReduce(sum);
                    Suite.Equal(2, sum[0], "in no group");
                    other.GroupEnd();
                }
            }
        });
    }

    /// Both are the same communicator.
    static void Grouped(Comm first, Comm second)
    {
        int[] sum = { 1 + first.Rank };
        first.GroupBegin();
#if DT_SPAN
        Suite.Throws<DtInvalidArgumentException>(() => second.AllReduce(new Span<int>(new int[1])), "span");
#endif
        second.AllReduce(sum);
        Suite.Collect();
        first.GroupEnd();
        Suite.Equal(3, sum[0], "sum");
    }

    static void GroupAfterLeave(Ranks each)
    {
        WeakReference[] arrays = new WeakReference[40];
        Thread other = new Thread(() =>  // whose stack keeps nothing
        {
            for (int i = 0; i < arrays.Length; ++i)
            {
                int[] array = new int[1];
                arrays[i] = new WeakReference(array);
                each.world.AllReduce(array);
            }
        });
        each.world.GroupBegin();
        other.Start();
        other.Join();
        each.job.StoreBarrier("in the group");
        each.job.Leave();
        Suite.Throws<DtInvalidStateException>(() => each.world.GroupEnd(), "Leave was called");
        Suite.WaitForGarbage(arrays, "the arrays of the group");
    }

    static void GroupWork(Ranks each, int peer)
    {
        int[] send = { each.rank + 20 }, recv = new int[1];
        float[] sum = { 1 };
        Work own = null;
        Work whole = each.world.GroupAsync(() =>
        {
            each.world.Send(send, peer);
            each.world.Recv(recv, peer);
            own = each.world.AllReduceAsync(sum);
            send = null;
        });
        GC.Collect();
        Suite.Check(whole.AsTask().Wait(60000) && whole.Test() && own.Test(), "the group is done");
        Suite.Equal(peer + 20, recv[0], "exchanged");
        Suite.Equal(2f, sum[0], "sum");
        Suite.Throws<DtInvalidStateException>(() => each.world.GroupEndAsync());
        Suite.Throws<KeyNotFoundException>(
            () => each.world.GroupAsync(() => { throw new KeyNotFoundException("on purpose"); }));
        each.world.GroupBegin();
        Suite.Check(each.world.GroupEndAsync().Wait(), "a group without operations is done");
        Work mismatch = each.world.GroupAsync(() => each.world.AllReduce(new float[1 + each.rank]));
        Suite.Throws<DtMismatchException>(() => mismatch.Wait());
    }

    /// Keys that a newer release may know are warnings, so there is something to log.
    static void LogSink()
    {
        string path = Path.GetTempFileName();
        File.WriteAllText(path, "schema = 99\n\"k\u00e4se\U0001F600\" = 1\nother = 2\n");
        List<string> lines = new List<string>(), before = new List<string>();
        int thrown = 0;
        TextWriter stderr = Console.Error;
        StringWriter errors = new StringWriter();
        TextWriter shared = TextWriter.Synchronized(errors);
        Console.SetError(shared);
        try
        {
            using (Config config = new Config(path).Set("job.rank", "0").Set("job.world_size", "1"))
            {
                config.SetLogSink((level, line) => { lock (before) before.Add(line); });
                config.SetLogSink((level, line) => { lock (lines) lines.Add(level + " " + line); });
                new Job(config).Dispose();
                Suite.WaitFor(() => { lock (lines) return lines.Count >= 2; }, "two messages");
                config.SetLogSink((level, line) =>
                {
                    Interlocked.Increment(ref thrown);
                    throw new InvalidOperationException("a sink\nthat throws");
                });
                GC.Collect();
                new Job(config).Dispose();
                Suite.WaitFor(() => Volatile.Read(ref thrown) >= 2, "two exceptions");
                config.SetLogSink(null);
            }
            lock (lines)
            {
                Suite.Check(lines[0].StartsWith("Warning "), "a level: " + lines[0]);
                Suite.Check(lines.Exists(line => line.Contains("k\u00e4se\U0001F600")), "wide characters");
                Suite.Equal(2, lines.Count, "messages of one job");
            }
            Suite.Equal(0, before.Count, "messages of a sink that was replaced");
            Suite.WaitFor(() => { lock (shared) return errors.ToString().Contains("a sink that throws"); }, "a line on stderr");
        }
        finally
        {
            Console.SetError(stderr);
            File.Delete(path);
        }
    }

    static void MemoryOfComm()
    {
        Ranks.Run(2, each =>
        {
            const int Count = 1000;
            using (Dt.Memory memory = each.world.Allocate<double>(Count))
            {
                Suite.Equal((long)(Count * sizeof(double)), memory.Bytes, "bytes");
                Suite.Equal(0L, memory.Address.ToInt64() % 4096, "alignment");
                double[] values = new double[Count];
                for (int i = 0; i < Count; ++i) values[i] = each.rank + 2 * i;
                memory.Write(values);
                each.world.AllReduce(memory);
                memory.Read(values);
                for (int i = 0; i < Count; ++i) Suite.Equal(1.0 + 4 * i, values[i], "sum");
                Suite.Throws<DtInvalidArgumentException>(() => memory.Write(new double[Count + 1]), "bytes");
#if DT_SPAN
                Suite.Equal(1.0, memory.AsSpan<double>()[0], "through a span");
#endif
                memory.Dispose();
                Suite.Throws<ObjectDisposedException>(() => memory.Address.ToInt64(), "Memory was disposed of");
                Suite.Throws<ObjectDisposedException>(() => memory.Read(values));
                Suite.Throws<ObjectDisposedException>(() => each.world.AllReduce(memory));
            }
            Suite.Throws<DtInvalidArgumentException>(() => each.world.Allocate<byte>(0));
            Suite.Throws<DtInvalidArgumentException>(() => each.world.Allocate<byte>(long.MaxValue), "from 1 to 1152921504606846975");
        });
    }
}
