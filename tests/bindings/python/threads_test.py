# SPDX-License-Identifier: Apache-2.0
"""Many threads on handles that others close: errors of dt, never a crash."""

import _thread
import array
import os
import random
import signal
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from dt._interruptible import interruptible
from dt._types import Handle
from ranks import LIMIT_S, run_ranks

THREADS = 8


def at_once(body):
    """Runs body(number) on many threads that begin together; raises what is no error of dt."""
    begin, failures = threading.Barrier(THREADS), []

    def run(number):
        try:
            begin.wait(LIMIT_S)
            body(number)
        except dt.Error:
            pass
        except BaseException as error:  # told below
            failures.append(error)
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


class Races(unittest.TestCase):
    def setUp(self):
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, interval)

    def test_use_and_close(self):
        for turn in range(20):
            job = dt.Job()
            comm, config, sampler = job.world(), dt.Config(), dt.Sampler(100)
            works = [comm.allreduce_async(array.array("f", [1] * 100)) for _ in range(20)]
            reducer = dt.Reducer(comm, [dt.Param(8)])
            memory = comm.alloc(8)
            things = [job, comm, config, sampler, reducer, memory, *works]
            ends = turn % 2 == 0

            def body(number):
                choice = random.Random(1000 * turn + number)
                for _ in range(40):
                    use = choice.choice([
                        lambda: comm.allreduce(array.array("f", [1] * 10)),
                        lambda: comm.allreduce_async(memory), lambda: comm.rank, lambda: job.place,
                        lambda: job.store.set("a", b"b"), lambda: list(sampler),
                        lambda: sampler.set_epoch(number), reducer.rebuild, lambda: reducer.bucket(0),
                        lambda: comm.set_timeout(5), lambda: comm.split(0), lambda: comm.alloc(3),
                        lambda: config.get("job.id"), lambda: choice.choice(works).wait(1),
                        lambda: choice.choice(works).test(), lambda: reducer.ready(0, memory),
                        reducer.finish, lambda: reducer.grad(0), reducer.statistics,
                        lambda: memoryview(memory)[0], lambda: dt.wait_any(works, 0),
                        lambda: choice.choice(things).close(), lambda: ends and job.finalize(),
                        lambda: ends and job.abort("race")])
                    try:
                        use()
                    except (dt.Error, BufferError):
                        pass
            at_once(body)

    def test_everything_is_closed_by_all_at_once(self):
        for _ in range(50):
            job = dt.Job()
            comm = job.world()
            work, sampler, config = comm.barrier_async(), dt.Sampler(4), dt.Config()
            memory, reducer = comm.alloc(4), dt.Reducer(comm, [dt.Param(1)])

            def body(number):
                things = [job, comm, work, sampler, config, memory, reducer]
                random.Random(number).shuffle(things)
                for thing in things:
                    thing.close()
            at_once(body)

    def test_a_wait_on_a_work_that_is_closed(self):
        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["closed"])
                comm.barrier()
                return
            work = comm.barrier_async()
            waited = []
            threads = [threading.Thread(target=lambda: waited.append(self.wait(work))) for _ in range(4)]
            for thread in threads:
                thread.start()
            work.close()
            job.store.set("closed", b"")
            for thread in threads:
                thread.join(LIMIT_S)
            self.assertEqual(len(waited), 4)
        run_ranks(2, body)

    def wait(self, work):
        try:
            return work.wait()
        except dt.InvalidArgumentError:
            return None

    def test_other_threads_run_while_one_waits(self):
        def body(job, comm):
            if comm.rank == 0:
                comm.barrier()  # ends only if the other rank, a thread of this process, runs
            else:
                job.store.add("n")
                comm.barrier()
        run_ranks(2, body)


class Interrupted(unittest.TestCase):
    def test_what_a_call_makes_after_ctrl_c_is_closed(self):
        old = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, old)
        interrupted, closed, kept = threading.Event(), threading.Event(), None

        def make():
            _thread.interrupt_main()
            interrupted.wait(LIMIT_S)
            return Handle(1, lambda _: closed.set())
        try:
            interruptible(None, make)
        except KeyboardInterrupt as error:  # assertRaises() would clear the frames of its traceback
            kept = error
        self.assertIsNotNone(kept)
        interrupted.set()
        self.assertTrue(closed.wait(LIMIT_S))
        del kept


if __name__ == "__main__":
    unittest.main()
