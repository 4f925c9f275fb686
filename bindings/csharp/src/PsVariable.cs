// SPDX-License-Identifier: Apache-2.0
using System;
using System.Threading;

namespace Dt
{
    /// <summary>A matrix of floats on the servers: what <see cref="Ps.Variable"/> gives.
    ///
    /// Tensors are of F32 in host memory, rows by columns elements, or as many rows as are named. Rows may be in
    /// any order; null: all. A call returns when it is done; with Async in its name it returns a
    /// <see cref="Work"/> at once. Pushes of one thread take effect in their order. Any thread.</summary>
    public sealed class PsVariable
    {
        enum Action { Push, Pull, Set }  // in the order of the native layer

        readonly Ps ps;
        readonly int number;

        internal PsVariable(Ps ps, int number, string name, long rows, int columns)
        {
            this.ps = ps;
            this.number = number;
            Name = name;
            Rows = rows;
            Columns = columns;
        }

        /// <summary>As all workers call it.</summary>
        public string Name { get; }

        /// <summary>How many rows it has.</summary>
        public long Rows { get; }

        /// <summary>How many columns it has.</summary>
        public int Columns { get; }

        /// <summary>Gives the servers gradients, with which they update rows. Gradients of equal rows are added
        /// up; a row without a gradient stays as it is. A negative rate: the variable's.</summary>
        public void Push(Tensor gradients, long[] rows = null, double rate = -1) =>
            Issue(Action.Push, "gradients", gradients, rows, rate, null);

        /// <summary>The same without waiting. The gradients are copied before it returns.</summary>
        public Work PushAsync(Tensor gradients, long[] rows = null, double rate = -1,
            CancellationToken token = default(CancellationToken)) =>
            Start(Action.Push, "gradients", gradients, rows, rate, token);

        /// <summary>Reads rows, behind this worker's earlier pushes.</summary>
        public void Pull(Tensor values, long[] rows = null) => Issue(Action.Pull, "values", values, rows, -1, null);

        /// <summary>The same without waiting. The values stay in their place until it is done.</summary>
        public Work PullAsync(Tensor values, long[] rows = null,
            CancellationToken token = default(CancellationToken)) =>
            Start(Action.Pull, "values", values, rows, -1, token);

        /// <summary>Writes rows, and leaves what the optimizer keeps of them. Of equal rows the last one
        /// counts.</summary>
        public void Set(Tensor values, long[] rows = null) => Issue(Action.Set, "values", values, rows, -1, null);

        /// <summary>The same without waiting. The values are copied before it returns.</summary>
        public Work SetAsync(Tensor values, long[] rows = null,
            CancellationToken token = default(CancellationToken)) =>
            Start(Action.Set, "values", values, rows, -1, token);

        Work Start(Action action, string argument, in Tensor values, long[] rows, double rate, CancellationToken token)
        {
            bool held = action == Action.Pull && values.HasOwner;
            if (held) Completions.Prepare();
            Pending pending = new Pending(ps, ps.channel);
            Work work = new Work(pending, token);
            try
            {
                Issue(action, argument, values, rows, rate, pending);
            }
            catch
            {
                pending.LetGo();
                throw;
            }
            if (held) Completions.Track(pending);  // otherwise once somebody asks for its task
            return work;
        }

        /// Waits where `pending` is null; otherwise that keeps what is pulled.
        unsafe void Issue(Action action, string argument, in Tensor values, long[] rows, double rate, Pending pending)
        {
            if (values.IsNone)
            {
                throw DtException.InvalidArgument(action + ": " + argument +
                    " is null; give an array, a memory or a Tensor");
            }
            if (action == Action.Pull) values.CheckWritable("Pull", argument);
            Pin pin = new Pin();
            fixed (long* first = rows)
            {
                try
                {
                    pin.Set(values, 0);
                    long place = values.AddressIn(pin), count = rows == null ? -1 : rows.LongLength;
                    if (pending == null)
                    {
                        Raw.Native.ps_rows(ps, number, Rows, Columns, (int)action, (long)first, count, place,
                            values.Count, (int)values.Dtype, rate);
                        return;
                    }
                    pending.overtakes = true;
                    pending.Issued(Raw.Native.ps_rows_async(ps, number, Rows, Columns, (int)action, (long)first, count,
                        place, values.Count, (int)values.Dtype, rate));
                    if (action != Action.Pull) return;
                    pending.recv = pin;
                    pin = new Pin();
                }
                finally
                {
                    pin.Free();
                }
            }
        }

#if DT_SPAN
        internal unsafe void Over(int action, ReadOnlySpan<float> values, long[] rows, double rate)
        {
            fixed (float* place = &System.Runtime.InteropServices.MemoryMarshal.GetReference(values))
            {
                Issue((Action)action, "span", Tensor.At((long)place, values.Length, Dtype.F32), rows, rate, null);
            }
        }
#endif

        /// <summary>For messages and logs.</summary>
        public override string ToString() =>
            "PsVariable \"" + Name + "\" of " + Rows + " rows, " + Columns + " columns";
    }

#if DT_SPAN
    /// <summary>The calls of <see cref="PsVariable"/> that wait, over spans.</summary>
    public static class PsSpans
    {
        /// <summary>As <see cref="PsVariable.Push(Tensor, long[], double)"/>.</summary>
        public static void Push(this PsVariable variable, ReadOnlySpan<float> gradients, long[] rows = null,
            double rate = -1) => variable.Over(0, gradients, rows, rate);

        /// <summary>As <see cref="PsVariable.Pull(Tensor, long[])"/>.</summary>
        public static void Pull(this PsVariable variable, Span<float> values, long[] rows = null) =>
            variable.Over(1, values, rows, -1);

        /// <summary>As <see cref="PsVariable.Set(Tensor, long[])"/>.</summary>
        public static void Set(this PsVariable variable, ReadOnlySpan<float> values, long[] rows = null) =>
            variable.Over(2, values, rows, -1);
    }
#endif
}
