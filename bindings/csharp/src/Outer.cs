// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    /// <summary>What the mean over the ranks of an <see cref="Outer"/> travels as. It is summed in
    /// f32.</summary>
    public enum OuterFormat
    {
        /// <summary>As it is.</summary>
        F32 = 0,
        /// <summary>With the range of F32.</summary>
        BF16 = 1,
        /// <summary>Blocks of 64 elements of 8 bits, each with a scale of F32.</summary>
        Bits8 = 2,
        /// <summary>Likewise of 4 bits.</summary>
        Bits4 = 3,
    }

    /// <summary>How ranks come together; the same on all ranks. Local SGD, the mean of the parameters, has
    /// Rate 1 and Momentum 0.</summary>
    public sealed class OuterOptions
    {
        /// <summary>Steps in which each fragment has its turn once.</summary>
        public long SyncEvery { get; set; } = 1;
        /// <summary>A divisor of SyncEvery: parts of the parameters, with turns one after the
        /// other.</summary>
        public int Fragments { get; set; } = 1;
        /// <summary>Steps that go on while a mean is under way; less than SyncEvery / Fragments.</summary>
        public long Delay { get; set; }
        /// <summary>In [0, 1]: how much of a rank's own parameters stays when the mean is there.</summary>
        public double Alpha { get; set; }
        /// <summary>Of SGD on the global parameters.</summary>
        public double Rate { get; set; } = 0.7;
        /// <summary>In [0, 1).</summary>
        public double Momentum { get; set; } = 0.9;
        /// <summary>Whether the momentum is Nesterov's.</summary>
        public bool Nesterov { get; set; } = true;
        /// <summary>What the mean travels as.</summary>
        public OuterFormat Format { get; set; }
    }

    /// <summary>A parameter, or this rank's piece of one.</summary>
    public readonly struct OuterParam
    {
        /// <summary>For messages and files; null: none.</summary>
        public string Name { get; }
        /// <summary>F32, F16 or BF16 in host memory.</summary>
        public Tensor Data { get; }

        /// <summary>What is known of it.</summary>
        public OuterParam(Tensor data, string name = null)
        {
            Data = data;
            Name = name;
        }
    }

    /// An outer optimizer, with its parameters, which are kept in their place.
    internal sealed class OuterHandle : Handle
    {
        readonly Pin[] pins;

        internal OuterHandle(long number, Pin[] pins) : base(number, Raw.NativePINVOKE.outer_destroy)
        {
            this.pins = pins;
        }

        protected override bool ReleaseHandle()
        {
            bool released = base.ReleaseHandle();
            Pin.Free(pins, pins.Length);
            return released;
        }
    }

    /// <summary>An outer optimizer, for slow networks: local SGD and DiLoCo, with fragments and a delay as in
    /// streaming DiLoCo. Each rank trains by itself with an inner optimizer, and calls <see cref="Step"/>
    /// behind each of its steps; in turns the mean of what ranks have changed is the gradient of a step of
    /// SGD on global parameters. Where several ranks train one model together, the communicator joins those
    /// with the same parameters of different groups; call <see cref="Shard.Updated"/> behind a step that
    /// gives true. One thread at a time, and nothing else writes to parameters meanwhile.</summary>
    public sealed class Outer : DtObject
    {
        /// <summary>Begins with parameters that have the same values on all ranks, over host memory. They
        /// are kept in their place until this is disposed of, arrays by a pin; calls of this write to them.
        /// Null options: defaults. Collective.</summary>
        public Outer(Comm comm, IEnumerable<OuterParam> parameters, OuterOptions options = null)
            : base(Created(comm, parameters, options ?? new OuterOptions()))
        {
        }

        static OuterHandle Created(Comm comm, IEnumerable<OuterParam> parameters, OuterOptions options)
        {
            string missing = comm == null ? "comm is null; give a communicator"
                : parameters == null ? "parameters is null; give parameters" : null;
            if (missing != null) throw DtException.InvalidArgument("Outer: " + missing);
            Packer packer = new Packer()
                .AddNumbers(options.SyncEvery, options.Fragments, options.Delay, options.Nesterov ? 1 : 0,
                    (int)options.Format)
                .AddDoubles(options.Alpha, options.Rate, options.Momentum);
            OuterParam[] all = new List<OuterParam>(parameters).ToArray();
            Pin[] pins = new Pin[all.Length];
            bool made = false;
            try
            {
                for (int i = 0; i < all.Length; ++i) Pack(packer, all[i], i, ref pins[i]);
                byte[] packed = packer.Take();
                OuterHandle handle = new OuterHandle(Raw.Native.outer_create(comm, packed, packed.Length), pins);
                made = true;
                return handle;
            }
            finally
            {
                if (!made) Pin.Free(pins, pins.Length);
            }
        }

        static void Pack(Packer packer, OuterParam param, int index, ref Pin pin)
        {
            Tensor data = param.Data;
            if (data.IsNone)
            {
                throw DtException.InvalidArgument("Outer: parameters[" + index +
                    "] has no data; give an array, a memory or a Tensor");
            }
            data.CheckWritable("Outer", "parameters[" + index + "]");
            pin.Set(data, 0);
            packer.AddNumbers(data.AddressIn(pin), data.Count, (int)data.Dtype).Add(param.Name ?? "");
        }

        /// <summary>To be called behind each step of the inner optimizer; whether parameters were changed.
        /// Collective where it is a fragment's turn, or a mean is due. A step that fails has changed nothing:
        /// after the loss of a rank go on with <see cref="Move"/>.</summary>
        public bool Step()
        {
            using (new Use(this)) return Raw.Native.outer_step(this);
        }

        /// <summary>Gives every fragment a turn at once, as before an evaluation: behind it all ranks have the
        /// global parameters. It counts no step. Collective.</summary>
        public void Sync()
        {
            using (new Use(this)) Raw.Native.outer_sync(this);
        }

        /// <summary>How many steps there were. <see cref="Load"/> sets what the file has, <see cref="Move"/> what
        /// the ranks have that are ahead.</summary>
        public long Steps
        {
            get { using (new Use(this)) return Raw.Native.outer_steps(this); }
        }

        /// <summary>Goes on over another communicator, such as that of <see cref="Comm.Shrink"/>. Ranks that
        /// have had fewer means get the state of the others, also as their own parameters; a mean under way is
        /// dropped. Collective over it.</summary>
        public void Move(Comm comm)
        {
            using (new Use(this)) Raw.Native.outer_move(this, comm);
        }

        /// <summary>Writes the global parameters, the momentum and the number of steps to a file, in the
        /// layout of safetensors, which it replaces once all is on the disk. Not collective: all ranks would
        /// write the same, so let one do it.</summary>
        public void Save(string path)
        {
            using (new Use(this)) Raw.Native.outer_save(this, path);
        }

        /// <summary>Reads what <see cref="Save"/> wrote, the same file on all ranks; its parameters become the
        /// rank's own. Any number of ranks and any options may read it, but for a momentum where the file has
        /// none. Collective.</summary>
        public void Load(string path)
        {
            using (new Use(this)) Raw.Native.outer_load(this, path);
        }
    }
}
