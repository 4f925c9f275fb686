// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// What libdt calls an element type of C#; looked up once for each.
    internal static class ElementType<T> where T : struct
    {
        internal static readonly int Own = Elements.Find(typeof(T));
    }

    internal static class Elements
    {
        const int None = -1;
        const int Bits16 = -2;  // the caller says of what

        static readonly byte[] sizes = { 1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 2, 2, 1, 1 };  // in the order of Dtype

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
            if (type == typeof(BFloat16)) return (int)Dtype.BF16;
            if (type.FullName == "System.Half") return (int)Dtype.F16;  // newer than .NET Standard 2.1
            return type == typeof(ushort) || type == typeof(short) ? Bits16 : None;
        }

        /// The dtype of elements of type T, which the caller has to name only for those of 16 bits. Bytes
        /// may be named as what else has a byte.
        internal static Dtype Of<T>(Dtype? stated = null) where T : struct
        {
            int own = ElementType<T>.Own;
            if (own >= 0 && (!stated.HasValue || (int)stated.Value == own)) return (Dtype)own;
            if (stated.HasValue && (own == Bits16 && Size(stated.Value) == 2 ||
                own == (int)Dtype.U8 && stated.Value >= Dtype.Bool && Size(stated.Value) == 1))
            {
                return stated.Value;
            }
            string type = "elements of type " + typeof(T).Name;
            if (own >= 0)
            {
                throw DtException.InvalidArgument(type + " are " + (Dtype)own + ", not " + stated +
                    "; leave the dtype out");
            }
            if (own == Bits16)
                throw DtException.InvalidArgument(type + " are I16, U16 or the bits of F16 or BF16; say which as the dtype");
            throw DtException.InvalidArgument(type +
                " have no dtype; use float, double, BFloat16, Half or integers");
        }

        /// In bytes; also of 16-bit elements whose dtype nobody said.
        internal static int Size<T>() where T : struct
        {
            int own = ElementType<T>.Own;
            return own == Bits16 ? 2 : Size(own >= 0 ? (Dtype)own : Of<T>());
        }

        /// In bytes.
        internal static int Size(Dtype dtype)
        {
            if (dtype >= 0 && (int)dtype < sizes.Length) return sizes[(int)dtype];
            throw DtException.InvalidArgument("the dtype is " + (int)dtype + "; give a Dtype");
        }

        /// Of that many elements, for a method with an address in the place of the span.
        internal static int SpanLength(string operation, long count)
        {
            if (count <= int.MaxValue) return (int)count;
            throw DtException.InvalidArgument(operation + ": there are " + count + " elements, but a span has at most " +
                int.MaxValue + "; use the address: " + operation.Replace("Span", ""));
        }

        /// A GPU's memory cannot be touched by the processor.
        internal static void CheckReadable(string operation, long address)
        {
            if (Raw.Native.readable(address)) return;
            throw DtException.InvalidArgument(operation +
                ": the memory is a GPU's; take its address for a library that can use it");
        }
    }

    /// <summary>The upper half of a float: 8 bits of exponent, 7 of fraction.</summary>
    public readonly struct BFloat16 : IEquatable<BFloat16>, IComparable<BFloat16>
    {
        /// <summary>As it is stored.</summary>
        public ushort Bits { get; }

        BFloat16(ushort bits)
        {
            Bits = bits;
        }

        /// <summary>Of its bits.</summary>
        public static BFloat16 FromBits(ushort bits) => new BFloat16(bits);

        /// <summary>The nearest one, of two the even one.</summary>
        public static unsafe explicit operator BFloat16(float value)
        {
            uint bits = *(uint*)&value;
            if (float.IsNaN(value)) return new BFloat16((ushort)(bits >> 16 | 0x40));
            return new BFloat16((ushort)(bits + 0x7fff + (bits >> 16 & 1) >> 16));
        }

        /// <summary>Exactly.</summary>
        public static unsafe implicit operator float(BFloat16 value)
        {
            uint bits = (uint)value.Bits << 16;
            return *(float*)&bits;
        }

        /// <summary>As floats compare; NaN equals NaN.</summary>
        public bool Equals(BFloat16 other) => ((float)this).Equals(other);
        /// <summary>As floats compare; NaN equals NaN.</summary>
        public override bool Equals(object other) => other is BFloat16 && Equals((BFloat16)other);
        /// <summary>Of the float.</summary>
        public override int GetHashCode() => ((float)this).GetHashCode();
        /// <summary>As floats compare.</summary>
        public int CompareTo(BFloat16 other) => ((float)this).CompareTo(other);
        /// <summary>Of the float.</summary>
        public override string ToString() => ((float)this).ToString();
    }
}
