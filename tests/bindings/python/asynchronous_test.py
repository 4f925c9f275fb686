# SPDX-License-Identifier: Apache-2.0
"""Works in asyncio, and buffers while the garbage collector runs."""

import array
import asyncio
import gc
import os
import random
import sys
import threading
import unittest
import weakref
from unittest import mock

sys.path.insert(0, os.path.dirname(__file__))
import dt
from dt import _arrays, _asyncio, _work
from ranks import LIMIT_S, run_ranks


def run(coroutine):
    """In a loop of its own, with a deadline."""
    async def limited():
        return await asyncio.wait_for(coroutine, LIMIT_S / 2)
    return asyncio.run(limited())


def ones(count=3):
    return array.array("f", [1] * count)


class Asyncio(unittest.TestCase):
    def test_await(self):
        async def steps(comm):
            for step in range(50):
                values = ones()
                self.assertIsNone(await comm.allreduce_async(values))
                self.assertEqual(list(values), [2] * 3, step)
            works = [comm.allreduce_async(ones()) for _ in range(20)]
            await asyncio.gather(*(self.wait(work) for work in reversed(works)))
            await works[0]  # again
            await asyncio.gather(self.wait(works[1]), self.wait(works[1]))
        run_ranks(2, lambda _, comm: run(steps(comm)))

    def test_await_where_only_callers_advance_works(self):
        async def steps(comm):
            values = ones()
            await comm.allreduce_async(values)
            self.assertEqual(list(values), [2] * 3)
        run_ranks(2, lambda _, comm: run(steps(comm)), {"host.progress": "caller"})

    async def wait(self, work):
        await work

    def test_the_loop_goes_on_meanwhile(self):
        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["ticked"])
                comm.barrier()
                return

            async def main():
                work = comm.barrier_async()
                waiting = asyncio.ensure_future(self.wait(work))
                for _ in range(100):  # turns of the loop
                    await asyncio.wait([waiting], timeout=0)
                self.assertFalse(waiting.done())
                job.store.set("ticked", b"")
                await waiting
            run(main())
        run_ranks(2, body)

    def test_two_loops_and_two_communicators(self):
        def body(_, comm):
            other = comm.split(0)
            for _ in range(5):  # loops come and go
                async def main():
                    first, second = comm.barrier_async(), other.barrier_async()
                    await asyncio.gather(self.wait(second), self.wait(first))
                run(main())
            failures = []

            def thread(part):
                try:
                    run(self.wait(part.barrier_async()))
                except BaseException as error:  # told below
                    failures.append(error)
            threads = [threading.Thread(target=thread, args=(part,)) for part in (comm, other)]
            for each in threads:
                each.start()
            for each in threads:
                each.join(LIMIT_S)
            self.assertEqual(failures, [])
        run_ranks(2, body)

    def test_cancelling_cancels_nothing_in_dt(self):
        def body(job, comm):
            values = ones()
            if comm.rank == 1:
                job.store.wait(["cancelled"])
                comm.allreduce(values)
                return

            async def main():
                work = comm.allreduce_async(values)
                waiting = asyncio.ensure_future(self.wait(work))
                await asyncio.wait([waiting], timeout=0)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting
                self.assertFalse(work.done())
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(self.wait(work), 0.01)
                job.store.set("cancelled", b"")
                await work
                self.assertEqual(list(values), [2] * 3)
            run(main())
        run_ranks(2, body)

    def test_a_failure_is_raised(self):
        def body(_, comm):
            async def main():
                work = comm.allreduce_async(ones(1 + comm.rank))
                for _ in range(2):
                    with self.assertRaises(dt.MismatchError):
                        await work
                    self.assertIsInstance(work.error(), dt.MismatchError)
                    self.assertTrue(work.done())
            run(main())
        run_ranks(2, body)

    def test_a_group(self):
        def body(_, comm):
            async def main():
                values = ones()
                with comm.group():
                    work = comm.allreduce_async(values)
                    waiting = asyncio.ensure_future(self.wait(work))
                    await asyncio.wait([waiting], timeout=0)
                await waiting
                self.assertEqual(list(values), [2] * 3)
            run(main())
        run_ranks(2, body)

    def test_the_work_of_a_group(self):
        def body(_, comm):
            async def main():
                values = ones()
                with comm.group_async() as work:
                    comm.allreduce(values)
                await work
                self.assertEqual(list(values), [2] * 3)
                with comm.group_async() as work:
                    comm.allreduce(values)
                    comm.allreduce(ones(1 + comm.rank))
                with self.assertRaises(dt.MismatchError):
                    await work
                self.assertEqual(list(values), [4] * 3)
            run(main())
        run_ranks(2, body)

    def test_a_communicator_that_is_closed_meanwhile(self):
        def body(job, comm):
            values = ones()
            if comm.rank == 1:
                job.store.wait(["closed"])
                comm.allreduce(values)
                return

            async def main():
                work = comm.allreduce_async(values)
                comm.close()
                waiting = asyncio.ensure_future(self.wait(work))
                await asyncio.wait([waiting], timeout=0)
                job.store.set("closed", b"")
                await waiting
                self.assertEqual(list(values), [2] * 3)
            run(main())
        run_ranks(2, body)


    def test_a_loop_that_ends_before_its_works_is_let_go_of(self):
        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["ended"])
                comm.barrier()
                comm.barrier()
                return

            async def begin(work):
                return _asyncio.completion(work)

            async def cancelled(work):
                waiting = asyncio.ensure_future(self.wait(work))
                await asyncio.wait([waiting], timeout=0.001)  # it has begun, and cannot end

            first, second = comm.barrier_async(), comm.barrier_async()
            loops = []
            for how in (begin, cancelled):
                loop = asyncio.new_event_loop()
                loops.append(weakref.ref(loop))
                task = loop.create_task(how(first))
                future = loop.run_until_complete(task)
                if how is cancelled:
                    tasks = asyncio.all_tasks(loop)
                    self.assertEqual([each.cancel() for each in tasks], [True])
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                    del tasks
                loop.close()
                del loop, task, future
            gc.collect()
            self.assertEqual([loop() for loop in loops], [None, None])
            job.store.set("ended", b"")
            run(self.wait(second))
        run_ranks(2, body)


class Buffers(unittest.TestCase):
    def test_they_live_until_the_work_is_done(self):
        class Values(array.array):
            """One that can be watched."""

        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["forgotten"])
                comm.allreduce(ones())
                return
            values = Values("f", [1] * 3)
            alive = weakref.ref(values)
            work = comm.allreduce_async(values)
            del values
            gc.collect()
            self.assertIsNotNone(alive())
            work.close()  # dt goes on
            del work
            gc.collect()
            self.assertIsNotNone(alive())
            with self.assertRaises(BufferError):
                alive().append(1)
            job.store.set("forgotten", b"")
            self.until(lambda: alive() is None)
        run_ranks(2, body)

    def test_whether_a_call_is_of_a_group_is_asked_once(self):
        asked, ask = [], _arrays._raw.same_comm

        def same(*handles):
            asked.append(handles)
            return ask(*handles)

        def body(_, comm):
            part = comm.split(0)
            for _ in range(3):
                with comm.group():
                    comm.allreduce(ones())
                    part.allreduce(ones())
        with mock.patch.object(_arrays._raw, "same_comm", same):
            run_ranks(2, body)
        self.assertGreaterEqual(len(asked), 2)
        self.assertEqual(len(asked), len(set(asked)))

    def test_arrays_are_held_where_nobody_knows_whether_the_call_is_of_the_group(self):
        held = _arrays.Held(1, False)
        for error, expected in ((dt.OutOfMemoryError, True), (dt.SystemCallError, True),
                                (dt.InvalidArgumentError, False), (dt.PeerLostError, False)):
            with mock.patch.object(_arrays._raw, "same_comm", side_effect=error):
                self.assertIs(held.is_of(2, False), expected, error)

    def test_plain_calls_let_go_of_what_is_done(self):
        def body(_, comm):
            values = ones()
            gone = weakref.ref(values)
            comm.allreduce_async(values)  # nobody keeps the work
            del values
            for _ in range(2):
                comm.barrier()  # the first ends behind the works of both ranks, whose threads share what is abandoned
            self.until_gone(gone)
        run_ranks(2, body)

    def test_plain_calls_test_up_to_the_first_work_that_is_under_way(self):
        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["tested"])
                for _ in range(10):
                    comm.allreduce(ones())
                return
            alone = job.create_comm([0])
            self.until(lambda: not _work._abandoned)  # what other tests have left
            for _ in range(10):
                comm.allreduce_async(ones())  # nobody keeps the works
            with mock.patch.object(_work, "_finished", side_effect=_work._finished) as tested:
                alone.barrier()
            self.assertEqual((tested.call_count, len(_work._abandoned)), (1, 10))
            job.store.set("tested", b"")
            self.until(lambda: not _work._abandoned)
        run_ranks(2, body)

    def until_gone(self, gone):
        """Another thread may have the object a moment longer."""
        for _ in range(1000):
            gc.collect()
            if gone() is None:
                return
        self.fail("it is never let go of")

    def until(self, condition):
        """Sweeps as later calls do; each test of a work lets other threads run."""
        for _ in range(10_000_000):
            _work.sweep()
            if condition():
                return
        self.fail("a buffer is never let go of")

    def test_they_live_when_a_signal_ends_what_lets_go_of_the_work(self):
        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["closed"])
                comm.allreduce(ones())
                return
            values = ones()
            work = comm.allreduce_async(values)
            with mock.patch.object(_work, "_finished", side_effect=KeyboardInterrupt):
                for end in (work.close, _work.sweep):
                    with self.assertRaises(KeyboardInterrupt):
                        end()
            with self.assertRaises(BufferError):
                values.append(1)
            job.store.set("closed", b"")
            self.until(lambda: not _work._abandoned)
            values.append(1)
        run_ranks(2, body)

    def test_a_waited_work_lets_go_of_them(self):
        with dt.Job() as job:
            values = bytearray(8)
            work = job.world().allreduce_async(values)
            work.wait()
            values.append(1)
            self.assertEqual(len(values), 9)

    def test_with_the_collector_running_all_the_time(self):
        over = threading.Event()

        def collect():
            while not over.is_set():
                gc.collect()
        collector = threading.Thread(target=collect)
        collector.start()

        def body(_, comm):
            choice = random.Random(7)  # the same on all ranks
            kept = []
            for step in range(300):
                count = choice.randrange(1, 5000)
                values = array.array("f", [step] * count)
                work = comm.allreduce_async(values)
                if choice.random() < 0.5:
                    kept.append((work, values, step))
                elif choice.random() < 0.5:
                    work.close()
                del work, values
                if len(kept) > 10:
                    waited, result, of_step = kept.pop(0)
                    waited.wait()
                    self.assertEqual(set(result), {2.0 * of_step})
            for waited, result, of_step in kept:
                waited.wait()
                self.assertEqual(set(result), {2.0 * of_step})
            comm.barrier()
        try:
            run_ranks(2, body)
        finally:
            over.set()
            collector.join()
        self.until(lambda: not _work._abandoned)


if __name__ == "__main__":
    unittest.main()
