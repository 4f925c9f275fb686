// SPDX-License-Identifier: Apache-2.0
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
using System;

namespace Dt
{
    // Collectives over spans, which stay fixed as long as the call lasts.
    public sealed partial class Comm
    {
        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits.</summary>
        public void Allreduce<T>(ReadOnlySpan<T> send, Span<T> recv, ReduceOp op = ReduceOp.Sum,
            Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allreduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = send.Length;
            Elements.CheckEqual(Name, count, recv.Length);
            Operation operation = new Operation(Kind.Allreduce, count, type, op, 0,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Likewise in place.</summary>
        public void Allreduce<T>(Span<T> buffer, ReduceOp op = ReduceOp.Sum, Dtype? dtype = null)
            where T : struct
        {
            Allreduce<T>(buffer, buffer, op, dtype);
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be
        /// null.</summary>
        public void Reduce<T>(ReadOnlySpan<T> send, Span<T> recv, ReduceOp op, int root, Dtype?
            dtype = null)
            where T : struct
        {
            const string Name = "reduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = send.Length;
            if (Rank == root)
                Elements.CheckEqual(Name, count, recv.Length);
            Operation operation = new Operation(Kind.Reduce, count, type, op, root,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Copies the root's buffer into everybody's.</summary>
        public void Broadcast<T>(Span<T> buffer, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "broadcast";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = buffer.Length;
            Operation operation = new Operation(Kind.Broadcast, count, type, ReduceOp.Sum, root,
                IntPtr.Zero);
            Run(operation, buffer, default(ReadOnlySpan<T>));
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send.</summary>
        public void Allgather<T>(ReadOnlySpan<T> send, Span<T> recv, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allgather";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = send.Length;
            Elements.CheckParts(Name, "send", count, "recv", recv.Length, Size);
            Operation operation = new Operation(Kind.Allgather, count, type, ReduceOp.Sum, 0,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv.</summary>
        public void ReduceScatter<T>(ReadOnlySpan<T> send, Span<T> recv, ReduceOp op = ReduceOp.Sum,
            Dtype? dtype = null)
            where T : struct
        {
            const string Name = "reduce_scatter";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = recv.Length;
            Elements.CheckParts(Name, "recv", count, "send", send.Length, Size);
            Operation operation = new Operation(Kind.ReduceScatter, count, type, op, 0,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype.</summary>
        public void Send<T>(ReadOnlySpan<T> buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "send";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = buffer.Length;
            Operation operation = new Operation(Kind.Send, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            Run(operation, buffer, default(ReadOnlySpan<T>));
        }

        /// <summary>Receives what the peer sends.</summary>
        public void Recv<T>(Span<T> buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "recv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = buffer.Length;
            Operation operation = new Operation(Kind.Recv, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            Run(operation, buffer, default(ReadOnlySpan<T>));
        }

        unsafe void Run<T>(Operation operation, ReadOnlySpan<T> send, ReadOnlySpan<T> recv)
            where T : struct
        {
            int turn = group.Turns;
            if (GroupState.IsInside(turn))
            {
                throw DtException.InvalidArgument("inside a group: a span cannot be kept until the " +
                    "group ends; use an array, or a memory with an Async call");
            }
            fixed (byte* from = &Elements.Reference(send))
            fixed (byte* to = &Elements.Reference(recv))
            {
                operation.Run(Number, (long)from, (long)to);
                group.Settle(turn);
            }
            GC.KeepAlive(this);
        }
    }
}
#endif
