// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;
using Dt;

/// The kinds of buffers that operations take.
enum Form
{
    Array,
    Memory,  // of the framework
    Allocated,
    Address,
    Span
}

/// One operation in any form, on the elements of arrays.
static class Forms
{
    internal static readonly Form[] All =
    {
#if DT_SPAN
        Form.Memory, Form.Span,
#endif
        Form.Array, Form.Allocated, Form.Address
    };

    internal static void Done(Work work)
    {
        using (work) Suite.Check(work.Wait(TimeSpan.FromMinutes(1)), "the work is done");
    }

    /// `recv` gets what the operation gives; equal arrays: in place. Null: no buffer.
    internal static void Run(Comm comm, Form form, bool async, OperationKind kind, int[] send, int[] recv,
        ReduceOp op = ReduceOp.Sum, int rank = 0, Blocks sent = default(Blocks), Blocks received = default(Blocks))
    {
#if DT_SPAN
        if (form == Form.Span)
        {
            if (async) return;  // spans have no asynchronous form
            Blocking(comm, kind, new ReadOnlySpan<int>(send), new Span<int>(recv), send == recv, op, rank, sent, received);
            return;
        }
#endif
        Dt.Memory from = Placed(comm, form, send), to = send == recv ? from : Placed(comm, form, recv);
        Tensor source = Of(form, send, from), result = Of(form, recv, to);
        if (async) Done(Started(comm, kind, source, result, send == recv, op, rank, sent, received));
        else Blocking(comm, kind, source, result, send == recv, op, rank, sent, received);
        if (to != null) to.Read(recv);
        if (from != null) from.Dispose();
        if (to != null) to.Dispose();
    }

    static Dt.Memory Placed(Comm comm, Form form, int[] values)
    {
        if (values == null || form != Form.Allocated && form != Form.Address) return null;
        Dt.Memory memory = comm.Allocate<int>(values.Length + 1);
        memory.Write(values);
        return memory;
    }

    static Tensor Of(Form form, int[] values, Dt.Memory memory)
    {
        if (values == null) return default(Tensor);
        switch (form)
        {
            case Form.Array: return values;
#if DT_SPAN
            case Form.Memory: return new Memory<int>(values);
#endif
            case Form.Address: return new Tensor(memory.Address, values.Length, Dtype.I32);
            default: return memory.Slice(0, values.Length);
        }
    }

    static void Blocking(Comm comm, OperationKind kind, Tensor send, Tensor recv, bool inPlace, ReduceOp op, int rank,
        Blocks sent, Blocks received)
    {
        switch (kind)
        {
            case OperationKind.AllReduce: if (inPlace) comm.AllReduce(send, op); else comm.AllReduce(send, recv, op); return;
            case OperationKind.Reduce: comm.Reduce(send, recv, rank, op); return;
            case OperationKind.Broadcast: comm.Broadcast(recv, rank); return;
            case OperationKind.AllGather: comm.AllGather(send, recv); return;
            case OperationKind.ReduceScatter: comm.ReduceScatter(send, recv, op); return;
            case OperationKind.ReduceScatterV: comm.ReduceScatter(send, sent, recv, op); return;
            case OperationKind.Send: comm.Send(send, rank); return;
            case OperationKind.Recv: comm.Recv(recv, rank); return;
            case OperationKind.AllToAll: comm.AllToAll(send, recv); return;
            case OperationKind.AllToAllV: comm.AllToAll(send, sent, recv, received); return;
            case OperationKind.Gather: comm.Gather(send, recv, rank); return;
            case OperationKind.GatherV: comm.Gather(send, recv, received, rank); return;
            case OperationKind.Scatter: comm.Scatter(send, recv, rank); return;
            case OperationKind.ScatterV: comm.Scatter(send, sent, recv, rank); return;
            case OperationKind.AllGatherV: comm.AllGather(send, recv, received); return;
            default: comm.Barrier(); return;
        }
    }

    internal static Work Started(Comm comm, OperationKind kind, Tensor send, Tensor recv, bool inPlace, ReduceOp op, int rank,
        Blocks sent, Blocks received)
    {
        switch (kind)
        {
            case OperationKind.AllReduce: return inPlace ? comm.AllReduceAsync(send, op) : comm.AllReduceAsync(send, recv, op);
            case OperationKind.Reduce: return comm.ReduceAsync(send, recv, rank, op);
            case OperationKind.Broadcast: return comm.BroadcastAsync(recv, rank);
            case OperationKind.AllGather: return comm.AllGatherAsync(send, recv);
            case OperationKind.ReduceScatter: return comm.ReduceScatterAsync(send, recv, op);
            case OperationKind.ReduceScatterV: return comm.ReduceScatterAsync(send, sent, recv, op);
            case OperationKind.Send: return comm.SendAsync(send, rank);
            case OperationKind.Recv: return comm.RecvAsync(recv, rank);
            case OperationKind.AllToAll: return comm.AllToAllAsync(send, recv);
            case OperationKind.AllToAllV: return comm.AllToAllAsync(send, sent, recv, received);
            case OperationKind.Gather: return comm.GatherAsync(send, recv, rank);
            case OperationKind.GatherV: return comm.GatherAsync(send, recv, received, rank);
            case OperationKind.Scatter: return comm.ScatterAsync(send, recv, rank);
            case OperationKind.ScatterV: return comm.ScatterAsync(send, sent, recv, rank);
            case OperationKind.AllGatherV: return comm.AllGatherAsync(send, recv, received);
            default: return comm.BarrierAsync();
        }
    }

#if DT_SPAN
    static void Blocking(Comm comm, OperationKind kind, ReadOnlySpan<int> send, Span<int> recv, bool inPlace, ReduceOp op,
        int rank, Blocks sent, Blocks received)
    {
        switch (kind)
        {
            case OperationKind.AllReduce: if (inPlace) comm.AllReduce(recv, op); else comm.AllReduce(send, recv, op); return;
            case OperationKind.Reduce: comm.Reduce(send, recv, rank, op); return;
            case OperationKind.Broadcast: comm.Broadcast(recv, rank); return;
            case OperationKind.AllGather: comm.AllGather(send, recv); return;
            case OperationKind.ReduceScatter: comm.ReduceScatter(send, recv, op); return;
            case OperationKind.ReduceScatterV: comm.ReduceScatter(send, sent, recv, op); return;
            case OperationKind.Send: comm.Send(send, rank); return;
            case OperationKind.Recv: comm.Recv(recv, rank); return;
            case OperationKind.AllToAll: comm.AllToAll(send, recv); return;
            case OperationKind.AllToAllV: comm.AllToAll(send, sent, recv, received); return;
            case OperationKind.Gather: comm.Gather(send, recv, rank); return;
            case OperationKind.GatherV: comm.Gather(send, recv, received, rank); return;
            case OperationKind.Scatter: comm.Scatter(send, recv, rank); return;
            case OperationKind.ScatterV: comm.Scatter(send, sent, recv, rank); return;
            case OperationKind.AllGatherV: comm.AllGather(send, recv, received); return;
            default: comm.Barrier(); return;
        }
    }
#endif
}
