# SPDX-License-Identifier: Apache-2.0
"""What matrix_test.py leaves of collectives that move blocks: groups, and what is refused."""

import array
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks


def ints(values):
    return array.array("i", values)


class Blocks(unittest.TestCase):
    def check(self, body):
        for world in (2, 3):
            run_ranks(world, body)

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
