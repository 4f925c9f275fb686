// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;

namespace Dt
{
    /// <summary>Which samples of a data set a rank sees, in which order: index for index as
    /// PyTorch's DistributedSampler. One thread at a time.</summary>
    public sealed class Sampler : IDisposable
    {
        const long Slice = 1 << 20;  // so many indices pass through an array of bytes at once

        readonly SamplerHandle handle;

        /// <summary>Deals a data set of so many samples out to the ranks. The seed is equal on all
        /// ranks; sequential: not shuffled; dropLast: the tail is left out instead of repeating
        /// samples from the front.</summary>
        public Sampler(int worldSize, int rank, long size, long seed = 0, bool sequential = false,
            bool dropLast = false)
        {
            Loader.Ensure();
            handle = new SamplerHandle(
                Raw.Native.sampler_create(worldSize, rank, size, seed, sequential, dropLast));
        }

        /// <summary>Chooses the epoch's order. A forgotten call repeats the same order.</summary>
        public void SetEpoch(long epoch)
        {
            Raw.Native.sampler_set_epoch(handle.Number, epoch);
            GC.KeepAlive(this);
        }

        /// <summary>Throws on all ranks of the communicator, with the first difference, unless their
        /// samplers belong together: the same data set, seed, order and epoch, another part for each.
        /// Collective.</summary>
        public void Check(Comm comm)
        {
            if (comm == null) throw DtException.InvalidArgument("sampler_check: comm is null; give a communicator");
            Raw.Native.sampler_check(handle.Number, comm.Number);
            GC.KeepAlive(comm);
            GC.KeepAlive(this);
        }

        /// <summary>Samples of this rank per epoch, equal on all ranks.</summary>
        public long Length
        {
            get
            {
                long length = Raw.Native.sampler_length(handle.Number);
                GC.KeepAlive(this);
                return length;
            }
        }

        /// <summary>This rank's sample indices of the epoch.</summary>
        public long[] Indices()
        {
            return Indices(0, Length);
        }

        /// <summary>A range of this rank's sample indices; a job resumes by its
        /// position.</summary>
        public unsafe long[] Indices(long first, long count)
        {
            long length = Length;
            if (first < 0 || count < 0 || first > length || count > length - first)
            {
                Raw.Native.sampler_indices(handle.Number, first, count);  // says what is wrong
            }
            long[] indices = new long[count];
            for (long done = 0; done < count; done += Slice)
            {
                long size = Math.Min(Slice, count - done);
                byte[] packed = Raw.Native.sampler_indices(handle.Number, first + done, size);
                fixed (long* to = &indices[done])
                {
                    Marshal.Copy(packed, 0, (IntPtr)to, packed.Length);
                }
            }
            GC.KeepAlive(this);
            return indices;
        }

        /// <summary>Drops the handle.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }
    }
}
