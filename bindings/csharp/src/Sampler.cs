// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Dt
{
    /// <summary>Where a job is in its epoch: what a checkpoint holds. It does not depend on the number
    /// of ranks.</summary>
    public sealed class SamplerState
    {
        /// <summary>At least 0.</summary>
        public long Epoch { get; }
        /// <summary>Samples of the epoch's order that all ranks together have taken.</summary>
        public long Consumed { get; }
        /// <summary>Samples of the data set.</summary>
        public long Size { get; }
        /// <summary>Tells another seed, order or weights apart.</summary>
        public long Order { get; }

        /// <summary>As it was saved.</summary>
        public SamplerState(long epoch, long consumed, long size, long order)
        {
            Epoch = epoch;
            Consumed = consumed;
            Size = size;
            Order = order;
        }
    }

    /// <summary>Which samples of a data set a rank sees, in which order: index for index as
    /// PyTorch's DistributedSampler, in shuffled blocks, or drawn by weights. One thread at a
    /// time.</summary>
    public sealed class Sampler : DtObject
    {
        const long Slice = 1 << 20;  // so many indices pass through an array of bytes at once
        const int LargestBatch = 1 << 27;  // of Next(), which must not come back for more

        /// <summary>Deals a data set of so many samples out to the ranks. The seed is equal on all
        /// ranks; sequential: not shuffled; dropLast: the tail is left out instead of repeating
        /// samples from the front; wholeBatches: <see cref="Next"/> leaves out a last batch that would
        /// be shorter.</summary>
        public Sampler(int worldSize, int rank, long size, long seed = 0, bool sequential = false,
            bool dropLast = false, bool wholeBatches = false)
            : this(worldSize, rank, size, seed, sequential, dropLast, wholeBatches, 0, 0, new byte[0], 0) { }

        Sampler(int worldSize, int rank, long size, long seed, bool sequential, bool dropLast,
            bool wholeBatches, long block, long window, byte[] weights, long draws)
            : base(new Handle(Loader.Ready(given => Raw.Native.sampler_create(worldSize, rank, size, seed,
                sequential, dropLast, wholeBatches, block, window, given, given.Length, draws), weights),
                Raw.NativePINVOKE.sampler_destroy)) { }

        /// <summary>Shuffles blocks of so many consecutive samples (1: one shuffle of all samples), and
        /// the samples within each window (0: those of 16 blocks): without memory, for any number of
        /// samples.</summary>
        public static Sampler Blocks(int worldSize, int rank, long size, long block, long window = 0,
            long seed = 0, bool dropLast = false, bool wholeBatches = false)
        {
            if (block < 1)
            {
                throw DtException.InvalidArgument("Sampler: block is " + block +
                    "; it must be at least 1");
            }
            return new Sampler(worldSize, rank, size, seed, false, dropLast, wholeBatches, block, window, new byte[0], 0);
        }

        /// <summary>Draws samples with replacement, each as often as its weight asks. The draws are
        /// those of an epoch, over all ranks; 0: as many as samples.</summary>
        public static Sampler Weighted(int worldSize, int rank, double[] weights, long draws = 0,
            long seed = 0, bool dropLast = false, bool wholeBatches = false)
        {
            if (weights == null || weights.Length == 0 || weights.Length > int.MaxValue / sizeof(double))
            {
                throw DtException.InvalidArgument("Sampler: weights has " +
                    (weights == null ? "no" : weights.Length.ToString()) +
                    " elements; give one for each sample, from 1 to 2^28 - 1");
            }
            byte[] packed = new byte[weights.Length * sizeof(double)];
            Buffer.BlockCopy(weights, 0, packed, 0, packed.Length);
            return new Sampler(worldSize, rank, weights.Length, seed, false, dropLast, wholeBatches, 0, 0, packed, draws);
        }

        /// <summary>Chooses the epoch's order, and goes to its front. The epoch that is chosen already
        /// goes on where it is, unless all of it was taken: a resumed job calls this in its loop as
        /// ever.</summary>
        public void SetEpoch(long epoch) => Raw.Native.sampler_set_epoch(this, epoch);

        /// <summary>Throws on all ranks of the communicator, with the first difference, unless their
        /// samplers belong together: the same data set, seed, order, epoch and place in it, another
        /// part for each. Collective.</summary>
        public void Check(Comm comm)
        {
            if (comm == null) throw DtException.InvalidArgument("Check: comm is null; give a communicator");
            Raw.Native.sampler_check(this, comm);
        }

        /// <summary>Samples of this rank in the epoch, or in what was left of it where
        /// <see cref="Resume"/> set in; equal on all ranks.</summary>
        public long Length
        {
            get
            {
                long length = Raw.Native.sampler_length(this);
                    return length;
            }
        }

        /// <summary>This rank's sample indices of the epoch.</summary>
        public long[] Indices() => Indices(0, Length);

        /// <summary>This rank's next sample indices: a batch. Fewer than asked for only at the end, never with wholeBatches; none:
        /// the epoch has ended. After that it throws until <see cref="SetEpoch"/>.</summary>
        public long[] Next(int count)
        {
            if (count > LargestBatch)
            {
                throw DtException.InvalidArgument("Next: count is " + count + "; at most " +
                    LargestBatch + " at once, or Indices() for more");
            }
            byte[] packed = Raw.Native.sampler_next(this, count);
            long[] batch = new long[packed.Length / sizeof(long)];
            Buffer.BlockCopy(packed, 0, batch, 0, packed.Length);
            return batch;
        }

        /// <summary>What <see cref="Next"/> gives until the epoch's end. Going through it takes from
        /// this sampler.</summary>
        public IEnumerable<long[]> Batches(int size)
        {
            for (long[] batch = Next(size); batch.Length > 0; batch = Next(size)) yield return batch;
        }

        /// <summary>Where the job is, for a checkpoint, when every rank has used as many samples as this
        /// one: so many of its length, where a loader reads ahead, or -1: as many as
        /// <see cref="Next"/> gave.</summary>
        public SamplerState Save(long taken = -1)
        {
            Unpacker packed = new Unpacker(Raw.Native.sampler_save(this, taken));
            return new SamplerState(packed.Number(), packed.Number(), packed.Number(), packed.Number());
        }

        /// <summary>Goes on where a job was: what was left of the epoch is dealt out to the ranks that
        /// there are now. The state is the same on all ranks.</summary>
        public void Resume(SamplerState state)
        {
            if (state == null) throw DtException.InvalidArgument("Resume: state is null; give what Save() gave");
            Raw.Native.sampler_resume(this, state.Epoch, state.Consumed, state.Size, state.Order);
        }

        /// <summary>A range of this rank's sample indices, wherever <see cref="Next"/> is.</summary>
        public unsafe long[] Indices(long first, long count)
        {
            long length = Length;
            if (first < 0 || count < 0 || first > length || count > length - first)
            {
                Raw.Native.sampler_indices(this, first, count);  // says what is wrong
            }
            long[] indices = new long[count];
            for (long done = 0; done < count; done += Slice)
            {
                long size = Math.Min(Slice, count - done);
                byte[] packed = Raw.Native.sampler_indices(this, first + done, size);
                fixed (long* to = &indices[done])
                {
                    Marshal.Copy(packed, 0, (IntPtr)to, packed.Length);
                }
            }
            return indices;
        }
    }
}
