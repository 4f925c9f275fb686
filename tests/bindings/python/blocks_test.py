# SPDX-License-Identifier: Apache-2.0
"""Collectives that move blocks, of 2 and 3 ranks, which are threads, against closed forms."""

import array
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks

COUNT = 5


def part(sender, receiver, count):
    """What one rank has for another one."""
    return [100 * sender + 10 * receiver + i for i in range(count)]


def uneven(sender, receiver):
    """Counts that differ for each pair, zero among them."""
    return (sender + 2 * receiver) % 4


def ints(values):
    return array.array("i", values)


def joined(parts):
    return [each for one in parts for each in one]


def backwards(counts):
    """Offsets of blocks in reverse order, with two elements before each, and where all ends."""
    offsets, end = [0] * len(counts), 0
    for rank in reversed(range(len(counts))):
        offsets[rank] = end + 2
        end += 2 + counts[rank]
    return offsets, end


def placed(parts, offsets, end):
    """The parts where offsets say, -1 between them."""
    values = [-1] * end
    for offset, part_of_rank in zip(offsets, parts):
        values[offset:offset + len(part_of_rank)] = part_of_rank
    return values


def forms(comm, name):
    """The blocking form, and the other one with its wait."""
    def asynchronous(*args, **more):
        getattr(comm, name + "_async")(*args, **more).wait()
    return getattr(comm, name), asynchronous


class Blocks(unittest.TestCase):
    def check(self, body):
        for world in (2, 3):
            run_ranks(world, body)

    def test_alltoall(self):
        def body(_, comm):
            ranks = range(comm.size)
            for call in forms(comm, "alltoall"):
                recv = ints([0] * (COUNT * comm.size))
                call(ints(joined(part(comm.rank, r, COUNT) for r in ranks)), recv)
                self.assertEqual(list(recv), joined(part(r, comm.rank, COUNT) for r in ranks))
        self.check(body)

    def test_alltoallv(self):
        def body(_, comm):
            ranks = range(comm.size)
            to = [uneven(comm.rank, r) for r in ranks]
            come = [uneven(r, comm.rank) for r in ranks]
            for call in forms(comm, "alltoallv"):
                recv = ints([0] * sum(come))
                call(ints(joined(part(comm.rank, r, to[r]) for r in ranks)), to, recv, come)
                self.assertEqual(list(recv), joined(part(r, comm.rank, come[r]) for r in ranks))
        self.check(body)

    def test_gather_and_scatter(self):
        def body(_, comm):
            ranks = range(comm.size)
            for root in ranks:
                at_root = comm.rank == root
                everything = joined(part(r, root, COUNT) for r in ranks)
                for call in forms(comm, "gather"):
                    recv = ints([0] * len(everything)) if at_root else None
                    call(ints(part(comm.rank, root, COUNT)), recv, root)
                    self.assertEqual(list(recv or []), everything if at_root else [])
                for call in forms(comm, "scatter"):
                    recv = ints([0] * COUNT)
                    call(ints(everything) if at_root else None, recv, root)
                    self.assertEqual(list(recv), part(comm.rank, root, COUNT))
        self.check(body)

    def test_counts_of_each_rank(self):
        def body(_, comm):
            ranks = range(comm.size)
            for root in ranks:
                at_root = comm.rank == root
                counts = [uneven(r, root) for r in ranks]
                everything = joined(part(r, root, counts[r]) for r in ranks)
                mine = part(comm.rank, root, counts[comm.rank])
                for call in forms(comm, "gatherv"):
                    recv = ints([0] * len(everything)) if at_root else None
                    call(ints(mine), recv, counts if at_root else None, root)
                    self.assertEqual(list(recv or []), everything if at_root else [])
                for call in forms(comm, "scatterv"):
                    recv = ints([0] * len(mine))
                    call(ints(everything) if at_root else None, counts if at_root else None, recv, root)
                    self.assertEqual(list(recv), mine)
                for call in forms(comm, "allgatherv"):
                    recv = ints([0] * len(everything))
                    call(ints(mine), recv, counts)
                    self.assertEqual(list(recv), everything)
                for call in forms(comm, "reduce_scatterv"):
                    recv = ints([0] * len(mine))
                    call(ints(everything), counts, recv)
                    self.assertEqual(list(recv), [comm.size * each for each in mine])
        self.check(body)

    def test_alltoallv_with_offsets(self):
        def body(_, comm):
            ranks = range(comm.size)
            to = [uneven(comm.rank, r) for r in ranks]
            come = [uneven(r, comm.rank) for r in ranks]
            sent, received = ([part(comm.rank, r, to[r]) for r in ranks],
                              [part(r, comm.rank, come[r]) for r in ranks])
            send_offsets, send_end = backwards(to)
            recv_offsets, recv_end = backwards(come)
            for call in forms(comm, "alltoallv"):
                recv = ints([-1] * recv_end)
                call(ints(placed(sent, send_offsets, send_end)), to, recv, come,
                     send_offsets=send_offsets, recv_offsets=tuple(recv_offsets))
                self.assertEqual(list(recv), placed(received, recv_offsets, recv_end))
                recv = ints([-1] * recv_end)
                call(ints(joined(sent)), to, recv, come, recv_offsets=recv_offsets)
                self.assertEqual(list(recv), placed(received, recv_offsets, recv_end))
                recv = ints([-1] * sum(come))
                call(ints(placed(sent, send_offsets, send_end)), to, recv, come, send_offsets=send_offsets)
                self.assertEqual(list(recv), joined(received))
        self.check(body)

    def test_offsets_of_each_rank(self):
        def body(_, comm):
            ranks = range(comm.size)
            for root in ranks:
                at_root = comm.rank == root
                counts = [uneven(r, root) for r in ranks]
                offsets, end = backwards(counts)
                everything = placed([part(r, root, counts[r]) for r in ranks], offsets, end)
                mine = part(comm.rank, root, counts[comm.rank])
                of_root = offsets if at_root else None
                for call in forms(comm, "gatherv"):
                    recv = ints([-1] * end) if at_root else None
                    call(ints(mine), recv, counts if at_root else None, root, offsets=of_root)
                    self.assertEqual(list(recv or []), everything if at_root else [])
                for call in forms(comm, "scatterv"):
                    recv = ints([0] * len(mine))
                    call(ints(everything) if at_root else None, counts if at_root else None, recv, root,
                         offsets=of_root)
                    self.assertEqual(list(recv), mine)
                for call in forms(comm, "allgatherv"):
                    recv = ints([-1] * end)
                    call(ints(mine), recv, counts, offsets=offsets)
                    self.assertEqual(list(recv), everything)
                for call in forms(comm, "reduce_scatterv"):
                    recv = ints([0] * len(mine))
                    call(ints(everything), counts, recv, "max", offsets=offsets)
                    self.assertEqual(list(recv), mine)
        self.check(body)

    def test_wrong_offsets_are_refused(self):
        def body(_, comm):
            size, me = comm.size, comm.rank
            rest = [0] * (size - 2)
            two, eight = ints([0] * 2), ints([0] * 8)
            counts, inside = [2] * size, [2 * r for r in range(size)]
            # An empty block may be anywhere.
            far = [0] + [2**70] * (size - 1)
            comm.allgatherv(two if me == 0 else two[:0], eight, [2] + [0] * (size - 1), offsets=far)
            for wanted, call in (
                    (f"allgatherv: offsets has 1 offsets, but the communicator has {size} ranks; give one",
                     lambda: comm.allgatherv(two, eight, counts, offsets=[0])),
                    (r"recv_offsets\[1\] is -1; give an offset of at least 0",
                     lambda: comm.alltoallv(eight, counts, ints([0] * 8), counts, send_offsets=inside,
                                            recv_offsets=[0, -1] + rest)),
                    (r"alltoallv: the block of rank 1 does not lie in send: it has 2 elements and "
                     r"send_offsets\[1\] is 7, but send has 8; give a smaller offset or a larger array",
                     lambda: comm.alltoallv(eight, counts, ints([0] * 8), counts,
                                            send_offsets=[0, 7] + rest, recv_offsets=inside)),
                    (rf"rank 1 .* recv: it has 2 elements and offsets\[1\] is {2**63 - 1}, but recv has 8",
                     lambda: comm.gatherv(two, eight, counts, me, offsets=[0, 2**63 - 1] + rest)),
                    (r"rank 0 .* send: it has 9 elements and offsets\[0\] is 0, but send has 8",
                     lambda: comm.scatterv(eight, [9, 0] + rest, two, me, offsets=[0] * size)),
                    ("blocks of ranks 1 and 0 overlap in recv: "
                     r"offsets\[1\] is 3 with 2 elements, offsets\[0\] is 4 with 2; give offsets that",
                     lambda: comm.allgatherv(two, eight, counts, offsets=[4, 3] + [6] * (size - 2))),
                    (rf"counts\[{me}\], which is this rank's, is 2, but send has 8",
                     lambda: comm.allgatherv(eight, ints([0] * 8), counts, offsets=inside))):
                self.assertRaisesRegex(dt.InvalidArgumentError, wanted, call)
            self.assertRaises(TypeError, comm.allgatherv, two, eight, counts, offsets=[0.0] * size)
            comm.scatterv(eight, counts, two, 0, offsets=[1] * size)  # what is sent may overlap
            comm.barrier()
        self.check(body)

    def test_groups_and_statistics(self):
        def body(job, comm):
            ranks = range(comm.size)
            turned = ints([0] * comm.size)
            gathered = ints([0] * comm.size) if comm.rank == 0 else None
            with comm.group():
                comm.alltoall(ints(10 * comm.rank + r for r in ranks), turned)
                comm.gather(ints([comm.rank]), gathered)
            self.assertEqual(list(turned), [10 * r + comm.rank for r in ranks])
            self.assertEqual(list(gathered or []), list(ranks) if comm.rank == 0 else [])
            found = job.statistics().operations
            self.assertEqual((found["alltoall"].operations, found["gather"].operations), (1, 1))
            self.assertEqual((found["allgatherv"].operations, found["allreduce"].operations), (0, 0))
        self.check(body)

    def test_wrong_lengths_are_refused(self):
        def body(_, comm):
            size, me = comm.size, comm.rank
            six = ints([0] * 6)
            seven = ints([0] * 7)
            whole = [3] * size
            for wanted, call in (
                    ("send has 6 elements and recv 7", lambda: comm.alltoall(six, seven)),
                    ("no multiple", lambda: comm.alltoall(seven[:size + 1], seven[:size + 1])),
                    (f"send_counts has 1 counts, but the communicator has {size} ranks",
                     lambda: comm.alltoallv(six, [6], six, whole)),
                    (r"recv_counts\[1\] is -1",
                     lambda: comm.alltoallv(ints([0] * 3 * size), whole, six, [7, -1] + [0] * (size - 2))),
                    (f"counts are {3 * size} elements together, but recv has 7",
                     lambda: comm.allgatherv(six[:3], seven, whole)),
                    (rf"counts\[{me}\], which is this rank's, is 3, but send has 6",
                     lambda: comm.allgatherv(six, ints([0] * 3 * size), whole)),
                    (f"recv needs {size} times as many", lambda: comm.gather(six, seven, me)),
                    ("counts is None", lambda: comm.gatherv(six, seven, None, me)),
                    (f"send needs {size} times as many", lambda: comm.scatter(six, seven, me)),
                    (f"counts are {3 * size} elements together, but send has 7",
                     lambda: comm.scatterv(seven, whole, six[:3], me))):
                self.assertRaisesRegex(dt.InvalidArgumentError, wanted, call)
            self.assertRaises(TypeError, comm.allgatherv, six[:3], ints([0] * 3 * size), [3.0] * size)
            comm.barrier()
        self.check(body)

    def test_counts_that_differ_name_both_sides(self):
        def body(_, comm):
            count = 2 + comm.rank
            recv = ints([0] * 4) if comm.rank == 0 else None
            with self.assertRaisesRegex(dt.MismatchError, "gatherv.*3.*2|gatherv.*2.*3"):
                comm.gatherv(ints([0] * count), recv, [2, 2] if comm.rank == 0 else None, 0)
        run_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
