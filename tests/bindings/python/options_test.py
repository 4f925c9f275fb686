# SPDX-License-Identifier: Apache-2.0
"""What each operation may be told: a name, a time-out, a reduction by its name."""

import array
import dataclasses
import math
import os
import re
import sys
import unittest
from typing import Sequence

sys.path.insert(0, os.path.dirname(__file__))
import dt
from basics_test import Number
from ranks import run_ranks


def floats(*values):
    return array.array("f", values)


def calls(comm):
    """Each operation of two ranks, as a function of options; nothing stays in it."""
    me, other = comm.rank, 1 - comm.rank
    one, two = floats(1), floats(1, 2)
    root = (floats(0, 0), [1, 1]) if me == 0 else (None, None)

    def exchange(suffix, **options):
        first, second = ("send", "recv") if me == 0 else ("recv", "send")
        getattr(comm, first + suffix)(floats(1), other, **options)
        return getattr(comm, second + suffix)(floats(1), other, **options)

    yield "allreduce", lambda call, **o: call(one, **o)
    yield "reduce", lambda call, **o: call(one, floats(0), **o)
    yield "broadcast", lambda call, **o: call(one, **o)
    yield "allgather", lambda call, **o: call(one, floats(0, 0), **o)
    yield "reduce_scatter", lambda call, **o: call(two, floats(0), **o)
    yield "reduce_scatterv", lambda call, **o: call(two, [1, 1], floats(0), **o)
    yield "barrier", lambda call, **o: call(**o)
    yield "alltoall", lambda call, **o: call(two, floats(0, 0), **o)
    yield "alltoallv", lambda call, **o: call(two, [1, 1], floats(0, 0), [1, 1], **o)
    yield "gather", lambda call, **o: call(one, root[0], **o)
    yield "gatherv", lambda call, **o: call(one, *root, **o)
    yield "scatter", lambda call, **o: call(root[0], floats(0), **o)
    yield "scatterv", lambda call, **o: call(*root, floats(0), **o)
    yield "allgatherv", lambda call, **o: call(one, floats(0, 0), [1, 1], **o)
    yield "send", lambda call, **o: exchange("_async" if call.__name__.endswith("_async") else "", **o)


class Options(unittest.TestCase):
    def test_every_operation_takes_them(self):
        def body(_, comm):
            for name, call in calls(comm):
                for options in ({"name": name + " \u00fc"}, {"timeout": 30}, {"timeout": math.inf},
                                {"timeout": 0.5, "name": "both", "stream": 0}):
                    with self.subTest(name, options=options):
                        call(getattr(comm, name), **options)
                        call(getattr(comm, name + "_async"), **options).wait()
        run_ranks(2, body)

    def test_numbers_that_dt_has_no_room_for(self):
        large = (1 << 32) + 1  # 1, cut to 32 bits
        with dt.Job() as job, job.world() as comm:
            one = [dt.Param(1)]
            for name, call in {
                    "ranks": lambda: job.create_comm([large - 1]),
                    "tune_steps": lambda: dt.Reducer(comm, one, dt.ReducerOptions(tune_steps=large)),
                    "order": lambda: dt.Reducer(comm, one, dt.ReducerOptions(order=[large - 1])),
                    "uses": lambda: dt.Reducer(comm, [dt.Param(1, uses=large)]),
                    "rank": lambda: dt.Reducer(comm, one).power_sgd([0], rank=large),
                    "stage": lambda: dt.Shard(comm, one, dt.ShardOptions(stage=large)),
                    "units": lambda: dt.Shard(comm, one, dt.ShardOptions(units=[large - 1])),
                    "fragments": lambda: dt.Outer(comm, [floats(1)], dt.OuterOptions(fragments=large)),
                    "cache": lambda: dt.Named(comm, dt.NamedOptions(cache=large))}.items():
                with self.subTest(name):
                    with self.assertRaisesRegex(dt.InvalidArgumentError, rf"^{name} is 429496729\d, .* 32 bits"):
                        call()
            with dt.Named(comm) as named, self.assertRaisesRegex(dt.InvalidArgumentError, "^peer is 4294967297"):
                with named.group() as group:
                    group.under("a").broadcast_async(floats(1), large)
            with dt.Named(comm) as named, self.assertRaisesRegex(TypeError, "^broadcast: peer is 0.5, of type float"):
                with named.group() as group:
                    group.under("a").broadcast_async(floats(1), 0.5)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "^rank is -2147483649, .* from -2147483648 to"):
                dt.Reducer(comm, one).power_sgd([0], rank=-(1 << 31) - 1)
            for number in (1 << 63, -(1 << 63) - 1):
                with self.assertRaisesRegex(dt.InvalidArgumentError, f"argument {number} does not fit in signed 64 bits"):
                    dt.Reducer(comm, one, dt.ReducerOptions(bucket_cap_bytes=number))
            for seed in (1 << 64, -(1 << 63) - 1):
                with self.assertRaisesRegex(dt.InvalidArgumentError, f"^Reducer.power_sgd: seed is {seed}; "):
                    dt.Reducer(comm, one).power_sgd([0], seed=seed)
            for seed in ((1 << 64) - 1, 1 << 63, -(1 << 63)):
                dt.Reducer(comm, one).power_sgd([0], seed=seed)

    def test_fields_of_a_subclass_are_what_those_of_dt_are(self):
        @dataclasses.dataclass(frozen=True)
        class Mine(dt.ReducerOptions):
            predivide: float = 2  # an int, and yet a float for dt
            order: Sequence[int] = range(1)

        def body(_, comm):
            reducer, gradient = dt.Reducer(comm, [dt.Param(1)], Mine()), floats(3)
            reducer.ready(0, gradient)
            reducer.finish()
            self.assertEqual(list(gradient), [3])
        run_ranks(2, body)

    def test_integers_of_any_type_and_nothing_else(self):
        options = dt.ReducerOptions
        with dt.Job() as job, job.world() as comm:
            one = [dt.Param(1)]
            for name, call in {
                    "Param: count": lambda number: dt.Param(number),
                    "Param: uses": lambda number: dt.Param(1, uses=number),
                    "Param: shape[1]": lambda number: dt.Param(1, shape=(1, number)),
                    **{f"Reducer: options.{field}": lambda number, field=field: dt.Reducer(
                        comm, one, options(**{field: number}))
                       for field in ("bucket_cap_bytes", "first_bucket_bytes", "tune_steps", "wire")},
                    **{f"Shard: options.{field}": lambda number, field=field: dt.Shard(
                        comm, one, dt.ShardOptions(**{field: number}))
                       for field in ("stage", "prefetch", "shard_ranks")},
                    **{f"Shard: options.{field}[0]": lambda number, field=field: dt.Shard(
                        comm, one, dt.ShardOptions(**{field: [number]})) for field in ("granules", "units")},
                    **{f"Named: options.{field}": lambda number, field=field: dt.Named(
                        comm, dt.NamedOptions(**{field: number}))
                       for field in ("fuse_bytes", "cache", "stall_ms", "cycle_us")},
                    **{f"Outer: options.{field}": lambda number, field=field: dt.Outer(
                        comm, [floats(1)], dt.OuterOptions(**{field: number}))
                       for field in ("sync_every", "fragments", "delay", "format")},
                    "Job.create_comm: ranks[0]": lambda number: job.create_comm([number]),
                    **{f"Reducer: options.{field}[0]": lambda number, field=field: dt.Reducer(
                        comm, one, options(**{field: [number]})) for field in ("order", "row_elements")},
                    "Reducer.power_sgd: rows[0]": lambda number: dt.Reducer(comm, one).power_sgd([number]),
                    **{f"Reducer.power_sgd: {field}": lambda number, field=field: dt.Reducer(comm, one).power_sgd(
                        [0], **{field: number}) for field in ("rank", "start_step", "seed", "wire")}}.items():
                with self.subTest(name):
                    with self.assertRaisesRegex(TypeError, "^" + re.escape(f"{name} is 25.5, of type float; give")):
                        call(25.5)
            reducer = dt.Reducer(comm, [dt.Param(Number(4), uses=Number(1), shape=[Number(2), Number(2)])], options(
                bucket_cap_bytes=Number(1024), first_bucket_bytes=Number(1024), order=[Number(0)],
                row_elements=[Number(0)]))
            self.assertEqual(reducer.statistics().bucket_cap_bytes, 1024)
            reducer.power_sgd([Number(2)], rank=Number(1), start_step=Number(1), seed=Number(3))

    def test_the_name_is_in_messages(self):
        def body(_, comm):
            with self.assertRaisesRegex(dt.MismatchError, "loss"):
                comm.allreduce(floats(*[1] * (1 + comm.rank)), name="loss")
        run_ranks(2, body)

    def test_the_time_out_is_of_one_operation(self):
        def body(job, comm):
            comm.barrier(timeout=5)
            if comm.rank == 1:
                job.store.wait(["timed out"])
                return
            for call in (lambda: comm.barrier(timeout=0.05), lambda: comm.barrier_async(timeout=0.05).wait()):
                part = comm
                with self.assertRaises(dt.TimeoutError) as caught:
                    call()
                self.assertIn("rank 1", str(caught.exception))
                self.assertEqual(caught.exception.operation, "barrier")
            del part
            job.store.set("timed out", b"")
        run_ranks(2, body)

    def test_wrong_ones_are_refused(self):
        with dt.Job() as job:
            comm = job.world()
            for call in (comm.allreduce, comm.allreduce_async, comm.broadcast, comm.broadcast_async):
                for timeout, text in ((0, "a timeout of 0; give more than 0 seconds"), (-1, "a timeout of -1"),
                                      (math.nan, "a timeout of nan")):
                    with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                        call(floats(1), timeout=timeout)
                for name in (3, b"loss"):
                    with self.assertRaises(TypeError):
                        call(floats(1), name=name)
                with self.assertRaisesRegex(dt.InvalidArgumentError, "NUL"):
                    call(floats(1), name="a\0b")
            comm.check()


class Reductions(unittest.TestCase):
    def test_by_name(self):
        def body(_, comm):
            for name, expected in (("sum", 3), ("avg", 1.5), ("prod", 2), ("min", 1), ("MAX", 2)):
                for op in (name, dt.ReduceOp(name), int(dt.ReduceOp(name))):
                    values = floats(comm.rank + 1)
                    comm.allreduce(values, op=op)
                    self.assertEqual(list(values), [expected])
                    values = floats(comm.rank + 1)
                    comm.reduce_async(values, op=op).wait()
                    self.assertEqual(list(values), [expected if comm.rank == 0 else 2])
                    comm.reduce_scatter(floats(comm.rank + 1, comm.rank + 1), values, op)
                    self.assertEqual(list(values), [expected])
        run_ranks(2, body)

    def test_what_is_none(self):
        with dt.Job() as job:
            for wrong in ("mean", "", 8, -1, None):
                with self.assertRaisesRegex(dt.InvalidArgumentError, "op: .* is no reduction; give a dt.ReduceOp "
                                            "or one of 'sum', 'avg', 'prod', 'min', 'max', 'band', 'bor', 'bxor'"):
                    job.world().allreduce(floats(1), op=wrong)


class Numbers(unittest.TestCase):
    def test_a_number_gives_a_number(self):
        def body(_, comm):
            me = comm.rank + 1
            self.assertEqual((comm.allreduce(me), comm.allreduce(-(2**62), op="max")), (3, -(2**62)))
            self.assertIs(type(comm.allreduce(me)), int)
            self.assertEqual(comm.allreduce(0.5 * me), 1.5)
            self.assertEqual(comm.allreduce(me, op="avg"), 1.5)
            self.assertEqual(comm.allreduce(True, op=dt.ReduceOp.MIN, name="flag", timeout=20), 1)
            self.assertEqual(comm.allreduce(math.inf * me), math.inf)
        run_ranks(2, body)

    def test_what_is_no_number(self):
        with dt.Job() as job:
            comm = job.world()
            with self.assertRaisesRegex(dt.InvalidArgumentError, "does not fit in 64 bits; give a float"):
                comm.allreduce(2**63)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "not complex"):
                comm.allreduce(1j)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "an array is needed, not int"):
                comm.allreduce(3, bytearray(8))
            self.assertEqual(comm.allreduce(2**63 * 1.0), 2.0**63)

    def test_numbers_of_two_types_name_both(self):
        def body(_, comm):
            with self.assertRaisesRegex(dt.MismatchError, "i64.*f64|f64.*i64"):
                comm.allreduce((1, 1.5)[comm.rank])
        run_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
