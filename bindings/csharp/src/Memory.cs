// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>Memory that all local ranks of a communicator can reach, so that reductions read it
    /// where it lies; of a communicator over GPUs, memory of this rank's GPU. It becomes a
    /// <see cref="Tensor"/> by itself; operations keep it until they are done. Keep this object as long
    /// as its address or span is used: the memory goes with it.</summary>
    public sealed class Memory : DtObject
    {
        volatile bool readable;  // once seen; otherwise not known

        internal Memory(Comm comm, long count, Dtype dtype) : base(Allocated(comm, count, dtype))
        {
            Count = count;
            Dtype = dtype;
        }

        static Handle Allocated(Comm comm, long count, Dtype dtype)
        {
            const long Most = long.MaxValue / 8;
            if (count < 1 || count > Most)
                throw DtException.InvalidArgument("Allocate: count is " + count + "; it must be from 1 to " + Most);
            bool made = false;
            Use use = new Use(comm);
            try
            {
                long address = Raw.Native.mem_alloc(comm, count * Elements.Size(dtype));
                made = true;
                return new MemoryHandle(comm.handle, address);
            }
            finally
            {
                if (!made) use.Dispose();
            }
        }

        /// <summary>Number of elements.</summary>
        public long Count { get; }

        /// <summary>Their type.</summary>
        public Dtype Dtype { get; }

        /// <summary>Size in bytes.</summary>
        public long Bytes => Count * Elements.Size(Dtype);

        /// <summary>Where it begins, aligned to 4096 bytes (on a GPU to 256).</summary>
        public IntPtr Address => new IntPtr(Number);

        /// <summary>A part of it.</summary>
        public Tensor Slice(long start, long count)
        {
            NumberOf(this);
            return Tensor.Of(this, (MemoryHandle)handle).Slice(start, count);
        }

        /// <summary>Copies elements of an array to the beginning of host memory.</summary>
        public void Write<T>(T[] from) where T : struct => Copy("Write", from, true);

        /// <summary>Copies elements from the beginning of host memory into an array.</summary>
        public void Read<T>(T[] into) where T : struct => Copy("Read", into, false);

#if DT_SPAN
        /// <summary>Host memory as whole elements, as many as fit; at most 2^31 - 1.</summary>
        public unsafe Span<T> AsSpan<T>() where T : struct
        {
            int size = Elements.Size<T>();
            CheckReadable("AsSpan");
            return new Span<T>((void*)Number, (int)Math.Min(Bytes / size, int.MaxValue));
        }
#endif

        void CheckReadable(string operation)
        {
            if (readable) return;
            Elements.CheckReadable(operation, Number);
            readable = true;
        }

        unsafe void Copy<T>(string operation, T[] array, bool write) where T : struct
        {
            if (array == null) throw DtException.InvalidArgument(operation + ": the array is null; give an array");
            long size = array.LongLength * Elements.Size<T>();
            if (size > Bytes)
            {
                throw DtException.InvalidArgument(operation + ": the array has " + size + " bytes, but the memory " +
                    Bytes + "; allocate more");
            }
            Pin pin = new Pin();
            using (new Use(this))
            {
                try
                {
                    pin.Fix(array);
                    CheckReadable(operation);
                    void* own = (void*)handle.Number, other = (void*)pin.Base;
                    if (write) Buffer.MemoryCopy(other, own, Bytes, size);
                    else Buffer.MemoryCopy(own, other, size, size);
                }
                finally
                {
                    pin.Free();
                }
            }
        }
    }
}
