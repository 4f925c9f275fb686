// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

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

        /// <summary>A parameter of so many elements.</summary>
        public Param(long count, Dtype dtype = Dtype.F32, string name = null)
        {
            Count = count;
            Dtype = dtype;
            Name = name;
        }
    }

    /// <summary>How a reducer works. Zero and false are the defaults.</summary>
    public sealed class ReducerOptions
    {
        /// <summary>Sums gradients instead of averaging them.</summary>
        public bool Sum { get; set; }
        /// <summary>Never rebuilds the plan by arrival order.</summary>
        public bool KeepPlan { get; set; }
        /// <summary>A bucket closes when it reaches this; 0: from the config.</summary>
        public long BucketCapBytes { get; set; }
        /// <summary>Cap of the first bucket of each dtype; 0: from the config.</summary>
        public long FirstBucketBytes { get; set; }
    }

    /// <summary>What a reducer did. Times in nanoseconds of this rank.</summary>
    public sealed class ReducerStatistics
    {
        /// <summary>Buckets of the plan in use.</summary>
        public int BucketCount { get; private set; }
        /// <summary>Finished steps.</summary>
        public long Steps { get; private set; }
        /// <summary>Gradient bytes reduced in the last step.</summary>
        public long Bytes { get; private set; }
        /// <summary>Last step: time in which at least one bucket was under way.</summary>
        public long CommunicationNs { get; private set; }
        /// <summary>Last step: time that Finish waited; on GPUs, that its stream waited.</summary>
        public long ExposedNs { get; private set; }
        /// <summary>Of all steps.</summary>
        public long TotalBytes { get; private set; }
        /// <summary>Of all steps.</summary>
        public long TotalCommunicationNs { get; private set; }
        /// <summary>Of all steps.</summary>
        public long TotalExposedNs { get; private set; }
        /// <summary>Whether the plan follows the arrival order.</summary>
        public bool Rebuilt { get; private set; }
        /// <summary>Of all steps: 1 - exposed / communication, in [0, 1].</summary>
        public double HiddenShare { get; private set; }

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
            HiddenShare = BitConverter.Int64BitsToDouble(packed.Number());
        }
    }

    /// <summary>Gradients reduced in buckets while the backward pass runs. Ready: any thread, but
    /// none while Finish or Rebuild runs; the others: one at a time.</summary>
    public sealed class Reducer : IDisposable
    {
        readonly ReducerHandle handle;
        readonly Param[] parameters;
        volatile bool closed;

        /// <summary>Plans buckets over the parameters and checks on all ranks that the model is the
        /// same. Collective. Null options: defaults.</summary>
        public Reducer(Comm comm, IEnumerable<Param> parameters, ReducerOptions options = null)
        {
            if (comm == null) throw DtException.InvalidArgument("reducer_create: comm is null; give a communicator");
            if (parameters == null) throw DtException.InvalidArgument("reducer_create: parameters is null; give parameters");
            if (options == null) options = new ReducerOptions();
            this.parameters = new List<Param>(parameters).ToArray();
            Packer packer = new Packer();
            foreach (Param each in this.parameters)
            {
                packer.AddNumber(each.Count);
                packer.AddNumber((int)each.Dtype);
                packer.Add(each.Name ?? "");
            }
            byte[] packed = packer.Take();
            handle = new ReducerHandle(Raw.Native.reducer_create(comm.Number, packed,
                packed.LongLength, options.Sum, options.KeepPlan, options.BucketCapBytes,
                options.FirstBucketBytes));
            GC.KeepAlive(comm);
        }

        /// A call that is inside may keep the handle open after this object was closed.
        long Number
        {
            get { return closed ? handle.ClosedNumber : handle.Number; }
        }

        /// Likewise; when `counted`, the handle stays open until DangerousRelease.
        long Open(ref bool counted)
        {
            try
            {
                if (!closed) handle.DangerousAddRef(ref counted);
            }
            catch (ObjectDisposedException)
            {
                // Closed meanwhile, which is libdt's to say.
            }
            return counted ? handle.Number : handle.ClosedNumber;
        }

        /// <summary>Address where a gradient is to be written: it lies inside its bucket, so nothing
        /// is copied. Valid until <see cref="Rebuild"/> says that it changed, or this object is gone:
        /// keep it.</summary>
        public IntPtr Gradient(int index)
        {
            IntPtr address = new IntPtr(Raw.Native.reducer_grad(Number, index));
            GC.KeepAlive(this);
            return address;
        }

#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
        volatile bool readable;  // once seen; else not known

        /// <summary>Likewise as a span over host memory.</summary>
        public unsafe Span<T> GradientSpan<T>(int index, Dtype? dtype = null) where T : struct
        {
            IntPtr address = Gradient(index);
            Check("reducer_grad", index, Elements.Of<T>("reducer_grad", dtype), parameters[index].Count);
            if (parameters[index].Count > 0 && !readable)
            {
                Elements.CheckReadable("reducer_grad", address.ToInt64());
                readable = true;
            }
            return new Span<T>((void*)address, checked((int)parameters[index].Count));
        }
#endif

        /// <summary>Says that a gradient, written where <see cref="Gradient"/> says, is
        /// complete.</summary>
        public void Ready(int index, IntPtr stream = default(IntPtr))
        {
            Raw.Native.reducer_ready(Number, index, 0, stream.ToInt64());
            GC.KeepAlive(this);
        }

        /// <summary>Says that a gradient is complete at this address, to be copied in;
        /// <see cref="Finish"/> copies the result back, and until then the caller keeps
        /// it.</summary>
        public void ReadyAt(int index, IntPtr gradient, IntPtr stream = default(IntPtr))
        {
            Raw.Native.reducer_ready(Number, index, gradient.ToInt64(), stream.ToInt64());
            GC.KeepAlive(this);
        }

        /// <summary>Says that a gradient is complete in this array, which is pinned until
        /// <see cref="Finish"/> has copied the result back; when that fails, until a later one or
        /// <see cref="Dispose"/>.</summary>
        public void Ready<T>(int index, T[] gradient, Dtype? dtype = null) where T : struct
        {
            const string Name = "reducer_ready";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "gradient", gradient);
            Check(Name, index, type, count);
            Lend(index, Pin.Of(gradient), 0);
        }

        /// <summary>Says that a gradient is complete at the beginning of this memory, which stays until
        /// <see cref="Finish"/> has copied the result back, also when it is disposed of before.</summary>
        public void Ready(int index, Memory gradient, IntPtr stream = default(IntPtr))
        {
            const string Name = "reducer_ready";
            if (gradient == null) throw DtException.InvalidArgument(Name + ": gradient is null; give memory");
            if (index >= 0 && index < parameters.Length)
            {
                Dtype type = parameters[index].Dtype;
                Check(Name, index, type, gradient.Bytes / Elements.Size(type));
            }
            Lend(index, Pin.Of(gradient), stream.ToInt64());
        }

        void Lend(int index, Pin pin, long stream)
        {
            bool counted = false;
            try
            {
                Raw.Native.reducer_ready(Open(ref counted), index, pin.Address, stream);
            }
            finally
            {
                if (counted)
                {
                    handle.Hold(pin);  // also when it failed: it may have taken the address
                    handle.DangerousRelease();
                }
                else
                {
                    pin.Free();
                }
            }
        }

        /// <summary>Has <see cref="Finish"/> compare a parameter itself between ranks, as often as
        /// the setting reducer.check_steps says (by default never), and throw on all ranks naming the
        /// parameter and those that have diverged. The caller keeps what lies at the address, as long
        /// as the reducer; zero: it is no longer watched.</summary>
        public void Watch(int index, IntPtr parameter, long bytes)
        {
            Raw.Native.reducer_watch(Number, index, parameter.ToInt64(), bytes);
            handle.Watch(index, new Pin());
            GC.KeepAlive(this);
        }

        /// <summary>Likewise of an array, which is pinned as long as it is watched.</summary>
        public void Watch<T>(int index, T[] parameter, Dtype? dtype = null) where T : struct
        {
            const string Name = "reducer_watch";
            Dtype type = Elements.Of<T>(Name, dtype);
            long count = Elements.Length(Name, "parameter", parameter);
            Watch(index, Pin.Of(parameter), count * Elements.Size(type));
        }

        /// <summary>Likewise of memory, which stays as long as it is watched.</summary>
        public void Watch(int index, Memory parameter)
        {
            if (parameter == null) throw DtException.InvalidArgument("reducer_watch: parameter is null; give memory");
            Watch(index, Pin.Of(parameter), parameter.Bytes);
        }

        void Watch(int index, Pin pin, long bytes)
        {
            bool counted = false;
            bool kept = false;
            try
            {
                Raw.Native.reducer_watch(Open(ref counted), index, pin.Address, bytes);
                handle.Watch(index, pin);
                kept = true;
            }
            finally
            {
                if (!kept) pin.Free();
                if (counted) handle.DangerousRelease();
            }
        }

        /// <summary>Ends the step: returns when every bucket is reduced; on GPUs the stream waits
        /// instead. Collective.</summary>
        public void Finish(IntPtr stream = default(IntPtr))
        {
            bool counted = false;
            try
            {
                long number = Open(ref counted);
                long held = handle.Held;
                Raw.Native.reducer_finish(number, stream.ToInt64());
                handle.LetGo(held);  // not when it failed: the step may be open still
            }
            finally
            {
                if (counted) handle.DangerousRelease();
            }
        }

        /// <summary>Re-plans the buckets by the order in which gradients arrived on rank 0 in the last
        /// step, between steps. True: read the addresses again. Collective.</summary>
        public bool Rebuild()
        {
            bool changed = Raw.Native.reducer_rebuild(Number);
            GC.KeepAlive(this);
            return changed;
        }

        /// <summary>In which bucket a parameter lies, in launch order.</summary>
        public int Bucket(int index)
        {
            int bucket = Raw.Native.reducer_bucket(Number, index);
            GC.KeepAlive(this);
            return bucket;
        }

        /// <summary>What the reducer did so far.</summary>
        public ReducerStatistics Statistics
        {
            get
            {
                byte[] packed = Raw.Native.reducer_stats(Number);
                GC.KeepAlive(this);
                return new ReducerStatistics(new Unpacker(packed));
            }
        }

        /// <summary>Drops the handle; memory that <see cref="Gradient"/> gave goes with
        /// it.</summary>
        public void Dispose()
        {
            closed = true;
            handle.Dispose();
        }

        /// What libdt cannot see: the array behind an address. A wrong index is libdt's to refuse.
        void Check(string operation, int index, Dtype dtype, long count)
        {
            if (index < 0 || index >= parameters.Length) return;
            Param wanted = parameters[index];
            if (dtype == wanted.Dtype && count >= wanted.Count) return;
            throw DtException.InvalidArgument(operation + ": gradient " + index + " (" +
                (wanted.Name ?? "without a name") + ") is " + count + " elements of " + dtype +
                ", but the parameter has " + wanted.Count + " of " + wanted.Dtype +
                "; give an array like the parameter");
        }
    }
}
