# SPDX-License-Identifier: Apache-2.0
"""Reductions that are functions of Python's, of 2 and 3 ranks, which are threads."""

import array
import asyncio
import gc
import os
import queue
import sys
import threading
import unittest
import unittest.mock
import weakref

sys.path.insert(0, os.path.dirname(__file__))
import dt
from dt._types import Handle
from ranks import LIMIT_S, dt_run, run_ranks

COUNT = 6000  # several parts


def add(given, inout):
    assert given.format == inout.format and len(given) == len(inout)
    for i, each in enumerate(given):
        inout[i] += each


def keep_largest(given, inout):
    """Of pairs of a value and an index."""
    for i in range(0, len(given), 2):
        if (given[i], -given[i + 1]) > (inout[i], -inout[i + 1]):
            inout[i:i + 2] = given[i:i + 2]


def fail(_given, _inout):
    raise LookupError("on purpose")


def mine(rank, count=COUNT):
    return array.array("i", (rank * 1000 + i for i in range(count)))


def total(size, count=COUNT):
    return array.array("i", (sum(rank * 1000 + i for rank in range(size)) for i in range(count)))


class CombineTest(unittest.TestCase):
    def on_ranks(self, body):
        for size in (2, 3):
            with self.subTest(size=size):
                run_ranks(size, lambda job, comm: body(comm))

    def test_allreduce(self):
        def body(comm):
            values = mine(comm.rank)
            comm.allreduce(values, op=add)
            self.assertEqual(values, total(comm.size))
            several = [mine(comm.rank) for _ in range(4)]
            for work in [comm.allreduce_async(each, op=add) for each in several]:
                self.assertTrue(work.wait())
                self.assertIsNone(work.error())
            self.assertEqual(several, [total(comm.size)] * 4)
            self.assertEqual(comm.allreduce(comm.rank + 1, op=add), sum(range(comm.size + 1)))
            with comm.group():
                comm.allreduce(several[0], op=add)
            self.assertEqual(several[0][5], comm.size * several[1][5])
        self.on_ranks(body)

    def test_reduce_and_scatter(self):
        def body(comm):
            root = comm.size - 1
            values = mine(comm.rank)
            result = array.array("i", [0] * COUNT)
            comm.reduce(values, result, add, root)
            if comm.rank == root:
                self.assertEqual(result, total(comm.size))
            share = COUNT // comm.size
            expected = total(comm.size)[comm.rank * share:(comm.rank + 1) * share]
            part = array.array("i", [0] * share)
            comm.reduce_scatter(values, part, add)
            self.assertEqual(part, expected)
            part = array.array("i", [0] * share)
            comm.reduce_scatterv_async(values, [share] * comm.size, part, add).wait()
            self.assertEqual(part, expected)
        self.on_ranks(body)

    def test_pairs(self):
        op = dt.Combine(keep_largest, items=2)

        def body(comm):
            values = array.array("d", (each for i in range(COUNT)
                                       for each in ((i * 7 + comm.rank * 5) % 11, comm.rank)))
            comm.allreduce(values, op=op)
            for i in range(COUNT):
                best = max(range(comm.size), key=lambda rank: ((i * 7 + rank * 5) % 11, -rank))
                self.assertEqual((values[2 * i], values[2 * i + 1]), ((i * 7 + best * 5) % 11, best))
            share = array.array("d", [0] * (4 if comm.rank == 0 else 2))
            counts = [4] + [2] * (comm.size - 1)
            comm.reduce_scatterv(values[:sum(counts)], counts, share, op)
            at = sum(counts[:comm.rank])
            self.assertEqual(share, values[at:at + len(share)])
            with self.assertRaisesRegex(dt.InvalidArgumentError, "3 is no multiple of the 2 items"):
                comm.allreduce(array.array("d", [0] * 3), op=op)
        self.on_ranks(body)
        with self.assertRaisesRegex(dt.InvalidArgumentError, "give a function"):
            dt.Combine(keep_largest, items=0)

    def test_exceptions(self):
        def body(comm):
            raised = 0
            for launch in (lambda: comm.allreduce(mine(comm.rank), op=fail),
                           lambda: comm.allreduce_async(mine(comm.rank), op=fail).wait(),
                           lambda: asyncio.run(self.awaited(comm)),
                           lambda: self.in_group(comm),
                           lambda: self.in_group_async(comm)):
                try:
                    launch()
                except LookupError:
                    raised += 1
            comm.allreduce(mine(comm.rank), op="sum")  # it stays usable
            return raised
        for size in (2, 3):
            self.assertGreaterEqual(sum(run_ranks(size, lambda job, comm: body(comm))), 5)

    def test_beside_a_group_of_another_communicator(self):
        def body(comm):
            part, values = comm.split(0), mine(comm.rank)
            raised = 0
            with comm.group():
                comm.allreduce(values)
                theirs = mine(comm.rank)
                try:
                    part.allreduce(theirs, op=fail)
                except LookupError:  # from the call, not from the end of the group
                    raised = 1
                gone = weakref.ref(theirs)
                del theirs
                for _ in range(1000):  # another thread may have it a moment longer
                    gc.collect()
                    if gone() is None:
                        break
                self.assertTrue(gone() is None, "it is kept until the end of the group")
            self.assertEqual(values, total(comm.size))
            return raised
        for size in (2, 3):
            self.assertGreaterEqual(sum(run_ranks(size, lambda job, comm: body(comm))), 1)

    def test_what_the_function_forgets_is_closed_elsewhere(self):
        closed, free, destroy_work = queue.SimpleQueue(), dt._raw.mem_free, dt._raw.work_destroy
        works = {}

        def destroy(*args):
            if args[1:]:
                free(*args)
            closed.put(threading.get_ident())

        def work_destroy(number):
            destroy_work(number)
            if number in works:
                works[number].put(threading.get_ident())

        def body(comm):
            work = comm.allreduce_async(mine(comm.rank))
            work.wait()
            ran_on = []
            forgotten = [Handle(1, destroy), comm.alloc(4), work]
            ended = works.setdefault(work._handle, queue.SimpleQueue())
            del work

            def function(given, inout):
                if forgotten:
                    forgotten.clear()
                    self.assertNotEqual(ended.get(timeout=LIMIT_S), threading.get_ident())
                ran_on.append(threading.get_ident())
                add(given, inout)
            comm.allreduce(mine(comm.rank), op=function)
            return ran_on  # it need not run on each rank
        with unittest.mock.patch.multiple(dt._raw, mem_free=destroy, work_destroy=work_destroy):
            ran_on = run_ranks(2, lambda job, comm: body(comm))
            closers = [closed.get(timeout=LIMIT_S) for _ in range(2 * sum(map(bool, ran_on)))]
        self.assertTrue(closers)
        self.assertFalse(set(closers) & set(sum(ran_on, [])))

    def test_wait_stream_over_host_memory_is_wait(self):
        def body(comm):
            work = comm.allreduce_async(mine(comm.rank), op=fail)
            try:
                work.wait_stream(0)
            except LookupError as error:
                self.assertIs(work.error(), error)
                return 1
            self.assertIsNone(work.error())
            return 0
        for size in (2, 3):
            self.assertGreaterEqual(sum(run_ranks(size, lambda job, comm: body(comm))), 1)

    @staticmethod
    async def awaited(comm):
        await comm.allreduce_async(mine(comm.rank), op=fail)

    @staticmethod
    def in_group(comm):
        with comm.group():
            comm.allreduce(mine(comm.rank), op=fail)

    @staticmethod
    def in_group_async(comm):
        with comm.group_async() as work:
            comm.allreduce(mine(comm.rank), op=fail)
        work.wait()

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")

        def largest(given, inout):
            numpy.maximum(numpy.asarray(given), numpy.asarray(inout), out=numpy.asarray(inout))

        def body(comm):
            for dtype in ("float16", "float32", "int64", "uint8", "bool"):
                values = numpy.full(COUNT, comm.rank).astype(dtype)
                comm.allreduce(values, op=largest)
                self.assertTrue((values == numpy.array(comm.size - 1).astype(dtype)).all())
        self.on_ranks(body)

    def test_what_a_function_keeps_is_its_own(self):
        def body(_, comm):
            kept = []

            def keep(given, inout):
                add(given, inout)
                kept.append(memoryview(inout)[1:])

            values = mine(comm.rank)
            comm.allreduce(values, op=keep)
            before = [list(each) for each in kept]
            comm.allreduce(mine(comm.rank + 5), op=add)
            self.assertEqual([list(each) for each in kept], before)
        run_ranks(2, body)

    def test_functions_live_as_long_as_operations(self):
        def body(comm):
            class Sum:
                def __call__(self, given, inout):
                    add(given, inout)
            function = Sum()
            gone = weakref.ref(function)
            values = mine(comm.rank)
            comm.allreduce_async(values, op=function)  # nobody keeps the work
            del function
            comm.barrier()
            comm.allreduce_async(mine(comm.rank), op="sum").wait()
            self.assertEqual(values, total(comm.size))
            for _ in range(3):
                comm.barrier_async().wait()  # lets go of what is done
            gc.collect()
            self.assertIsNone(gone())
        self.on_ranks(body)

    def test_end_of_python(self):
        code = ("import array, dt\njob = dt.Job()\ncomm = job.world()\n"
                "def f(given, inout): inout[0] += given[0]\n"
                "values = array.array('i', range(100000))\n"
                "work = comm.allreduce_async(values, op=f)\n")
        self.assertNotIn("Fatal Python error", dt_run(2, "-c", code).stderr)


if __name__ == "__main__":
    unittest.main()
