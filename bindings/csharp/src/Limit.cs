// SPDX-License-Identifier: Apache-2.0
using System;
using System.Threading;

namespace Dt
{
    /// <summary>Time limits: null is the default of each call, a <see cref="TimeSpan"/> a limit, and
    /// <see cref="None"/> no limit.</summary>
    public static class Limit
    {
        const double Most = 1e11;  // three years: the native layer counts nanoseconds in 63 bits

        /// <summary>No limit: Timeout.InfiniteTimeSpan.</summary>
        public static readonly TimeSpan None = Timeout.InfiniteTimeSpan;

        /// In milliseconds, rounded up; `least` where 0 has a meaning of its own.
        internal static long InMs(TimeSpan? limit, long byDefault = -1, long none = (long)Most, long least = 0)
        {
            if (limit == null) return byDefault;
            if (limit == None) return none;
            if (limit >= TimeSpan.Zero)
                return Math.Max(least, (long)Math.Min(Most, Math.Ceiling(limit.Value.TotalMilliseconds)));
            throw DtException.InvalidArgument("dt: a time limit is " + limit +
                "; give one of at least 0, or Limit.None for none");
        }
    }
}
