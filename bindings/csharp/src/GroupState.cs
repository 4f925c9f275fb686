// SPDX-License-Identifier: Apache-2.0
using System.Collections.Generic;
using System.Threading;

namespace Dt
{
    /// Whether a communicator is inside a group, where calls without a work return before they are
    /// done: their buffers stay pinned until the group ends.
    internal sealed class GroupState
    {
        readonly List<Pin> held = new List<Pin>();  // under this, as all below
        readonly List<Combination> customs = new List<Combination>();
        // Groups that have ended, and whose operations are under way.
        readonly List<Ended> ended = new List<Ended>();
        int turns;  // odd: inside a group
        // Held by what begins or ends a group, around the lock of this: a failed end closes no other group.
        readonly object changing = new object();

        struct Ended
        {
            internal int Turn;
            internal Pending Whole;
        }

        internal int Turns => Volatile.Read(ref turns);

        internal static bool IsInside(int turns) => (turns & 1) != 0;

        /// Before a call with buffers that are fixed only as long as it lasts: it returned at once if
        /// another thread began a group meanwhile. Then this waits for the group's end, or until the work
        /// of the group is done.
        internal void Settle(int before)
        {
            if (Turns != before) SettleLater(before);
        }

        /// Apart, because a call that waits must make no garbage, and a captured variable is some.
        void SettleLater(int before)
        {
            List<Ended> later;
            lock (this)
            {
                int now = turns;  // a whole group may have passed, and another begun
                while (IsInside(now) && turns == now) Monitor.Wait(this);
                later = ended.FindAll(each => each.Turn > before);
            }
            foreach (Ended each in later) each.Whole.AwaitEnd();
        }

        /// After a call inside the group of that turn. False: it ended meanwhile, the operation is done.
        internal bool Hold(int turn, Pin send, Pin recv, Combination custom)
        {
            lock (this)
            {
                if (turns != turn)
                {
                    Pending whole = ended.Find(each => each.Turn == turn).Whole;
                    return whole != null && whole.Hold(new Pin[] { send, recv }, custom);
                }
                held.Add(send);
                held.Add(recv);
                if (custom != null) customs.Add(custom);
                return true;
            }
        }

        internal void Begin(Comm comm)
        {
            CheckOutside();  // at once, where another thread is ending a group
            lock (changing)
            lock (this)
            {
                CheckOutside();
                Volatile.Write(ref turns, turns + 1);
                try
                {
                    Raw.Native.group_begin(comm);
                }
                catch
                {
                    Leave();
                    throw;
                }
            }
        }

        void CheckOutside()
        {
            if (!IsInside(Turns)) return;
            throw DtException.Make(new ErrorParts(Status.InvalidState,
                "GroupBegin: inside a group, or one that is being ended; end it before"));
        }

        internal void End(Comm comm)
        {
            Combination[] customs;
            lock (changing)
            {
                try
                {
                    Raw.Native.group_end(comm);
                }
                catch (DtException error)
                {
                    if (Ends(error)) Close();
                    throw;
                }
                customs = Close();
            }
            foreach (Combination custom in customs) Combination.Check(custom);
        }

        /// Whether a group that is open has ended with this, as after Job.Leave. Not through a communicator
        /// that was disposed of.
        static bool Ends(DtException error) => error.Status != Status.InvalidArgument;

        /// Without waiting: the work of the group takes over what is held.
        internal Pending EndAsync(Comm comm)
        {
            Completions.Prepare();
            Pending whole = new Pending(comm, comm.channel);
            whole.overtakes = true;
            lock (changing)
            lock (this)
            {
                Ended one = new Ended();
                one.Turn = turns;
                one.Whole = whole;
                whole.members = new List<Pin>(held);
                whole.customs = new List<Combination>(customs);
                DtException error;
                ended.RemoveAll(each => each.Whole.HasEnded(out error));
                ended.Add(one);
                try
                {
                    whole.Issued(Raw.Native.group_end_async(comm));
                }
                catch (DtException failure)
                {
                    ended.RemoveAt(ended.Count - 1);
                    if (Ends(failure)) Close();
                    throw;
                }
                held.Clear();
                customs.Clear();
                Leave();
            }
            Completions.Track(whole);
            return whole;
        }

        Combination[] Close()
        {
            lock (this)
            {
                Combination[] ended = customs.ToArray();
                if (IsInside(turns)) Leave();
                return ended;
            }
        }

        void Leave()
        {
            Pin[] all = held.ToArray();
            held.Clear();
            foreach (Combination custom in customs) custom.End();
            customs.Clear();
            Volatile.Write(ref turns, turns + 1);
            Monitor.PulseAll(this);
            Pin.Free(all, all.Length);
        }
    }

    /// The group of the world communicator, for all its handles. Once it shrank the world is another
    /// communicator. Locked while libdt is asked, so that handle and group are of the same communicator.
    internal sealed class WorldGroup
    {
        GroupState now;  // under this, as below; null: no handle was made yet
        bool single;  // a job of one rank, where Shrink replaces nothing

        internal Comm Open(Job job)
        {
            lock (this)
            {
                GroupState group = now ?? new GroupState();
                Comm made = new Comm(Raw.Native.job_world(job), group, this);
                if (now == null) single = made.Size == 1;
                now = group;
                return made;
            }
        }

        /// Shrinks a communicator of all ranks: the job's present one, or one from before a shrink.
        internal Comm Shrink(Comm comm)
        {
            lock (this)
            {
                long made = Raw.Native.comm_shrink(comm);
                if (single || comm.group != now) return new Comm(made);
                now = new GroupState();
                return new Comm(made, now, this);
            }
        }
    }
}
