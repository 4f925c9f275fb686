// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // What becomes a tensor by itself: arrays and memories of each element type. Null: no buffer.
#pragma warning disable 1591  // see Tensor
    public readonly partial struct Tensor
    {
        static Tensor Whole<T>(T[] array) where T : struct => array == null
            ? default(Tensor) : new Tensor(array, Place.Array, 0, array.Length, (Dtype)ElementType<T>.Own);

        public static implicit operator Tensor(Memory memory) =>
            memory == null ? default(Tensor) : memory.Slice(0, memory.Count);

        public static implicit operator Tensor(sbyte[] array) => Whole(array);
        public static implicit operator Tensor(byte[] array) => Whole(array);
        public static implicit operator Tensor(int[] array) => Whole(array);
        public static implicit operator Tensor(uint[] array) => Whole(array);
        public static implicit operator Tensor(long[] array) => Whole(array);
        public static implicit operator Tensor(ulong[] array) => Whole(array);
        public static implicit operator Tensor(float[] array) => Whole(array);
        public static implicit operator Tensor(double[] array) => Whole(array);
        public static implicit operator Tensor(BFloat16[] array) => Whole(array);
#if DT_SPAN
        public static implicit operator Tensor(Memory<sbyte> memory) => Of<sbyte>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<sbyte> memory) => Of<sbyte>(memory);
        public static implicit operator Tensor(Memory<byte> memory) => Of<byte>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<byte> memory) => Of<byte>(memory);
        public static implicit operator Tensor(Memory<int> memory) => Of<int>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<int> memory) => Of<int>(memory);
        public static implicit operator Tensor(Memory<uint> memory) => Of<uint>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<uint> memory) => Of<uint>(memory);
        public static implicit operator Tensor(Memory<long> memory) => Of<long>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<long> memory) => Of<long>(memory);
        public static implicit operator Tensor(Memory<ulong> memory) => Of<ulong>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<ulong> memory) => Of<ulong>(memory);
        public static implicit operator Tensor(Memory<float> memory) => Of<float>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<float> memory) => Of<float>(memory);
        public static implicit operator Tensor(Memory<double> memory) => Of<double>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<double> memory) => Of<double>(memory);
        public static implicit operator Tensor(Memory<BFloat16> memory) => Of<BFloat16>(memory);
        public static implicit operator Tensor(ReadOnlyMemory<BFloat16> memory) => Of<BFloat16>(memory);
#endif
    }
#pragma warning restore 1591
}
