// SPDX-License-Identifier: Apache-2.0
using System;
using System.Diagnostics;
using System.Globalization;
using Dt;

/// Time per call of a 1 KiB allreduce; overhead.py sets it beside the same loop in C.
static class Overhead
{
    const int Calls = 20000;
    const int Rounds = 5;

    /// Rank 0 prints nanoseconds per call, a line per round.
    internal static int Run()
    {
        using (Job job = new Job())
        using (Comm world = job.World())
        {
            float[] buffer = new float[256];
            for (int i = 0; i < Calls; ++i) world.Allreduce(buffer);
            for (int round = 0; round < Rounds; ++round)
            {
                world.Barrier();
                Stopwatch watch = Stopwatch.StartNew();
                for (int i = 0; i < Calls; ++i) world.Allreduce(buffer);
                double ns = watch.Elapsed.TotalMilliseconds * 1e6 / Calls;
                if (world.Rank == 0) Console.WriteLine(ns.ToString("F1", CultureInfo.InvariantCulture));
            }
            job.FinalizeJob();
        }
        return 0;
    }
}
