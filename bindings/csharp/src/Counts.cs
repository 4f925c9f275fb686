// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// A count for each rank, of one operation: a copy, which is checked, so that no other thread
    /// changes what libdt reads.
    internal sealed class Counts
    {
        /// Where this rank needs none.
        internal static readonly Counts None = new Counts(null, null, new long[0]);

        readonly string operation, name;
        readonly long[] values;

        Counts(string operation, string name, long[] values)
        {
            this.operation = operation;
            this.name = name;
            this.values = values;
        }

        internal static Counts Of(string operation, string name, long[] counts, int ranks)
        {
            if (counts == null)
            {
                throw DtException.InvalidArgument(operation + ": " + name +
                    " is null; give a count for each of the " + ranks + " ranks");
            }
            Counts made = new Counts(operation, name, (long[])counts.Clone());
            made.Check(ranks);
            return made;
        }

        /// Of all ranks together.
        internal long Total { get; private set; }

        internal long this[int rank]
        {
            get { return values[rank]; }
        }

        void Check(int ranks)
        {
            if (values.Length != ranks)
            {
                throw DtException.InvalidArgument(operation + ": " + name + " has " + values.Length +
                    " counts, but the communicator has " + ranks + " ranks; give one for each rank");
            }
            for (int rank = 0; rank < ranks; ++rank)
            {
                long value = values[rank];
                if (value < 0)
                {
                    throw DtException.InvalidArgument(operation + ": " + name + "[" + rank + "] is " +
                        value + "; give a count of at least 0");
                }
                Total = value > long.MaxValue - Total ? long.MaxValue : Total + value;
            }
        }

        internal void CheckTotal(string buffer, long length)
        {
            if (length == Total) return;
            throw DtException.InvalidArgument(operation + ": " + name + " are " + Total +
                " elements together, but " + buffer + " has " + length +
                "; give a buffer of as many elements");
        }

        /// This rank's is what its own buffer has.
        internal void CheckOwn(int rank, string buffer, long length)
        {
            if (length == values[rank]) return;
            throw DtException.InvalidArgument(operation + ": " + name + "[" + rank +
                "], which is this rank's, is " + values[rank] + ", but " + buffer + " has " + length +
                " elements; give a buffer of as many");
        }

        /// As the native layer takes them.
        internal byte[] Pack()
        {
            byte[] packed = new byte[values.Length * sizeof(long)];
            Buffer.BlockCopy(values, 0, packed, 0, packed.Length);
            return packed;
        }

        /// These, and then the others.
        internal byte[] Pack(Counts others)
        {
            byte[] packed = new byte[(values.Length + others.values.Length) * sizeof(long)];
            Buffer.BlockCopy(values, 0, packed, 0, values.Length * sizeof(long));
            Buffer.BlockCopy(others.values, 0, packed, values.Length * sizeof(long),
                others.values.Length * sizeof(long));
            return packed;
        }
    }
}
