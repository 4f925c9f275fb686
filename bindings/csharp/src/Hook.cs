// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.ExceptionServices;

namespace Dt
{
    /// <summary>A full bucket of a Reducer, for the function of Reducer.SetHook.</summary>
    public sealed class Bucket
    {
        /// <summary>In launch order.</summary>
        public int Index { get; }
        /// <summary>Whether it is the step's last.</summary>
        public bool IsLast { get; }
        /// <summary>Indices of its parameters, in the order of memory.</summary>
        public IReadOnlyList<int> Params { get; }
        /// <summary>Gradients at multiples of 256 bytes, and padding of any value, or those of
        /// ReducerOptions.Gradients one behind the other; for the call alone.</summary>
        public Tensor Data { get; }
        /// <summary>On GPUs the CUDA stream in whose order the gradients are complete.</summary>
        public IntPtr Stream { get; }

        internal Bucket(Unpacker packed)
        {
            Index = (int)packed.Number();
            IsLast = packed.Number() != 0;
            IntPtr address = new IntPtr(packed.Number());
            long count = packed.Number();
            Data = new Tensor(address, count, (Dtype)packed.Number());
            Stream = new IntPtr(packed.Number());
            List<int> indices = new List<int>();
            while (packed.More) indices.Add((int)packed.Number());
            Params = indices;
        }
    }

    /// What native code calls for a hook, on a thread inside Ready, Unused or Finish.
    internal sealed class HookCalls : IDisposable
    {
        readonly Func<Bucket, int, Work> function;
        readonly Upcall upcall;
        readonly List<Work> given = new List<Work>();  // of this step
        volatile Exception thrown;

        internal HookCalls(Func<Bucket, int, Work> function)
        {
            this.function = function;
            upcall = new Upcall(Run, true);  // the function may refer to the reducer, whose handle keeps this
        }

        internal long Number => upcall.Number;

        int Run(long bucket, long stage, long outWork)
        {
            try
            {
                Work work = function(new Bucket(new Unpacker(Raw.Native.bucket_fields(bucket))), (int)stage);
                if (work == null) return (int)Status.Ok;
                Raw.Native.bucket_give(outWork, Raw.Native.work_share(work.Number));
                given.Add(work);
                return (int)Status.Ok;
            }
            catch (Exception error)
            {
                thrown = error;
                return (int)Status.Aborted;
            }
        }

        internal void EndStep() => given.Clear();

        /// What the function has thrown, if it has, instead of what libdt says of it.
        internal void Rethrow()
        {
            Exception own = thrown;
            thrown = null;
            if (own != null) ExceptionDispatchInfo.Capture(own).Throw();
        }

        public void Dispose() => upcall.Dispose();
    }
}
