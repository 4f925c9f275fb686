// SPDX-License-Identifier: Apache-2.0
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
using System;

namespace Dt
{
    // Collectives over memories, which are pinned until the operation is done.
    public sealed partial class Comm
    {
        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits. Returns at once.</summary>
        public Work AllreduceAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, ReduceOp op =
            ReduceOp.Sum, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allreduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = send.Length;
            Elements.CheckEqual(Name, count, recv.Length);
            Operation operation = new Operation(Kind.Allreduce, count, type, op, 0,
                IntPtr.Zero);
            return Start(operation, send, (ReadOnlyMemory<T>)recv);
        }

        /// <summary>Likewise in place.</summary>
        public Work AllreduceAsync<T>(Memory<T> buffer, ReduceOp op = ReduceOp.Sum,
            Dtype? dtype = null)
            where T : struct
        {
            return AllreduceAsync<T>(buffer, buffer, op, dtype);
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be null.
        /// Returns at once.</summary>
        public Work ReduceAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, ReduceOp op, int root,
            Dtype? dtype = null)
            where T : struct
        {
            const string Name = "reduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = send.Length;
            if (Rank == root)
                Elements.CheckEqual(Name, count, recv.Length);
            Operation operation = new Operation(Kind.Reduce, count, type, op, root,
                IntPtr.Zero);
            return Start(operation, send, (ReadOnlyMemory<T>)recv);
        }

        /// <summary>Copies the root's buffer into everybody's. Returns at once.</summary>
        public Work BroadcastAsync<T>(Memory<T> buffer, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "broadcast";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = buffer.Length;
            Operation operation = new Operation(Kind.Broadcast, count, type, ReduceOp.Sum, root,
                IntPtr.Zero);
            return Start(operation, (ReadOnlyMemory<T>)buffer, default(ReadOnlyMemory<T>));
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send. Returns at once.</summary>
        public Work AllgatherAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allgather";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = send.Length;
            Elements.CheckParts(Name, "send", count, "recv", recv.Length, Size);
            Operation operation = new Operation(Kind.Allgather, count, type, ReduceOp.Sum, 0,
                IntPtr.Zero);
            return Start(operation, send, (ReadOnlyMemory<T>)recv);
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv. Returns at once.</summary>
        public Work ReduceScatterAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, ReduceOp op =
            ReduceOp.Sum, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "reduce_scatter";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = recv.Length;
            Elements.CheckParts(Name, "recv", count, "send", send.Length, Size);
            Operation operation = new Operation(Kind.ReduceScatter, count, type, op, 0,
                IntPtr.Zero);
            return Start(operation, send, (ReadOnlyMemory<T>)recv);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype. Returns
        /// at once.</summary>
        public Work SendAsync<T>(ReadOnlyMemory<T> buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "send";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = buffer.Length;
            Operation operation = new Operation(Kind.Send, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            return Start(operation, (ReadOnlyMemory<T>)buffer, default(ReadOnlyMemory<T>));
        }

        /// <summary>Receives what the peer sends. Returns at once.</summary>
        public Work RecvAsync<T>(Memory<T> buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "recv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = buffer.Length;
            Operation operation = new Operation(Kind.Recv, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            return Start(operation, (ReadOnlyMemory<T>)buffer, default(ReadOnlyMemory<T>));
        }

        unsafe Work Start<T>(Operation operation, ReadOnlyMemory<T> send, ReadOnlyMemory<T> recv)
            where T : struct
        {
            Completions.Prepare();
            Pending pending = new Pending(this);
            Work work = new Work(pending);
            try
            {
                System.Buffers.MemoryHandle from = send.Pin();
                pending.sendOwner = from;
                System.Buffers.MemoryHandle to = recv.Pin();
                pending.recvOwner = to;
                pending.Issue(operation, (long)from.Pointer, (long)to.Pointer);
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
#endif
