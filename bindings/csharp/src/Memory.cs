// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;

namespace Dt
{
    /// <summary>Memory that all local ranks of a communicator can reach, so that reductions read it
    /// where it lies; of a communicator over GPUs, memory of this rank's GPU. Operations that are given
    /// this object keep the memory until they are done. Keep the object as long as its address or span
    /// is used: the memory goes with it.</summary>
    public sealed class Memory : IDisposable
    {
        readonly MemoryHandle handle;
        readonly long bytes;
        volatile bool closed;
        volatile bool readable;  // once seen; else not known

        internal Memory(Comm comm, long bytes)
        {
            long address = Raw.Native.mem_alloc(comm.Number, bytes);
            bool counted = false;
            try
            {
                comm.handle.DangerousAddRef(ref counted);
            }
            catch (ObjectDisposedException)
            {
                throw DtException.InvalidArgument(
                    "mem_alloc: the communicator was closed meanwhile; dispose of it later");
            }
            handle = new MemoryHandle(comm.handle, address);
            this.bytes = bytes;
            GC.KeepAlive(comm);
        }

        /// <summary>Where it begins, aligned to 4096 bytes (on a GPU to 256). For collectives, with
        /// a count and a <see cref="Dtype"/>.</summary>
        public IntPtr Address
        {
            get
            {
                CheckOpen();
                return new IntPtr(handle.Number);
            }
        }

        /// <summary>Size in bytes.</summary>
        public long Bytes
        {
            get { return bytes; }
        }

        /// <summary>Copies elements of an array to the beginning of host memory.</summary>
        public void Write<T>(T[] from) where T : struct
        {
            Copy("memory_write", from, true);
        }

        /// <summary>Copies elements from the beginning of host memory into an array.</summary>
        public void Read<T>(T[] into) where T : struct
        {
            Copy("memory_read", into, false);
        }

#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
        /// <summary>Host memory as whole elements, as many as fit; at most 2^31 - 1.</summary>
        public unsafe Span<T> AsSpan<T>() where T : struct
        {
            CheckOpen();
            Elements.CheckKnown<T>("memory");
            CheckReadable("memory_span");
            long count = Math.Min(bytes / Marshal.SizeOf(typeof(T)), int.MaxValue);
            return new Span<T>((void*)handle.Number, (int)count);
        }
#endif

        /// <summary>Frees it, once no operation uses it.</summary>
        public void Dispose()
        {
            closed = true;
            handle.Dispose();
        }

        /// Keeps it until the handle's DangerousRelease.
        internal MemoryHandle Lend()
        {
            CheckOpen();
            bool counted = false;
            try
            {
                handle.DangerousAddRef(ref counted);
            }
            catch (ObjectDisposedException)
            {
                throw Closed();
            }
            return handle;
        }

        static DtException Closed()
        {
            return DtException.InvalidArgument("memory: is closed; use it before Dispose");
        }

        void CheckOpen()
        {
            if (closed) throw Closed();
        }

        void CheckReadable(string operation)
        {
            if (readable || bytes == 0) return;
            Elements.CheckReadable(operation, handle.Number);
            readable = true;
        }

        unsafe void Copy<T>(string operation, T[] array, bool write) where T : struct
        {
            CheckOpen();
            Elements.CheckKnown<T>(operation);
            long size = Elements.Length(operation, "the array", array) * Marshal.SizeOf(typeof(T));
            if (size > bytes)
            {
                throw DtException.InvalidArgument(operation + ": the array has " + size +
                    " bytes, but the memory " + bytes + "; allocate more");
            }
            Pin pin = Pin.Of(array);
            bool counted = false;
            try
            {
                handle.DangerousAddRef(ref counted);
                CheckReadable(operation);
                void* own = (void*)handle.Number;
                void* other = (void*)pin.Address;
                if (write) Buffer.MemoryCopy(other, own, bytes, size);
                else Buffer.MemoryCopy(own, other, size, size);
            }
            catch (ObjectDisposedException)
            {
                CheckOpen();
            }
            finally
            {
                if (counted) handle.DangerousRelease();
                pin.Free();
            }
        }
    }
}
