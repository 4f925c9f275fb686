// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Threading.Tasks;

namespace Dt
{
    /// An operation under way, with what it borrows. It outlives the Work that the caller may drop.
    internal sealed class Pending
    {
        internal Pin send, recv;
        internal Combination custom;  // null: a reduction of libdt's, or none
        // Of a group, otherwise null: what its calls without a work borrow. Under gate once it is issued.
        internal List<Pin> members;
        internal List<Combination> customs;
        internal readonly Channel channel;
        internal Handle handle;
        internal long turn;     // order of issue on the communicator
        internal bool overtakes;  // others of its communicator
        internal bool tracked;  // under the lock of Completions

        readonly object gate = new object();
        internal readonly DtObject owner;  // stays reachable as long as this
        TaskCompletionSource<bool> source;  // under gate, as all below
        bool done;
        bool dropped;
        DtException error;

        internal Pending(DtObject owner, Channel channel)
        {
            this.owner = owner;
            this.channel = channel;
        }

        internal void Issue(Call call, Comm comm)
        {
            overtakes = call.Overtakes || comm.named != null;
            Issued(call.Start(comm));
        }

        internal void Issued(long work)
        {
            handle = new Handle(work, Raw.NativePINVOKE.work_destroy);
            turn = channel.NextTurn();
        }

        /// True once the operation has ended, in whatever way.
        internal bool HasEnded(out DtException failure)
        {
            failure = null;
            try
            {
                bool ended = Raw.Native.work_test(handle.Number);
                if (ended) failure = Thrown();
                return ended;
            }
            catch (DtException caught)
            {
                failure = caught;
                return true;
            }
        }

        /// By a function of a Combine; null: nothing.
        DtException Thrown()
        {
            DtException thrown = custom == null ? null : custom.Failure;
            if (customs == null) return thrown;
            lock (gate)
            {
                foreach (Combination each in customs) thrown = thrown ?? each.Failure;
            }
            return thrown;
        }

        internal void CheckThrown()
        {
            DtException thrown = Thrown();
            if (thrown != null) throw thrown;
        }

        /// Also these, until the group has ended. False: it has.
        internal bool Hold(Pin[] pins, Combination other)
        {
            lock (gate)
            {
                if (members == null) return false;
                members.AddRange(pins);
                if (other != null) customs.Add(other);
                return true;
            }
        }

        /// Waits until it has ended, in whatever way.
        internal void AwaitEnd()
        {
            try
            {
                Raw.Native.work_wait(handle.Number, -1);
            }
            catch (DtException)
            {
                // Whoever has the work sees it.
            }
            GC.KeepAlive(this);
        }

        /// The operation has ended: libdt no longer uses the buffers.
        internal void Complete(DtException failure)
        {
            try
            {
                LetGo();
            }
            finally
            {
                End(failure);
            }
        }

        void End(DtException failure)
        {
            TaskCompletionSource<bool> waiting;
            bool drop;
            lock (gate)
            {
                done = true;
                error = failure;
                waiting = source;
                drop = dropped;
            }
            if (drop) handle.Dispose();
            if (waiting != null) Settle(waiting, failure);
        }

        static void Settle(TaskCompletionSource<bool> waiting, DtException failure)
        {
            if (failure == null) waiting.TrySetResult(true);
            else waiting.TrySetException(failure);
        }

        internal Task AsTask()
        {
            TaskCompletionSource<bool> waiting;
            Completions.Prepare();
            lock (gate)
            {
                if (source != null) return source.Task;
                waiting = source = new TaskCompletionSource<bool>(
                    TaskCreationOptions.RunContinuationsAsynchronously);
                if (done)
                {
                    Settle(waiting, error);
                    return waiting.Task;
                }
            }
            Completions.Track(this);
            return waiting.Task;
        }

        /// The caller drops his handle. The operation's own stays as long as it is watched.
        internal void Drop()
        {
            bool now;
            lock (gate)
            {
                dropped = true;
                now = done || (!tracked && source == null);
            }
            if (now && handle != null) handle.Dispose();
        }

        internal void LetGo()
        {
            if (custom != null) custom.End();
            if (customs != null)
            {
                Pin[] all;
                lock (gate)
                {
                    foreach (Combination each in customs) each.End();
                    all = members.ToArray();
                    members = null;
                }
                Pin.Free(all, all.Length);
            }
            Pin.Free(ref send, ref recv);
        }
    }
}
