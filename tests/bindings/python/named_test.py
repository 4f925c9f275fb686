# SPDX-License-Identifier: Apache-2.0
"""Operations by name, of ranks that are threads, each in an order of its own."""

import array
import asyncio
import gc
import os
import random
import sys
import threading
import unittest
import weakref

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import LIMIT_S, run_ranks


def ints(*values):
    return array.array("q", values)


def submit(by, comm, number):
    """An operation of each kind in turn; (its work, the result, what that is to be)."""
    rank, size = comm.rank, comm.size
    each = by.under(f"tensor {number}")
    data, ranks = ints(rank * 1000 + number, 7), range(size)
    kind = number % 5
    if kind == 0:
        return each.allreduce_async(data), data, [sum(r * 1000 + number for r in ranks), 7 * size]
    if kind == 1:
        return each.broadcast_async(data, size - 1), data, [(size - 1) * 1000 + number, 7]
    out = ints(*[0] * 2 * size)
    if kind == 2:
        return each.allgather_async(data, out), out, [v for r in ranks for v in (r * 1000 + number, 7)]
    send = ints(*(rank * 1000 + number + i for i in range(size)))
    if kind == 3:
        out = ints(0)
        return each.reduce_scatter_async(send, out), out, [sum(r * 1000 + number + rank for r in ranks)]
    out = ints(*[0] * size)
    return each.alltoall_async(send, out), out, [r * 1000 + number + rank for r in ranks]


class Named(unittest.TestCase):
    def test_all_kinds_in_an_order_of_each_rank(self):
        def body(_, comm):
            with dt.Named(comm) as named:
                for _ in range(3):
                    order = list(range(40))
                    random.Random(comm.rank).shuffle(order)
                    made = [submit(named, comm, number) for number in order]
                    for work, result, wanted in made:
                        self.assertTrue(work.wait(LIMIT_S))
                        self.assertEqual(result.tolist(), wanted)
                seen = named.statistics()
                self.assertEqual((seen.tensors, seen.cache_hits, seen.stalls), (120, 80, 0))
                comm.barrier()
                self.assertEqual(named.report(), "")
                comm.barrier()
                self.assertEqual(named.under("loss").allreduce(comm.rank), sum(range(comm.size)))
        for size in (1, 2, 3):
            run_ranks(size, body)

    def test_await_and_groups(self):
        def body(_, comm):
            async def main(named):
                names = [f"w{i}" for i in range(10)]
                values = {name: array.array("f", [comm.rank + i] * 3) for i, name in enumerate(names)}
                with named.group() as group:
                    works = [group.under(name).allreduce_async(values[name], op="avg") for name in names]
                    with self.assertRaisesRegex(dt.InvalidArgumentError, "allreduce: it waits"):
                        group.under("x").allreduce(values["w0"])
                    with self.assertRaisesRegex(dt.InvalidArgumentError, "work is closed"):
                        works[0].test()
                order = works if comm.rank == 0 else reversed(works)
                for work in order:
                    await asyncio.wait_for(asyncio.ensure_future(self.wait(work)), LIMIT_S)
                for i, name in enumerate(names):
                    self.assertEqual(values[name].tolist(), [0.5 + i] * 3)
                self.assertEqual(named.statistics().operations, 1)
                with named.group():
                    pass  # nothing is submitted
                with self.assertRaises(KeyError), named.group() as group:
                    group.under("y").allreduce_async(values["w0"])
                    raise KeyError
                comm.barrier()
                self.assertEqual(named.report(), "")
                comm.barrier()
            with dt.Named(comm, dt.NamedOptions(stall_ms=0)) as named:
                asyncio.run(main(named))
        run_ranks(2, body)

    async def wait(self, work):
        await work

    def test_many_threads(self):
        def body(_, comm):
            with dt.Named(comm) as named:
                failures = []

                def thread(first):
                    try:
                        for number in range(first, 60, 3):
                            values = ints(number)
                            named.under(f"of {number}").allreduce(values)
                            self.assertEqual(values[0], 2 * number)
                    except BaseException as error:  # told below
                        failures.append(error)
                threads = [threading.Thread(target=thread, args=((i + comm.rank) % 3,)) for i in range(3)]
                for each in threads:
                    each.start()
                for each in threads:
                    each.join(LIMIT_S)
                self.assertEqual(failures, [])
        run_ranks(2, body)

    def test_buffers_and_the_object_live_until_the_work_is_done(self):
        class Values(array.array):
            """One that can be watched."""

        def body(job, comm):
            if comm.rank == 1:
                with dt.Named(comm) as named:
                    job.store.wait(["forgotten"])
                    named.under("w").allreduce(array.array("f", [1] * 3))
                    job.store.wait(["seen"])
                return
            values = Values("f", [1] * 3)
            alive = weakref.ref(values)
            named = dt.Named(comm)
            takes = weakref.ref(named._owner)
            work = named.under("w").allreduce_async(values)
            del values, work, named  # the operation goes on
            gc.collect()
            self.assertIsNotNone(alive())
            self.assertIsNotNone(takes())
            job.store.set("forgotten", b"")
            for _ in range(1_000_000):  # until somebody looks
                dt._work.sweep()
                gc.collect()
                if alive() is None and takes() is None:
                    break
            self.assertEqual((alive(), takes()), (None, None))
            job.store.set("seen", b"")
        run_ranks(2, body)

    def test_works_of_a_group_keep_what_takes_the_names(self):
        def body(job, comm):
            values = [array.array("f", [comm.rank + i] * 3) for i in range(4)]

            def begin():
                named = dt.Named(comm)
                if comm.rank == 1:
                    job.store.wait(["begun"])
                with named.group() as group:
                    works = [group.under(f"w{i}").allreduce_async(each) for i, each in enumerate(values)]
                return works, weakref.ref(named._owner)

            works, takes = begin()
            gc.collect()
            if comm.rank == 0:
                self.assertIsNotNone(takes())
                job.store.set("begun", b"")
            for i, work in enumerate(works):
                self.assertTrue(work.wait(LIMIT_S))
                self.assertEqual(values[i].tolist(), [2 * i + 1] * 3)
            job.store.barrier("done", comm.size)
        run_ranks(2, body)

    def test_join_and_report(self):
        def body(job, comm):
            with dt.Named(comm) as named:
                if comm.rank == 0:
                    values = ints(5)
                    work = named.under("tail").allreduce_async(values)
                    self.assertRegex(named.report(), r'"tail" \(allreduce i64 sum x 1\) was submitted by rank 0 and not '
                                                     "by rank 1")
                    job.store.set("reported", b"")
                    work.wait()
                    self.assertEqual(values[0], 5)
                    self.assertEqual(named.join(LIMIT_S), 0)
                    return
                job.store.wait(["reported"])
                self.assertIn(named.join(0), (None, 0))
                while named.join(1) is None:
                    pass
        run_ranks(2, body)

    def test_differences_and_refusals(self):
        def body(job, comm):
            named = dt.Named(comm)
            with self.assertRaisesRegex(dt.MismatchError, r'"w".*x 2.*x 1|"w".*x 1.*x 2'):
                named.under("w").allreduce(ints(*range(1 + comm.rank)))
            part = named.under("a name")
            for call, error, text in (
                    (lambda: part.send(ints(1), 1 - comm.rank), dt.UnsupportedError, "by name go allreduce"),
                    (lambda: part.allgatherv(ints(1), ints(1, 2), [1, 1]), dt.UnsupportedError, "by name go"),
                    (lambda: part.allreduce(ints(1), op=lambda a, b: None), dt.UnsupportedError, "a reduction of the caller"),
                    (lambda: part.allreduce_async(bytes(3)), dt.InvalidArgumentError, "allreduce: the array is read-only"),
                    (lambda: named.under("").allreduce_async(ints(1)), dt.InvalidArgumentError, "name"),
                    (lambda: named.under("x" * 1001).allreduce(ints(1)), dt.InvalidArgumentError,
                     "name has 1001 bytes; it must have 1 to 1000"),
                    (lambda: named.under("a\0b"), dt.InvalidArgumentError, "NUL"),
                    (lambda: named.under(1), TypeError, "a name is a str, not int"),
                    (lambda: dt.Named(comm, dt.NamedOptions(cache=-1)), dt.InvalidArgumentError, "Named: cache is -1")):
                with self.assertRaisesRegex(error, text):
                    call()
            with self.assertRaisesRegex(dt.InvalidArgumentError, r'Named.group: names\[1\] is "twice"'):
                with named.group() as group:
                    for _ in range(2):
                        group.under("twice").allreduce_async(ints(1))
            pending = named.under("never").allreduce_async(ints(1)) if comm.rank == 0 else None
            job.store.barrier("submitted", comm.size)
            self.assertIn(f"rank {comm.rank} of 2", repr(named))
            named.close()
            named.close()
            if pending is not None:
                with self.assertRaises(dt.AbortedError):
                    pending.wait(LIMIT_S)
            for call in (lambda: part.allreduce(ints(1)), lambda: part.allreduce_async(ints(1)), named.report,
                         named.join, named.statistics, lambda: named.under("x"), lambda: named.group().__enter__()):
                with self.assertRaisesRegex(dt.InvalidStateError, "Named: it is closed"):
                    call()
            self.assertEqual(comm.allreduce(1), 2)  # the communicator is whole
        run_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
