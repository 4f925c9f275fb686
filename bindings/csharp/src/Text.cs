// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace Dt
{
    /// Texts as UTF-8 and lists of bytes, between C# and the native layer. Bytes that are no UTF-8
    /// become U+FFFD, and so do halves of surrogate pairs on the way in.
    internal static class Text
    {
        [DllImport("dtcs")]
        static extern void DtFreeGiven(IntPtr given);

        internal static byte[] Terminated(string text)
        {
            if (text == null)
            {
                throw DtException.InvalidArgument("dt: a text is null; give a string");
            }
            int end = text.IndexOf('\0');
            if (end >= 0)
            {
                throw DtException.InvalidArgument("dt: a text has a NUL at index " + end +
                    ", where it would end; leave it out");
            }
            byte[] bytes = new byte[Encoding.UTF8.GetByteCount(text) + 1];
            Encoding.UTF8.GetBytes(text, 0, text.Length, bytes, 0);
            return bytes;
        }

        internal static byte[] TerminatedOrNull(string text) => text == null ? null : Terminated(text);

        /// Takes over what dt_give() made.
        internal static byte[] TakeBytes(IntPtr given)
        {
            try
            {
                long size = Marshal.ReadInt64(given);
                byte[] bytes = new byte[size];
                Marshal.Copy(new IntPtr(given.ToInt64() + sizeof(long)), bytes, 0, (int)size);
                return bytes;
            }
            finally
            {
                DtFreeGiven(given);
            }
        }

        internal static string Take(IntPtr given) => Encoding.UTF8.GetString(TakeBytes(given));
    }

    /// A list as the native layer packs it: for each item its size, -1 absent, then it.
    internal sealed class Packer
    {
        readonly List<byte> packed = new List<byte>();

        internal void AddNumber(long value) => packed.AddRange(BitConverter.GetBytes(value));

        internal Packer AddNumbers(params long[] values)
        {
            foreach (long each in values) AddNumber(each);
            return this;
        }

        /// Their bits.
        internal Packer AddDoubles(params double[] values) =>
            AddNumbers(Array.ConvertAll(values, BitConverter.DoubleToInt64Bits));

        /// How many there are, then they; null: none.
        internal Packer AddList(long[] values) => AddNumbers(values?.Length ?? 0).AddNumbers(values ?? new long[0]);

        internal Packer AddList(int[] values) =>
            AddList(values == null ? null : Array.ConvertAll(values, each => (long)each));

        internal void Add(byte[] item)
        {
            AddNumber(item == null ? -1 : item.LongLength);
            if (item != null) packed.AddRange(item);
        }

        internal void Add(string item)
        {
            byte[] terminated = Text.Terminated(item);
            AddNumber(terminated.Length - 1);
            for (int i = 0; i < terminated.Length - 1; ++i) packed.Add(terminated[i]);
        }

        internal byte[] Take() => packed.ToArray();
    }

    /// Reads such a list.
    internal sealed class Unpacker
    {
        readonly byte[] packed;
        int at;

        internal Unpacker(byte[] packed)
        {
            this.packed = packed;
        }

        internal bool More => at < packed.Length;

        internal long Number()
        {
            long value = BitConverter.ToInt64(packed, at);
            at += sizeof(long);
            return value;
        }

        /// Null where it is absent.
        internal byte[] Item()
        {
            long size = Number();
            if (size < 0) return null;
            byte[] item = new byte[size];
            Array.Copy(packed, at, item, 0, size);
            at += (int)size;
            return item;
        }

        internal string Text() => Encoding.UTF8.GetString(Item());
    }
}
