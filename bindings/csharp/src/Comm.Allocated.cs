// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // Collectives over the beginning of memories, which stay until the operation is done, also when
    // they are disposed of or forgotten before.
    public sealed partial class Comm
    {
        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits.</summary>
        public void Allreduce(Memory send, Memory recv, long count, Dtype dtype, ReduceOp op =
            ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            Check("allreduce", "send", send, count, dtype, 1);
            Check("allreduce", "recv", recv, count, dtype, 1);
            Run(new Operation(Kind.Allreduce, count, dtype, op, 0, stream), send, recv);
        }

        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits. Returns at once.</summary>
        public Work AllreduceAsync(Memory send, Memory recv, long count, Dtype dtype, ReduceOp op =
            ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            Check("allreduce", "send", send, count, dtype, 1);
            Check("allreduce", "recv", recv, count, dtype, 1);
            return Start(new Operation(Kind.Allreduce, count, dtype, op, 0, stream), send, recv);
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be
        /// null.</summary>
        public void Reduce(Memory send, Memory recv, long count, Dtype dtype, ReduceOp op, int root,
            IntPtr stream = default(IntPtr))
        {
            Check("reduce", "send", send, count, dtype, 1);
            if (recv != null || Rank == root) Check("reduce", "recv", recv, count, dtype, 1);
            Run(new Operation(Kind.Reduce, count, dtype, op, root, stream), send, recv);
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be null.
        /// Returns at once.</summary>
        public Work ReduceAsync(Memory send, Memory recv, long count, Dtype dtype, ReduceOp op, int
            root, IntPtr stream = default(IntPtr))
        {
            Check("reduce", "send", send, count, dtype, 1);
            if (recv != null || Rank == root) Check("reduce", "recv", recv, count, dtype, 1);
            return Start(new Operation(Kind.Reduce, count, dtype, op, root, stream), send, recv);
        }

        /// <summary>Copies the root's buffer into everybody's.</summary>
        public void Broadcast(Memory buffer, long count, Dtype dtype, int root, IntPtr stream =
            default(IntPtr))
        {
            Check("broadcast", "buffer", buffer, count, dtype, 1);
            Run(new Operation(Kind.Broadcast, count, dtype, ReduceOp.Sum, root, stream), buffer, null);
        }

        /// <summary>Copies the root's buffer into everybody's. Returns at once.</summary>
        public Work BroadcastAsync(Memory buffer, long count, Dtype dtype, int root, IntPtr stream =
            default(IntPtr))
        {
            Check("broadcast", "buffer", buffer, count, dtype, 1);
            return Start(new Operation(Kind.Broadcast, count, dtype, ReduceOp.Sum, root, stream), buffer, null);
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send. The count is that of send.</summary>
        public void Allgather(Memory send, Memory recv, long count, Dtype dtype, IntPtr stream =
            default(IntPtr))
        {
            Check("allgather", "send", send, count, dtype, 1);
            Check("allgather", "recv", recv, count, dtype, Size);
            Run(new Operation(Kind.Allgather, count, dtype, ReduceOp.Sum, 0, stream), send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send. The count is that of send. Returns at once.</summary>
        public Work AllgatherAsync(Memory send, Memory recv, long count, Dtype dtype, IntPtr stream
            = default(IntPtr))
        {
            Check("allgather", "send", send, count, dtype, 1);
            Check("allgather", "recv", recv, count, dtype, Size);
            return Start(new Operation(Kind.Allgather, count, dtype, ReduceOp.Sum, 0, stream), send, recv);
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv. The count is that of recv.</summary>
        public void ReduceScatter(Memory send, Memory recv, long count, Dtype dtype, ReduceOp op =
            ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            Check("reduce_scatter", "send", send, count, dtype, Size);
            Check("reduce_scatter", "recv", recv, count, dtype, 1);
            Run(new Operation(Kind.ReduceScatter, count, dtype, op, 0, stream), send, recv);
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv. The count is that of recv. Returns at once.</summary>
        public Work ReduceScatterAsync(Memory send, Memory recv, long count, Dtype dtype, ReduceOp
            op = ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            Check("reduce_scatter", "send", send, count, dtype, Size);
            Check("reduce_scatter", "recv", recv, count, dtype, 1);
            return Start(new Operation(Kind.ReduceScatter, count, dtype, op, 0, stream), send, recv);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype.</summary>
        public void Send(Memory buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            Check("send", "buffer", buffer, count, dtype, 1);
            Run(new Operation(Kind.Send, count, dtype, ReduceOp.Sum, peer, stream), buffer, null);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype. Returns
        /// at once.</summary>
        public Work SendAsync(Memory buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            Check("send", "buffer", buffer, count, dtype, 1);
            return Start(new Operation(Kind.Send, count, dtype, ReduceOp.Sum, peer, stream), buffer, null);
        }

        /// <summary>Receives what the peer sends.</summary>
        public void Recv(Memory buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            Check("recv", "buffer", buffer, count, dtype, 1);
            Run(new Operation(Kind.Recv, count, dtype, ReduceOp.Sum, peer, stream), buffer, null);
        }

        /// <summary>Receives what the peer sends. Returns at once.</summary>
        public Work RecvAsync(Memory buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            Check("recv", "buffer", buffer, count, dtype, 1);
            return Start(new Operation(Kind.Recv, count, dtype, ReduceOp.Sum, peer, stream), buffer, null);
        }

        /// `count` elements for each of `parts` lie in the memory. A wrong count or dtype is libdt's
        /// to refuse.
        static void Check(string operation, string name, Memory memory, long count, Dtype dtype, int parts)
        {
            if (memory == null)
            {
                throw DtException.InvalidArgument(operation + ": " + name + " is null; give memory");
            }
            if (count <= memory.Bytes / Elements.Size(dtype) / parts) return;
            throw DtException.InvalidArgument(operation + ": " + name + " has " + memory.Bytes +
                " bytes, less than " + parts + " times " + count + " elements of " + dtype +
                "; allocate more");
        }

        static void Check(string operation, string name, Memory memory, Counts counts, Dtype dtype)
        {
            Check(operation, name, memory, counts.HasOffsets ? 0 : counts.Total, dtype, 1);
            if (counts.HasOffsets) counts.CheckBlocks(name, memory.Bytes / Elements.Size(dtype));
        }

        void Run(Operation operation, Memory send, Memory recv)
        {
            Pin sendPin = Pin.Of(send), recvPin = new Pin();
            int turn = group.Turns;
            try
            {
                recvPin = Pin.Of(recv);
                operation.Run(Number, sendPin.Address, recvPin.Address);
                if (GroupState.IsInside(turn))
                {
                    group.Hold(turn, sendPin, recvPin);
                    sendPin = new Pin();
                    recvPin = new Pin();
                }
                else
                {
                    group.Settle(turn);
                }
            }
            finally
            {
                sendPin.Free();
                recvPin.Free();
            }
            GC.KeepAlive(this);
        }

        Work Start(Operation operation, Memory send, Memory recv)
        {
            Completions.Prepare();
            Pending pending = new Pending(this);
            Work work = new Work(pending);
            try
            {
                pending.send = Pin.Of(send);
                pending.recv = Pin.Of(recv);
                pending.Issue(operation, pending.send.Address, pending.recv.Address);
            }
            catch
            {
                pending.LetGo();
                throw;
            }
            Completions.Track(pending);
            return work;
        }
    }
}
