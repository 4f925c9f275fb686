// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Dt
{
    /// <summary>One asynchronous operation; it can be awaited. Works of one communicator complete in
    /// the order of their calls, except that sends and receives called one after the other progress
    /// together and complete in any order. Buffers stay pinned until the operation is done, also when this
    /// object is disposed of or forgotten before. Any thread.</summary>
    public sealed class Work : IDisposable
    {
        internal readonly Pending pending;
        volatile bool closed;

        internal Work(Pending pending)
        {
            this.pending = pending;
        }

        internal long Number
        {
            get { return closed ? pending.handle.ClosedNumber : pending.handle.Number; }
        }

        /// <summary>Whether it has completed; throws once it failed. Costs next to nothing.</summary>
        public bool Test()
        {
            bool done = Raw.Native.work_test(Number);
            GC.KeepAlive(this);
            return done;
        }

        /// <summary>Blocks until it has completed; throws if it failed. False when so many
        /// milliseconds were over first, which cancels nothing; negative: as long as the operation's
        /// own limit.</summary>
        public bool Wait(long timeoutMs = -1)
        {
            bool done = Raw.Native.work_wait(Number, timeoutMs);
            GC.KeepAlive(this);
            return done;
        }

        /// <summary>Orders the work before later work on a CUDA stream. On a host communicator it
        /// waits.</summary>
        public void WaitStream(IntPtr stream)
        {
            Raw.Native.work_wait_stream(Number, stream.ToInt64());
            GC.KeepAlive(this);
        }

        /// <summary>Why it failed; null while it runs and on success.</summary>
        public DtException Error()
        {
            if (closed) Test();  // throws what libdt says of closed works
            DtException error;
            pending.HasEnded(out error);
            GC.KeepAlive(this);
            return error;
        }

        /// <summary>A task that completes with the operation, or fails with its
        /// exception.</summary>
        public Task AsTask()
        {
            if (closed) Test();
            return pending.AsTask();
        }

        /// <summary>Likewise; cancelling ends this waiting, not the operation, which goes on using
        /// its buffers.</summary>
        public Task AsTask(CancellationToken token)
        {
            Task whole = AsTask();
            if (!token.CanBeCanceled || whole.IsCompleted) return whole;
            TaskCompletionSource<bool> waiting = new TaskCompletionSource<bool>(
                TaskCreationOptions.RunContinuationsAsynchronously);
            CancellationTokenRegistration registration =
                token.Register(() => waiting.TrySetCanceled(token));
            whole.ContinueWith(done =>
            {
                registration.Dispose();
                if (done.IsFaulted) waiting.TrySetException(done.Exception.InnerExceptions);
                else waiting.TrySetResult(true);
            }, CancellationToken.None, TaskContinuationOptions.ExecuteSynchronously, TaskScheduler.Default);
            return waiting.Task;
        }

        /// <summary>For await.</summary>
        public TaskAwaiter GetAwaiter()
        {
            return AsTask().GetAwaiter();
        }

        /// <summary>Index of the first completed work, failed or not (ask it); -1 when so many
        /// milliseconds were over first; negative: no limit.</summary>
        public static int WaitAny(IReadOnlyList<Work> works, long timeoutMs = -1)
        {
            if (works == null) throw DtException.InvalidArgument("wait_any: works is null; give works");
            byte[] packed = new byte[works.Count * sizeof(long)];
            for (int i = 0; i < works.Count; ++i)
            {
                long number = works[i] == null ? 0 : works[i].Number;
                Buffer.BlockCopy(BitConverter.GetBytes(number), 0, packed, i * sizeof(long), sizeof(long));
            }
            Loader.Ensure();
            int index = Raw.Native.work_wait_any(packed, packed.LongLength, timeoutMs);
            GC.KeepAlive(works);
            return index;
        }

        /// <summary>Drops the handle. An unfinished operation goes on and still uses its
        /// buffers.</summary>
        public void Dispose()
        {
            closed = true;
            pending.Drop();
        }
    }
}
