// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// A count for each rank, of one operation, and where there are any, offsets: copies, which are
    /// checked, so that no other thread changes what libdt reads.
    internal sealed class Counts
    {
        /// Where this rank needs none.
        internal static readonly Counts None = new Counts(null, null, new long[0], null);

        readonly string operation, name;
        readonly long[] values;
        readonly long[] offsets;  // null: one behind the other

        Counts(string operation, string name, long[] values, long[] offsets)
        {
            this.operation = operation;
            this.name = name;
            this.values = values;
            this.offsets = offsets;
        }

        internal static Counts Of(string operation, string name, long[] counts, long[] offsets,
            int ranks)
        {
            if (counts == null)
            {
                throw DtException.InvalidArgument(operation + ": " + name +
                    " is null; give a count for each of the " + ranks + " ranks");
            }
            Counts made = new Counts(operation, name, (long[])counts.Clone(),
                offsets == null ? null : (long[])offsets.Clone());
            made.Check(made.values, name, "a count", ranks);
            foreach (long value in made.values)
            {
                made.Total = value > long.MaxValue - made.Total ? long.MaxValue : made.Total + value;
            }
            if (offsets != null) made.Check(made.offsets, made.OffsetsName, "an offset", ranks);
            return made;
        }

        string OffsetsName
        {
            get { return name.Replace("counts", "offsets").Replace("Counts", "Offsets"); }
        }

        /// Of all ranks together.
        internal long Total { get; private set; }

        internal long this[int rank]
        {
            get { return values[rank]; }
        }

        /// `one`: how to call one of them, with its article.
        void Check(long[] all, string called, string one, int ranks)
        {
            if (all.Length != ranks)
            {
                throw DtException.InvalidArgument(operation + ": " + called + " has " + all.Length +
                    one.Substring(one.IndexOf(' ')) + "s, but the communicator has " + ranks +
                    " ranks; give one for each rank");
            }
            for (int rank = 0; rank < ranks; ++rank)
            {
                if (all[rank] >= 0) continue;
                throw DtException.InvalidArgument(operation + ": " + called + "[" + rank + "] is " +
                    all[rank] + "; give " + one + " of at least 0");
            }
        }

        /// They divide a buffer; with offsets, all blocks lie in it.
        internal void CheckWhole(string buffer, long length)
        {
            if (offsets != null) CheckBlocks(buffer, length);
            if (offsets != null || length == Total) return;
            throw DtException.InvalidArgument(operation + ": " + name + " are " + Total +
                " elements together, but " + buffer + " has " + length +
                "; give a buffer of as many elements");
        }

        /// Each block lies in a buffer; an empty one does anywhere.
        internal void CheckBlocks(string buffer, long length)
        {
            for (int rank = 0; rank < values.Length; ++rank)
            {
                long offset = offsets[rank];
                if (values[rank] == 0 || offset <= length - values[rank]) continue;
                throw DtException.InvalidArgument(operation + ": the block of rank " + rank +
                    " does not lie in " + buffer + ": it has " + values[rank] + " elements and " +
                    OffsetsName + "[" + rank + "] is " + offset + ", but " + buffer + " has " + length +
                    "; give a smaller offset or a larger buffer");
            }
        }

        /// This rank's is what its own buffer has.
        internal void CheckOwn(int rank, string buffer, long length)
        {
            if (length == values[rank]) return;
            throw DtException.InvalidArgument(operation + ": " + name + "[" + rank +
                "], which is this rank's, is " + values[rank] + ", but " + buffer + " has " + length +
                " elements; give a buffer of as many");
        }

        internal bool HasOffsets
        {
            get { return offsets != null; }
        }

        /// As the native layer takes them.
        internal byte[] Pack()
        {
            return offsets == null ? Join(values) : Join(values, offsets);
        }

        /// These, and then the others; offsets of both where one has some.
        internal byte[] Pack(Counts others)
        {
            if (offsets == null && others.offsets == null) return Join(values, others.values);
            return Join(values, others.values, Offsets(), others.Offsets());
        }

        long[] Offsets()
        {
            if (offsets != null) return offsets;
            long[] behind = new long[values.Length];
            for (int rank = 1; rank < behind.Length; ++rank)
            {
                long offset = behind[rank - 1], count = values[rank - 1];
                behind[rank] = count > long.MaxValue - offset ? long.MaxValue : offset + count;
            }
            return behind;
        }

        static byte[] Join(params long[][] lists)
        {
            int numbers = 0;
            foreach (long[] list in lists) numbers += list.Length;
            byte[] packed = new byte[numbers * sizeof(long)];
            int at = 0;
            foreach (long[] list in lists)
            {
                Buffer.BlockCopy(list, 0, packed, at, list.Length * sizeof(long));
                at += list.Length * sizeof(long);
            }
            return packed;
        }
    }
}
