// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;
using Dt;

/// Parameter servers of this process, and workers that are its threads.
static class PsTests
{
    static readonly TimeSpan limit = TimeSpan.FromSeconds(60);
    const int Rows = 10, Columns = 3;

    internal static void Add()
    {
        Suite.Add("ps: two workers and two servers", Together);
        Suite.Add("ps: optimizers, initial values and checkpoints", Specs);
        Suite.Add("ps: tasks, and what is dropped goes on", Works);
        Suite.Add("ps: the clock, leaving and disposing", Ends);
        Suite.Add("ps: what is refused", Refusals);
    }

    /// The servers of a job.
    sealed class Servers : IDisposable
    {
        internal readonly List<PsServer> all = new List<PsServer>();
        internal readonly Config config = new Config();

        internal Servers(int count, int workers, PsServerOptions options = null)
        {
            string any = string.Join(",", Enumerable.Repeat("127.0.0.1:0", count));
            for (int i = 0; i < count; ++i)
            {
                using (Config own = new Config().Set("ps.servers", any).Set("ps.index", i.ToString())
                    .Set("ps.workers", workers.ToString())) all.Add(new PsServer(own, options));
            }
            config.Set("ps.servers", string.Join(",", all.Select(each => "127.0.0.1:" + each.Port)));
            config.Set("ps.workers", workers.ToString());
        }

        internal Ps Connect(int worker, long timeoutMs = 60000) =>
            new Ps(config, new PsOptions { Worker = worker, ConnectMs = 60000, TimeoutMs = timeoutMs });

        public void Dispose()
        {
            foreach (PsServer each in all) each.Dispose();
            config.Dispose();
        }
    }

    static void Together()
    {
        using (Servers servers = new Servers(2, 2))
        {
            PsPlace place = Ps.Info(servers.config);
            Suite.Equal("Worker 0 2 2 0", place.Role + " " + place.Index + " " + place.Servers + " " + place.Workers + " " +
                place.Attempt, "the place");
            Exception failure = null;
            Barrier connected = new Barrier(2);  // the clock waits for nobody else
            Thread[] threads = Enumerable.Range(0, 2).Select(worker => new Thread(() =>
            {
                try
                {
                    using (Ps ps = servers.Connect(worker))
                    {
                        Suite.Check(connected.SignalAndWait(limit), "both come");
                        Train(ps, worker);
                        ps.Leave();
                    }
                }
                catch (Exception error)
                {
                    failure = error;
                }
            }) { IsBackground = true }).ToArray();
            foreach (Thread each in threads) each.Start();
            foreach (Thread each in threads) Suite.Check(each.Join(limit), "a worker ends");
            if (failure != null) throw new Exception("a worker failed", failure);
            foreach (PsServer each in servers.all) Suite.Check(each.Wait(limit), "all have left");
            // Of equal rows one.
            Suite.Equal(2L * (Rows + 3 + 1), servers.all.Sum(each => each.Statistics.PushedRows), "rows");
            Suite.Equal(0, servers.all.Sum(each => each.Statistics.Workers), "workers");
        }
    }

    static void Train(Ps ps, int worker)
    {
        long[] rows = { 7, 2, 7, 0 };
        PsVariable weight = ps.Variable("w", Rows, Columns, new PsSpec { Rate = 0.5, InitialValue = 1 });
        float[] whole = Enumerable.Range(0, Rows * Columns).Select(i => (float)i).ToArray();
        float[] wanted = whole.Select(value => 1 - 2 * 0.5f * value).ToArray();
        weight.Push(whole);
        float[] some = Enumerable.Repeat(worker + 1f, rows.Length * Columns).ToArray();
        weight.Push(some, rows, 1);
        ps.Clock(0);
        foreach (long row in rows)
        {
            for (int c = 0; c < Columns; ++c) wanted[row * Columns + c] -= 1 + 2;
        }
        weight.Pull(whole);
        Suite.Check(whole.SequenceEqual(wanted), "all rows");
        float[] two = new float[2 * Columns];
        weight.Pull(two, new long[] { 9, 2 });
        Suite.Check(two.SequenceEqual(wanted.Skip(9 * Columns).Take(Columns).Concat(wanted.Skip(2 * Columns).Take(Columns))),
            "two rows");
        weight.Pull(new float[0], new long[0]);
        ps.Clock(0);
        weight.Set(Tensor.Of(whole).Slice(0, Columns), new long[] { worker });
#if DT_SPAN
        weight.Pull(some.AsSpan(Columns, Columns), new long[] { worker });
#else
        weight.Pull(Tensor.Of(some).Slice(Columns, Columns), new long[] { worker });
#endif
        Suite.Equal(whole[1], some[Columns + 1], "what was set");
        PsStatistics seen = ps.Statistics;
        Suite.Equal(2L, seen.Clock, "steps");
        Suite.Equal(Rows + 4L + 1, seen.PushedRows, "pushed");
        Suite.Equal(Rows + 2L + 1, seen.PulledRows, "pulled");
        Suite.Equal("PsVariable \"w\" of 10 rows, 3 columns", weight.ToString(), "its text");
    }

    static void Only(Ps ps, string name, PsSpec spec, float gradient, float wanted)
    {
        PsVariable one = ps.Variable(name, spec: spec);
        float[] value = { gradient };
        one.Push(value);
        one.Pull(value);
        Suite.Check(Math.Abs(value[0] - wanted) < 1e-6, name + " is " + value[0]);
    }

    static void Specs()
    {
        string folder = Path.Combine(Path.GetTempPath(), "dt-ps-" + Guid.NewGuid().ToString("N"));
        Directory.CreateDirectory(folder);
        PsServerOptions options = new PsServerOptions { Checkpoint = folder };
        PsSpec uniform = new PsSpec { Initial = PsInitial.Uniform, InitialValue = 0.5, Seed = ulong.MaxValue };
        float[] first = new float[100], again = new float[100];
        using (Servers servers = new Servers(1, 1, options))
        using (Ps ps = servers.Connect(0))
        {
            // 2 * 3 / sqrt(3 * 3)
            Only(ps, "a", new PsSpec { Optimizer = PsOptimizer.Adagrad, Rate = 2 }, 3, -2);
            Only(ps, "m", new PsSpec { Optimizer = PsOptimizer.Momentum, Rate = 1, Momentum = 0.5, Nesterov = true }, 1,
                -1.5f);
            Only(ps, "d", new PsSpec { Optimizer = PsOptimizer.Adam, Rate = 1 }, 4, -1);
            ps.Variable("u", 50, 2, uniform).Pull(first);
            Suite.Check(first.Distinct().Count() > 90 && first.All(each => Math.Abs(each) <= 0.5), "numbers");
            Suite.Throws<DtMismatchException>(() => ps.Variable("u", 50, 3, uniform), "columns is 2 there and 3 here");
            ps.Save();
            Suite.Check(servers.all[0].Statistics.Saves >= 1, "a checkpoint");
            ps.Leave();
        }
        using (Servers servers = new Servers(1, 1, options))
        using (Ps ps = servers.Connect(0))
        {
            ps.Variable("u", 50, 2, uniform).Pull(again);
            Suite.Check(again.SequenceEqual(first), "of the checkpoint");
            ps.Leave();
        }
        Directory.Delete(folder, true);
    }

    static void Works()
    {
        using (Servers servers = new Servers(2, 1))
        using (Ps ps = servers.Connect(0))
        {
            PsVariable weight = ps.Variable("w", Rows, Columns, new PsSpec { Rate = 1 });
            float[] data = Enumerable.Repeat(-1f, Rows * Columns).ToArray(), values = new float[Rows * Columns];
            List<Work> works = new List<Work>();
            for (int i = 0; i < 5; ++i) works.Add(weight.PushAsync(data));
            works.Add(weight.SetAsync(new float[] { 8, 8, 8 }, new long[] { 3 }));
            works.Add(weight.PullAsync(values));
            Suite.Check(Task.WaitAll(works.Select(each => each.AsTask()).ToArray(), limit), "all end");
            for (int i = 0; i < values.Length; ++i) Suite.Equal(i / Columns == 3 ? 8f : 5f, values[i], "element " + i);
            Suite.Equal(0, Work.WaitAny(works, TimeSpan.Zero), "the first");
            Suite.Check(ps.WorkFd >= 0, "an eventfd");

            List<WeakReference> dropped = Dropped(weight);
            weight.Pull(values);
            Suite.WaitFor(() =>
            {
                Suite.Collect();
                // Mono looks at the stack without knowing what is a reference there.
                return dropped.Count(each => each.IsAlive) <= 2;
            }, "they are let go of");
            // What has no answer yet ends with its worker.
            foreach (PsServer each in servers.all) each.Dispose();
            Work last = weight.PullAsync(values);
            Task task = last.AsTask();
            ps.Dispose();
            Suite.Check(Task.WhenAny(task, Task.Delay(limit)).Result == task, "it ends");
            Suite.Throws<DtAbortedException>(() => task.GetAwaiter().GetResult());
            Suite.Throws<DtAbortedException>(() => last.Wait());
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static List<WeakReference> Dropped(PsVariable weight)
    {
        List<WeakReference> all = new List<WeakReference>();
        for (int i = 0; i < 20; ++i)
        {
            float[] values = new float[Rows * Columns];
            weight.PullAsync(values);
            all.Add(new WeakReference(values));
        }
        return all;
    }

    static void Ends()
    {
        using (Servers servers = new Servers(1, 2))
        using (Ps fast = servers.Connect(0, 2000))
        using (Ps slow = servers.Connect(1))
        {
            fast.Clock(-1);
            fast.Clock(2);
            Suite.Throws<DtTimeoutException>(() => fast.Clock(0), "worker 1");
            PsVariable weight = slow.Variable("w");
            slow.Leave();
            slow.Leave();
            Suite.Throws<DtInvalidStateException>(() => weight.Push(new float[1]), "Push: ", "has left");
            Suite.Check(!servers.all[0].Wait(TimeSpan.Zero), "the other one has not left");
            slow.Dispose();
            slow.Dispose();
            Suite.Throws<ObjectDisposedException>(() => weight.Push(new float[1]), "Ps was disposed of");
            Suite.Throws<ObjectDisposedException>(() => weight.PullAsync(new float[1]));
            fast.Leave();
            fast.Dispose();
            Suite.Check(servers.all[0].Wait(limit), "all have left");
            servers.all[0].Dispose();
            Suite.Throws<ObjectDisposedException>(() => servers.all[0].Port.ToString(), "PsServer was disposed of");
        }
    }

    static void Refused(Action call, params string[] texts) => Suite.Throws<DtInvalidArgumentException>(call, texts);

    static void Refusals()
    {
        using (Servers servers = new Servers(2, 1))
        using (Ps ps = servers.Connect(0))
        {
            PsVariable weight = ps.Variable("w", 4, 2);
            Refused(() => weight.Push(new float[7]), "Push: gradients has 7 elements, but there are 4 rows of 2 columns; give");
            Refused(() => weight.Push(new float[8], new long[1]), "there are 1 rows of 2 columns");
            Refused(() => weight.Push(new float[8], null, double.NaN), "it must be finite, or negative");
            Refused(() => weight.Push(default(Tensor)), "Push: gradients is null");
            Refused(() => weight.Set(new double[8]), "Set: values is not of f32");
            Refused(() => weight.PullAsync(new float[2], new long[] { 4 }), "Pull: rows[0] is 4; variable \"w\" has 4 rows");
            Refused(() => ps.Variable("v", 0), "Variable: rows is 0; it must be in [1");
            Refused(() => ps.Variable(""), "name has 0 bytes");
            Refused(() => ps.Variable(null), "a text is null");
            Refused(() => ps.Variable("v", spec: new PsSpec { Rate = -1 }), "rate is -1; it must be at least 0");
            Refused(() => ps.Variable("v", spec: new PsSpec { Initial = (PsInitial)9 }), "initial is 9, which is none");
            Refused(() => ps.Clock(-2), "Clock: ahead is -2; it must be at least -1");
            Refused(() => new Ps(servers.config, new PsOptions { QueueBytes = 0 }), "Ps: queueBytes is 0; it must be at least 1");
            Refused(() => new PsServer(null, new PsServerOptions { AbsentMs = -1 }), "PsServer: absentMs is -1; it must be");
            Suite.Throws<DtInvalidStateException>(() => ps.Save(), "Save: ");
            Suite.Throws<DtConfigException>(() => new PsServer(servers.config), "PsServer: this process is no parameter server");
            Suite.Throws<DtConfigException>(() => Ps.Info(), "Info: ", "dt run --servers N");
            ps.Leave();
        }
    }
}
