# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of `dt bench --compare torch`: torch.distributed over gloo on the CPU.

Measures one collective as dt's worker does (method.h, whose values and rules are written here a
second time) and prints the lines that compare.cc reads:

  dt-bench-library TEXT
  dt-bench-row SIZE_BYTES COUNT OUT_OF_PLACE_US IN_PLACE_US OUT_OF_PLACE_WRONG IN_PLACE_WRONG

rival_torch.py COLLECTIVE DTYPE OP WARMUP ITERATIONS BUDGET_US TIMEOUT_S SIZE_BYTES...
The ranks meet as env:// says (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""
import datetime
import signal
import sys
import time

import torch
import torch.distributed as dist

FRESH_BYTES = 65536
MIN_ITERATIONS, MAX_ITERATIONS = 4, 5000
ALLREDUCE, ALLGATHER, BROADCAST, REDUCE = 0, 1, 3, 4  # bench_collective
DTYPES = {0: torch.int8, 1: torch.uint8, 2: torch.int32, 4: torch.int64, 6: torch.float16,
          8: torch.float32, 9: torch.float64}  # bench_dtype
SUM, PROD, MIN, MAX = 0, 2, 3, 4  # bench_op
OPS = {SUM: dist.ReduceOp.SUM, PROD: dist.ReduceOp.PRODUCT, MIN: dist.ReduceOp.MIN,
       MAX: dist.ReduceOp.MAX}
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as a signed number: int64 products wrap


class Case:
    """One collective on one count, in place or not; `a` and `b` as in method.h."""

    def __init__(self, collective, dtype, op, rank, ranks, areas):
        self.collective, self.dtype, self.op = collective, dtype, op
        self.rank, self.ranks, self.areas = rank, ranks, areas

    def choose(self, size_bytes, in_place):
        element = torch.empty(0, dtype=self.dtype).element_size()
        split = self.ranks if self.collective == ALLGATHER else 1
        self.count = size_bytes // element // split
        self.bytes = self.count * element * split
        a, b = self.areas
        self.result = b[: self.count * split]
        self.in_place = in_place
        if self.collective == BROADCAST:
            self.result = self.send = (b if in_place else a)[: self.count]
        elif not in_place:
            self.send = a[: self.count]
        elif self.collective == ALLGATHER:
            self.send = self.result[self.rank * self.count : (self.rank + 1) * self.count]
        else:
            self.send = self.result
        if self.collective == ALLGATHER:
            self.parts = [self.result[i * self.count : (i + 1) * self.count]
                          for i in range(self.ranks)]

    def values(self, rank):
        index = torch.arange(self.count, dtype=torch.int64)
        digit = ((index * 1000003 + rank + 1) * GOLDEN >> 62) & 3
        if self.op != PROD:
            return digit
        return 1 + (digit & 1) if rank < 6 else torch.ones_like(digit)

    def wanted(self):
        if self.collective == ALLGATHER:
            return torch.cat([self.values(rank) for rank in range(self.ranks)])
        total = self.values(0)
        if self.collective == BROADCAST:
            return total
        for rank in range(1, self.ranks):
            value = self.values(rank)
            total = {SUM: torch.add, PROD: torch.mul, MIN: torch.minimum,
                     MAX: torch.maximum}[self.op](total, value)
        return total

    def operate(self):
        """torch works in place: out of place means a copy first, as its users write it."""
        if self.collective == ALLGATHER:
            dist.all_gather(self.parts, self.send)
            return
        if self.collective == BROADCAST:
            dist.broadcast(self.result, 0)
            return
        if not self.in_place:
            self.result.copy_(self.send)
        if self.collective == ALLREDUCE:
            dist.all_reduce(self.result, OPS[self.op])
        else:
            dist.reduce(self.result, 0, OPS[self.op])

    def verify(self):
        self.result.view(torch.uint8).fill_(0xA5)
        if self.collective != BROADCAST or self.rank == 0:
            self.send.copy_(self.values(self.rank))
        dist.barrier()
        self.operate()
        wrong = 0
        if self.collective != REDUCE or self.rank == 0:
            wrong = int((self.result != self.wanted().to(self.dtype)).sum())
        return int(combine(wrong, torch.int64, dist.ReduceOp.SUM))

    def time(self, iterations):
        """Microseconds per operation on this rank."""
        total = 0
        if self.bytes < FRESH_BYTES:
            dist.barrier()
            start = time.perf_counter()
            for _ in range(iterations):
                self.operate()
            total = time.perf_counter() - start
        else:
            for _ in range(iterations):
                self.send.fill_(1)
                dist.barrier()
                start = time.perf_counter()
                self.operate()
                total += time.perf_counter() - start
        return total * 1e6 / iterations

    def measure(self, warmup, iterations, budget_us):
        self.send.fill_(1)
        slowest = combine(self.time(max(warmup, 1)), torch.float64, dist.ReduceOp.MAX)
        if iterations == 0:
            wanted = budget_us / slowest if slowest > 0 else MAX_ITERATIONS
            iterations = int(min(max(wanted, MIN_ITERATIONS), MAX_ITERATIONS))
        return combine(self.time(iterations), torch.float64, dist.ReduceOp.SUM) / self.ranks


def combine(value, dtype, op):
    tensor = torch.tensor([value], dtype=dtype)
    dist.all_reduce(tensor, op)
    return tensor.item()


def main():
    collective, dtype, op, warmup, iterations = (int(word) for word in sys.argv[1:6])
    budget_us, timeout_s = float(sys.argv[6]), int(sys.argv[7])
    sizes = [int(word) for word in sys.argv[8:]]
    signal.alarm(timeout_s)  # ends this rank whatever becomes of what started it
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    whole = max(sizes) // 8 * 8 + 8  # of elements of every dtype
    areas = [torch.zeros(whole, dtype=torch.uint8).view(DTYPES[dtype]) for _ in range(2)]
    case = Case(collective, DTYPES[dtype], op, dist.get_rank(), dist.get_world_size(), areas)
    if case.rank == 0:
        print(f"dt-bench-library PyTorch {torch.__version__} over gloo")
    for size in sizes:
        us, wrong = [0.0, 0.0], [0, 0]
        for in_place in (0, 1):
            case.choose(size, in_place)
            if case.count == 0:
                continue
            wrong[in_place] = case.verify()
            us[in_place] = case.measure(warmup, iterations, budget_us)
        if case.rank == 0:
            print(f"dt-bench-row {case.bytes} {case.count} {us[0]:.4f} {us[1]:.4f} "
                  f"{wrong[0]} {wrong[1]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
