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
    /// together and complete in any order. Buffers stay in their place until the operation is done, also
    /// when this object is disposed of or forgotten before. Any thread.</summary>
    public sealed class Work : IDisposable
    {
        readonly Pending pending;
        readonly CancellationToken token;
        volatile bool closed;

        internal Work(Pending pending, CancellationToken token)
        {
            this.pending = pending;
            this.token = token;
        }

        internal long Number
        {
            get
            {
                if (!closed && pending.handle != null) return pending.handle.Number;
                if (!closed)
                    throw DtException.InvalidArgument("Work: its group is not submitted; use the work after the group");
                throw new ObjectDisposedException(typeof(Work).FullName,
                    "this Work was disposed of; call it before Dispose");
            }
        }

        /// <summary>Whether it has completed; throws once it failed. Costs next to nothing.</summary>
        public bool Test()
        {
            bool done = Raw.Native.work_test(Number);
            if (done) pending.CheckThrown();
            GC.KeepAlive(this);
            return done;
        }

        /// <summary>Blocks until it has completed; throws if it failed. False when the time was over
        /// first, which cancels nothing; null: as long as the operation's own limit.</summary>
        public bool Wait(TimeSpan? timeout = null)
        {
            bool done = Raw.Native.work_wait(Number, Limit.InMs(timeout));
            if (done) pending.CheckThrown();
            GC.KeepAlive(this);
            return done;
        }

        /// <summary>Orders the work before later work on a CUDA stream. On a host communicator it
        /// waits.</summary>
        public void WaitStream(IntPtr stream)
        {
            Raw.Native.work_wait_stream(Number, stream.ToInt64());
            pending.CheckThrown();
            GC.KeepAlive(this);
        }

        /// <summary>Why it failed; null while it runs and on success.</summary>
        public DtException Error()
        {
            DtException error;
            if (Number != 0) pending.HasEnded(out error);
            else error = null;
            GC.KeepAlive(this);
            return error;
        }

        /// <summary>A task that completes with the operation, or fails with its exception.</summary>
        public Task AsTask() => AsTask(token);

        /// <summary>Likewise; cancelling ends this waiting, not the operation, which goes on using
        /// its buffers.</summary>
        public Task AsTask(CancellationToken token)
        {
            Task whole = Number == 0 ? null : pending.AsTask();
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
        public TaskAwaiter GetAwaiter() => AsTask().GetAwaiter();

        /// <summary>Index of the first completed work, failed or not (ask it); -1 when the time was
        /// over first; null: no limit.</summary>
        public static int WaitAny(IReadOnlyList<Work> works, TimeSpan? timeout = null)
        {
            if (works == null || works.Count == 0)
                throw DtException.InvalidArgument("WaitAny: works is null or empty; give works");
            Packer packer = new Packer();
            for (int i = 0; i < works.Count; ++i)
            {
                if (works[i] == null)
                    throw DtException.InvalidArgument("WaitAny: works[" + i + "] is null; give a work");
                packer.AddNumber(works[i].Number);
            }
            byte[] packed = packer.Take();
            int index = Raw.Native.work_wait_any(packed, packed.LongLength, Limit.InMs(timeout));
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
