// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// One operation, checked, as the native layer takes it.
    internal struct Call
    {
        readonly OperationKind kind;
        readonly ReduceOp op;
        readonly int peer;
        readonly Dtype dtype;
        readonly long count;
        readonly byte[] tables;
        internal readonly Combination custom;  // null: op
        long send, recv;
        static readonly byte[] noTables = new byte[0];

        /// Throws unless the lengths of the buffers fit each other.
        internal Call(Comm comm, OperationKind kind, in Tensor send, in Tensor recv, Reduction op, int peer,
            Blocks sendBlocks, Blocks recvBlocks) : this()
        {
            this.kind = kind;
            this.op = op.op;
            this.peer = peer;
            bool atRoot;
            switch (kind)
            {
                case OperationKind.Barrier:
                    return;
                case OperationKind.AllReduce:
                    count = Given("send", send);
                    CheckEqual("recv", Given("recv", recv));
                    break;
                case OperationKind.Reduce:
                    count = Given("send", send);
                    if (recv.Count > 0 || comm.Rank == peer) CheckEqual("recv", Given("recv", recv));
                    break;
                case OperationKind.Broadcast:
                case OperationKind.Send:
                case OperationKind.Recv:
                    count = Given("buffer", kind == OperationKind.Recv ? recv : send);
                    break;
                case OperationKind.AllGather:
                    count = Given("send", send);
                    CheckWhole(comm.Size, "send", "recv", Given("recv", recv));
                    break;
                case OperationKind.ReduceScatter:
                    count = Given("recv", recv);
                    CheckWhole(comm.Size, "recv", "send", Given("send", send));
                    break;
                case OperationKind.Gather:
                    count = Given("send", send);
                    if (comm.Rank == peer) CheckWhole(comm.Size, "send", "recv", Given("recv", recv));
                    break;
                case OperationKind.Scatter:
                    count = Given("recv", recv);
                    if (comm.Rank == peer) CheckWhole(comm.Size, "recv", "send", Given("send", send));
                    break;
                case OperationKind.AllToAll:
                    count = Given("send", send);
                    CheckEqual("recv", Given("recv", recv));
                    if (count % comm.Size != 0)
                    {
                        throw Refuse("send has " + count + " elements, which is no multiple of the " +
                            comm.Size + " ranks; give equal parts, or Blocks");
                    }
                    count /= comm.Size;
                    break;
                case OperationKind.AllToAllV:
                    tables = Table(comm, "sendBlocks", sendBlocks, "send", send)
                        .Pack(Table(comm, "recvBlocks", recvBlocks, "recv", recv));
                    break;
                case OperationKind.ReduceScatterV:
                    count = Given("recv", recv);
                    tables = Parts(comm, sendBlocks, "send", send, "recv", count);
                    break;
                case OperationKind.ScatterV:
                    atRoot = comm.Rank == peer;
                    count = Given("recv", recv);
                    tables = atRoot ? Parts(comm, sendBlocks, "send", send, "recv", count) : noTables;
                    break;
                default:
                    atRoot = kind == OperationKind.AllGatherV || comm.Rank == peer;
                    count = Given("send", send);
                    tables = atRoot ? Parts(comm, recvBlocks, "recv", recv, "send", count) : noTables;
                    break;
            }
            if (recv.IsReadOnly && Receives(comm))
            {
                bool one = kind == OperationKind.Broadcast || kind == OperationKind.Recv;
                bool inPlace = kind == OperationKind.AllReduce && recv.IsSame(send);
                recv.CheckWritable(NameOf(kind), one ? "buffer" : inPlace ? "inPlace" : "recv");
            }
            dtype = send.IsNone ? recv.Dtype : send.Dtype;
            if (!send.IsNone && !recv.IsNone && send.Dtype != recv.Dtype)
                throw Refuse("send has elements of " + dtype + ", but recv of " + recv.Dtype + "; give one type");
            if (op.combine == null) return;
            custom = new Combination(NameOf(kind), op.combine, dtype);
            count = custom.Whole(count);
            if (tables != null) tables = custom.Whole(tables);
        }

        /// Whether a result is written on this rank.
        bool Receives(Comm comm)
        {
            switch (kind)
            {
                case OperationKind.Broadcast:
                    return comm.Rank != peer;
                case OperationKind.Reduce:
                case OperationKind.Gather:
                case OperationKind.GatherV:
                    return comm.Rank == peer;
                default:
                    return true;
            }
        }

        /// Whether it may end before others of its communicator that were called earlier.
        internal bool Overtakes => kind == OperationKind.Send || kind == OperationKind.Recv;

        /// As in messages.
        internal static string NameOf(OperationKind kind) => kind.ToString().TrimEnd('V');

        DtException Refuse(string message) => DtException.InvalidArgument(NameOf(kind) + ": " + message);

        long Given(string name, in Tensor tensor)
        {
            if (tensor.IsNone) throw Refuse(name + " is null; give an array, a memory or a Tensor");
            return tensor.Count;
        }

        void CheckEqual(string name, long length)
        {
            if (length == count) return;
            throw Refuse("send has " + count + " elements, but " + name + " " + length +
                "; give buffers of one length");
        }

        /// A buffer holds `count` elements for each rank.
        void CheckWhole(int ranks, string partName, string name, long length)
        {
            if (count <= long.MaxValue / ranks && length == count * ranks) return;
            throw Refuse(partName + " has " + count + " elements, but " + name + " " + length + "; over " + ranks +
                " ranks " + name + " must have " + ranks + " times as many as " + partName);
        }

        BlockTable Table(Comm comm, string name, Blocks blocks, string buffer, in Tensor tensor) =>
            new BlockTable(NameOf(kind), name, blocks, comm.Size, buffer, Given(buffer, tensor));

        byte[] Parts(Comm comm, Blocks blocks, string whole, in Tensor tensor, string part, long length)
        {
            BlockTable table = Table(comm, "blocks", blocks, whole, tensor);
            table.CheckOwn(comm.Rank, part, length);
            return table.Pack();
        }

        /// Keeps the buffers in their place until the pins are freed. Arrays may be there already: at
        /// `fromArray` and `toArray`.
        internal void Place(in Tensor from, in Tensor to, ref Pin fromPin, ref Pin toPin,
            long fromArray = 0, long toArray = 0)
        {
            fromPin.Set(from, fromArray);
            send = from.AddressIn(fromPin);
            bool shared = to.SharesOwner(from);
            if (!shared) toPin.Set(to, toArray);
            recv = to.AddressIn(shared ? fromPin : toPin);
        }

        internal unsafe void Run(Comm comm)
        {
            long upcall = custom == null ? 0 : custom.Begin();
            int bytes = custom == null ? 0 : custom.ElementBytes;
            fixed (byte* name = comm.name)
            {
                try
                {
                    if (tables == null)
                    {
                        Raw.Native.launch(comm, comm.named, (int)kind, (int)dtype, (int)op, peer, send, recv, count, comm.stream,
                            comm.timeoutMs, (IntPtr)name, upcall, bytes);
                    }
                    else
                    {
                        Raw.Native.launch_blocks(comm, comm.named, (int)kind, (int)dtype, (int)op, peer, send, recv, count,
                            tables, tables.Length, comm.stream, comm.timeoutMs, (IntPtr)name, upcall, bytes);
                    }
                }
                catch (DtInvalidArgumentException error)
                {
                    throw Reworded(error);
                }
            }
        }

        /// Gives the number of the work.
        internal unsafe long Start(Comm comm)
        {
            long upcall = custom == null ? 0 : custom.Begin();
            int bytes = custom == null ? 0 : custom.ElementBytes;
            fixed (byte* name = comm.name)
            {
                try
                {
                    return tables == null
                        ? Raw.Native.launch_async(comm, comm.named, (int)kind, (int)dtype, (int)op, peer, send, recv, count,
                            comm.stream, comm.timeoutMs, (IntPtr)name, upcall, bytes)
                        : Raw.Native.launch_blocks_async(comm, comm.named, (int)kind, (int)dtype, (int)op, peer, send, recv,
                            count, tables, tables.Length, comm.stream, comm.timeoutMs, (IntPtr)name, upcall, bytes);
                }
                catch (DtInvalidArgumentException error)
                {
                    throw Reworded(error);
                }
            }
        }

        /// To a group that is submitted later.
        internal void Add(Comm comm, Named.Batch batch, Work work, Pending pending)
        {
            if (batch.over) throw DtException.InvalidArgument("Group: the group has ended; begin another one");
            long upcall = custom == null ? 0 : custom.Begin();
            batch.packer.AddNumbers((int)kind, (int)dtype, (int)op, peer, send, recv, count, comm.timeoutMs, upcall,
                custom == null ? 0 : custom.ElementBytes);
            byte[] name = new byte[comm.name.Length - 1];  // without its end
            Array.Copy(comm.name, name, name.Length);
            batch.packer.Add(name);
            batch.works.Add(work);
            batch.pending.Add(pending);
        }

        /// libdt says its own names of the tables.
        DtException Reworded(DtException error)
        {
            bool two = kind == OperationKind.AllToAllV;
            return DtException.InvalidArgument(error.Message
                .Replace("send_counts", two ? "sendBlocks.Counts" : "blocks.Counts")
                .Replace("recv_counts", two ? "recvBlocks.Counts" : "blocks.Counts")
                .Replace("send_offsets", two ? "sendBlocks.Offsets" : "blocks.Offsets")
                .Replace("recv_offsets", two ? "recvBlocks.Offsets" : "blocks.Offsets"));
        }
    }
}
