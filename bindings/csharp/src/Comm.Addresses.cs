// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // Collectives over addresses of host or GPU memory, which the caller keeps until they are done.
    public sealed partial class Comm
    {
        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits.</summary>
        public void Allreduce(IntPtr send, IntPtr recv, long count, Dtype dtype, ReduceOp op =
            ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            Run(new Operation(Kind.Allreduce, count, dtype, op, 0, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits. Returns at once.</summary>
        public Work AllreduceAsync(IntPtr send, IntPtr recv, long count, Dtype dtype, ReduceOp op =
            ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            return Start(new Operation(Kind.Allreduce, count, dtype, op, 0, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be
        /// null.</summary>
        public void Reduce(IntPtr send, IntPtr recv, long count, Dtype dtype, ReduceOp op, int root,
            IntPtr stream = default(IntPtr))
        {
            Run(new Operation(Kind.Reduce, count, dtype, op, root, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>As Allreduce, with the result on the root alone; elsewhere recv may be null.
        /// Returns at once.</summary>
        public Work ReduceAsync(IntPtr send, IntPtr recv, long count, Dtype dtype, ReduceOp op, int
            root, IntPtr stream = default(IntPtr))
        {
            return Start(new Operation(Kind.Reduce, count, dtype, op, root, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>Copies the root's buffer into everybody's.</summary>
        public void Broadcast(IntPtr buffer, long count, Dtype dtype, int root, IntPtr stream =
            default(IntPtr))
        {
            Run(new Operation(Kind.Broadcast, count, dtype, ReduceOp.Sum, root, stream),
                buffer.ToInt64(), 0);
        }

        /// <summary>Copies the root's buffer into everybody's. Returns at once.</summary>
        public Work BroadcastAsync(IntPtr buffer, long count, Dtype dtype, int root, IntPtr stream =
            default(IntPtr))
        {
            return Start(new Operation(Kind.Broadcast, count, dtype, ReduceOp.Sum, root, stream),
                buffer.ToInt64(), 0);
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send. The count is that of send.</summary>
        public void Allgather(IntPtr send, IntPtr recv, long count, Dtype dtype, IntPtr stream =
            default(IntPtr))
        {
            Run(new Operation(Kind.Allgather, count, dtype, ReduceOp.Sum, 0, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send. The count is that of send. Returns at once.</summary>
        public Work AllgatherAsync(IntPtr send, IntPtr recv, long count, Dtype dtype, IntPtr stream
            = default(IntPtr))
        {
            return Start(new Operation(Kind.Allgather, count, dtype, ReduceOp.Sum, 0, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv. The count is that of recv.</summary>
        public void ReduceScatter(IntPtr send, IntPtr recv, long count, Dtype dtype, ReduceOp op =
            ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            Run(new Operation(Kind.ReduceScatter, count, dtype, op, 0, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv. The count is that of recv. Returns at once.</summary>
        public Work ReduceScatterAsync(IntPtr send, IntPtr recv, long count, Dtype dtype, ReduceOp
            op = ReduceOp.Sum, IntPtr stream = default(IntPtr))
        {
            return Start(new Operation(Kind.ReduceScatter, count, dtype, op, 0, stream),
                send.ToInt64(), recv.ToInt64());
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype.</summary>
        public void Send(IntPtr buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            Run(new Operation(Kind.Send, count, dtype, ReduceOp.Sum, peer, stream),
                buffer.ToInt64(), 0);
        }

        /// <summary>Sends to one peer, which receives as many elements of the same dtype. Returns
        /// at once.</summary>
        public Work SendAsync(IntPtr buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            return Start(new Operation(Kind.Send, count, dtype, ReduceOp.Sum, peer, stream),
                buffer.ToInt64(), 0);
        }

        /// <summary>Receives what the peer sends.</summary>
        public void Recv(IntPtr buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            Run(new Operation(Kind.Recv, count, dtype, ReduceOp.Sum, peer, stream),
                buffer.ToInt64(), 0);
        }

        /// <summary>Receives what the peer sends. Returns at once.</summary>
        public Work RecvAsync(IntPtr buffer, long count, Dtype dtype, int peer, IntPtr stream =
            default(IntPtr))
        {
            return Start(new Operation(Kind.Recv, count, dtype, ReduceOp.Sum, peer, stream),
                buffer.ToInt64(), 0);
        }
    }
}
