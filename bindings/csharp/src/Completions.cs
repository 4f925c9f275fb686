// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Threading;

namespace Dt
{
    /// The operations under way on one communicator, or of one worker, that a work or task waits for.
    internal sealed class Channel
    {
        // In order of issue, in which collectives end; sends and receives overtake each other.
        internal readonly LinkedList<Pending> collectives = new LinkedList<Pending>();
        internal readonly LinkedList<Pending> transfers = new LinkedList<Pending>();
        internal readonly Func<int> fd;  // of the eventfd that rings
        internal bool watched;
        long turns;

        internal Channel(Func<int> fd)
        {
            this.fd = fd;
        }

        internal long NextTurn() => Interlocked.Increment(ref turns);

        internal bool IsIdle => collectives.First == null && transfers.First == null;

        internal void Add(Pending pending)
        {
            LinkedList<Pending> works = pending.overtakes ? transfers : collectives;
            LinkedListNode<Pending> before = works.Last;
            while (before != null && before.Value.turn > pending.turn) before = before.Previous;
            if (before == null) works.AddFirst(pending);
            else works.AddAfter(before, pending);
        }
    }

    /// The one thread that sees operations end: it unpins their buffers and completes their tasks.
    internal static class Completions
    {
        const int IdleMs = -1;         // until a work comes
        const int WatchedMs = 1000;    // completions ring; this only bounds the harm of a lost one
        const int UnwatchedMs = 2;     // the communicator was closed before it could be watched
        const int UnloadLimitMs = 5000;

        struct Ended
        {
            internal Pending Pending;
            internal DtException Error;
        }

        static readonly object gate = new object();
        static readonly List<Channel> busy = new List<Channel>();
        static Raw.Poller poller;  // never destroyed: the thread may be inside
        static LibraryThread thread;
        static bool stopped;

        /// Before an operation is issued that must be watched: what can fail fails here.
        internal static void Prepare()
        {
            if (Volatile.Read(ref thread) != null) return;
            lock (gate) Start();
        }

        /// The operation was issued; from here on it is watched until it has ended.
        internal static void Track(Pending pending)
        {
            bool ring = false;
            lock (gate)
            {
                if (pending.tracked || stopped) return;
                Start();
                pending.tracked = true;
                Channel channel = pending.channel;
                if (!channel.watched) channel.watched = Watch(channel);
                ring = channel.IsIdle || !channel.watched;
                if (channel.IsIdle) busy.Add(channel);
                channel.Add(pending);
                // From here on its completion rings, unless it came before.
                DtException error;
                ring = ring || pending.HasEnded(out error);
            }
            if (ring) poller.wake();
        }

        static bool Watch(Channel channel)
        {
            try
            {
                poller.watch(channel.fd());
                return true;
            }
            catch (Exception)
            {
                return false;  // it was closed
            }
        }

        static void Start()
        {
            if (thread != null) return;
            if (poller == null)
            {
                poller = new Raw.Poller();
                GC.SuppressFinalize(poller);
            }
            Volatile.Write(ref thread, new LibraryThread("dt completions", Run, Stop, Unload));
        }

        static void Stop()
        {
            lock (gate) stopped = true;
            poller.wake();
        }

        static void Unload()
        {
            lock (gate)
            {
                AwaitIdle();
                stopped = true;
            }
        }

        /// Before anything of an application domain ends that is unloaded. Arrays go with their domain,
        /// also those that libdt still uses: this waits for it, and throws if that takes long, by which
        /// the domain stays.
        internal static void CheckUnload()
        {
            lock (gate) AwaitIdle();
        }

        static void AwaitIdle()
        {
            while (busy.Count > 0)
            {
                if (Monitor.Wait(gate, UnloadLimitMs)) continue;
                throw DtException.Make(new ErrorParts(Status.InvalidState, "dt: operations are under way " +
                    "whose buffers would go with this application domain or AssemblyLoadContext; wait for " +
                    "their works, or abort the job, before it is unloaded"));
            }
        }

        static void Run()
        {
            List<Ended> ended = new List<Ended>();
            int timeoutMs = UnwatchedMs;
            for (;;)
            {
                try
                {
                    poller.wait(timeoutMs);
                    lock (gate)
                    {
                        if (stopped) return;
                        timeoutMs = Sweep(ended);
                    }
                }
                catch (Exception)
                {
                    timeoutMs = UnwatchedMs;  // short of memory; what was not taken out is tried again
                }
                foreach (Ended each in ended) Complete(each);
                ended.Clear();
            }
        }

        /// Takes out what has ended; says how long to sleep.
        static int Sweep(List<Ended> ended)
        {
            int timeoutMs = IdleMs;
            for (int i = busy.Count - 1; i >= 0; --i)
            {
                Channel channel = busy[i];
                Take(channel.collectives, true, ended);
                Take(channel.transfers, false, ended);
                if (channel.IsIdle)
                {
                    busy.RemoveAt(i);
                    if (busy.Count == 0) Monitor.PulseAll(gate);  // for AwaitIdle
                    continue;
                }
                int limitMs = channel.watched ? WatchedMs : UnwatchedMs;
                if (timeoutMs == IdleMs || limitMs < timeoutMs) timeoutMs = limitMs;
            }
            return timeoutMs;
        }

        /// In order: up to the first that has not ended, so that many cost as little as one.
        static void Take(LinkedList<Pending> works, bool inOrder, List<Ended> ended)
        {
            Ended each = new Ended();
            LinkedListNode<Pending> next;
            for (LinkedListNode<Pending> node = works.First; node != null; node = next)
            {
                next = node.Next;
                each.Pending = node.Value;
                if (each.Pending.HasEnded(out each.Error))
                {
                    ended.Add(each);
                    works.Remove(node);
                }
                else if (inOrder)
                {
                    return;
                }
            }
        }

        static void Complete(Ended each)
        {
            try
            {
                each.Pending.Complete(each.Error);
            }
            catch (Exception error)
            {
                // An owner of memory that throws when it is unpinned must not end the thread.
                LibraryThread.Report(() => "dt: a buffer could not be unpinned: " + error.Message);
            }
        }
    }
}
