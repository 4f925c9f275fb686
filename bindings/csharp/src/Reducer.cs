// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Dt
{
    /// <summary>One parameter of a model, in the order of registration.</summary>
    public struct Param
    {
        /// <summary>Elements, not bytes.</summary>
        public long Count;
        /// <summary>Of its gradient.</summary>
        public Dtype Dtype;
        /// <summary>For messages; may be null.</summary>
        public string Name;
        /// <summary>Calls of Reducer.Ready in a step, each with a part of the gradient; 0: one.</summary>
        public int Uses;
        /// <summary>In the file of Shard.Save; its product is the count; null or empty: one dimension.</summary>
        public long[] Shape;

        /// <summary>A parameter of so many elements.</summary>
        public Param(long count, Dtype dtype = Dtype.F32, string name = null, int uses = 1, long[] shape = null)
        {
            Shape = shape;
            Count = count;
            Dtype = dtype;
            Name = name;
            Uses = uses;
        }
    }

    /// <summary>What gradients of F32 travel as, where links are slow.</summary>
    public enum Wire
    {
        /// <summary>As they are.</summary>
        Same = 0,
        /// <summary>What is larger than 65520 becomes infinite.</summary>
        F16 = 1,
        /// <summary>With the range of F32.</summary>
        BF16 = 2,
        /// <summary>In blocks of 64, each with a scale; what rounding leaves out is added to the next gradient.</summary>
        Bits8 = 3,
    }

    /// <summary>How a reducer works. Zero and false are the defaults.</summary>
    public sealed class ReducerOptions
    {
        /// <summary>Sums gradients instead of averaging them.</summary>
        public bool Sum { get; set; }
        /// <summary>Never rebuilds the plan by arrival order.</summary>
        public bool KeepPlan { get; set; }
        /// <summary>A parameter may have no gradient in a step, see Reducer.Unused.</summary>
        public bool FindUnused { get; set; }
        /// <summary>Each step has the gradients of step 1, each of them in as many parts: those and the
        /// parameters that a rank never uses are learned there.</summary>
        public bool StaticGraph { get; set; }
        /// <summary>More than 2: BucketCapBytes is tuned: a quarter, a sixteenth and four times of it are used
        /// for so many steps each, and the fastest stays. With Grad each change waits for Rebuild. 0: it is
        /// not.</summary>
        public int TuneSteps { get; set; }
        /// <summary>An average is over the ranks that had a gradient; with FindUnused or StaticGraph.</summary>
        public bool DivideByUsers { get; set; }
        /// <summary>What gradients of F32 travel as.</summary>
        public Wire Wire { get; set; }
        /// <summary>Reducer.Order of an earlier run: the plan is made by it, and stays; null: none.</summary>
        public int[] Order { get; set; }
        /// <summary>For each parameter how many elements a row has of whose gradient a step has some rows
        /// only, see Reducer.ReadyRows; 0: it is dense; null: all are.</summary>
        public long[] RowElements { get; set; }
        /// <summary>For each parameter where its gradient lies, in memory of your own, in which it is reduced,
        /// without a copy: Reducer.Gradient gives that. Neighbours in one array, such as parts of a flat one,
        /// share buckets. Arrays are pinned until the reducer is disposed of. An empty Tensor: the parameter
        /// has no elements, or comes as rows; null: gradients lie in dt's memory.</summary>
        public Tensor[] Gradients { get; set; }
        /// <summary>Divides gradients before they are summed; 0: averaged as AllReduce does.</summary>
        public double Predivide { get; set; }
        /// <summary>A bucket closes when it reaches this; 0: from the config.</summary>
        public long BucketCapBytes { get; set; }
        /// <summary>Cap of the first bucket of each dtype; 0: from the config.</summary>
        public long FirstBucketBytes { get; set; }
    }

    /// <summary>What a reducer did. Times in nanoseconds of this rank.</summary>
    public sealed class ReducerStatistics
    {
        /// <summary>Buckets of the plan in use.</summary>
        public int BucketCount { get; }
        /// <summary>Finished steps.</summary>
        public long Steps { get; }
        /// <summary>Gradient bytes reduced in the last step.</summary>
        public long Bytes { get; }
        /// <summary>Last step: time in which at least one bucket was under way.</summary>
        public long CommunicationNs { get; }
        /// <summary>Last step: time that Finish waited; on GPUs, that its stream waited.</summary>
        public long ExposedNs { get; }
        /// <summary>Of all steps.</summary>
        public long TotalBytes { get; }
        /// <summary>Of all steps.</summary>
        public long TotalCommunicationNs { get; }
        /// <summary>Of all steps.</summary>
        public long TotalExposedNs { get; }
        /// <summary>Whether the plan follows the arrival order.</summary>
        public bool Rebuilt { get; }
        /// <summary>Whether TuneSteps have found BucketCapBytes.</summary>
        public bool Tuned { get; }
        /// <summary>Of the buckets now, and of a shard's parameters.</summary>
        public long MemoryBytes { get; }
        /// <summary>Of a shard: that parameters were waited for.</summary>
        public long TotalGatherNs { get; }
        /// <summary>Of the plan in use.</summary>
        public long BucketCapBytes { get; }
        /// <summary>Of all steps: 1 - exposed / communication, in [0, 1].</summary>
        public double HiddenShare { get; }

        internal ReducerStatistics(Unpacker packed)
        {
            BucketCount = (int)packed.Number();
            Steps = packed.Number();
            Bytes = packed.Number();
            CommunicationNs = packed.Number();
            ExposedNs = packed.Number();
            TotalBytes = packed.Number();
            TotalCommunicationNs = packed.Number();
            TotalExposedNs = packed.Number();
            Rebuilt = packed.Number() != 0;
            Tuned = packed.Number() != 0;
            MemoryBytes = packed.Number();
            TotalGatherNs = packed.Number();
            BucketCapBytes = packed.Number();
            HiddenShare = BitConverter.Int64BitsToDouble(packed.Number());
        }
    }

    /// <summary>Gradients reduced in buckets while the backward pass runs. Ready: any thread, but
    /// none while Finish or Rebuild runs; the others: one at a time.</summary>
    public sealed class Reducer : DtObject
    {
        readonly Param[] parameters;
        readonly long[] rowElements;
        readonly bool ofShard;

        /// <summary>Plans buckets over the parameters and checks on all ranks that the model is the
        /// same. Collective. Null options: defaults.</summary>
        public Reducer(Comm comm, IEnumerable<Param> parameters, ReducerOptions options = null)
            : this(comm, Listed("Reducer", comm, parameters), options ?? new ReducerOptions()) { }

        Reducer(Comm comm, Param[] parameters, ReducerOptions options)
            : base(Created(comm, parameters, options))
        {
            this.parameters = parameters;
            rowElements = (long[])options.RowElements?.Clone();
        }

        /// That of a shard.
        internal Reducer(long number, Param[] parameters) : base(new ReducerHandle(number))
        {
            this.parameters = parameters;
            ofShard = true;
        }

        static ReducerHandle Created(Comm comm, Param[] parameters, ReducerOptions options)
        {
            Tensor[] gradients = options.Gradients ?? new Tensor[0];
            if (gradients.Length != 0 && gradients.Length != parameters.Length)
            {
                throw DtException.InvalidArgument("Reducer: options.Gradients has " + gradients.Length +
                    " elements; give one for each of " + parameters.Length + " parameters");
            }
            Pin[] pins = new Pin[gradients.Length];
            bool made = false;
            try
            {
                for (int i = 0; i < pins.Length; ++i)
                {
                    Tensor gradient = gradients[i];
                    if (gradient.IsNone) continue;
                    gradient.CheckWritable("Reducer", "options.Gradients[" + i + "]");
                    if (gradient.Count != parameters[i].Count || gradient.Dtype != parameters[i].Dtype)
                    {
                        throw DtException.InvalidArgument("Reducer: options.Gradients[" + i + "] has " +
                            gradient.Count + " elements of " + gradient.Dtype + "; give " + parameters[i].Count +
                            " of " + parameters[i].Dtype);
                    }
                    pins[i].Set(gradient, 0);
                }
                byte[] packed = Packed(parameters, options, pins);
                ReducerHandle reducer =
                    new ReducerHandle(Raw.Native.reducer_create(comm, packed, packed.Length), pins);
                made = true;
                return reducer;
            }
            finally
            {
                if (!made) Pin.Free(pins, pins.Length);
            }
        }

        internal static Param[] Listed(string operation, Comm comm, IEnumerable<Param> parameters)
        {
            string missing = comm == null ? "comm is null; give a communicator"
                : parameters == null ? "parameters is null; give parameters" : null;
            if (missing != null) throw DtException.InvalidArgument(operation + ": " + missing);
            return new List<Param>(parameters).ToArray();
        }

        static byte[] Packed(Param[] parameters, ReducerOptions options, Pin[] gradients)
        {
            Packer packer = new Packer();
            Pack(packer, parameters, options, gradients);
            return packer.Take();
        }

        internal static void Pack(Packer packer, Param[] parameters, ReducerOptions options, Pin[] gradients)
        {
            packer
                .AddNumbers(options.Sum ? 1 : 0, options.KeepPlan ? 1 : 0, options.FindUnused ? 1 : 0,
                    options.BucketCapBytes, options.FirstBucketBytes, options.DivideByUsers ? 1 : 0, (int)options.Wire)
                .AddDoubles(options.Predivide)
                .AddNumbers(options.StaticGraph ? 1 : 0, options.TuneSteps)
                .AddList(options.Order)
                .AddList(options.RowElements)
                .AddNumber(gradients.Length);
            for (int i = 0; i < gradients.Length; ++i) packer.AddNumber(options.Gradients[i].AddressIn(gradients[i]));
            foreach (Param each in parameters)
            {
                packer.AddNumbers(each.Count, (int)each.Dtype, each.Uses).AddList(each.Shape).Add(each.Name ?? "");
            }
        }

        ReducerHandle Kept => (ReducerHandle)handle;

        /// <summary>Address where a gradient is to be written: it lies inside its bucket, so nothing
        /// is copied, or what ReducerOptions.Gradients says. Valid until <see cref="Rebuild"/> says that it changed, or this object is gone:
        /// keep it. With a shard of stage 2 or 3 ask for it in each step; the call may wait for the
        /// reduction of an earlier bucket, on GPUs the stream, which will write there, waits instead.
        /// It is valid until the step's last Ready of it; a later write may damage other gradients.
        /// Its values are undefined before the first.</summary>
        public IntPtr Gradient(int index, IntPtr stream = default(IntPtr)) =>
            new IntPtr(Raw.Native.reducer_grad(this, index, stream.ToInt64()));

#if DT_SPAN
        volatile bool readable;  // once seen; otherwise not known

        /// <summary>Likewise as a span over host memory. A dtype is wanted only for the bits of 16-bit
        /// floats in a ushort or a short.</summary>
        public unsafe Span<T> GradientSpan<T>(int index, Dtype? dtype = null) where T : struct
        {
            IntPtr address = Gradient(index);
            Dtype asked = Elements.Of<T>(dtype);
            CheckFits("GradientSpan", "gradient", parameters, index, asked, parameters[index].Count);
            if (parameters[index].Count > 0 && !readable)
            {
                Elements.CheckReadable("GradientSpan", address.ToInt64());
                readable = true;
            }
            return new Span<T>((void*)address, Elements.SpanLength("GradientSpan", parameters[index].Count));
        }
#endif

        /// <summary>Says that a gradient, written where <see cref="Gradient"/> says, is
        /// complete.</summary>
        public void Ready(int index, IntPtr stream = default(IntPtr))
        {
            using (new Use(this)) Raw.Native.reducer_ready(this, index, 0, stream.ToInt64());
        }

        /// <summary>Says that a gradient is complete in this buffer, to be copied in. It is kept in its
        /// place until <see cref="Finish"/> has copied the result back; when that fails, until a later
        /// one or Dispose.</summary>
        public void Ready(int index, Tensor gradient, IntPtr stream = default(IntPtr)) =>
            Arrive("Ready", index, gradient, stream);

        /// <summary>Turns accumulation on or off, for steps of several backward passes. While it is on,
        /// Ready adds to what the parameter has of this step, and completes nothing; turn it off before
        /// the last pass, which adds once more.</summary>
        public void Accumulate(bool on) => Raw.Native.reducer_accumulate(this, on);

        /// <summary>Has a function reduce the buckets, the same on all ranks; between steps; null: none.
        /// hook(bucket, stage) is called with stage 0 as soon as a bucket is full, and with the next stage
        /// once the work that it gave is done, in Finish, until it gives null; the bucket's data then
        /// holds the result. What it throws comes out of Finish or of the Ready or Unused with a gradient
        /// that ran it; other ranks get a DtMismatchException or a DtAbortedException that names this
        /// one.</summary>
        public void SetHook(Func<Bucket, int, Work> hook)
        {
            HookCalls calls = hook == null ? null : new HookCalls(hook);
            try
            {
                Raw.Native.reducer_set_hook_upcall(this, calls == null ? 0 : calls.Number);
                Kept.KeepHook(ref calls);
            }
            finally
            {
                if (calls != null) calls.Dispose();  // the one before, or the new one if it failed
            }
        }

        /// <summary>Has gradients travel as products of two matrices of rank columns (PowerSGD), the same
        /// on all ranks. rows: of each parameter as a matrix; 0: it is none. Steps before startStep are
        /// averaged as they are; matrices are compressed by minCompression at least. wire: F16 or BF16:
        /// what the matrices and all other gradients of F32 travel as.</summary>
        public void PowerSgd(long[] rows, int rank = 1, long startStep = 0, double minCompression = 2,
            bool errorFeedback = true, bool warmStart = true, long seed = 0, Wire wire = Wire.Same)
        {
            if (rows == null || rows.Length != parameters.Length)
                throw DtException.InvalidArgument("PowerSgd: rows are not as many as the " + parameters.Length +
                    " parameters; give one each");
            byte[] packed = new Packer()
                .AddNumbers(rank, startStep)
                .AddDoubles(minCompression)
                .AddNumbers(errorFeedback ? 0 : 1, warmStart ? 0 : 1, seed, (long)wire)
                .AddNumbers(rows)
                .Take();
            Raw.Native.reducer_power_sgd(this, packed, packed.Length);
        }

        /// <summary>Writes the errors that steps carry on (Wire.Bits8, PowerSGD), in the layout of
        /// safetensors, between steps. Each rank needs a path of its own. Not collective.</summary>
        public void Save(string path) => Raw.Native.reducer_save(this, path);

        /// <summary>Reads what <see cref="Save"/> wrote on this rank, before the first step. The same bits
        /// as without the break need the same plan as well: ReducerOptions.Order. Collective.</summary>
        public void Load(string path) => Raw.Native.reducer_load(this, path);

        /// <summary>Says that this rank has no gradient for a parameter in this step; it takes part
        /// with zeros. Needs <see cref="ReducerOptions.FindUnused"/>. What is neither ready nor unused
        /// at <see cref="Finish"/> counts as unused. The average is where <see cref="Gradient"/> says,
        /// or zeros. With <see cref="ReducerOptions.StaticGraph"/> no call is needed.</summary>
        public void Unused(int index, IntPtr stream = default(IntPtr))
        {
            using (new Use(this)) Raw.Native.reducer_unused(this, index, 0, stream.ToInt64());
        }

        /// <summary>The same with a place for the average, which stays as it is if no rank has a
        /// gradient.</summary>
        public void Unused(int index, Tensor gradient, IntPtr stream = default(IntPtr)) =>
            Arrive("Unused", index, gradient, stream);

        /// <summary>Whether any rank had a gradient for a parameter in the last step.</summary>
        public bool Used(int index) => Raw.Native.reducer_used(this, index);

        /// <summary>Adds rows to the gradient of a parameter with <see cref="ReducerOptions.RowElements"/>, such
        /// as an embedding of which a step uses some rows. Rows may come several times, and in several calls;
        /// each rank calls it at least once per step, with empty arrays if it has none. They are copied.</summary>
        public unsafe void ReadyRows(int index, long[] rows, Tensor values)
        {
            if (rows == null) throw DtException.InvalidArgument("ReadyRows: rows is null; give an array");
            long width = RowWidth(index);
            if (width > 0 && (values.Count != rows.LongLength * width || values.Dtype != parameters[index].Dtype))
            {
                throw DtException.InvalidArgument("ReadyRows: values has " + values.Count + " elements of " +
                    values.Dtype + "; give " + rows.Length + " rows of " + width + " " + parameters[index].Dtype);
            }
            Pin pin = new Pin();
            fixed (long* first = rows)
            {
                try
                {
                    pin.Set(values, 0);
                    Raw.Native.reducer_ready_rows(this, index, (long)first, rows.LongLength, values.AddressIn(pin));
                }
                finally
                {
                    pin.Free();
                }
            }
        }

        /// <summary>The rows that any rank gave in the last step, ascending, with their means. A dtype is
        /// wanted only for the bits of 16-bit floats in a ushort or a short.</summary>
        public long[] Rows<T>(int index, out T[] values, Dtype? dtype = null) where T : struct
        {
            if (index >= 0 && index < parameters.Length)
                CheckFits("Rows", "values", parameters, index, Elements.Of<T>(dtype), parameters[index].Count);
            long bytes = RowWidth(index) == 0 ? 0 : RowWidth(index) * Elements.Size(parameters[index].Dtype);
            Unpacker packed = new Unpacker(Raw.Native.reducer_rows(this, index, bytes));
            long[] rows = new long[packed.Number()];
            for (int i = 0; i < rows.Length; ++i) rows[i] = packed.Number();
            byte[] item = packed.Item();
            values = new T[item.Length / Elements.Size<T>()];
            GCHandle place = GCHandle.Alloc(values, GCHandleType.Pinned);
            Marshal.Copy(item, 0, place.AddrOfPinnedObject(), item.Length);
            place.Free();
            return rows;
        }

        long RowWidth(int index) => rowElements != null && index >= 0 && index < rowElements.Length ? rowElements[index] : 0;

        /// <summary>How many ranks had a gradient at all in the last step. A rank that has run out of
        /// batches goes on with Finish alone, and all stop at 0. Needs FindUnused.</summary>
        public int Active => Raw.Native.reducer_active(this);

        void Arrive(string name, int index, Tensor gradient, IntPtr stream)
        {
            if (gradient.IsNone)
                throw DtException.InvalidArgument(name + ": gradient is null; give an array, a memory or a Tensor");
            if (!ofShard) gradient.CheckWritable(name, "gradient");  // a shard's stay as they are
            CheckFits(name, "gradient", parameters, index, gradient.Dtype, gradient.Count);
            using (new Use(this))
            {
                Pin pin = gradient.Pin();
                try
                {
                    if (name == "Ready")
                        Raw.Native.reducer_ready(this, index, gradient.AddressIn(pin), stream.ToInt64());
                    else
                        Raw.Native.reducer_unused(this, index, gradient.AddressIn(pin), stream.ToInt64());
                }
                catch (DtException)
                {
                    Kept.RethrowHook();
                    throw;
                }
                finally
                {
                    Kept.Hold(pin);  // also when it failed: it may have taken the address
                }
            }
        }

        /// <summary>Has <see cref="Finish"/> compare a parameter itself between ranks, as often as
        /// the setting reducer.check_steps says (by default never), and throw on all ranks naming the
        /// parameter and those that have diverged. It is kept in its place as long as it is watched;
        /// default: no longer.</summary>
        public void Watch(int index, Tensor parameter)
        {
            using (new Use(this))
            {
                Pin pin = parameter.Pin();
                bool kept = false;
                try
                {
                    Raw.Native.reducer_watch(this, index, parameter.AddressIn(pin), parameter.Bytes);
                    Kept.Watch(index, pin);
                    kept = true;
                }
                finally
                {
                    if (!kept) pin.Free();
                }
            }
        }

        /// <summary>Ends the step: returns when every bucket is reduced; on GPUs the stream waits
        /// instead. Collective.</summary>
        public void Finish(IntPtr stream = default(IntPtr))
        {
            using (new Use(this))
            {
                try
                {
                    long held = Kept.Held;
                    Raw.Native.reducer_finish(this, stream.ToInt64());
                    Kept.LetGo(held);  // not when it failed: the step may be open still
                    Kept.EndHookStep();
                }
                catch (DtException error)
                {
                    // A refused call ends no step; after any other failure no stage follows.
                    if (error.Status != Status.InvalidState && error.Status != Status.InvalidArgument)
                        Kept.EndHookStep();
                    Kept.RethrowHook();
                    throw;
                }
            }
        }

        /// <summary>Scales the last step's gradients so that their norm over all parameters is at most
        /// maxNorm, and gives the norm of before; where that is not finite nothing is scaled.
        /// Collective only for a shard; each rank gets the same bits. normType: at least 1, or infinity.</summary>
        public double ClipNorm(double maxNorm, double normType = 2) =>
            Clip(maxNorm, normType, 0, 0);

        double Clip(double maxNorm, double normType, long norm, long stream)
        {
            using (new Use(this)) return Raw.Native.reducer_clip_norm(this, maxNorm, normType, norm, stream);
        }

        /// <summary>The same over GPUs, where norm, one F32 of the GPU, receives the norm.</summary>
        public void ClipNorm(double maxNorm, IntPtr norm, IntPtr stream, double normType = 2) =>
            Clip(maxNorm, normType, norm.ToInt64(), stream.ToInt64());

        /// <summary>Re-plans the buckets by the order in which gradients arrived on rank 0 in the last
        /// step, between steps. True: read the addresses again. Collective. The buckets of a shard
        /// stay as they are.</summary>
        public bool Rebuild() => Raw.Native.reducer_rebuild(this);

        /// <summary>Parameters in the order by which the plan in use was made, for ReducerOptions.Order of
        /// a later run.</summary>
        public int[] Order
        {
            get
            {
                Unpacker packed = new Unpacker(Raw.Native.reducer_order(this, parameters.Length));
                int[] order = new int[parameters.Length];
                for (int i = 0; i < order.Length; ++i) order[i] = (int)packed.Number();
                return order;
            }
        }

        /// <summary>In which bucket a parameter lies, in launch order.</summary>
        public int Bucket(int index) => Raw.Native.reducer_bucket(this, index);

        /// <summary>What the reducer did so far.</summary>
        public ReducerStatistics Statistics => new ReducerStatistics(new Unpacker(Raw.Native.reducer_stats(this)));

        /// What libdt cannot see: the buffer behind an address. A wrong index is libdt's to refuse.
        internal static void CheckFits(string operation, string what, Param[] parameters, int index,
            Dtype dtype, long count)
        {
            if (index < 0 || index >= parameters.Length) return;
            Param wanted = parameters[index];
            if (dtype == wanted.Dtype && count >= wanted.Count) return;
            throw DtException.InvalidArgument(operation + ": " + what + " " + index + " (" +
                (wanted.Name ?? "without a name") + ") is " + count + " elements of " + dtype +
                ", but the parameter has " + wanted.Count + " of " + wanted.Dtype +
                "; give a buffer like the parameter");
        }
    }
}
