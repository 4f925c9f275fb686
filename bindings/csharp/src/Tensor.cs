// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;

namespace Dt
{
    /// <summary>Elements in memory: what operations send and receive. Arrays, memories and what
    /// <see cref="Comm.Allocate(long, Dtype)"/> gave become tensors by themselves where their element
    /// type is one of <see cref="Dt.Dtype"/>; none of them is copied, and all are kept in their place
    /// until the operation is done. The default value means "no buffer", for ranks that need none.</summary>
    public readonly partial struct Tensor
    {
        enum Place : byte { Address, Array, Memory, Pinnable }

        readonly object owner;  // of the elements; of an address, what is kept alive with it
        readonly long offset;   // bytes into the owner; the address itself
        readonly Place place;
        readonly byte type;     // dtype + 1; 0: no buffer
        readonly bool readOnly; // of a ReadOnlyMemory

        Tensor(object owner, Place place, long offset, long count, Dtype dtype, bool readOnly = false)
        {
            this.readOnly = readOnly;
            this.owner = owner;
            this.place = place;
            this.offset = offset;
            type = (byte)(dtype + 1);
            Count = count;
        }

        /// <summary>Host or GPU memory at an address. Operations keep the object, if there is one,
        /// until they are done; otherwise the caller keeps the memory.</summary>
        public Tensor(IntPtr address, long count, Dtype dtype, object keepAlive = null)
            : this(keepAlive, Place.Address, address.ToInt64(), count, dtype)
        {
            if (count < 0)
                throw DtException.InvalidArgument("Tensor: count is " + count + "; it must be at least 0");
            Elements.Size(dtype);
            if (count > 0 && address == IntPtr.Zero)
            {
                throw DtException.InvalidArgument("Tensor: address is 0 with count " + count +
                    "; give the memory's address");
            }
        }

        /// <summary>Number of elements.</summary>
        public long Count { get; }

        /// <summary>Their type.</summary>
        public Dtype Dtype => (Dtype)(type - 1);

        /// <summary>Size in bytes.</summary>
        public long Bytes => IsNone ? 0 : Count * Elements.Size(Dtype);

        internal bool IsNone => type == 0;

        internal bool IsReadOnly => readOnly;

        /// Whether it is a copy of the same value, so that both have the same memory.
        internal bool IsSame(in Tensor other) =>
            owner == other.owner && place == other.place && offset == other.offset && Count == other.Count;

        /// Throws if results cannot be written to it.
        internal void CheckWritable(string operation, string name)
        {
            if (!readOnly) return;
            throw DtException.InvalidArgument(operation + ": " + name + " is a ReadOnlyMemory, and receives a " +
                "result; give an array or a Memory");
        }

        /// Whether something must be kept until an operation is done.
        internal bool HasOwner => owner != null;

        /// <summary>An array; null: no buffer. A dtype is wanted only for the bits of 16-bit floats in
        /// a ushort or a short.</summary>
        public static Tensor Of<T>(T[] array, Dtype? dtype = null) where T : struct
        {
            Dtype known = Elements.Of<T>(dtype);
            return array == null ? default(Tensor) : new Tensor(array, Place.Array, 0, array.Length, known);
        }

        /// <summary>A part of it.</summary>
        public Tensor Slice(long start, long count)
        {
            if (start >= 0 && count >= 0 && start <= Count - count)
                return new Tensor(owner, place, offset + start * Elements.Size(Dtype), count, Dtype, readOnly);
            throw DtException.InvalidArgument("Slice: elements " + start + " to " + (start + count) +
                " are not all among " + Count + "; give a smaller part");
        }

        internal static Tensor Of(Memory memory, MemoryHandle handle) =>
            new Tensor(handle, Place.Memory, 0, memory.Count, memory.Dtype);

        /// What stays in its place as long as a call lasts.
        internal static Tensor At(long address, long count, Dtype dtype) =>
            new Tensor(null, Place.Address, address, count, dtype);

#if DT_SPAN
        /// <summary>A memory. A dtype is wanted only for the bits of 16-bit floats in a ushort or a
        /// short.</summary>
        public static Tensor Of<T>(Memory<T> memory, Dtype? dtype = null) where T : struct =>
            Over<T>(memory, dtype, false);

        /// <summary>Likewise a memory that nothing is received in.</summary>
        public static Tensor Of<T>(ReadOnlyMemory<T> memory, Dtype? dtype = null) where T : struct =>
            Over(memory, dtype, true);

        static Tensor Over<T>(ReadOnlyMemory<T> memory, Dtype? dtype, bool readOnly) where T : struct
        {
            Dtype known = Elements.Of<T>(dtype);
            int size = Elements.Size(known), start, length;
            ArraySegment<T> segment;
            System.Buffers.MemoryManager<T> manager;
            if (MemoryMarshal.TryGetArray(memory, out segment))
                return new Tensor(segment.Array, Place.Array, (long)segment.Offset * size, memory.Length, known,
                    readOnly);
            if (MemoryMarshal.TryGetMemoryManager(memory, out manager, out start, out length))
                return new Tensor(manager, Place.Pinnable, (long)start * size, length, known, readOnly);
            throw DtException.InvalidArgument("Tensor: a memory of " + typeof(T).Name +
                " has neither an array nor a MemoryManager; give one that has");
        }
#endif

        /// Whether one pin holds both in their place.
        internal bool SharesOwner(in Tensor other) => owner != null && owner == other.owner && place == other.place;

        /// The array that the elements lie in, if any, as one of bytes, only to be fixed: for that arrays
        /// of all numbers are alike.
        internal byte[] Array => place == Place.Array ? new Overlay { array = owner }.bytes : null;

        [StructLayout(LayoutKind.Explicit)]
        struct Overlay
        {
            [FieldOffset(0)] internal object array;
            [FieldOffset(0)] internal readonly byte[] bytes;
        }

        /// Keeps the elements in their place.
        internal Pin Pin()
        {
            Pin pin = new Pin();
            pin.Set(this, 0);
            return pin;
        }

        internal void PinInto(ref Pin pin, long array)
        {
            switch (place)
            {
                case Place.Array: pin.Fix(owner, array); break;
                case Place.Memory: pin.Lend((MemoryHandle)owner); break;
#if DT_SPAN
                case Place.Pinnable: pin.Lease((System.Buffers.IPinnable)owner, offset, Elements.Size(Dtype)); break;
#endif
                default: pin.Keep(owner); break;
            }
        }

        internal long AddressIn(in Pin pin) => IsNone ? 0 : pin.Base + offset;
    }

    /// What keeps a tensor's elements where they are.
    internal struct Pin
    {
        GCHandle array;
        object kept;
        internal long Base { get; private set; }
#if DT_SPAN
        System.Buffers.MemoryHandle leased;

        internal unsafe void Lease(System.Buffers.IPinnable memory, long offset, int size)
        {
            leased = memory.Pin((int)(offset / size));
            Base = (long)leased.Pointer - offset;
        }
#endif

        internal void Keep(object owner)
        {
            kept = owner;
        }

        internal void Set(in Tensor tensor, long array) => tensor.PinInto(ref this, array);

        /// `at`: where the array lies, if the caller has fixed it.
        internal void Fix(object whole, long at = 0)
        {
            Base = at;
            if (at != 0) return;
            array = GCHandle.Alloc(whole, GCHandleType.Pinned);
            Base = array.AddrOfPinnedObject().ToInt64();
        }

        internal void Lend(MemoryHandle memory)
        {
            bool counted = false;
            memory.DangerousAddRef(ref counted);
            kept = memory;
            Base = memory.Number;
        }

        internal void Free()
        {
            if (array.IsAllocated) array.Free();
            if (kept is MemoryHandle) ((MemoryHandle)kept).DangerousRelease();
            GC.KeepAlive(kept);
            kept = null;
#if DT_SPAN
            leased.Dispose();
            leased = default(System.Buffers.MemoryHandle);
#endif
        }

        /// Owners may throw; the others are let go all the same.
        internal static void Free(Pin[] pins, int count)
        {
            Exception failure = null;
            for (int i = 0; i < count; ++i)
            {
                try
                {
                    pins[i].Free();
                }
                catch (Exception error)
                {
                    failure = error;
                }
            }
            if (failure != null) throw failure;
        }

        /// Likewise.
        internal static void Free(ref Pin one, ref Pin other)
        {
            try
            {
                one.Free();
            }
            finally
            {
                other.Free();
            }
        }
    }
}
