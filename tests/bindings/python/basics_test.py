# SPDX-License-Identifier: Apache-2.0
"""What needs one rank: versions, errors, settings, the log, the store, the sampler."""

import builtins
import copy
import ctypes
import hashlib
import json
import os
import pickle
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import python, run_ranks


def loaded(*names):
    """The libraries of this process whose names begin so, as paths."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split()[-1] for line in file if ".so" in line}
    return {path for path in paths if os.path.basename(path).startswith(names)}


class Number:
    """What has __index__ and is no int, as NumPy's integers, which compute in their own width."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __mul__(self, other):
        raise AssertionError("a number was computed with as it came")

    __add__ = __sub__ = __radd__ = __rsub__ = __rmul__ = __mul__


class Versions(unittest.TestCase):
    def test_it_is_the_package_that_is_tested(self):
        folder = os.path.dirname(dt.__file__)
        self.assertIn("site-packages", folder)
        self.assertEqual(loaded("libdt", "libuv"),
                         {os.path.join(folder, "libdt.so.0")})

    def test_dt_has_an_openssl_of_its_own(self):
        for before, after in (("", ""), ("", "import ssl"), ("import ssl", "")):
            with self.subTest((before, after)):
                run = python("-c", f"import os, sys\n{before}\nimport dt\n{after}\n" + """
if "ssl" in sys.modules:
    sys.modules["ssl"].create_default_context()
sys.path.insert(0, sys.argv[1])
from basics_test import loaded
from ranks import run_ranks
def total(job, comm):
    job.store.set(str(comm.rank), "here")
    job.store.wait([str(1 - comm.rank)], timeout=20)
    value = bytearray([comm.rank + 1])
    comm.allreduce(value)
    return value[0]
assert run_ranks(2, total) == [3, 3]
print(*sorted(loaded("libcrypto.so.3", "libssl.so.3")), sep="\\n")
""", os.path.dirname(os.path.abspath(__file__)),
                             env={**os.environ, "DT_SECURITY_MODE": "encrypt", "DT_TOKEN": "5a" * 32})
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                for path in run.stdout.split():  # Python's
                    self.assertNotEqual(os.path.dirname(path), os.path.dirname(dt.__file__))

    def test_version_and_abi(self):
        self.assertEqual(dt.version(), os.environ["DT_VERSION"])
        self.assertEqual(dt.__version__, dt.version())
        self.assertEqual(dt.abi_version(), 0)
        self.assertIn("compiler:", dt.build_info())

    def test_a_library_of_another_abi_is_refused_with_both_numbers(self):
        run = python("-c", "import dt._raw as r; r.abi_version = lambda: 7\n"
                           "from dt import _exit\n_exit._check_abi()")
        self.assertIn("libdt implements ABI 7, but these bindings were built for ABI 0", run.stderr)

    def test_import_loads_neither_numpy_nor_torch_nor_asyncio(self):
        run = python("-c", "import dt, sys; print(sorted({'numpy', 'torch', 'asyncio'} & set(sys.modules)))")
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "[]\n", ""))


class Errors(unittest.TestCase):
    def test_each_status_has_its_class(self):
        from dt import _errors
        for status in dt.Status:
            if status == dt.Status.OK:
                continue
            error = _errors.make(int(status), 3, "host", 7, "allreduce", 11, "text")
            self.assertNotEqual(type(error), dt.Error)
            self.assertEqual(type(error).status, status)
            self.assertEqual((error.status, error.rank, error.host, error.pid, error.operation,
                              error.sequence, str(error)),
                             (status, 3, "host", 7, "allreduce", 11, "text"))
            self.assertIn(type(error).__name__, dt.__all__)
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), again.rank, str(again)), (type(error), 3, "text"))

    def test_a_status_of_a_later_release_is_the_base_class(self):
        from dt import _errors
        error = _errors.make(99, -1, "", 0, "", -1, "text")
        self.assertEqual((type(error), error.status), (dt.Error, 99))

    def test_they_are_pythons_own_kinds_too(self):
        self.assertTrue(issubclass(dt.TimeoutError, builtins.TimeoutError))
        self.assertTrue(issubclass(dt.InvalidArgumentError, ValueError))
        self.assertTrue(issubclass(dt.OutOfMemoryError, MemoryError))
        self.assertTrue(issubclass(dt.PeerLostError, ConnectionError))

    def test_a_bad_argument_has_dts_text(self):
        with dt.Job() as job, self.assertRaises(dt.InvalidArgumentError) as caught:
            job.world().broadcast(bytearray(4), root=5)
        self.assertEqual(str(caught.exception),
                         "broadcast: root is 5; the communicator has ranks 0 to 0")
        self.assertEqual(caught.exception.status, dt.Status.INVALID_ARGUMENT)

    def test_numbers_that_dt_cannot_hold(self):
        with dt.Job() as job:
            comm = job.world()
            for number in (2**31, -2**31 - 1, 2**63, 2**200):
                with self.assertRaises(dt.InvalidArgumentError):
                    comm.broadcast(bytearray(4), root=number)
            with self.assertRaises(TypeError):
                comm.broadcast(bytearray(4), root="0")
            for timeout in (-1, float("nan")):
                with self.assertRaisesRegex(dt.InvalidArgumentError, "timeout"):
                    job.finalize(timeout)

    def test_counts_are_not_multiplied_in_their_own_width(self):
        with dt.Job() as job, job.world().alloc(Number(200), dt.Dtype.F64) as memory:
            self.assertEqual((len(memory), memory.nbytes), (200, 1600))
            with self.assertRaises(TypeError):
                job.world().alloc(1.5)

    def test_the_text_of_an_abort_stays_as_it_is(self):
        said = "dt_comm_split: job is NULL, options->x, send_counts %s %d {0} Comm.size " + 1000 * "long "
        with dt.Job() as job, job.world() as comm:
            job.abort(said)
            for call in (lambda: comm.barrier(name="a"), lambda: comm.barrier_async(), comm.check):
                with self.assertRaises(dt.AbortedError) as raised:
                    call()
                self.assertIn(said, str(raised.exception))
            job.close()

    def test_what_dt_says_of_an_abort_has_the_names_of_python(self):
        for text, expected in (("rank 1 left; call dt_reducer_finish", "rank 1 left; call Reducer.finish"),
                               ("dt_agree: rank 1 aborted the job: dt_agree, it aborted the job: dt_agree",
                                "Job.agree: rank 1 aborted the job: dt_agree, it aborted the job: dt_agree")):
            self.assertEqual(str(dt._errors.make(dt.Status.ABORTED, 1, "", 0, "", -1, text)), expected)

    def test_text_is_utf8_both_ways(self):
        config = dt.Config()
        for text in ("grün", "日本語", "\U0001f680 rocket"):
            with self.assertRaises(dt.ConfigError) as caught:
                config.set("no." + text, "1")
            self.assertIn(text, str(caught.exception))
        path = os.fsdecode(b"/nonexistent/\xff\xf0\x9f\x9a\x80")  # no UTF-8
        with self.assertRaises(dt.ConfigError) as caught:
            dt.Config(path)
        self.assertIn("\U0001f680", str(caught.exception))
        with self.assertRaisesRegex(dt.InvalidArgumentError, "surrogate"):
            config.set("\ud800", "1")
        with self.assertRaisesRegex(dt.InvalidArgumentError, "NUL"):
            config.set("job.id", "a\0b")


class Closed(unittest.TestCase):
    def test_every_call_of_a_closed_object_is_an_error(self):
        config, sampler = dt.Config(), dt.Sampler(10)
        server = dt.StoreServer(dt.Config(settings={"job.world_size": 2}))
        job = dt.Job()
        comm = job.world()
        work = comm.allreduce_async(bytearray(8))
        reducer = dt.Reducer(comm, [dt.Param(4)])
        store = job.store
        for thing in (config, sampler, server, reducer, work, comm, job):
            thing.close()
            thing.close()
        calls = [
            lambda: config.get("job.id"), lambda: config.set("job.id", "x"), config.dump,
            lambda: config.set_log_sink(print), lambda: dt.Job(config), lambda: dt.StoreServer(config),
            lambda: len(sampler), sampler.indices, lambda: sampler.set_epoch(1),
            lambda: server.port,
            lambda: reducer.grad(0), lambda: reducer.ready(0), lambda: reducer.ready(0, bytearray(8)),
            reducer.finish, reducer.rebuild, reducer.statistics, lambda: reducer.bucket(0),
            work.test, work.wait, work.done, work.error, lambda: work.wait_stream(0),
            lambda: dt.wait_any([work]),
            lambda: comm.rank, lambda: comm.size, lambda: comm.world_rank(0), comm.check, comm.fileno,
            lambda: comm.split(0), lambda: comm.set_timeout(1), lambda: comm.alloc(1),
            lambda: comm.group().__enter__(), comm.barrier, comm.barrier_async,
            lambda: comm.allreduce(bytearray(4)), lambda: comm.allreduce_async(bytearray(4)),
            lambda: comm.reduce(bytearray(4)), lambda: comm.broadcast(bytearray(4)),
            lambda: comm.allgather(b"abcd", bytearray(4)),
            lambda: comm.reduce_scatter(b"abcd", bytearray(4)),
            lambda: comm.send(b"a", 0), lambda: comm.recv(bytearray(1), 0),
            lambda: dt.Reducer(comm, [dt.Param(1)]),
            lambda: job.place, job.world, job.abort, job.finalize,
            lambda: store.set("a", "b"), lambda: store.get("a"), lambda: store.add("a"),
            lambda: store.wait(["a"]), lambda: store.delete("a"), store.list,
            lambda: store.compare_set("a", None, "b"), lambda: store.multi_set({"a": "b"}),
            lambda: store.multi_get(["a"]), lambda: store.barrier("a"),
        ]
        for number, call in enumerate(calls):
            with self.subTest(number), self.assertRaises(dt.InvalidArgumentError) as caught:
                call()
            self.assertTrue(str(caught.exception))

    def test_code_in_c_can_use_a_communicator(self):
        library = ctypes.CDLL(os.path.join(os.path.dirname(dt.__file__), "libdt.so.0"))
        library.dt_comm_size.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32)]
        with dt.Job() as job:
            comm, size = job.world(), ctypes.c_int32(-1)
            self.assertEqual((library.dt_comm_size(comm.handle, size), size.value), (0, 1))
            comm.close()
            self.assertEqual(comm.handle, 0)

    def test_messages_name_what_python_has(self):
        config, sampler, job = dt.Config(), dt.Sampler(10), dt.Job()
        comm = job.world()
        work, reducer = comm.barrier_async(), dt.Reducer(comm, [dt.Param(4)])
        for thing in (config, sampler, reducer, work, comm, job):
            thing.close()
        for text, call in (
                ("Comm.rank: comm is closed", lambda: comm.rank),
                ("allreduce: comm is closed", lambda: comm.allreduce(bytearray(1))),
                ("allgatherv: comm is closed", lambda: comm.allgatherv(b"1", bytearray(1), [1])),
                ("barrier: comm is closed", comm.barrier_async), ("Comm.split: comm is closed", lambda: comm.split(0)),
                ("Comm.fileno: comm is closed", comm.fileno), ("Work.test: work is closed", work.test),
                ("wait_any: works[0] is closed", lambda: dt.wait_any([work])),
                ("Job.place: job is closed", lambda: job.place), ("Job.world: job is closed", job.world),
                ("Job.finalize: job is closed", job.finalize), ("Store.get: job is closed", lambda: job.store.get("a")),
                ("Config.get: config is closed", lambda: config.get("job.id")),
                ("Sampler: sampler is closed", lambda: sampler.next(1)),
                ("Reducer.finish: reducer is closed", reducer.finish)):
            with self.subTest(text), self.assertRaises(dt.InvalidArgumentError) as caught:
                call()
            self.assertEqual(str(caught.exception), text)

    def refuses(self, *calls):
        """Each is an error of dt without a word of C."""
        for number, call in enumerate(calls):
            with self.subTest(number), self.assertRaises(dt.Error) as caught:
                call()
            self.assertNotRegex(str(caught.exception), r"\bdt_[a-z]|collective_launch|\bNULL\b|->|dt\.h")

    def test_messages_have_no_words_of_c(self):
        nine, job = memoryview(bytearray(9)), dt.Job()
        comm, store = job.world(), job.store
        reducer, state = dt.Reducer(comm, [dt.Param(4)]), dt.Sampler(10).state_dict()
        reducer.ready(0)
        self.refuses(
            lambda: dt.Sampler(-5), lambda: dt.Sampler(5, 2, 2), lambda: dt.Sampler(11).load_state_dict(state),
            lambda: dt.Sampler(10, seed=1).load_state_dict(state), lambda: dt.Sampler(10, window=2),
            lambda: dt.Sampler(10, block=2, shuffle=False), lambda: dt.Sampler(10, weights=[0] * 10),
            lambda: dt.Reducer(comm, []), lambda: dt.Reducer(comm, [dt.Param(-1)]),
            lambda: comm.allreduce(nine[:8], nine[1:]), lambda: comm.alltoall(nine, nine),
            lambda: comm.broadcast(nine, 1), lambda: comm.send(nine, 0), lambda: comm.world_rank(1),
            lambda: comm.alltoallv(b"1", [2], bytearray(1), [1]),
            lambda: comm.batch_moments(nine, 3), lambda: job.create_comm([]), lambda: job.create_comm([1]),
            lambda: store.set("", b""), lambda: store.get("absent", timeout=0.01), lambda: store.wait([]),
            lambda: reducer.ready(0), lambda: reducer.ready(1), lambda: reducer.bucket(1), reducer.rebuild,
            lambda: job.peer_statistics(1), lambda: job.trace_dump("/proc/none"), lambda: dt.Config().set("a", "b"))
        job.finalize()
        self.refuses(job.world, lambda: comm.allreduce(nine), comm.barrier_async, lambda: comm.split(0),
                     lambda: store.set("a", b""), reducer.finish)

    def test_failures_have_no_words_of_c(self):
        def body(job, comm):
            self.refuses(lambda: comm.check_equal(bytes([comm.rank])), lambda: comm.allreduce(bytearray(1 + comm.rank)),
                         comm.barrier, lambda: dt.Reducer(job.world(), [dt.Param(1)]))
            self.refuses(lambda: dt.Reducer(comm.shrink(), [dt.Param(1 + comm.rank)]))
        run_ranks(2, body)

    def test_after_finalize_every_call_says_so(self):
        job = dt.Job()
        comm = job.world()
        job.finalize()
        job.finalize()
        for call in (job.world, lambda: comm.allreduce(bytearray(4)), comm.barrier_async,
                     lambda: comm.split(0)):
            with self.assertRaises(dt.InvalidStateError):
                call()


class Representations(unittest.TestCase):
    def test_they_say_what_it_is_and_whether_it_is_open(self):
        job = dt.Job(dt.Config(settings={"job.id": "repr"}))
        comm = job.world()
        work, memory = comm.allreduce_async(bytearray(4)), comm.alloc(5)
        sampler, reducer = dt.Sampler(10, 4, 2), dt.Reducer(comm, [dt.Param(3), dt.Param(4)])
        work.wait()
        self.assertEqual(repr(job), f"<dt.Job 'repr' rank 0 of 1 on {job.place.host}>")
        self.assertEqual(repr(comm), "<dt.Comm rank 0 of 1>")
        self.assertEqual(repr(work), "<dt.Work allreduce, done>")
        self.assertEqual(repr(memory), f"<dt.Memory of 5 F32 at {memory.address:#x}>")
        self.assertEqual(repr(sampler), "<dt.Sampler of 10 samples, rank 2 of 4>")
        self.assertEqual(repr(reducer), "<dt.Reducer of 2 parameters, 7 elements>")
        for thing in (work, memory, sampler, reducer, comm, job):
            thing.close()
            self.assertRegex(repr(thing), r"^<dt\.\w+.* closed>$")


class Copies(unittest.TestCase):
    def test_what_has_a_handle_has_one_owner(self):
        job = dt.Job()
        comm = job.world()
        things = [job, comm, comm.allreduce_async(bytearray(8)), dt.Config(), dt.Sampler(10), comm.alloc(4),
                  dt.Reducer(comm, [dt.Param(1)]), dt.StoreServer(dt.Config(settings={"job.world_size": 2}))]
        for thing in [*things, *(thing._owner for thing in things if hasattr(thing, "_owner"))]:
            with self.subTest(type(thing).__name__):
                for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                    with self.assertRaisesRegex(TypeError, "of dt cannot be copied or pickled"):
                        pickle.dumps(thing, protocol)
                for copied in (copy.copy, copy.deepcopy):
                    with self.assertRaisesRegex(TypeError, "of dt cannot be copied or pickled"):
                        copied(thing)
        comm.barrier()


class Settings(unittest.TestCase):
    def test_set_get_and_dump(self):
        with dt.Config(settings={"job.id": "größe"}) as config:
            config.set("store.torch_compat", True)
            self.assertEqual(config.get("job.id"), "größe")
            self.assertEqual(config.get("store.torch_compat"), "true")
            self.assertEqual(config.dump()["job.id"]["value"], "größe")
            with self.assertRaises(dt.ConfigError):
                config.set("job.idd", 1)
            with self.assertRaises(dt.ConfigError):
                dt.Config("/nonexistent/dt.toml")

    def test_a_log_function_receives_lines_and_may_raise(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "dt.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write("schema = 1000\n[job]\nof_a_later_release = 1\n")
            run = python("-c", """
import dt, sys
lines = []
def log(level, message):
    lines.append((level, message))
    raise KeyError("no\\nmatter")
config = dt.Config(sys.argv[1])
config.set_log_sink(log)
with dt.Job(config): pass
assert lines and all(isinstance(level, dt.LogLevel) and type(text) is str for level, text in lines), lines
print(len(lines))
""", path)
        self.assertEqual(run.returncode, 0, run.stderr)
        told = run.stderr.splitlines()
        self.assertEqual(len(told), int(run.stdout))
        self.assertEqual(set(told), {"dt: a log function raised KeyError: 'no\\nmatter'"})

    def test_a_log_function_must_be_callable(self):
        with dt.Config() as config, self.assertRaises(TypeError):
            config.set_log_sink(3)


class StoreCalls(unittest.TestCase):
    def test_values_are_bytes(self):
        with dt.Job() as job:
            store = job.store
            for value in (b"", b"\0\xff\0", bytes(range(256)) * 100, bytearray(b"x"), memoryview(b"yz")):
                store.set("key", value)
                self.assertEqual(store.get("key"), bytes(value))
            store.set("ключ", "\U0001f680")
            self.assertEqual(store.get("ключ"), "\U0001f680".encode())
            self.assertEqual(store.list("к"), ["ключ"])
            self.assertEqual([store.add("n", 5), store.add("n", -7), store.add("n")], [5, -2, -1])
            self.assertTrue(store.compare_set("c", None, b"\0"))
            self.assertFalse(store.compare_set("c", None, b"1"))
            self.assertTrue(store.compare_set("c", b"\0", b""))
            store.multi_set({"a": b"\0", "b": ""})
            self.assertEqual(store.multi_get(["a", "none", "b"]), [b"\0", None, b""])
            store.wait(["a", "b"], timeout=1)
            self.assertTrue(store.delete("a"))
            self.assertFalse(store.delete("a"))
            store.barrier("here", 1)
            with self.assertRaises(TimeoutError) as caught:
                store.get("never", timeout=0.01)
            self.assertIsInstance(caught.exception, dt.TimeoutError)
            for wrong in ("", "a\0b"):
                with self.assertRaises(dt.InvalidArgumentError):
                    store.set(wrong, b"")
                with self.assertRaises(dt.InvalidArgumentError):
                    store.multi_set({wrong: b""})
            with self.assertRaisesRegex(dt.InvalidArgumentError, "give \\[key\\]"):
                store.wait("key")
            for call in (lambda: store.set("d", 3), lambda: store.compare_set("d", None, 3),
                         lambda: store.compare_set("d", 3, b""), lambda: store.multi_set({"d": 3}),
                         lambda: store.multi_set({"d": [1, 2]})):
                with self.assertRaisesRegex(TypeError, "^store: a value is of type (int|list); give str, bytes or"):
                    call()

            class Record(ctypes.Structure):
                _fields_ = [("number", ctypes.c_int)]
            store.set("record", Record(3))
            self.assertEqual(store.get("record"), bytes(Record(3)))
            three = ctypes.c_int(3)  # has the buffer protocol, as NumPy's numbers
            for call in (lambda: store.set("d", three), lambda: store.compare_set("d", None, three),
                         lambda: store.compare_set("d", three, b""), lambda: store.multi_set({"d": three})):
                with self.assertRaisesRegex(TypeError, "^store: a value is of type c_int; give .* and is no number$"):
                    call()
            self.assertEqual(store.multi_get(["d"]), [None])


class Sampling(unittest.TestCase):
    def test_it_is_pytorchs_index_for_index(self):
        with open(os.environ["DT_SAMPLER_VECTORS"], encoding="utf-8") as file:
            cases = json.load(file)["sampler"]
        self.assertEqual(len(cases), 346)
        for case in cases:
            sampler = dt.Sampler(case["n"], case["world"], case["rank"], seed=case["seed"],
                                 shuffle=case["shuffle"], drop_last=case["drop_last"])
            sampler.set_epoch(case["epoch"])
            self.assertEqual(len(sampler), case["num_samples"])
            indices = list(sampler)
            if "indices" in case:
                self.assertEqual(indices, case["indices"])
            else:
                packed = struct.pack(f"<{len(indices)}q", *indices)
                self.assertEqual(hashlib.sha256(packed).hexdigest(), case["sha256"])
            half = len(sampler) // 2
            self.assertEqual(list(sampler.indices(half)), indices[half:])

    def test_seeds_are_any_integers(self):
        for seed in (7, -1, 2**64 - 1):
            self.assertEqual(list(dt.Sampler(10, seed=Number(seed))), list(dt.Sampler(10, seed=seed)))
        with self.assertRaises(TypeError):
            dt.Sampler(10, seed=1.5)

    def test_what_is_out_of_range(self):
        sampler = dt.Sampler(10, 2, 1)
        self.assertEqual(list(sampler.indices(Number(2))), list(sampler)[2:])
        self.assertEqual(len(sampler), 5)
        for first, count in ((0, 6), (-1, 2), (6, 0), (0, -1), (0, 2**62)):
            with self.assertRaises(dt.InvalidArgumentError):
                sampler.indices(first, count)
        with self.assertRaises(dt.InvalidArgumentError):
            dt.Sampler(10, 2, 2)
        with self.assertRaises(dt.InvalidArgumentError):
            sampler.set_epoch(-1)


if __name__ == "__main__":
    unittest.main()
