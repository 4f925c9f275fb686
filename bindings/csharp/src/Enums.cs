// SPDX-License-Identifier: Apache-2.0
namespace Dt
{
    /// <summary>Element types of buffers.</summary>
    public enum Dtype
    {
        /// <summary>Signed byte: sbyte.</summary>
        I8 = 0,
        /// <summary>Unsigned byte: byte.</summary>
        U8 = 1,
        /// <summary>32-bit integer: int.</summary>
        I32 = 2,
        /// <summary>Unsigned 32-bit integer: uint.</summary>
        U32 = 3,
        /// <summary>64-bit integer: long.</summary>
        I64 = 4,
        /// <summary>Unsigned 64-bit integer: ulong.</summary>
        U64 = 5,
        /// <summary>IEEE binary16: System.Half where the framework has it, or its bits in a
        /// ushort.</summary>
        F16 = 6,
        /// <summary>The upper half of a binary32: BFloat16, or its bits in a ushort.</summary>
        BF16 = 7,
        /// <summary>IEEE binary32: float.</summary>
        F32 = 8,
        /// <summary>IEEE binary64: double.</summary>
        F64 = 9,
        /// <summary>One byte, 0 or 1; has no average.</summary>
        Bool = 10,
        /// <summary>16-bit integer: short.</summary>
        I16 = 11,
        /// <summary>Unsigned 16-bit integer, in a ushort.</summary>
        U16 = 12,
        /// <summary>8-bit float with 4 bits of exponent, in a byte: only moved, never reduced.</summary>
        F8E4M3 = 13,
        /// <summary>8-bit float with 5 bits of exponent, in a byte: only moved, never reduced.</summary>
        F8E5M2 = 14
    }

    /// <summary>Reductions. Integers wrap; NaN propagates through Min and Max.</summary>
    public enum ReduceOp
    {
        /// <summary>The sum over all ranks.</summary>
        Sum = 0,
        /// <summary>The mean over all ranks; of integers the wrapped sum divided and
        /// truncated.</summary>
        Avg = 1,
        /// <summary>The product over all ranks.</summary>
        Prod = 2,
        /// <summary>The smallest value of all ranks.</summary>
        Min = 3,
        /// <summary>The largest value of all ranks.</summary>
        Max = 4,
        /// <summary>Bitwise and, for integers and truth values.</summary>
        Band = 5,
        /// <summary>Bitwise or.</summary>
        Bor = 6,
        /// <summary>Bitwise exclusive or.</summary>
        Bxor = 7
    }

    /// <summary>Severity of a log message.</summary>
    public enum LogLevel
    {
        /// <summary>Something failed.</summary>
        Error = 0,
        /// <summary>Something is not as it should be.</summary>
        Warning = 1,
        /// <summary>What the job does.</summary>
        Info = 2,
        /// <summary>For those who look for a fault.</summary>
        Debug = 3
    }

    /// <summary>What a failed call asks of the program. Unknown future values are legal.</summary>
    public enum Status
    {
        /// <summary>No error.</summary>
        Ok = 0,
        /// <summary>Fix the call: an argument is wrong, or an object is closed.</summary>
        InvalidArgument = 1,
        /// <summary>Fix the call: not now.</summary>
        InvalidState = 2,
        /// <summary>Fix the call: this build or machine cannot do it.</summary>
        Unsupported = 3,
        /// <summary>Fix the program: libraries of different versions.</summary>
        Version = 4,
        /// <summary>Fix the machine: bad settings.</summary>
        Config = 11,
        /// <summary>Fix the machine: no memory.</summary>
        OutOfMemory = 12,
        /// <summary>Fix the machine: the operating system refused something.</summary>
        System = 13,
        /// <summary>Fix the machine: CUDA failed.</summary>
        Cuda = 14,
        /// <summary>Fix the machine: NCCL failed.</summary>
        Nccl = 15,
        /// <summary>Re-create the communicator: ranks did not arrive in time.</summary>
        Timeout = 21,
        /// <summary>Re-create the communicator: a rank died.</summary>
        PeerLost = 22,
        /// <summary>Re-create the communicator: ranks called different operations.</summary>
        Mismatch = 23,
        /// <summary>Re-create the communicator: a rank aborted the job.</summary>
        Aborted = 24,
        /// <summary>Report a bug.</summary>
        Internal = 31
    }
}
