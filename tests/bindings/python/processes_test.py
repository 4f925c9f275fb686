# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes: how they meet, die and end."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import LIMIT_S, dt_run, python

RANK = """
import array, atexit, gc, sys, threading
sys.path.insert(0, sys.argv[1])
import dt
from ranks import rank_config
config = rank_config(int(sys.argv[2]), 2, int(sys.argv[3]))
"""
JOIN = """
job = dt.Job(config)
comm = job.world()
"""


def start_rank(rank, port, body, join=JOIN):
    return subprocess.Popen(
        [sys.executable, "-I", "-c", RANK + textwrap.dedent(join) + textwrap.dedent(body), os.path.dirname(__file__),
         str(rank), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until_asleep(rank):
    """Its first thread waits for something: it is inside the call that the test is about."""
    asleep = 0
    while asleep < 500:
        with open(f"/proc/{rank.pid}/stat", encoding="utf-8") as file:
            state = file.read().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0


def end(rank):
    rank.kill()
    rank.wait()
    for pipe in (rank.stdin, rank.stdout, rank.stderr):
        pipe.close()


class Processes(unittest.TestCase):
    def start(self, body):
        server = dt.StoreServer(dt.Config(settings={"job.id": "test", "job.world_size": 2}))
        self.addCleanup(server.close)
        ranks = [start_rank(rank, server.port, body) for rank in range(2)]
        for rank in ranks:
            self.addCleanup(end, rank)
        return ranks

    def test_two_ranks_under_dt_run(self):
        run = dt_run(2, "-c", "import dt, array\n"
                              "with dt.Job() as job:\n"
                              "    values = array.array('f', [job.rank + 1.0])\n"
                              "    job.world().allreduce(values)\n"
                              "    assert (job.world_size, job.place.launcher) == (2, 'dt run'), job.place\n"
                              "    print(values[0])\n")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.count("3.0"), 2)

    def test_local_ranks_in_another_order_than_the_ranks(self):
        run = dt_run(4, "-c", textwrap.dedent("""
            import array, os, dt
            os.environ["DT_LOCAL_RANK"] = "0213"[int(os.environ["DT_RANK"])]
            with dt.Job() as job:
                comm, me = job.world(), job.rank
                assert (comm.rank, job.place.local_rank) == (me, [0, 2, 1, 3][me]), job.place
                mine, found = array.array("i", [100 * me + i for i in range(4)]), array.array("i", [-1] * 4)
                comm.allgather(mine[:1], found)
                assert list(found) == [0, 100, 200, 300], found
                comm.alltoall(mine, found)
                assert list(found) == [100 * i + me for i in range(4)], found
                for root in range(4):
                    found = array.array("i", [me])
                    comm.broadcast(found, root)
                    assert found[0] == root, found
                print("good")
            """))
        self.assertEqual((run.returncode, run.stderr, run.stdout.count("good")), (0, "", 4))

    def test_a_killed_peer_is_named(self):
        ranks = self.start("""
            values = array.array("f", [1])
            comm.allreduce(values)
            work = comm.allreduce_async(values) if comm.rank == 0 else None
            print("ready", flush=True)
            try:
                sys.stdin.readline() if comm.rank == 1 else work.wait()
            except dt.PeerLostError as error:
                print(error.rank, error.host, error.pid, int(error.status), flush=True)
                try:
                    comm.barrier()
                except dt.PeerLostError as again:
                    print(str(again.rank) + " again", flush=True)
                left = comm.shrink()
                values[0] = 5
                left.allreduce(values)
                print(left.rank, left.size, values[0], job.world().size, flush=True)
                job.finalize()
            """)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        os.kill(ranks[1].pid, signal.SIGKILL)
        out, error = ranks[0].communicate(timeout=LIMIT_S)
        self.assertEqual(out.splitlines(), [f"1 {socket.gethostname()} {ranks[1].pid} 22",
                                            "1 again", "0 1 5.0 1"], error)

    def test_a_killed_peer_fails_what_is_awaited(self):
        ranks = self.start("""
            import asyncio
            async def main():
                works = [comm.barrier_async() for _ in range(3)]
                print("ready", flush=True)
                for work in works:
                    try:
                        await work
                    except dt.PeerLostError as error:
                        print(error.rank, flush=True)
            if comm.rank == 1:
                print("ready", flush=True)
                sys.stdin.readline()
            asyncio.run(main())
            """)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        os.kill(ranks[1].pid, signal.SIGKILL)
        out, error = ranks[0].communicate(timeout=LIMIT_S)
        self.assertEqual((out, ranks[0].returncode), ("1\n1\n1\n", 0), error)

    def test_an_exception_in_a_jobs_block_ends_the_others_with_its_text(self):
        ranks = self.start("""
            with job:
                try:
                    comm.barrier()
                    if comm.rank == 1:
                        raise ValueError("bad größe")
                    comm.barrier()
                except dt.AbortedError as error:
                    print(error.rank, "ValueError: bad größe" in str(error))
                    raise
            """)
        out, _ = ranks[0].communicate(timeout=LIMIT_S)
        self.assertEqual((out, ranks[0].returncode), ("1 True\n", 1))
        self.assertIn("ValueError: bad größe", ranks[1].communicate(timeout=LIMIT_S)[1])

    def test_an_error_of_one_rank_alone_ends_the_others_too(self):
        ranks = self.start("""
            with job:
                try:
                    job.store.get("never", timeout=0.05) if comm.rank == 1 else comm.barrier()
                except dt.AbortedError as error:
                    print(error.rank, "TimeoutError: " in str(error))
                    raise
            """)
        out, error = ranks[0].communicate(timeout=LIMIT_S)
        self.assertEqual((out, ranks[0].returncode), ("1 True\n", 1), error)
        self.assertIn("TimeoutError", ranks[1].communicate(timeout=LIMIT_S)[1])

    def test_ctrl_c_ends_a_wait(self):
        ranks = self.start("""
            if comm.rank == 0:
                work = comm.barrier_async()
                try:
                    print("ready", flush=True)
                    work.wait()
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
            else:
                print("ready", flush=True)
                sys.stdin.readline()
            """)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        ranks[0].send_signal(signal.SIGINT)
        self.assertEqual(ranks[0].stdout.readline(), "interrupted\n")
        ranks[1].communicate("\n", timeout=LIMIT_S)
        ranks[0].communicate(timeout=LIMIT_S)

    def test_ctrl_c_ends_a_plain_call_and_the_operation_goes_on(self):
        ranks = self.start("""
            import signal
            from dt import _work
            values = array.array("f", [comm.rank + 1] * 100000)
            print("ready", flush=True)
            if comm.rank == 0:
                for call in (lambda: comm.allreduce(values), lambda: comm.allgather_objects("mine"), comm.barrier):
                    try:
                        call()
                    except KeyboardInterrupt:
                        print("interrupted", flush=True)
                try:
                    values.append(1)
                except BufferError:
                    print("kept", flush=True)
                job.store.set("interrupted", b"")
                comm.barrier()
                _work.sweep()
                print(values[0], len(_work._abandoned), flush=True)
            else:
                job.store.wait(["interrupted"])
                comm.allreduce(values)
                comm.allgather(array.array("q", [0]), array.array("q", [0, 0]))
                comm.barrier()
                comm.barrier()
            job.finalize()
            """)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        for _ in range(3):
            wait_until_asleep(ranks[0])
            ranks[0].send_signal(signal.SIGINT)
            self.assertEqual(ranks[0].stdout.readline(), "interrupted\n")
        self.assertEqual([ranks[0].stdout.readline() for _ in range(2)], ["kept\n", "3.0 0\n"])
        for rank in ranks:
            _, error = rank.communicate(timeout=LIMIT_S)
            self.assertEqual(rank.returncode, 0, error)

    def test_ctrl_c_ends_whatever_waits_and_it_goes_on(self):
        ranks = self.start("""
            import contextlib, os, tempfile
            from dt import _interruptible
            values, reducer = array.array("f", [1] * 1000), dt.Reducer(comm, [dt.Param(8)])
            spare = dt.Reducer(comm, [dt.Param(8)])
            shard = dt.Shard(comm, [dt.Param(8)])
            file = tempfile.NamedTemporaryFile()
            spare.save(file.name)
            for each in (reducer, shard.reducer):
                each.ready(0)
            shard.reducer.finish()

            def group():
                with comm.group():
                    comm.allreduce(values)

            def group_that_raises():
                with contextlib.suppress(LookupError), comm.group():
                    comm.allreduce(values)
                    raise LookupError

            calls = [lambda: job.store.get("get"), lambda: job.store.wait(["wait"]),
                     lambda: job.store.barrier("all"), lambda: comm.split(0), lambda: job.create_comm([0, 1]),
                     lambda: comm.check_equal(values), lambda: job.agree(True), lambda: comm.batch_moments(values, 8),
                     group, group_that_raises, job.stop_requested, lambda: dt.Reducer(comm, [dt.Param(8)]),
                     lambda: spare.load(file.name), spare.rebuild, lambda: dt.Shard(comm, [dt.Param(8)]),
                     lambda: shard.full_grad(0, array.array("f", [0] * 8)), lambda: shard.reducer.clip_norm(1),
                     lambda: (shard.updated(), shard.piece(0)),
                     lambda: dt.Sampler(16, 2, comm.rank).check(comm), reducer.finish, job.finalize]
            print("ready", flush=True)
            for call in calls:
                if comm.rank == 1:
                    sys.stdin.readline()
                    job.store.set("get" if call is calls[0] else "wait", b"")
                    call()
                else:
                    try:
                        print("calls", flush=True)
                        call()
                    except KeyboardInterrupt:
                        print("interrupted", flush=True)
                    while not _interruptible._idle:
                        os.sched_yield()
                    assert threading.active_count() == 2, threading.enumerate()
            print(reducer.statistics().steps, flush=True)
            """)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        for _ in range(21):
            self.assertEqual(ranks[0].stdout.readline(), "calls\n")
            wait_until_asleep(ranks[0])
            ranks[0].send_signal(signal.SIGINT)
            self.assertEqual(ranks[0].stdout.readline(), "interrupted\n")
            ranks[1].stdin.write("\n")
            ranks[1].stdin.flush()
        for rank in ranks:
            out, error = rank.communicate(timeout=LIMIT_S)
            self.assertEqual((rank.returncode, out, error), (0, "1\n", ""))

    def test_a_hook_on_the_main_thread_cannot_call_its_reducer(self):
        ranks = self.start("""
            reducer = dt.Reducer(comm, [dt.Param(8)])
            def hook(bucket, stage):
                try:
                    reducer.rebuild()
                except dt.InvalidStateError:
                    print("refused", threading.current_thread() is threading.main_thread(), flush=True)
            reducer.set_hook(hook)
            reducer.ready(0)
            reducer.finish()
            job.finalize()
            """)
        for rank in ranks:
            out, error = rank.communicate(timeout=LIMIT_S)
            self.assertEqual((rank.returncode, out, error), (0, "refused True\n", ""))

    def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_come(self):
        server = dt.StoreServer(dt.Config(settings={"job.id": "test", "job.world_size": 2}))
        self.addCleanup(server.close)
        rank = start_rank(0, server.port, """
            try:
                print("joins", flush=True)
                dt.Job(config)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """, join="")
        self.addCleanup(end, rank)
        self.assertEqual(rank.stdout.readline(), "joins\n")
        wait_until_asleep(rank)
        rank.send_signal(signal.SIGINT)
        out, error = rank.communicate(timeout=LIMIT_S)
        self.assertEqual((rank.returncode, out, error), (0, "interrupted\n", ""))

    def test_a_signal_handler_runs_in_a_plain_call(self):
        ranks = self.start("""
            import signal
            signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
            print("ready", flush=True)
            if comm.rank == 1:
                sys.stdin.readline()
            print(comm.allreduce(comm.rank + 1), flush=True)
            job.finalize()
            """)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        wait_until_asleep(ranks[0])
        ranks[0].send_signal(signal.SIGUSR1)
        self.assertEqual(ranks[0].stdout.readline(), "handled\n")
        self.assertEqual(ranks[1].communicate("\n", timeout=LIMIT_S)[0], "3\n")
        self.assertEqual(ranks[0].stdout.readline(), "3\n")
        ranks[0].communicate(timeout=LIMIT_S)


class Collected(unittest.TestCase):
    def test_a_server_whose_own_thread_runs_the_garbage_collector(self):
        run = python("-c", textwrap.dedent("""
            import gc, socket, sys, threading
            sys.path.insert(0, sys.argv[1])
            import dt
            from ranks import LIMIT_S, rank_config

            gc.disable()
            forgotten, collected, ended_on = threading.Event(), threading.Event(), []
            class Cycle:
                def __init__(self, thing): self.thing, self.me = thing, self
                def __del__(self): ended_on.append(threading.get_ident())
            def log(level, text):
                if forgotten.is_set():
                    gc.collect()
                    collected.set()
            config = dt.Config(settings={"job.id": "test", "job.world_size": 2, "log.level": "debug"})
            config.set_log_sink(log)
            server = dt.StoreServer(config)
            port, jobs = server.port, [None, None]
            def join(rank): jobs[rank] = dt.Job(rank_config(rank, 2, port))
            threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            Cycle(server)
            del server
            forgotten.set()
            for job in jobs: job.close()
            assert collected.wait(LIMIT_S)
            assert ended_on and threading.get_ident() not in ended_on
            try:
                while True: socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
            except ConnectionError:  # another thread has closed it
                print("closed")
            """), os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "closed\n", ""))


class Ends(unittest.TestCase):
    """Programs that let go of nothing end with 0 and without a word."""

    def check(self, body, output=""):
        run = python("-c", "import dt, array, atexit, gc, sys, threading\n" + textwrap.dedent(body))
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, output, ""))

    OPEN = """
    config = dt.Config(); config.set_log_sink(lambda level, text: None)
    job = dt.Job(config); comm = job.world(); part = comm.split(0)
    values = array.array("f", [1] * 1000)
    works = [comm.allreduce_async(values) for _ in range(10)]
    memory = comm.alloc(100); view = memoryview(memory)
    reducer = dt.Reducer(comm, [dt.Param(10)]); gradient = memoryview(reducer.grad(0))
    reducer.ready(0)
    sampler = dt.Sampler(10); server = dt.StoreServer(dt.Config(settings={"job.world_size": 2}))
    """

    def test_everything_is_open(self):
        self.check(self.OPEN)

    def test_in_cycles_and_odd_places(self):
        self.check(self.OPEN + """
    class Late:
        def __init__(self, *things): self.things, self.me = things, self
        def __del__(self):
            for thing in self.things:
                try: thing.close()
                except dt.Error: pass
    late = Late(reducer, memory, comm, *works, job, config)
    sys.late = Late(server, sampler, job, part)
    dt.kept = [late]
    """)

    def test_closed_late_at_exit(self):
        self.check("""
    def last():
        values = array.array("f", [1, 2])
        comm.allreduce(values)
        print(list(values))
    atexit.register(last)
    """ + self.OPEN, "[1.0, 2.0]\n")
        self.check("""
    import atexit as early
    """ + self.OPEN.replace("works = [", "atexit.register(lambda: comm.allreduce(values))\n    works = ["))

    def test_handlers_of_before_the_import_still_use_dt(self):
        run = python("-c", textwrap.dedent("""
            import atexit
            def last():
                comm.allreduce(bytearray(8)); job.finalize(); job.close()
                print("done")
            atexit.register(last)
            import dt
            job = dt.Job(); comm = job.world()
            """))
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "done\n", ""))

    def test_daemon_threads_that_are_inside_dt(self):
        self.check("""
    received = []
    served = dt.Config(settings={"job.id": "test", "job.world_size": 2, "log.level": "debug"})
    served.set_log_sink(lambda level, text: received.append(text))
    server = dt.StoreServer(served)
    jobs, begun = [None, None], threading.Barrier(3)
    def rank(number):
        config = dt.Config(settings={"job.id": "test", "job.rank": number, "job.world_size": 2,
            "job.master_addr": "127.0.0.1", "job.master_port": server.port, "job.store_served": True,
            "log.level": "debug"})
        config.set_log_sink(lambda level, text: received.append(text))
        jobs[number] = dt.Job(config)
        comm = jobs[number].world()
        begun.wait()
        if number == 0: comm.barrier()      # never ends by itself
        while True: comm.rank
    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for thread in threads: thread.start()
    begun.wait()
    """)

    def test_hooks_that_run_while_python_ends(self):
        start = """
    inside, comm = threading.Event(), dt.Job().world()
    reducer = dt.Reducer(comm, [dt.Param(4)])
    """
        run = """
    threading.Thread(target=steps, daemon=True).start()
    inside.wait(60)
    """
        self.check(start + """
    def hook(bucket, stage):
        inside.set()
        while True: pass
    reducer.set_hook(hook)
    def steps(): reducer.ready(0)
    """ + run)
        self.check(start + """
    def hook(bucket, stage): inside.set()
    reducer.set_hook(hook)
    def steps():
        while True:
            reducer.ready(0)
            reducer.finish()
    """ + run)

    def test_a_tensor_that_another_thread_ends_while_python_ends(self):
        run = python("-c", textwrap.dedent("""
            import atexit, ctypes
            def last():  # dt has let go of Python by now
                libc, thread = ctypes.CDLL(None), ctypes.c_void_p()
                assert libc.pthread_create(ctypes.byref(thread), None, deleter, tensor) == 0
                assert libc.pthread_join(thread, None) == 0
                print(memory.exports)
            atexit.register(last)
            import dt
            memory = dt.Job().world().alloc(4)
            capsule = memory.__dlpack__()
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
            tensor = ctypes.c_void_p(pointer(capsule, b"dltensor"))
            used = ctypes.create_string_buffer(b"used_dltensor")
            assert ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), used) == 0
            # The deleter is the last field of a DLManagedTensor: behind the DLTensor of 48 bytes and a pointer.
            deleter = ctypes.c_void_p.from_address(tensor.value + 56)
            """))
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "1\n", ""))

    def test_works_that_never_end(self):
        server = dt.StoreServer(dt.Config(settings={"job.id": "test", "job.world_size": 2}))
        self.addCleanup(server.close)
        body = """
            values = array.array("f", [comm.rank] * 100000)
            works = [comm.allreduce_async(values) for _ in range(3)] if comm.rank == 0 else []
            del values
            if works:
                works[0].close(); works.pop(1)
            job.store.barrier("issued")
            """
        ranks = [start_rank(rank, server.port, body) for rank in range(2)]
        for rank in ranks:
            self.addCleanup(end, rank)
            _, error = rank.communicate(timeout=LIMIT_S)
            self.assertEqual(rank.returncode, 0, error)

    def test_a_forked_child(self):
        self.check(self.OPEN + """
    import os, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer warn of a fork beside threads
    child = os.fork()
    if child == 0:
        try: comm.allreduce(values)
        except dt.InvalidStateError: sys.exit(0)
        sys.exit(1)
    assert os.waitpid(child, 0)[1] == 0
    """)

    def test_no_interpreter_but_the_first(self):
        self.check("""
    job = dt.Job()
    del dt
    gc.collect()
    for name in [name for name in sys.modules if name == "dt" or name.startswith("dt.")]: del sys.modules[name]
    gc.collect()
    """)


if __name__ == "__main__":
    unittest.main()
