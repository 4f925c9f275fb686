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
# bench_collective
ALLREDUCE, ALLGATHER, BROADCAST, REDUCE, ALLTOALL, GATHER, SCATTER, BARRIER = 0, 1, 3, 4, 5, 6, 7, 8
ALLTOALLV, SENDRECV, PINGPONG = 9, 11, 12
SPLIT = {ALLGATHER, ALLTOALL, ALLTOALLV, GATHER, SCATTER}
NEVER_IN_PLACE = {ALLTOALL, ALLTOALLV, SENDRECV, PINGPONG}
REDUCTIONS = {ALLREDUCE, REDUCE}
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
        split = self.ranks if self.collective in SPLIT else 1
        self.count = 0 if self.collective == BARRIER else size_bytes // element // split
        self.bytes = self.count * element * split
        self.in_place = in_place and self.collective not in NEVER_IN_PLACE
        a, b = self.areas
        whole, own = self.count * split, slice(self.rank * self.count, (self.rank + 1) * self.count)
        is_root = self.rank == 0
        self.send = (b if self.in_place else a)[: self.count]
        self.result = b[: self.count]
        if self.collective == ALLGATHER:
            self.result = b[:whole]
            self.send = b[own] if self.in_place else self.send
        elif self.collective in (ALLTOALL, ALLTOALLV):
            self.send, self.result = a[:whole], b[:whole]
        elif self.collective == BROADCAST:
            self.result = self.send
        elif self.collective == GATHER and is_root:
            self.result = b[:whole]
        elif self.collective == SCATTER:
            self.send = (b if self.in_place else a)[: whole if is_root else 0]
        if self.collective in (ALLGATHER, GATHER):
            self.parts = list(self.result.split(max(self.count, 1)))
        elif self.collective == SCATTER:
            self.parts = list(self.send.split(max(self.count, 1)))
        self.counts = [self.blocks_before(self.rank + peer + 1) - self.blocks_before(self.rank + peer)
                       for peer in range(self.ranks)]

    def blocks_before(self, block):
        """As in method.h: the blocks of an alltoallv are of unlike size."""
        return block * self.count - (self.count - self.count // 2 if block % self.ranks % 2 else 0)

    def values(self, rank, begin=0, count=None):
        index = torch.arange(begin, begin + (self.count if count is None else count), dtype=torch.int64)
        digit = ((index * 1000003 + rank + 1) * GOLDEN >> 62) & 3
        if self.op != PROD:
            return digit
        return 1 + (digit & 1) if rank < 6 else torch.ones_like(digit)

    def block(self, peer):
        """What alltoallv brings from `peer`."""
        begin = self.blocks_before(peer + self.rank) - self.blocks_before(peer)
        return self.values(peer, begin, self.counts[peer])

    def wanted(self):
        if self.collective in (ALLGATHER, GATHER):
            return torch.cat([self.values(rank) for rank in range(self.ranks)])
        if self.collective == ALLTOALL:
            return torch.cat([self.values(rank, self.rank * self.count) for rank in range(self.ranks)])
        if self.collective == ALLTOALLV:
            return torch.cat([self.block(peer) for peer in range(self.ranks)])
        if self.collective == SCATTER:
            return self.values(0, self.rank * self.count)
        if self.collective in (SENDRECV, PINGPONG):
            return self.values((self.rank - 1) % self.ranks)
        total = self.values(0)
        if self.collective == BROADCAST:
            return total
        for rank in range(1, self.ranks):
            value = self.values(rank)
            total = {SUM: torch.add, PROD: torch.mul, MIN: torch.minimum,
                     MAX: torch.maximum}[self.op](total, value)
        return total

    def operate(self):
        if self.collective in REDUCTIONS:
            self.reduce()
        elif self.collective == ALLGATHER:
            dist.all_gather(self.parts, self.send)
        elif self.collective == BROADCAST:
            dist.broadcast(self.result, 0)
        elif self.collective == ALLTOALL:
            dist.all_to_all_single(self.result, self.send)
        elif self.collective == ALLTOALLV:
            dist.all_to_all_single(self.result, self.send, self.counts, self.counts)
        elif self.collective == GATHER:
            dist.gather(self.send, self.parts if self.rank == 0 else None)
        elif self.collective == SCATTER:
            dist.scatter(self.result, self.parts if self.rank == 0 else None)
        elif self.collective == BARRIER:
            dist.barrier()
        else:
            self.pass_on()

    def reduce(self):
        """torch works in place: out of place means a copy first, as its users write it."""
        if not self.in_place:
            self.result.copy_(self.send)
        if self.collective == ALLREDUCE:
            dist.all_reduce(self.result, OPS[self.op])
        else:
            dist.reduce(self.result, 0, OPS[self.op])

    def pass_on(self):
        """Around the ring: at once, or one rank after the other."""
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        if self.ranks == 1:
            self.result.copy_(self.send)
        elif self.collective == SENDRECV:
            works = [dist.isend(self.send, after), dist.irecv(self.result, before)]
            for work in works:
                work.wait()
        elif self.rank == 0:
            dist.send(self.send, after)
            dist.recv(self.result, before)
        else:
            dist.recv(self.result, before)
            dist.send(self.send, after)

    def verify(self):
        self.result.view(torch.uint8).fill_(0xA5)
        if self.collective != BROADCAST or self.rank == 0:
            self.send.copy_(self.values(self.rank, 0, self.send.numel()))
        dist.barrier()
        self.operate()
        wrong = 0
        if self.rank == 0 or self.collective not in (REDUCE, GATHER):
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
        if self.collective == PINGPONG and self.rank != 0:
            return 0.0  # only rank 0 sees all of the way: the mean over the ranks is one message
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
            if case.count == 0 and collective != BARRIER:
                continue
            wrong[in_place] = case.verify()
            us[in_place] = case.measure(warmup, iterations, budget_us)
        if case.rank == 0:
            print(f"dt-bench-row {case.bytes} {case.count} {us[0]:.4f} {us[1]:.4f} "
                  f"{wrong[0]} {wrong[1]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
