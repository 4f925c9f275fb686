# SPDX-License-Identifier: Apache-2.0
"""overhead.py C_PROGRAM: what a 1 KiB allreduce costs in Python over the same loop in C, one rank.

Rounds by turns; per way of calling the median of all rounds in ns, [least .. most], and the difference of
the medians."""

import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import dt

LOOPS = 400  # short rounds: on a busy machine long ones measure what else runs
ROUNDS = 301
GOAL_NS = 3000


def ways(comm):
    """name: (a call, what it needs)"""
    import array
    plain = array.array("f", [1] * 256), array.array("f", [0] * 256)
    made = tuple(dt.Buffer(each) for each in plain)
    memory = comm.alloc(256), comm.alloc(256)
    yield "array.array", lambda: comm.allreduce(*plain)
    yield "array.array, in place", lambda: comm.allreduce(plain[0])
    yield "dt.Buffer", lambda: comm.allreduce(*made)
    yield "dt.Memory", lambda: comm.allreduce(*memory)
    yield "array.array, async", lambda: comm.allreduce_async(*plain).wait()
    try:
        import numpy
        arrays = numpy.ones(256, "f4"), numpy.zeros(256, "f4")
        yield "NumPy", lambda: comm.allreduce(*arrays)
    except ImportError:
        pass
    try:
        import torch
        import dt.torch as dt_torch
        tensors = torch.ones(256), torch.zeros(256)
        yield "PyTorch by DLPack", lambda: comm.allreduce(*tensors)
        yield "PyTorch by dt.torch.buffer", lambda: comm.allreduce(*map(dt_torch.buffer, tensors))
    except ImportError:
        pass


def timed(call):
    begin = time.perf_counter_ns()
    for _ in range(LOOPS):
        call()
    return (time.perf_counter_ns() - begin) / LOOPS


def main():
    with dt.Job() as job, subprocess.Popen([sys.argv[1], str(LOOPS)], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True) as program:
        calls = dict(ways(job.world()))
        found = {name: [] for name in calls}
        in_c = []
        for _ in range(ROUNDS):
            program.stdin.write("\n")
            program.stdin.flush()
            in_c.append(float(program.stdout.readline()))
            for name, call in calls.items():
                found[name].append(timed(call))
        program.stdin.close()
    base = statistics.median(in_c)
    print(f"{'C':28} {base:7.0f} ns [{min(in_c):.0f} .. {max(in_c):.0f}]")
    for name, each in found.items():
        middle = statistics.median(each)
        print(f"{name:28} {middle:7.0f} ns [{min(each):.0f} .. {max(each):.0f}]  over C {middle - base:6.0f} ns")
    print(f"goal: less than {GOAL_NS} ns over C")


if __name__ == "__main__":
    main()
