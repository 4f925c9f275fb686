// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>How a buffer is divided among the ranks: a count of elements for each rank, and where
    /// each block begins. A long[] of counts is enough where blocks lie one behind the other. Read
    /// before the call returns.</summary>
    public readonly struct Blocks
    {
        /// <summary>Elements of each rank.</summary>
        public long[] Counts { get; }
        /// <summary>Where each rank's begin, in elements; null: one behind the other.</summary>
        public long[] Offsets { get; }

        /// <summary>Counts, and offsets where there are gaps or another order.</summary>
        public Blocks(long[] counts, long[] offsets = null)
        {
            Counts = counts;
            Offsets = offsets;
        }

        /// <summary>Counts of blocks that lie one behind the other.</summary>
        public static implicit operator Blocks(long[] counts) => new Blocks(counts);
    }

    /// Blocks of one operation, as copies, so that no other thread changes what was checked.
    internal sealed class BlockTable
    {
        readonly string operation, name, buffer;
        readonly long[] counts, offsets;

        /// Throws unless these are blocks of a buffer of that length; of `blocks`, `name` is the
        /// caller's word.
        internal BlockTable(string operation, string name, Blocks blocks, int ranks, string buffer, long length)
        {
            this.operation = operation;
            this.name = name;
            this.buffer = buffer;
            counts = Copied("Counts", "a count", blocks.Counts, ranks);
            if (blocks.Offsets == null)
            {
                CheckTotal(length);
                return;
            }
            offsets = Copied("Offsets", "an offset", blocks.Offsets, ranks);
            for (int rank = 0; rank < ranks; ++rank)
            {
                if (counts[rank] == 0 || offsets[rank] <= length - counts[rank]) continue;  // empty: anywhere
                throw Refuse("the block of rank " + rank + " does not lie in " + buffer + ": it has " +
                    counts[rank] + " elements and " + name + ".Offsets[" + rank + "] is " + offsets[rank] +
                    ", but " + buffer + " has " + length + "; give a smaller offset or a larger buffer");
            }
        }

        DtException Refuse(string message) => DtException.InvalidArgument(operation + ": " + message);

        /// `one`: how to call one of them, with its article.
        long[] Copied(string list, string one, long[] given, int ranks)
        {
            if (given == null)
                throw Refuse(name + "." + list + " is null; give a count for each of the " + ranks + " ranks");
            if (given.Length != ranks)
            {
                throw Refuse(name + "." + list + " has " + given.Length +
                    " elements, but the communicator has " + ranks + " ranks; give one for each rank");
            }
            long[] copy = (long[])given.Clone();
            for (int rank = 0; rank < ranks; ++rank)
            {
                if (copy[rank] >= 0) continue;
                throw Refuse(name + "." + list + "[" + rank + "] is " + copy[rank] + "; give " + one +
                    " of at least 0");
            }
            return copy;
        }

        void CheckTotal(long length)
        {
            long left = length;
            foreach (long count in counts) left = left < 0 || count > left ? -1 : left - count;
            if (left == 0) return;
            string sum = "[" + string.Join(", ", counts) + "]";
            throw Refuse(name + ".Counts " + sum + " are not " + length + " elements together, as " + buffer +
                " has; give a buffer of as many");
        }

        /// This rank's count is what its own buffer has.
        internal void CheckOwn(int rank, string own, long length)
        {
            if (length == counts[rank]) return;
            throw Refuse(name + ".Counts[" + rank + "], which is this rank's, is " + counts[rank] + ", but " +
                own + " has " + length + " elements; give a buffer of as many");
        }

        /// As the native layer takes them: counts, then offsets where one table has some.
        internal byte[] Pack(BlockTable other = null)
        {
            if (other == null) return offsets == null ? Join(counts) : Join(counts, offsets);
            if (offsets == null && other.offsets == null) return Join(counts, other.counts);
            return Join(counts, other.counts, Begins(), other.Begins());
        }

        long[] Begins()
        {
            if (offsets != null) return offsets;
            long[] begins = new long[counts.Length];
            for (int rank = 1; rank < begins.Length; ++rank) begins[rank] = begins[rank - 1] + counts[rank - 1];
            return begins;
        }

        static byte[] Join(params long[][] lists)
        {
            int bytes = lists[0].Length * sizeof(long);
            byte[] packed = new byte[lists.Length * bytes];
            for (int i = 0; i < lists.Length; ++i) Buffer.BlockCopy(lists[i], 0, packed, i * bytes, bytes);
            return packed;
        }
    }
}
