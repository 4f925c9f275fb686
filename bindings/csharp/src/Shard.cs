// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    /// <summary>What each rank keeps, and how gradients are reduced.</summary>
    public sealed class ShardOptions
    {
        /// <summary>0: every rank updates all parameters. 1: each rank updates its own pieces, and
        /// keeps what an optimizer knows of those alone. 2: gradients, too, have memory until they
        /// are reduced only, but for those of its pieces. 3: parameters likewise, from Gather to
        /// Release. Results are the same bits on one host.</summary>
        public int Stage { get; set; } = 1;
        /// <summary>Units that stage 3 gathers ahead, in the order of the step before.</summary>
        public int Prefetch { get; set; } = 1;
        /// <summary>So many ranks, those of a host, say, have all pieces among them, and the next
        /// ones the same again (HSDP): a divisor of the communicator's size. 0: all
        /// ranks.</summary>
        public int ShardRanks { get; set; }
        /// <summary>Of the gradients; the plan stays as it is, and its first bucket is like the
        /// others. Null: defaults.</summary>
        public ReducerOptions Reducer { get; set; }
        /// <summary>One for each parameter, which is cut at multiples of it only; 0 is 1; null: all
        /// are 1.</summary>
        public long[] Granules { get; set; }
        /// <summary>One for each parameter, at least 0: those of a unit are gathered together;
        /// numbered as the forward pass comes to them; null: all are 0.</summary>
        public int[] Units { get; set; }
        /// <summary>Directory on a disk of this host: optimizers' state, and with stage 3 the rank's
        /// pieces of the parameters, lie in files there, without a name. It may differ between
        /// ranks. On GPUs the host then updates the pieces, and has them with stage 3, in pinned
        /// memory. Null: in memory.</summary>
        public string Offload { get; set; }
    }

    /// <summary>The part of a parameter that this rank updates. Its addresses are valid as long as
    /// the shard, which this keeps from the garbage collector.</summary>
    public readonly struct Piece
    {
        readonly Shard shard;
        readonly long parameter, gradient;

        internal Piece(Shard shard, Dtype dtype, Unpacker packed)
        {
            this.shard = shard;
            Dtype = dtype;
            Offset = packed.Number();
            Count = packed.Number();
            parameter = packed.Number();
            gradient = packed.Number();
        }

        /// <summary>Elements from the parameter's start.</summary>
        public long Offset { get; }

        /// <summary>Elements; 0: this rank has none of the parameter.</summary>
        public long Count { get; }

        /// <summary>Their type.</summary>
        public Dtype Dtype { get; }

        /// <summary>Address of the parameter's elements; zero where there are none.</summary>
        public IntPtr Parameter => Address(parameter);

        /// <summary>Address of the gradient's elements, valid from Reducer.Finish to the next step;
        /// zero before the first, and where there are none.</summary>
        public IntPtr Gradient => Address(gradient);

        IntPtr Address(long address)
        {
            DtObject.NumberOf(shard);
            return new IntPtr(address);
        }

#if DT_SPAN
        /// <summary>The parameter's elements as a span. A dtype is wanted only for the bits of
        /// 16-bit floats in a ushort or a short.</summary>
        public Span<T> ParameterSpan<T>(Dtype? dtype = null) where T : struct =>
            Shard.SpanOf<T>("ParameterSpan", Parameter, Count, Dtype, dtype);

        /// <summary>Likewise the gradient's; empty before the first step.</summary>
        public Span<T> GradientSpan<T>(Dtype? dtype = null) where T : struct =>
            Shard.SpanOf<T>("GradientSpan", Gradient, Count, Dtype, dtype);
#endif
    }

    /// <summary>Parameters in libdt's memory, of which each rank updates its own pieces (ZeRO). A
    /// step: Gather before the forward pass uses a unit, Ready of the Reducer for each gradient and
    /// its Finish, then <see cref="Optimizer.Step"/>. An optimizer of your own updates each Piece
    /// and then calls Updated. In stage 3 the backward pass gathers, too, and both release what they
    /// have used. Parameters start as zeros. Those of a unit and dtype lie in buckets; each bucket
    /// is cut into equal parts, or, where a parameter has a granule, at the granules nearest to
    /// them, which costs a reduction for each rank instead of one. Over GPUs the memory is the GPU's:
    /// each call has the CUDA stream that uses it, which waits instead of the call. One thread at a
    /// time, which is that of the reducer's Finish.</summary>
    public sealed class Shard : DtObject
    {
        /// <summary>A part of a parameter.</summary>
        public struct Part
        {
            /// <summary>Elements from the parameter's start.</summary>
            public readonly long Offset;

            /// <summary>Elements; 0: none.</summary>
            public readonly long Count;

            internal Part(long offset, long count)
            {
                Offset = offset;
                Count = count;
            }
        }

        internal readonly Param[] parameters;
        readonly int ranks;

        /// <summary>Lays parameters out and checks on all ranks that the model is the same.
        /// Collective. Null options: defaults.</summary>
        public Shard(Comm comm, IEnumerable<Param> parameters, ShardOptions options = null)
            : this(comm, Reducer.Listed("Shard", comm, parameters), options ?? new ShardOptions())
        {
        }

        Shard(Comm comm, Param[] parameters, ShardOptions options)
            : base(new Handle(
                Created(comm, Packed(parameters, options), options.Offload),
                Raw.NativePINVOKE.shard_destroy))
        {
            this.parameters = parameters;
            ranks = comm.Size;
            Reducer = new Reducer(Raw.Native.shard_reducer(this), parameters);
        }

        static long Created(Comm comm, byte[] packed, string offload) =>
            Raw.Native.shard_create(comm, packed, packed.Length, offload);

        static byte[] Packed(Param[] parameters, ShardOptions options)
        {
            CheckOneEach("Shard", "Granules", options.Granules, parameters);
            CheckOneEach("Shard", "Units", options.Units, parameters);
            Packer packer = new Packer()
                .AddNumbers(options.Stage, options.Prefetch, options.ShardRanks)
                .AddList(options.Granules)
                .AddList(options.Units);
            if (options.Reducer?.Gradients?.Length > 0)
            {
                throw DtException.InvalidArgument("Shard: options.Reducer.Gradients is set; a shard's gradients " +
                    "lie where Reducer.Gradient says");
            }
            Reducer.Pack(packer, parameters, options.Reducer ?? new ReducerOptions(), new Pin[0]);
            return packer.Take();
        }

        internal static void CheckOneEach(string operation, string name, Array numbers,
            Param[] parameters)
        {
            if (numbers == null || numbers.Length == parameters.Length) return;
            throw DtException.InvalidArgument(operation + ": " + name + " has " + numbers.Length +
                " numbers for " + parameters.Length + " parameters; give one each");
        }

        /// <summary>The reducer of the gradients, which goes with this object.
        /// Gradients given to Ready stay as they are: results are in
        /// <see cref="Dt.Piece.Gradient"/>. From stage 1 on its ClipNorm is collective.</summary>
        public Reducer Reducer { get; }

        /// <summary>Address where a parameter lies, whole, aligned to 256 bytes. After
        /// <see cref="Updated"/> its values are valid from <see cref="Gather"/> of its unit. Valid
        /// until this object is gone: keep it.</summary>
        public IntPtr Parameter(int index) => new IntPtr(Raw.Native.shard_param(this, index));

#if DT_SPAN
        /// <summary>Likewise as a span. A dtype is wanted only for the bits of 16-bit floats in a
        /// ushort or a short.</summary>
        public Span<T> ParameterSpan<T>(int index, Dtype? dtype = null) where T : struct
        {
            IntPtr address = Parameter(index);
            Param known = parameters[index];
            return SpanOf<T>("ParameterSpan", address, known.Count, known.Dtype, dtype);
        }

        internal static unsafe Span<T> SpanOf<T>(string operation, IntPtr address, long count,
            Dtype has, Dtype? dtype) where T : struct
        {
            Dtype asked = Elements.Of<T>(dtype);
            if (asked != has)
            {
                throw DtException.InvalidArgument(operation + ": the elements are of " + has +
                    ", not of " + asked + "; take a span of their type");
            }
            if (address == IntPtr.Zero || count == 0) return default(Span<T>);
            Elements.CheckReadable(operation, address.ToInt64());
            return new Span<T>((void*)address, Elements.SpanLength(operation, count));
        }
#endif

        /// <summary>Copies a parameter in, whole: its first values, or those of a checkpoint. On
        /// this rank only; an <see cref="Updated"/> behind it gives all ranks what the pieces'
        /// owners have. Over GPUs the values may be the host's, or the GPU's; then keep them until
        /// the stream has passed the call.</summary>
        public void Set(int index, Tensor values, IntPtr stream = default(IntPtr)) =>
            Copy("Set", "values", index, values, stream, Raw.Native.shard_set);

        /// <summary>Collects a whole gradient of the last step from the ranks' pieces, to look at or
        /// to check it; the same index on all ranks; over GPUs into memory of the GPU.
        /// Collective.</summary>
        public void FullGradient(int index, Tensor output, IntPtr stream = default(IntPtr))
        {
            output.CheckWritable("FullGradient", "output");
            Copy("FullGradient", "output", index, output, stream, Raw.Native.shard_full_grad);
        }

        void Copy(string operation, string name, int index, Tensor tensor, IntPtr stream,
            Action<Shard, int, long, long> call)
        {
            if (tensor.IsNone)
            {
                throw DtException.InvalidArgument(operation + ": " + name +
                    " is null; give an array, a memory or a Tensor");
            }
            Reducer.CheckFits(operation, "the buffer of parameter", parameters, index, tensor.Dtype,
                tensor.Count);
            Pin pin = tensor.Pin();
            try
            {
                call(this, index, tensor.AddressIn(pin), stream.ToInt64());
            }
            finally
            {
                pin.Free();
            }
        }

        /// <summary>What this rank updates of a parameter. With stage 0 that is all of
        /// it.</summary>
        public Piece Piece(int index, IntPtr stream = default(IntPtr))
        {
            Unpacker packed = new Unpacker(Raw.Native.shard_piece(this, index, stream.ToInt64()));
            return new Piece(this, parameters[index].Dtype, packed);
        }

        /// <summary>Which part of a parameter each rank of the communicator updates, in elements; the
        /// same on all ranks.</summary>
        public Part[] Plan(int index)
        {
            Unpacker packed = new Unpacker(Raw.Native.shard_plan(this, index, ranks));
            Part[] parts = new Part[ranks];
            for (int rank = 0; rank < ranks; ++rank) parts[rank] = new Part(packed.Number(), packed.Number());
            return parts;
        }

        /// <summary>Says that this rank has updated its pieces: begins to send them to all ranks,
        /// and to receive theirs, while the caller goes on. Collective. A parameter may not
        /// be written from here to Gather of its unit or Piece of itself.</summary>
        public void Updated(IntPtr stream = default(IntPtr)) =>
            Raw.Native.shard_updated(this, stream.ToInt64());

        /// <summary>Waits until the parameters of a unit are those of <see cref="Updated"/> on all
        /// ranks: to be called before the forward pass uses them. A second call waits for nothing.
        /// In stage 3 collective.</summary>
        public void Gather(int unit, IntPtr stream = default(IntPtr)) =>
            Raw.Native.shard_gather(this, unit, stream.ToInt64());

        /// <summary>In stage 3 says that a unit's parameters are not used until the next Gather of
        /// it: their memory serves other units.</summary>
        public void Release(int unit, IntPtr stream = default(IntPtr)) =>
            Raw.Native.shard_release(this, unit, stream.ToInt64());

        /// <summary>Writes the parameters, and the state of the optimizer unless that is null, to
        /// one file on a file system of all ranks, in the layout of safetensors. It replaces the
        /// file at the path once all is on the disk. Collective.</summary>
        public void Save(string path, Optimizer optimizer = null) =>
            Raw.Native.shard_save(this, optimizer, path);

        /// <summary>Reads what <see cref="Save"/> wrote, with any number of ranks and any options,
        /// or another file of safetensors with tensors of these names. Parameters are whole from
        /// <see cref="Gather"/> of their unit. Collective.</summary>
        public void Load(string path, Optimizer optimizer = null) =>
            Raw.Native.shard_load(this, optimizer, path);

        /// <summary>Drops the handle, and that of the reducer. The parameters go with it.</summary>
        public override void Dispose()
        {
            Reducer.Dispose();
            base.Dispose();
        }
    }
}
