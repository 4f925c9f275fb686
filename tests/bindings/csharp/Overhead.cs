// SPDX-License-Identifier: Apache-2.0
using System;
using System.Diagnostics;
using System.Globalization;
using Dt;

/// Time per call of a 1 KiB allreduce; overhead.py sets it beside the same loop in C.
static class Overhead
{
    /// Prints nanoseconds per call, a line per line that comes in.
    internal static int Run(int loops)
    {
        using (Job job = new Job())
        using (Comm world = job.World())
        {
            float[] send = new float[256], recv = new float[256];
            while (Console.ReadLine() != null)
            {
                Stopwatch watch = Stopwatch.StartNew();
                for (int i = 0; i < loops; ++i) world.AllReduce(send, recv);
                double ns = watch.Elapsed.TotalMilliseconds * 1e6 / loops;
                Console.WriteLine(ns.ToString("F1", CultureInfo.InvariantCulture));
            }
            job.Leave();
        }
        return 0;
    }
}
