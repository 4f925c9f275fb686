// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.InteropServices;
using System.Text;
using System.Text.RegularExpressions;
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

/// Every operation, in each of its forms and with each kind of memory, against collectives.json, whose
/// fields make_collectives.py explains.
static class MatrixTests
{
    static readonly Form[] forms =
    {
#if DT_SPAN
        Form.Memory, Form.Span,
#endif
        Form.Array, Form.Allocated, Form.Address
    };

    internal static void Add()
    {
        foreach (int size in new int[] { 1, 2, 3 })
        {
            int ranks = size;
            foreach (Form each in forms)
            {
                Form form = each;
                Suite.Add("collective: all, of " + size + " ranks, in " + form, () => All(ranks, form, false));
                if (form != Form.Span) Suite.Add("collective: all, async, of " + size + " ranks, in " + form, () => All(ranks, form, true));
            }
        }
        Suite.Add("collective: every kind is among the cases", () =>
        {
            HashSet<string> kinds = new HashSet<string> { "recv" };
            foreach (Case each in Case.Read()) kinds.Add(each.fields["kind"]);
            foreach (OperationKind kind in Enum.GetValues(typeof(OperationKind)))
                Suite.Check(kinds.Contains(Case.Word(kind)), kind + " is among the cases");
        });
    }

    static void All(int ranks, Form form, bool async)
    {
        List<Case> cases = Case.Read();
        Ranks.Run(ranks, each =>
        {
            foreach (Case one in cases)
            {
                if (one.calls.Count != ranks) continue;
                try
                {
                    one.Run(each.world, form, async);
                }
                catch (Exception error)
                {
                    throw new Exception("rank " + each.rank + ": " + one.line, error);
                }
            }
        });
    }
}

/// One operation of all ranks.
sealed class Case
{
    static readonly Regex field = new Regex("\"(\\w+)\": \"?([^\",}]*)"), call = new Regex(@"\{([^{}]*)\}");
    internal string line;
    internal Dictionary<string, string> fields;
    internal readonly List<Dictionary<string, string>> calls = new List<Dictionary<string, string>>();

    internal static List<Case> Read()
    {
        List<Case> cases = new List<Case>();
        foreach (string line in File.ReadAllLines(Path.Combine(AppDomain.CurrentDomain.BaseDirectory, "collectives.json")))
        {
            int begin = line.IndexOf("\"calls\"", StringComparison.Ordinal);
            if (begin < 0) continue;
            Case one = new Case { line = line, fields = Fields(line.Substring(0, begin)) };
            foreach (Match each in call.Matches(line.Substring(begin))) one.calls.Add(Fields(each.Groups[1].Value));
            cases.Add(one);
        }
        return cases;
    }

    static Dictionary<string, string> Fields(string text)
    {
        Dictionary<string, string> fields = new Dictionary<string, string>();
        foreach (Match each in field.Matches(text)) fields[each.Groups[1].Value] = each.Groups[2].Value;
        return fields;
    }

    /// As the file writes it.
    internal static string Word(OperationKind kind)
    {
        return kind == OperationKind.ReduceScatter ? "reduce_scatter"
            : kind == OperationKind.ReduceScatterV ? "reduce_scatterv" : kind.ToString().ToLowerInvariant();
    }

    internal void Run(Comm comm, Form form, bool async)
    {
        switch (fields["dtype"])
        {
            case "i8": Run<sbyte>(comm, form, async); return;
            case "u8": Run<byte>(comm, form, async); return;
            case "i16": Run<short>(comm, form, async, Dtype.I16); return;
            case "u16": Run<ushort>(comm, form, async, Dtype.U16); return;
            case "i32": Run<int>(comm, form, async); return;
            case "u32": Run<uint>(comm, form, async); return;
            case "i64": Run<long>(comm, form, async); return;
            case "u64": Run<ulong>(comm, form, async); return;
            case "f16": Run<ushort>(comm, form, async, Dtype.F16); return;
            case "bf16": Run<BFloat16>(comm, form, async); return;
            case "f32": Run<float>(comm, form, async); return;
            case "f64": Run<double>(comm, form, async); return;
            case "bool": Run<byte>(comm, form, async, Dtype.Bool); return;
            case "f8e4m3": Run<byte>(comm, form, async, Dtype.F8E4M3); return;
            default: Run<byte>(comm, form, async, Dtype.F8E5M2); return;
        }
    }

    void Run<T>(Comm comm, Form form, bool async, Dtype? dtype = null) where T : struct
    {
        if (form == Form.Span && dtype.HasValue) return;  // a span says its type by itself
        new Call<T>(comm, form, async, dtype, fields, calls[comm.Rank]).Run();
    }
}

/// What one rank does in one case, with elements T.
sealed class Call<T> where T : struct
{
    readonly Comm comm;
    readonly Form form;
    readonly bool async;
    readonly Dtype? dtype;
    readonly Dictionary<string, string> given;
    readonly string kind;
    readonly ReduceOp op;
    readonly int peer;

    internal Call(Comm comm, Form form, bool async, Dtype? dtype, Dictionary<string, string> fields,
        Dictionary<string, string> given)
    {
        this.comm = comm;
        this.form = form;
        this.async = async;
        this.dtype = dtype;
        this.given = given;
        kind = fields["kind"];
        op = (ReduceOp)Enum.Parse(typeof(ReduceOp), fields["op"], true);
        peer = int.Parse(fields["peer"]);
    }

    internal void Run()
    {
        T[] sent = Elements("send"), received = Elements("recv");
        long[] own = Numbers("own");
        long first = own == null ? 0 : own[0], count = own == null ? 0 : own[1];
        T[] result = received ?? sent;
        if (form == Form.Span)
        {
#if DT_SPAN
            ReadOnlySpan<T> send = sent;
            Span<T> recv = received;
            if (own != null && received == null) recv = new Span<T>(sent, (int)first, (int)count);
            if (own != null && sent == null) send = new ReadOnlySpan<T>(received, (int)first, (int)count);
            if (kind == "send") Transfer(send, recv);
            else Blocking(send, recv);
#endif
        }
        else
        {
            using (Dt.Memory from = Placed(sent), to = Placed(received))
            {
                Tensor send = Of(sent, from), recv = Of(received, to);
                if (own != null && received == null) recv = send.Slice(first, count);
                if (own != null && sent == null) send = recv.Slice(first, count);
                if (kind == "send") Transfer(send, recv);
                else if (async) Done(Started(send, recv));
                else Blocking(send, recv);
                Dt.Memory memory = to ?? from;
                if (memory != null) memory.Read(result);
            }
        }
        if (!given.ContainsKey("result")) return;
        string found = Hex(result);
        int bytes = result.Length == 0 ? 0 : found.Length / result.Length;  // twice the size of an element
        if (own != null && received == null) found = found.Substring((int)first * bytes, (int)count * bytes);
        Suite.Equal(given["result"], found, "result");
    }

    T[] Elements(string name)
    {
        if (!given.ContainsKey(name)) return null;
        string hex = given[name];
        byte[] bytes = new byte[hex.Length / 2];
        for (int i = 0; i < bytes.Length; ++i) bytes[i] = Convert.ToByte(hex.Substring(2 * i, 2), 16);
        T[] elements = new T[bytes.Length / Marshal.SizeOf(typeof(T))];
        Pinned(elements, address => Marshal.Copy(bytes, 0, address, bytes.Length));
        return elements;
    }

    static string Hex(T[] elements)
    {
        byte[] bytes = new byte[elements.Length * Marshal.SizeOf(typeof(T))];
        Pinned(elements, address => Marshal.Copy(address, bytes, 0, bytes.Length));
        StringBuilder text = new StringBuilder();
        foreach (byte each in bytes) text.Append(each.ToString("x2"));
        return text.ToString();
    }

    static void Pinned(T[] elements, Action<IntPtr> use)
    {
        GCHandle pin = GCHandle.Alloc(elements, GCHandleType.Pinned);
        use(pin.AddrOfPinnedObject());
        pin.Free();
    }

    long[] Numbers(string name)
    {
        return given.ContainsKey(name) ? Array.ConvertAll(given[name].Split(' '), long.Parse) : null;
    }

    Blocks Table(string side)
    {
        long[] counts = Numbers(side + "_counts"), offsets = Numbers(side + "_offsets");
        return counts == null ? default(Blocks) : offsets == null ? (Blocks)counts : new Blocks(counts, offsets);
    }

    Dt.Memory Placed(T[] values)
    {
        if (values == null || form != Form.Allocated && form != Form.Address) return null;
        Dt.Memory memory = comm.Allocate(values.Length + 1, Tensor.Of(values, dtype).Dtype);
        memory.Write(values);
        return memory;
    }

    Tensor Of(T[] values, Dt.Memory memory)
    {
        if (values == null) return default(Tensor);
        if (form == Form.Allocated) return memory.Slice(0, values.Length);
        if (form == Form.Address) return new Tensor(memory.Address, values.Length, memory.Dtype);
#if DT_SPAN
        if (form == Form.Memory) return Tensor.Of(new Memory<T>(values), dtype);
#endif
        return Tensor.Of(values, dtype);
    }

    static void Done(Work work)
    {
        using (work) Suite.Check(work.Wait(TimeSpan.FromMinutes(1)), "the work is done");
    }

    bool InPlace => given.ContainsKey("own");
    Blocks Sent => Table("send");
    Blocks Received => Table("recv");

    /// A send, and the recv that goes with it. Calls that wait begin with rank 0.
    void Transfer(Tensor send, Tensor recv)
    {
        int to = int.Parse(given["to"]), from = int.Parse(given["from"]);
        if (async)
        {
            Work sent = comm.SendAsync(send, to);
            Done(comm.RecvAsync(recv, from));
            Done(sent);
            return;
        }
        if (comm.Rank == 0) comm.Send(send, to);
        comm.Recv(recv, from);
        if (comm.Rank != 0) comm.Send(send, to);
    }

    void Blocking(Tensor send, Tensor recv)
    {
        switch (kind)
        {
            case "allreduce": if (InPlace) comm.AllReduce(recv, op); else comm.AllReduce(send, recv, op); return;
            case "reduce": comm.Reduce(send, recv, peer, op); return;
            case "broadcast": comm.Broadcast(recv, peer); return;
            case "allgather": comm.AllGather(send, recv); return;
            case "reduce_scatter": comm.ReduceScatter(send, recv, op); return;
            case "reduce_scatterv": comm.ReduceScatter(send, Sent, recv, op); return;
            case "alltoall": comm.AllToAll(send, recv); return;
            case "alltoallv": comm.AllToAll(send, Sent, recv, Received); return;
            case "gather": comm.Gather(send, recv, peer); return;
            case "gatherv": comm.Gather(send, recv, Received, peer); return;
            case "scatter": comm.Scatter(send, recv, peer); return;
            case "scatterv": comm.Scatter(send, Sent, recv, peer); return;
            case "allgatherv": comm.AllGather(send, recv, Received); return;
            case "barrier": comm.Barrier(); return;
            default: throw new Exception("unknown kind: " + kind);
        }
    }

    Work Started(Tensor send, Tensor recv)
    {
        switch (kind)
        {
            case "allreduce": return InPlace ? comm.AllReduceAsync(recv, op) : comm.AllReduceAsync(send, recv, op);
            case "reduce": return comm.ReduceAsync(send, recv, peer, op);
            case "broadcast": return comm.BroadcastAsync(recv, peer);
            case "allgather": return comm.AllGatherAsync(send, recv);
            case "reduce_scatter": return comm.ReduceScatterAsync(send, recv, op);
            case "reduce_scatterv": return comm.ReduceScatterAsync(send, Sent, recv, op);
            case "alltoall": return comm.AllToAllAsync(send, recv);
            case "alltoallv": return comm.AllToAllAsync(send, Sent, recv, Received);
            case "gather": return comm.GatherAsync(send, recv, peer);
            case "gatherv": return comm.GatherAsync(send, recv, Received, peer);
            case "scatter": return comm.ScatterAsync(send, recv, peer);
            case "scatterv": return comm.ScatterAsync(send, Sent, recv, peer);
            case "allgatherv": return comm.AllGatherAsync(send, recv, Received);
            case "barrier": return comm.BarrierAsync();
            default: throw new Exception("unknown kind: " + kind);
        }
    }

#if DT_SPAN
    void Transfer(ReadOnlySpan<T> send, Span<T> recv)
    {
        if (comm.Rank == 0) comm.Send(send, int.Parse(given["to"]));
        comm.Recv(recv, int.Parse(given["from"]));
        if (comm.Rank != 0) comm.Send(send, int.Parse(given["to"]));
    }

    void Blocking(ReadOnlySpan<T> send, Span<T> recv)
    {
        switch (kind)
        {
            case "allreduce": if (InPlace) comm.AllReduce(recv, op); else comm.AllReduce(send, recv, op); return;
            case "reduce": comm.Reduce(send, recv, peer, op); return;
            case "broadcast": comm.Broadcast(recv, peer); return;
            case "allgather": comm.AllGather(send, recv); return;
            case "reduce_scatter": comm.ReduceScatter(send, recv, op); return;
            case "reduce_scatterv": comm.ReduceScatter(send, Sent, recv, op); return;
            case "alltoall": comm.AllToAll(send, recv); return;
            case "alltoallv": comm.AllToAll(send, Sent, recv, Received); return;
            case "gather": comm.Gather(send, recv, peer); return;
            case "gatherv": comm.Gather(send, recv, Received, peer); return;
            case "scatter": comm.Scatter(send, recv, peer); return;
            case "scatterv": comm.Scatter(send, Sent, recv, peer); return;
            case "allgatherv": comm.AllGather(send, recv, Received); return;
            case "barrier": comm.Barrier(); return;
            default: throw new Exception("unknown kind: " + kind);
        }
    }
#endif
}
