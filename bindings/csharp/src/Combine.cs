// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>How the values of the ranks become one: a <see cref="ReduceOp"/> or a
    /// <see cref="Combine"/>, which become one by themselves. The default value is the sum.</summary>
    public readonly struct Reduction
    {
        internal readonly ReduceOp op;
        internal readonly Combine combine;  // null: op

        Reduction(ReduceOp op, Combine combine)
        {
            this.op = op;
            this.combine = combine;
        }

        /// <summary>One of libdt's.</summary>
        public static implicit operator Reduction(ReduceOp op) => new Reduction(op, null);

        /// <summary>A function of the caller's.</summary>
        public static implicit operator Reduction(Combine combine)
        {
            if (combine != null) return new Reduction(ReduceOp.Sum, combine);
            throw DtException.InvalidArgument("Combine: it is null; give one");
        }
    }

    /// <summary>A reduction by a function of the caller's, over host memory: inOut[i] = inOut[i] op
    /// given[i], of any part of the elements. It must be associative and commutative. It runs on any
    /// thread, of several parts at the same time, and must not call dt. What it throws ends the operation
    /// with a <see cref="DtInvalidArgumentException"/> of this rank, whose InnerException it is; other
    /// ranks do not see it, and the result is undefined on all.</summary>
    public sealed class Combine
    {
        internal readonly Action<IntPtr, IntPtr, long> function;
        internal readonly int items;
        internal readonly Type type;  // of the elements; null: any
        internal readonly int size;   // of one in bytes

        /// <summary>By the addresses of given and inOut, and the number of the buffers' elements there.
        /// items: how many elements belong together, such as 2 for pairs; of at most 4095 bytes.</summary>
        public Combine(Action<IntPtr, IntPtr, long> function, int items = 1) : this(function, items, null, 0)
        {
            if (function == null) throw DtException.InvalidArgument("Combine: function is null; give one");
        }

        Combine(Action<IntPtr, IntPtr, long> function, int items, Type type, int size)
        {
            if (items < 1)
                throw DtException.InvalidArgument("Combine: items is " + items + "; it must be at least 1");
            this.function = function;
            this.items = items;
            this.type = type;
            this.size = size;
        }

        /// <summary>By arrays of given and inOut, which are copies.</summary>
        public static Combine Of<T>(Action<T[], T[]> function, int items = 1) where T : struct
        {
            if (function == null) throw DtException.InvalidArgument("Combine: function is null; give one");
            int size = Elements.Size<T>();
            return new Combine((given, inOut, count) =>
            {
                for (long done = 0; done < count; done += PartOf(items))
                {
                    int part = (int)Math.Min(count - done, PartOf(items));
                    T[] from = new T[part], to = new T[part];
                    Copy(from, given.ToInt64() + done * size, part * size, false);
                    Copy(to, inOut.ToInt64() + done * size, part * size, false);
                    function(from, to);
                    Copy(to, inOut.ToInt64() + done * size, part * size, true);
                }
            }, items, typeof(T), size);
        }

#if DT_SPAN
        /// <summary>Takes given and inOut, in their place.</summary>
        public delegate void SpanFunction<T>(ReadOnlySpan<T> given, Span<T> inOut);

        /// <summary>By spans of given and inOut, in their place.</summary>
        public static unsafe Combine OfSpans<T>(SpanFunction<T> function, int items = 1) where T : struct
        {
            if (function == null) throw DtException.InvalidArgument("Combine: function is null; give one");
            int size = Elements.Size<T>();
            return new Combine((given, inOut, count) =>
            {
                for (long done = 0; done < count; done += PartOf(items))
                {
                    int part = (int)Math.Min(count - done, PartOf(items));
                    function(new ReadOnlySpan<T>((byte*)given + done * size, part),
                        new Span<T>((byte*)inOut + done * size, part));
                }
            }, items, typeof(T), size);
        }
#endif

        /// So many whole elements at a time.
        static long PartOf(int items) => Math.Max(1, 8192 / items) * (long)items;

        static unsafe void Copy<T>(T[] array, long address, long bytes, bool write) where T : struct
        {
            Pin pin = new Pin();
            try
            {
                pin.Fix(array);
                if (write) Buffer.MemoryCopy((void*)pin.Base, (void*)address, bytes, bytes);
                else Buffer.MemoryCopy((void*)address, (void*)pin.Base, bytes, bytes);
            }
            finally
            {
                pin.Free();
            }
        }
    }

    /// A Combine in one operation.
    internal sealed class Combination
    {
        const int MostBytes = 4095;

        readonly string operation;
        readonly Combine combine;
        Upcall upcall;
        volatile Exception thrown;

        internal Combination(string operation, Combine combine, Dtype dtype)
        {
            this.operation = operation;
            this.combine = combine;
            int size = Elements.Size(dtype);
            if (combine.type != null && combine.size != size)
            {
                throw Refuse("Combine takes elements of " + combine.type.Name + ", but the buffers have " + dtype +
                    "; give one of their type");
            }
            if (combine.items > MostBytes / size)
            {
                throw Refuse("an element of Combine is " + combine.items + " items of " + dtype +
                    "; take at most " + MostBytes + " bytes");
            }
            ElementBytes = combine.items * size;
        }

        internal int ElementBytes { get; }

        /// For the native layer, until End().
        internal long Begin()
        {
            upcall = new Upcall(Run);
            return upcall.Number;
        }

        /// The operation is done, or was refused.
        internal void End()
        {
            if (upcall != null) upcall.Dispose();
        }

        /// Of `count` elements of a buffer.
        internal long Whole(long count)
        {
            if (count % combine.items == 0) return count / combine.items;
            throw Refuse(count + " is no multiple of the " + combine.items +
                " items of Combine; give whole elements");
        }

        /// Counts and offsets likewise.
        internal byte[] Whole(byte[] tables)
        {
            long[] numbers = new long[tables.Length / sizeof(long)];
            Buffer.BlockCopy(tables, 0, numbers, 0, tables.Length);
            for (int i = 0; i < numbers.Length; ++i) numbers[i] = Whole(numbers[i]);
            byte[] packed = new byte[tables.Length];
            Buffer.BlockCopy(numbers, 0, packed, 0, packed.Length);
            return packed;
        }

        DtException Refuse(string message) => DtException.InvalidArgument(operation + ": " + message);

        int Run(long given, long inOut, long count)
        {
            try
            {
                if (thrown == null) combine.function(new IntPtr(given), new IntPtr(inOut), count * combine.items);
            }
            catch (Exception error)
            {
                thrown = error;
            }
            return 0;
        }

        /// What to throw once the operation is done; null: nothing.
        internal DtException Failure
        {
            get
            {
                Exception error = thrown;
                if (error == null) return null;
                ErrorParts parts = new ErrorParts(Status.InvalidArgument, operation +
                    ": the function of Combine threw " + error.GetType().Name + ": " + error.Message +
                    "; mend it: the result is undefined on all ranks");
                parts.Inner = error;
                return DtException.Make(parts);
            }
        }

        /// Throws it. Null: no Combine.
        internal static void Check(Combination one)
        {
            DtException failure = one == null ? null : one.Failure;
            if (failure != null) throw failure;
        }
    }
}
