// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Dt
{
    /// What libdt calls an element type of C#; looked up once for each.
    internal static class ElementType<T> where T : struct
    {
        internal const int None = -1;
        /// Bits of a 16-bit float, when the caller says of which.
        internal const int Bits16 = -2;

        internal static readonly int Own = Elements.Find(typeof(T));
    }

    internal static class Elements
    {
        internal static int Find(Type type)
        {
            if (type == typeof(float)) return (int)Dtype.F32;
            if (type == typeof(double)) return (int)Dtype.F64;
            if (type == typeof(sbyte)) return (int)Dtype.I8;
            if (type == typeof(byte)) return (int)Dtype.U8;
            if (type == typeof(int)) return (int)Dtype.I32;
            if (type == typeof(uint)) return (int)Dtype.U32;
            if (type == typeof(long)) return (int)Dtype.I64;
            if (type == typeof(ulong)) return (int)Dtype.U64;
#if NET5_0_OR_GREATER
            if (type == typeof(Half)) return (int)Dtype.F16;
#endif
            if (type == typeof(ushort) || type == typeof(short)) return ElementType<ushort>.Bits16;
            return ElementType<ushort>.None;
        }

        /// The dtype of elements of type T, which the caller may name; only for 16-bit integers he
        /// has to.
        internal static Dtype Of<T>(string operation, Dtype? stated) where T : struct
        {
            int own = ElementType<T>.Own;
            if (own >= 0 && (!stated.HasValue || (int)stated.Value == own)) return (Dtype)own;
            if (own == ElementType<T>.Bits16 && stated.HasValue &&
                (stated.Value == Dtype.F16 || stated.Value == Dtype.BF16))
            {
                return stated.Value;
            }
            throw Refuse(operation, typeof(T), own, stated);
        }

        static DtException Refuse(string operation, Type type, int own, Dtype? stated)
        {
            if (own >= 0)
            {
                return DtException.InvalidArgument(operation + ": elements of type " + type.Name +
                    " are " + (Dtype)own + ", not " + stated + "; leave the dtype out");
            }
            if (own == ElementType<ushort>.Bits16)
            {
                return DtException.InvalidArgument(operation + ": elements of type " + type.Name +
                    " are the bits of F16 or BF16; say which as the dtype");
            }
            return DtException.InvalidArgument(operation + ": elements of type " + type.Name +
                " have no dtype; use float, double or integers of 8, 32 or 64 bits");
        }

        internal static void CheckKnown<T>(string operation) where T : struct
        {
            if (ElementType<T>.Own == ElementType<T>.None) throw Refuse(operation, typeof(T), ElementType<T>.None, null);
        }

        internal static long Length<T>(string operation, string name, T[] array) where T : struct
        {
            if (array == null)
            {
                throw DtException.InvalidArgument(operation + ": " + name + " is null; give an array");
            }
            return array.LongLength;
        }

        /// In bytes.
        internal static int Size(Dtype dtype)
        {
            switch (dtype)
            {
                case Dtype.F16:
                case Dtype.BF16: return 2;
                case Dtype.I32:
                case Dtype.U32:
                case Dtype.F32: return 4;
                case Dtype.I64:
                case Dtype.U64:
                case Dtype.F64: return 8;
                default: return 1;
            }
        }

        /// A GPU's memory cannot be touched by the processor.
        internal static void CheckReadable(string operation, long address)
        {
            if (Raw.Native.readable(address)) return;
            throw DtException.InvalidArgument(operation +
                ": the memory is a GPU's; take its address for a library that can use it");
        }

        internal static void CheckEqual(string operation, long send, long recv)
        {
            if (send == recv) return;
            throw DtException.InvalidArgument(operation + ": send has " + send +
                " elements, but recv " + recv + "; give buffers of one length");
        }

        /// `whole` holds a part of `part` elements for each rank.
        internal static void CheckParts(string operation, string partName, long part,
            string wholeName, long whole, int ranks)
        {
            if (part <= long.MaxValue / ranks && whole == part * ranks) return;
            throw DtException.InvalidArgument(operation + ": " + partName + " has " + part +
                " elements, but " + wholeName + " " + whole + "; over " + ranks + " ranks " +
                wholeName + " must have " + ranks + " times as many as " + partName);
        }

#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
        /// A reference to fix; of an empty span to no element, which becomes address 0.
        internal static ref byte Reference<T>(ReadOnlySpan<T> span) where T : struct
        {
            // The bytes of more than 2 GB have no span: those of the first element are enough.
            return ref MemoryMarshal.GetReference(
                MemoryMarshal.AsBytes(span.Slice(0, span.IsEmpty ? 0 : 1)));
        }
#endif
    }

    /// An array kept in its place, without garbage, or memory that is kept. Null is address 0.
    internal struct Pin
    {
        GCHandle handle;
        MemoryHandle memory;

        internal static Pin Of(object array)
        {
            Pin pin = new Pin();
            if (array != null) pin.handle = GCHandle.Alloc(array, GCHandleType.Pinned);
            return pin;
        }

        internal static Pin Of(Memory memory)
        {
            Pin pin = new Pin();
            if (memory != null) pin.memory = memory.Lend();
            return pin;
        }

        internal long Address
        {
            get
            {
                if (memory != null) return memory.Number;
                return handle.IsAllocated ? handle.AddrOfPinnedObject().ToInt64() : 0;
            }
        }

        internal void Free()
        {
            if (handle.IsAllocated) handle.Free();
            if (memory != null) memory.DangerousRelease();
            memory = null;
        }
    }
}
