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
        int turns;  // odd: inside a group

        internal int Turns => Volatile.Read(ref turns);

        internal static bool IsInside(int turns) => (turns & 1) != 0;

        /// Before a call with buffers that are fixed only as long as it lasts: it returned at once if
        /// another thread began a group meanwhile. Then this waits for the group's end.
        internal void Settle(int before)
        {
            if (Turns == before) return;
            lock (this)
            {
                int now = turns;  // a whole group may have passed, and another begun
                while (IsInside(now) && turns == now) Monitor.Wait(this);
            }
        }

        /// After a call inside the group of that turn. False: it ended meanwhile, the operation is done.
        internal bool Hold(int turn, Pin send, Pin recv, Combination custom)
        {
            lock (this)
            {
                if (turns != turn) return false;
                held.Add(send);
                held.Add(recv);
                if (custom != null) customs.Add(custom);
                return true;
            }
        }

        internal void Begin(Comm comm)
        {
            lock (this)
            {
                if (IsInside(turns))
                {
                    throw DtException.Make(new ErrorParts(Status.InvalidState,
                        "GroupBegin: inside a group, or one that is being ended; end it before"));
                }
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

        internal void End(Comm comm)
        {
            try
            {
                Raw.Native.group_end(comm);
            }
            catch (DtException error)
            {
                // These say that this call ended no group.
                if (error.Status != Status.InvalidState && error.Status != Status.InvalidArgument) Close();
                throw;
            }
            foreach (Combination custom in Close()) Combination.Check(custom);
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
}
