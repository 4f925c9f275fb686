// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // Collectives over arrays.
    public sealed partial class Comm
    {
        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits.</summary>
        public void Allreduce<T>(T[] send, T[] recv, ReduceOp op = ReduceOp.Sum,
            Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allreduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "send", send);
            Elements.CheckEqual(Name, count, Elements.Length(Name, "recv", recv));
            Operation operation = new Operation(Kind.Allreduce, count, type, op, 0,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Likewise in place.</summary>
        public void Allreduce<T>(T[] buffer, ReduceOp op = ReduceOp.Sum, Dtype? dtype = null)
            where T : struct
        {
            Allreduce(buffer, buffer, op, dtype);
        }

        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits. Returns at once.</summary>
        public Work AllreduceAsync<T>(T[] send, T[] recv, ReduceOp op = ReduceOp.Sum,
            Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allreduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "send", send);
            Elements.CheckEqual(Name, count, Elements.Length(Name, "recv", recv));
            Operation operation = new Operation(Kind.Allreduce, count, type, op, 0,
                IntPtr.Zero);
            return Start(operation, send, recv);
        }

        /// <summary>Likewise in place.</summary>
        public Work AllreduceAsync<T>(T[] buffer, ReduceOp op = ReduceOp.Sum, Dtype? dtype = null)
            where T : struct
        {
            return AllreduceAsync(buffer, buffer, op, dtype);
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be
        /// null.</summary>
        public void Reduce<T>(T[] send, T[] recv, ReduceOp op, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "reduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "send", send);
            if (recv != null || Rank == root)
                Elements.CheckEqual(Name, count, Elements.Length(Name, "recv", recv));
            Operation operation = new Operation(Kind.Reduce, count, type, op, root,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be null.
        /// Returns at once.</summary>
        public Work ReduceAsync<T>(T[] send, T[] recv, ReduceOp op, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "reduce";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "send", send);
            if (recv != null || Rank == root)
                Elements.CheckEqual(Name, count, Elements.Length(Name, "recv", recv));
            Operation operation = new Operation(Kind.Reduce, count, type, op, root,
                IntPtr.Zero);
            return Start(operation, send, recv);
        }

        /// <summary>Copies the root's buffer into everybody's.</summary>
        public void Broadcast<T>(T[] buffer, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "broadcast";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "buffer", buffer);
            Operation operation = new Operation(Kind.Broadcast, count, type, ReduceOp.Sum, root,
                IntPtr.Zero);
            Run(operation, buffer, null);
        }

        /// <summary>Copies the root's buffer into everybody's. Returns at once.</summary>
        public Work BroadcastAsync<T>(T[] buffer, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "broadcast";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "buffer", buffer);
            Operation operation = new Operation(Kind.Broadcast, count, type, ReduceOp.Sum, root,
                IntPtr.Zero);
            return Start(operation, buffer, null);
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send.</summary>
        public void Allgather<T>(T[] send, T[] recv, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allgather";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "send", send);
            Elements.CheckParts(Name, "send", count, "recv", Elements.Length(Name, "recv", recv), Size);
            Operation operation = new Operation(Kind.Allgather, count, type, ReduceOp.Sum, 0,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send. Returns at once.</summary>
        public Work AllgatherAsync<T>(T[] send, T[] recv, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "allgather";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "send", send);
            Elements.CheckParts(Name, "send", count, "recv", Elements.Length(Name, "recv", recv), Size);
            Operation operation = new Operation(Kind.Allgather, count, type, ReduceOp.Sum, 0,
                IntPtr.Zero);
            return Start(operation, send, recv);
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv.</summary>
        public void ReduceScatter<T>(T[] send, T[] recv, ReduceOp op = ReduceOp.Sum,
            Dtype? dtype = null)
            where T : struct
        {
            const string Name = "reduce_scatter";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "recv", recv);
            Elements.CheckParts(Name, "recv", count, "send", Elements.Length(Name, "send", send), Size);
            Operation operation = new Operation(Kind.ReduceScatter, count, type, op, 0,
                IntPtr.Zero);
            Run(operation, send, recv);
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv. Returns at once.</summary>
        public Work ReduceScatterAsync<T>(T[] send, T[] recv, ReduceOp op = ReduceOp.Sum, Dtype?
            dtype = null)
            where T : struct
        {
            const string Name = "reduce_scatter";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "recv", recv);
            Elements.CheckParts(Name, "recv", count, "send", Elements.Length(Name, "send", send), Size);
            Operation operation = new Operation(Kind.ReduceScatter, count, type, op, 0,
                IntPtr.Zero);
            return Start(operation, send, recv);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype.</summary>
        public void Send<T>(T[] buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "send";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "buffer", buffer);
            Operation operation = new Operation(Kind.Send, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            Run(operation, buffer, null);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype. Returns
        /// at once.</summary>
        public Work SendAsync<T>(T[] buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "send";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "buffer", buffer);
            Operation operation = new Operation(Kind.Send, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            return Start(operation, buffer, null);
        }

        /// <summary>Receives what the peer sends.</summary>
        public void Recv<T>(T[] buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "recv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "buffer", buffer);
            Operation operation = new Operation(Kind.Recv, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            Run(operation, buffer, null);
        }

        /// <summary>Receives what the peer sends. Returns at once.</summary>
        public Work RecvAsync<T>(T[] buffer, int peer, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "recv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "buffer", buffer);
            Operation operation = new Operation(Kind.Recv, count, type, ReduceOp.Sum, peer,
                IntPtr.Zero);
            return Start(operation, buffer, null);
        }
    }
}
