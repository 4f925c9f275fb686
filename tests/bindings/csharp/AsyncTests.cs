// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;
using Dt;

static class AsyncTests
{
    internal static void Add()
    {
        Suite.Add("async: works complete in issue order", IssueOrder);
        Suite.Add("async: awaiting a work", () => Ranks.Run(2, each => Suite.Check(Awaits(each).Wait(60000), "in time")));
        Suite.Add("async: cancelling ends the waiting alone", Cancelling);
        Suite.Add("async: a failed communicator fails all its tasks", FailedTasks);
        Suite.Add("async: buffers stay while garbage is collected", Collected);
        Suite.Add("async: wait any", WaitAny);
        Suite.Add("async: a send overtakes a receive", Overtaking);
        Suite.Add("async: many outstanding works are issued fast", ManyOutstanding);
#if DT_SPAN
        Suite.Add("async: an owner that throws when it is unpinned", ThrowingOwner);
#endif
        Suite.Add("async: tasks of addresses, asked for late", LateTasks);
    }

    static void IssueOrder()
    {
        Ranks.Run(2, each =>
        {
            const int Count = 200;
            List<Task> tasks = new List<Task>();
            int[][] buffers = new int[Count][];
            for (int i = 0; i < Count; ++i)
            {
                buffers[i] = new int[] { each.rank, i };
                tasks.Add(each.world.AllReduceAsync(buffers[i]).AsTask());
            }
            Suite.Check(tasks[Count - 1].Wait(60000), "the last in time");
            for (int i = 0; i < Count; ++i)
            {
                Suite.Check(tasks[i].IsCompleted, "those before the last");
                Suite.Equal(1, buffers[i][0], "sum of ranks");
                Suite.Equal(2 * i, buffers[i][1], "sum of indices");
            }
        });
    }

    static async Task Awaits(Ranks each)
    {
        for (int i = 0; i < 50; ++i)
        {
            double[] buffer = { each.rank + 1, i };
            using (Work work = each.world.AllReduceAsync(buffer))
            {
                await work;
                await work;
                Suite.Check(work.Test(), "an awaited work is done");
                Suite.Check(work.Error() == null, "without an error");
            }
            Suite.Equal(3.0, buffer[0], "sum");
        }
    }

    static void Cancelling()
    {
        Ranks.Run(2, each =>
        {
            int[] buffer = { each.rank + 1 };
            if (each.rank == 0)
            {
                using (CancellationTokenSource source = new CancellationTokenSource())
                {
                    Work work = each.world.AllReduceAsync(buffer, token: source.Token);
                    Task task = work.AsTask(), other = work.AsTask(source.Token);
                    Task whole = work.AsTask(CancellationToken.None);
                    Suite.Check(!work.Test(), "the other rank has not come");
                    Suite.Check(!work.Wait(TimeSpan.FromMilliseconds(1)), "waiting a little ends, too");
                    source.Cancel();
                    Suite.WaitFor(() => task.IsCanceled && other.IsCanceled, "the cancelled tasks end");
                    Suite.Check(!whole.IsCompleted, "the operation goes on");
                    work.Dispose();
                    each.job.StoreSet("go", new byte[0]);
                    Suite.Check(whole.Wait(60000), "and ends");
                }
            }
            else
            {
                each.job.StoreGet("go");
                each.world.AllReduce(buffer);
            }
            Suite.Equal(3, buffer[0], "sum");
        });
    }

    static void FailedTasks()
    {
        Ranks.Run(2, each =>
        {
            using (Comm part = each.world.Split(0, 0))
            {
                part.SetTimeout(TimeSpan.FromMilliseconds(200));
                if (each.rank == 0)
                {
                    List<Work> works = new List<Work>();
                    List<Task> tasks = new List<Task>();
                    for (int i = 0; i < 5; ++i)
                    {
                        works.Add(part.AllReduceAsync(new float[10]));
                        tasks.Add(works[i].AsTask());
                    }
                    foreach (Task task in tasks)
                    {
                        AggregateException error = Suite.Throws<AggregateException>(() => task.Wait(60000));
                        Suite.Check(error.InnerException is DtTimeoutException, error.ToString());
                    }
                    Suite.Check(works[4].Error() is DtTimeoutException, "the last work's error");
                    Suite.Throws<DtTimeoutException>(() => works[0].Wait());
                    Suite.Throws<DtTimeoutException>(() => works[0].Test());
                }
                each.job.StoreBarrier("failed");
            }
        });
    }

    /// Operations that the ranks have completed while the collector runs.
    static int completed;

    static void Collected()
    {
        bool stop = false;
        Thread collector = new Thread(() =>
        {
            while (!Volatile.Read(ref stop))
            {
                // On .NET collections without a pause let no other thread run: one operation may end in between, or
                // a millisecond.
                int before = Volatile.Read(ref completed);
                GC.Collect();
                SpinWait.SpinUntil(() => Volatile.Read(ref completed) != before || Volatile.Read(ref stop), 1);
                byte[][] garbage = new byte[50][];
                for (int i = 0; i < garbage.Length; ++i) garbage[i] = new byte[1000 + i];
            }
        });
        collector.IsBackground = true;
        collector.Start();
        try
        {
            Ranks.Run(2, each =>
            {
                List<Task> tasks = new List<Task>();
                for (int i = 0; i < 150; ++i) tasks.Add(Launch(each, i));
                Suite.Check(Task.WaitAll(tasks.ToArray(), 60000), "all in time");
                for (int i = 0; i < 150; ++i) Drop(each, i);
                for (int i = 0; i < 2000; ++i)
                {
                    int[] send = { each.rank, i, 1 }, recv = new int[3];
                    each.world.AllReduce(send, recv);
                    Suite.Equal("1 " + 2 * i + " 2", string.Join(" ", recv), "blocking");
                    Interlocked.Increment(ref completed);
                }
                each.world.Barrier();
            });
        }
        finally
        {
            Volatile.Write(ref stop, true);
        }
        Suite.Check(collector.Join(60000), "the collector ends");
    }

    static async Task Launch(Ranks each, int i)
    {
        int[] send = new int[1000 + i], recv = new int[1000 + i];
        for (int k = 0; k < send.Length; ++k) send[k] = each.rank + 2 * (k + i);
        Work work = each.world.AllReduceAsync(send, recv);
        send = null;
        if (i % 2 == 0)
        {
            Task task = work.AsTask();
            work.Dispose();
            await task;
        }
        else
        {
            await work;
        }
        for (int k = 0; k < recv.Length; ++k) Suite.Equal(1 + 4 * (k + i), recv[k], "element");
        Interlocked.Increment(ref completed);
    }

    /// Nobody keeps anything.
    static void Drop(Ranks each, int i)
    {
        Work work = each.world.AllReduceAsync(new double[500 + i], new double[500 + i]);
        if (i % 3 == 0) work.Dispose();
#if DT_SPAN
        each.world.AllReduceAsync(new Memory<float>(new float[100 + i]));
#endif
    }

    static void WaitAny()
    {
        Ranks.Run(2, each =>
        {
            Work first = each.world.AllReduceAsync(new float[10]);
            Work second = each.world.AllReduceAsync(new float[10]);
            if (each.rank == 0) Suite.Equal(0, Work.WaitAny(new Work[] { first, second }, TimeSpan.FromMinutes(1)), "the first");
            else Suite.Equal(1, Work.WaitAny(new Work[] { second, first }, TimeSpan.FromMinutes(1)) | 1, "either");
            second.Wait();
            Suite.Equal(0, Work.WaitAny(new Work[] { second, first }), "both are done");
            each.job.StoreBarrier("issued");
            if (each.rank == 0)
            {
                Work alone = each.world.BarrierAsync();
                Suite.Equal(-1, Work.WaitAny(new Work[] { alone }, TimeSpan.FromMilliseconds(1)), "in vain");
                each.job.StoreSet("seen", new byte[1]);
                alone.Wait();
            }
            else
            {
                each.job.StoreGet("seen");
                each.world.Barrier();
            }
        });
    }

    static void ManyOutstanding()
    {
        const int Count = 20000;
        Ranks.Run(2, each =>
        {
            int[][] buffers = new int[Count][];
            Task[] tasks = new Task[Count];
            for (int i = 0; i < Count; ++i) buffers[i] = new int[] { each.rank + i };
            if (each.rank == 1) each.job.StoreGet("issued");
            System.Diagnostics.Stopwatch watch = System.Diagnostics.Stopwatch.StartNew();
            for (int i = 0; i < Count; ++i) tasks[i] = each.world.AllReduceAsync(buffers[i]).AsTask();
            double seconds = watch.Elapsed.TotalSeconds;
            if (each.rank == 0)
            {
                Console.WriteLine(Count + " works were issued in " + seconds.ToString("F3") + " s");
                Suite.Check(seconds < 2, "works behind others cost nothing to watch");
                each.job.StoreSet("issued", new byte[0]);
            }
            Suite.Check(Task.WaitAll(tasks, 60000), "all in time");
            for (int i = 0; i < Count; ++i) Suite.Equal(1 + 2 * i, buffers[i][0], "sum");
        });
    }

    static void Overtaking()
    {
        Ranks.Run(2, each =>
        {
            int[] first = { 0 }, second = { 7 };
            if (each.rank == 0)
            {
                Work receive = each.world.RecvAsync(first, 1), send = each.world.SendAsync(second, 1);
                Task received = receive.AsTask();
                Suite.Check(send.AsTask().Wait(20000), "the send is seen to end");
                Suite.Check(!received.IsCompleted, "the receive is under way");
                each.job.StoreSet("sent", new byte[0]);
                Suite.Check(received.Wait(60000), "the receive in time");
            }
            else
            {
                each.world.Recv(second, 0);
                each.job.StoreGet("sent");
                each.world.Send(new int[] { 5 }, 0);
            }
            Suite.Equal(7, second[0], "what was sent");
            if (each.rank == 0) Suite.Equal(5, first[0], "what was received");
        });
    }

#if DT_SPAN
    /// Memory that throws when it is unpinned.
    sealed class Refusing : System.Buffers.MemoryManager<float>
    {
        internal readonly float[] array = { 1, 2 };
        GCHandle pin;

        public override Span<float> GetSpan()
        {
            return array;
        }

        public override unsafe System.Buffers.MemoryHandle Pin(int index = 0)
        {
            pin = GCHandle.Alloc(array, GCHandleType.Pinned);
            void* address = (void*)pin.AddrOfPinnedObject();
            return new System.Buffers.MemoryHandle(address, default(GCHandle), this);
        }

        public override void Unpin()
        {
            pin.Free();
            throw new InvalidOperationException("unpinned");
        }

        protected override void Dispose(bool disposing)
        {
        }
    }

    sealed class BrokenWriter : StringWriter
    {
        public override void WriteLine(string text)
        {
            throw new IOException("nobody reads");
        }
    }

    static void ThrowingOwner()
    {
        TextWriter before = Console.Error;
        Console.SetError(new BrokenWriter());
        try
        {
            Ranks.Run(2, each =>
            {
                for (int i = 0; i < 3; ++i)
                {
                    Refusing from = new Refusing(), to = new Refusing();
                    Task task = each.world.AllReduceAsync(from.Memory, to.Memory).AsTask();
                    Suite.Check(task.Wait(20000), "the task ends");
                    Suite.Equal(2f, to.array[0], "sum");
                }
            });
        }
        finally
        {
            Console.SetError(before);
        }
    }
#endif

    static void LateTasks()
    {
        Ranks.Run(2, each =>
        {
            Work[] works = new Work[20];
            using (Dt.Memory memory = each.world.Allocate<float>(2))
            {
                for (int i = 0; i < works.Length; ++i)
                {
                    works[i] = each.world.AllReduceAsync(new Tensor(memory.Address, 1, Dtype.F32));
                }
                for (int i = works.Length - 1; i >= 0; --i) Suite.Check(works[i].AsTask().Wait(60000), "in time");
                Comm other = each.job.World();
                Work last = other.BarrierAsync();
                other.Dispose();
                Suite.Check(last.AsTask().Wait(60000), "of a closed communicator");
            }
        });
    }
}
