# SPDX-License-Identifier: Apache-2.0
"""What matrix_test.py leaves of collectives, and the reducer; ranks are threads."""

import array
import gc
import os
import pathlib
import sys
import tempfile
import threading
import unittest
import unittest.mock
import weakref

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks


class Collectives(unittest.TestCase):
    def check(self, world, body):
        run_ranks(world, body)

    def test_large_arrays(self):
        def body(_, comm):
            values = array.array("f", [comm.rank + 1]) * 100_000
            gathered = array.array("f", [0]) * (3 * len(values))
            comm.allgather(values, gathered)
            self.assertEqual(gathered, array.array("f", [1] * 100_000 + [2] * 100_000 + [3] * 100_000))
            comm.allreduce_async(values).wait()
            self.assertEqual(values, array.array("f", [6]) * 100_000)
        self.check(3, body)

    def test_groups(self):
        def body(_, comm):
            other = 1 - comm.rank
            theirs, total = array.array("f", [0] * 4), array.array("d", [comm.rank + 1])
            with comm.group():
                # Nobody but the group keeps what is sent.
                comm.send(array.array("f", [comm.rank] * 4), other)
                gc.collect()
                comm.recv(theirs, other)
                work = comm.allreduce_async(total)
                work.wait(0)
                with self.assertRaises(dt.InvalidStateError):
                    comm.split(0)
            self.assertEqual(list(theirs), [other] * 4)
            work.wait()
            self.assertEqual(list(total), [3])
            with self.assertRaises(dt.InvalidStateError):
                with comm.group():
                    with comm.group():
                        pass
            with self.assertRaisesRegex(KeyError, "why"):
                with comm.group():
                    raise KeyError("why")
            comm.barrier()
        self.check(2, body)

    def test_what_uses_a_result_at_once_is_refused_in_a_group(self):
        def body(job, comm):
            part, world = comm.split(0), job.world()
            for group in (comm.group, comm.group_async, world.group):
                with group():
                    for call in (lambda: comm.allreduce(1), lambda: comm.allreduce(1.5, op="max"),
                                 lambda: comm.broadcast_object(1), lambda: comm.gather_objects(1),
                                 lambda: comm.allgather_objects(1), lambda: comm.scatter_objects([1, 2])):
                        with self.assertRaisesRegex(dt.InvalidStateError, "inside a group the result of"):
                            call()
                    self.assertEqual(part.allreduce(comm.rank + 1), 3)  # it is another communicator's group
            self.assertEqual(comm.allreduce(comm.rank + 1), 3)
        self.check(2, body)

    def test_close_inside_a_group_takes_effect_behind_it(self):
        closed = threading.Event()

        def body(job, comm):
            if comm.rank == 1:
                closed.wait(60)
                comm.send(array.array("f", [5] * 4), 0)
                return
            theirs, world = array.array("f", [0] * 4), job.world()
            with world.group():
                world.recv(theirs, 1)
                world.close()
                self.assertEqual(repr(world), "<dt.Comm closed>")
                closed.set()
            self.assertEqual(list(theirs), [5] * 4)
        self.check(2, body)

    def test_the_work_of_a_group(self):
        def body(_, comm):
            other = 1 - comm.rank
            theirs, total = array.array("f", [0] * 4), array.array("d", [comm.rank + 1])
            with comm.group_async() as work:
                # Nobody but the work keeps what is sent.
                comm.send(array.array("f", [comm.rank] * 4), other)
                comm.recv(theirs, other)
                own = comm.allreduce_async(total)
                with self.assertRaises(dt.InvalidArgumentError):
                    work.wait()
            gc.collect()
            self.assertTrue(work.wait(60))
            self.assertTrue(work.test() and own.test())
            self.assertEqual(list(theirs), [other] * 4)
            self.assertEqual(list(total), [3])
            with comm.group_async() as work:
                comm.allreduce(total)
            work.close()  # the operation goes on
            comm.barrier()
            self.assertEqual(list(total), [6])
            with comm.group_async() as work:
                pass
            self.assertTrue(work.test())
            with self.assertRaisesRegex(KeyError, "why"):
                with comm.group_async():
                    comm.allreduce(total)
                    raise KeyError("why")
            self.assertEqual(list(total), [12])
            with self.assertRaises(dt.InvalidStateError):
                with comm.group_async():
                    with comm.group_async():
                        pass
            comm.barrier()
        self.check(2, body)

    def test_split(self):
        def body(_, comm):
            part = comm.split(0 if comm.rank < 2 else None, key=-comm.rank)
            if comm.rank == 2:
                self.assertIsNone(part)
                return
            with part:
                self.assertEqual((part.size, part.rank), (2, 1 - comm.rank))
                self.assertEqual([part.world_rank(r) for r in range(2)], [1, 0])
                values = array.array("i", [comm.rank])
                part.allreduce(values)
                self.assertEqual(list(values), [1])
        self.check(3, body)

    def test_bits_and_truth(self):
        def body(_, comm):
            bits = array.array("H", [1 << comm.rank])
            comm.allreduce(bits, op="bor")
            self.assertEqual(bits[0], 7)
            told = bytearray([comm.rank == 0])
            truth = dt.Buffer(told, dtype="bool")
            comm.allreduce(truth, op="max")
            self.assertEqual(told[0], 1)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "avg of bool: truth values have no mean"):
                comm.allreduce(truth, op="avg")
            with self.assertRaisesRegex(dt.InvalidArgumentError, "bor of f32: bits are combined of integers and"):
                comm.allreduce(array.array("f", [1]), op="bor")
        self.check(3, body)

    def test_members_alone(self):
        def body(job, comm):
            with self.assertRaisesRegex(dt.InvalidArgumentError, r"Job.create_comm: ranks\[0\] is 3"):
                job.create_comm([3])
            if comm.rank != 1:
                with job.create_comm([2, 0], "pair") as pair, pair.host() as host:
                    self.assertEqual((host.size, host.rank, host.world_rank(0)), (2, comm.rank // 2 ^ 1, 2))
                    self.assertEqual(host.allreduce(comm.rank), 2)
        self.check(3, body)

    def test_wait_any(self):
        def body(_, comm):
            works = [comm.allreduce_async(array.array("i", [1])) for _ in range(3)]
            works[-1].wait()
            self.assertEqual(dt.wait_any(works), 0)
            other = comm.split(0)
            first = other.allreduce_async(array.array("i", [1])) if comm.rank == 0 else None
            if first is not None:
                self.assertIsNone(dt.wait_any([first], 0))
            comm.barrier()
            if first is None:
                first = other.allreduce_async(array.array("i", [1]))
            self.assertEqual(dt.wait_any([first]), 0)
            with self.assertRaises(dt.InvalidArgumentError):
                dt.wait_any([])
        self.check(2, body)

    def test_ranks_that_disagree_both_hear_of_it(self):
        def body(_, comm):
            with self.assertRaises(dt.MismatchError) as caught:
                comm.allreduce(array.array("f", [0] * (1 + comm.rank)))
            self.assertEqual(caught.exception.operation, "allreduce")
            with self.assertRaises(dt.MismatchError):
                comm.check()
        self.check(2, body)

    def test_a_limit_of_time_names_who_did_not_come(self):
        def body(job, comm):
            if comm.rank == 1:
                job.store.wait(["timed out"])
                return
            comm.set_timeout(0.05)
            with self.assertRaises(TimeoutError) as caught:
                comm.barrier()
            self.assertEqual(caught.exception.status, dt.Status.TIMEOUT)
            self.assertIn("rank 1", str(caught.exception))
            job.store.set("timed out", b"")
            with self.assertRaises(dt.InvalidArgumentError):
                comm.set_timeout(0)
        self.check(2, body)

    def test_memory_that_all_ranks_reach(self):
        def body(job, comm):
            memory = comm.alloc(1000)
            view = memoryview(memory)
            view[:] = array.array("f", [comm.rank + 1] * 1000)
            comm.allreduce(memory)
            self.assertEqual(set(view), {3.0})
            comm.barrier()
            job.finalize()
            comm.close()
            job.close()
            gc.collect()
            view[:] = array.array("f", [5] * 1000)
            self.assertEqual(sum(view), 5000)
        self.check(2, body)


class Votes(unittest.TestCase):
    def test_votes_pauses_and_stops(self):
        def body(job, comm):
            self.assertIs(job.agree(True), True)
            self.assertIs(job.agree(comm.rank != 1), False)
            with self.assertRaises(dt.InvalidArgumentError):
                with job.busy("checkpoint", 0):
                    self.fail("it began")
            with job.busy("checkpoint \u20ac", 60):
                pass
            self.assertIs(job.stop_requested(), False)
            if comm.rank == 2:
                job.request_stop()
            self.assertIs(job.stop_requested(), True)
            self.assertRaises(dt.InvalidArgumentError, job.trace_dump)
            with tempfile.TemporaryDirectory() as folder:
                job.trace_dump(folder)
                self.assertEqual(os.listdir(folder), [f"rank-0000{comm.rank}.dttrace"])

        run_ranks(3, body)
        job = dt.Job()
        job.close()
        self.assertRaises(dt.InvalidArgumentError, job.request_stop)


class Statistics(unittest.TestCase):
    def test_operations_are_counted(self):
        def body(job, comm):
            values = array.array("f", [1.0] * 250)
            for _ in range(3):
                comm.allreduce(values)
            statistics = job.statistics()
            self.assertEqual((statistics.restarts, statistics.uncounted, statistics.steps), (0, 0, 0))
            self.assertEqual(statistics.hidden_share, 1.0)
            self.assertEqual(len(statistics.operations), 16)
            allreduces = statistics.operations["allreduce"]
            self.assertEqual((allreduces.operations, allreduces.failures), (3, 0))
            self.assertEqual((allreduces.bytes, allreduces.bus_bytes), (3000, 3000))
            self.assertGreater(allreduces.busy_ns, 0)
            self.assertGreater(allreduces.busbw_gbs, 0)
            self.assertEqual(job.peer_statistics(comm.rank).waits, 0)
            self.assertRaises(dt.InvalidArgumentError, job.peer_statistics, 2)

        run_ranks(2, body)


class Reducers(unittest.TestCase):
    def gradients(self, comm, counts):
        return [array.array("f", [comm.rank + 1 + i] * count) for i, count in enumerate(counts)]

    def test_the_mean_by_pointer(self):
        counts = [3, 500, 1]

        def body(_, comm):
            params = [dt.Param(count, name=f"w{i}") for i, count in enumerate(counts)]
            with dt.Reducer(comm, params, dt.ReducerOptions(bucket_cap_bytes=1024,
                                                            first_bucket_bytes=64)) as reducer:
                for _ in range(4):
                    gradients = self.gradients(comm, counts)
                    for i in reversed(range(len(counts))):
                        reducer.ready(i, gradients[i])
                    reducer.finish()
                    for i, gradient in enumerate(gradients):
                        self.assertEqual(list(gradient), [1.5 + i] * counts[i])
                found = reducer.statistics()
                self.assertEqual((found.steps, found.bytes, found.total_bytes),
                                 (4, 4 * sum(counts), 16 * sum(counts)))
                self.assertTrue(0 <= found.hidden_share <= 1)
                self.assertEqual(len({reducer.bucket(i) for i in range(3)}), found.bucket_count)
                with self.assertRaisesRegex(dt.InvalidArgumentError, "w1"):
                    reducer.ready(1, array.array("f", [0] * 499))
                with self.assertRaises(dt.InvalidArgumentError):
                    reducer.ready(1, array.array("d", [0] * 500))
                with self.assertRaises(dt.InvalidArgumentError):
                    reducer.ready(3, array.array("f", [0]))
        run_ranks(2, body)

    def test_what_a_rank_does_not_use(self):
        def body(_, comm):
            with dt.Reducer(comm, [dt.Param(4)]) as reducer:
                with self.assertRaisesRegex(dt.InvalidStateError, "Reducer.unused: .* not made with find_unused"):
                    reducer.unused(0)
            for options in (dt.ReducerOptions(find_unused=True), dt.ReducerOptions(static_graph=True)):
                with dt.Reducer(comm, [dt.Param(4), dt.Param(2), dt.Param(1)], options) as reducer:
                    both, one = array.array("f", [6] * 4), array.array("f", [comm.rank + 5] * 2)
                    for _ in range(3):
                        reducer.ready(0, both)
                        (reducer.ready if comm.rank == 1 else reducer.unused)(1, one)
                        reducer.finish()  # nobody has the third
                        self.assertEqual((list(both), list(one)), ([6] * 4, [3] * 2))
                        self.assertEqual([reducer.used(i) for i in range(3)], [True, True, False])
                        one = array.array("f", [6] * 2)
                    if options.find_unused:
                        self.assertEqual((reducer.active(), reducer.order()), (2, [2, 1, 0]))
        run_ranks(2, body)

    def test_gradients_in_an_array_of_ones_own(self):
        def body(_, comm):
            params = [dt.Param(4, name="a"), dt.Param(2, name="b"), dt.Param(0), dt.Param(3, dtype=dt.Dtype.F64)]
            flat, apart = memoryview(array.array("f", [0] * 6)), array.array("d", [0] * 3)
            options = dt.ReducerOptions(grads=[flat[:4], flat[4:], None, apart])
            with dt.Reducer(comm, params, options) as reducer:
                for step in range(3):
                    flat[:] = array.array("f", [comm.rank + step] * 6)
                    memoryview(reducer.grad(3))[:] = array.array("d", [2 * comm.rank] * 3)
                    for index in (3, 2, 1, 0):
                        reducer.ready(index)
                    reducer.finish()
                    self.assertEqual((flat.tolist(), apart.tolist()), ([step + 0.5] * 6, [1] * 3))
                self.assertEqual((reducer.bucket(0), reducer.statistics().memory_bytes), (reducer.bucket(1), 0))
            for grads, text in (([flat[:4]], "grads has 1 elements; give one for each of 4"),
                                ([flat[:3], flat[4:], None, apart],
                                 r"grads\[0\] has 3 elements of F32 in host memory; the parameter has 4 of F32"),
                                ([flat[:4], flat[3:5], None, apart], r'grads\[1\] \(parameter "b"\) share memory'),
                                ([flat[:4], None, None, apart], r'grads\[1\] \(parameter "b"\) is ')):
                with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                    dt.Reducer(comm, params, dt.ReducerOptions(grads=grads))
            with self.assertRaisesRegex(dt.InvalidArgumentError, "Shard: options.reducer.grads is set"):
                dt.Shard(comm, params, dt.ShardOptions(reducer=options))
        run_ranks(2, body)

    def test_a_gradient_as_rows(self):
        def body(_, comm):
            options = dt.ReducerOptions(row_elements=[2, 0])
            with self.assertRaisesRegex(dt.InvalidArgumentError, "row_elements has 2 elements; give one for each of 1"):
                dt.Reducer(comm, [dt.Param(20)], options)
            with dt.Reducer(comm, [dt.Param(20, name="table"), dt.Param(1)], options) as reducer:
                reducer.ready_rows(0, [3, comm.rank, 3], array.array("f", [1, 2, 10, 20, 3, 4]))
                reducer.ready(1, array.array("f", [1]))
                reducer.finish()
                rows, values = reducer.rows(0)
                self.assertEqual((list(rows), values.tolist()), ([0, 1, 3], [[5, 10], [5, 10], [4, 6]]))
                for wrong, text in ((([3], [1.0]), "1 elements of F32; give 1 rows of 2 F32"),
                                    (([10], [1.0, 2.0]), "rows\\[0\\] is 10; parameter #0 \"table\" has rows 0 to 9")):
                    with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                        reducer.ready_rows(0, wrong[0], array.array("f", wrong[1]))
                for index in (-1, 2):
                    with self.assertRaisesRegex(dt.InvalidArgumentError, f"index is {index}; the reducer has"):
                        reducer.rows(index)
                with self.assertRaisesRegex(dt.InvalidStateError, "comes as rows"):
                    reducer.ready(0, array.array("f", [0] * 20))
            with dt.Reducer(comm, [dt.Param(4, dt.Dtype.BOOL)],
                            dt.ReducerOptions(sum=True, row_elements=[2])) as reducer:
                reducer.ready_rows(0, [1], memoryview(bytes([comm.rank == 0, False])).cast("?"))
                reducer.finish()
                rows, values = reducer.rows(0)
                self.assertEqual((list(rows), values.tolist()), ([1], [[True, False]]))
            shard = dt.Shard(comm, [dt.Param(1)])
            with self.assertRaises(dt.Error):
                shard.reducer.rows(0)
            with self.assertRaises(dt.Error):
                shard.reducer.ready_rows(0, [0], array.array("f", [1]))
            shard.close()
        run_ranks(2, body)

    def test_passes_and_parts_are_summed(self):
        def body(_, comm):
            with dt.Reducer(comm, [dt.Param(2), dt.Param(3, uses=2)]) as reducer:
                once, twice = array.array("f", [comm.rank] * 2), array.array("f", [1] * 3)
                reducer.accumulate(True)
                reducer.ready(0, once)
                for _ in range(comm.rank):
                    reducer.ready(1, twice)
                with self.assertRaisesRegex(dt.InvalidStateError, "accumulate"):
                    reducer.finish()
                reducer.accumulate(False)
                reducer.ready(0, once)
                reducer.ready(1, twice)
                reducer.ready(1, twice)
                reducer.finish()
                self.assertEqual((list(once), list(twice)), ([1] * 2, [2.5] * 3))
        run_ranks(2, body)

    def test_the_wire_users_and_the_norm(self):
        def body(_, comm):
            options = dt.ReducerOptions(find_unused=True, divide_by_users=True, wire=dt.Wire.BF16, predivide=2)
            with dt.Reducer(comm, [dt.Param(4), dt.Param(2)], options) as reducer:
                both, one = array.array("f", [3] * 4), array.array("f", [5] * 2)
                reducer.ready(0, both)
                (reducer.ready if comm.rank == 1 else reducer.unused)(1, one)
                reducer.finish()
                self.assertEqual((list(both), list(one)), ([3] * 4, [5] * 2))
                self.assertAlmostEqual(reducer.clip_norm(1), (4 * 9 + 2 * 25) ** 0.5, 4)
                self.assertAlmostEqual(one[0], 5 / (4 * 9 + 2 * 25) ** 0.5, 4)
                self.assertEqual(reducer.clip_norm(1, float("inf")), one[0])
            with dt.Reducer(comm, [dt.Param(1)] * 3, dt.ReducerOptions(order=[1, 2, 0])) as reducer:
                self.assertEqual(reducer.order(), [1, 2, 0])
            with self.assertRaisesRegex(dt.InvalidArgumentError, "order"):
                dt.Reducer(comm, [dt.Param(1)] * 3, dt.ReducerOptions(order=[1, 2]))
            with self.assertRaisesRegex(dt.InvalidArgumentError, "predivide"):
                dt.Reducer(comm, [dt.Param(1)], dt.ReducerOptions(predivide=-1))
        run_ranks(2, body)

    def test_a_function_reduces_the_buckets(self):
        def body(_, comm):
            with dt.Reducer(comm, [dt.Param(4, name="w"), dt.Param(2)]) as reducer:
                calls = []

                def doubled(bucket, stage):
                    calls.append((bucket.index, bucket.last, bucket.params, stage))
                    if stage == 1:
                        return None
                    view = memoryview(bucket.data)
                    for i in range(len(view)):
                        view[i] *= 2
                    del view
                    return comm.allreduce_async(bucket.data)

                reducer.set_hook(doubled)
                weight, bias = array.array("f", [1] * 4), array.array("f", [comm.rank] * 2)
                reducer.ready(1, bias)
                reducer.ready(0, weight)
                reducer.finish()
                self.assertEqual((list(weight), list(bias)), ([4] * 4, [2] * 2))
                self.assertEqual(calls, [(0, True, (1, 0), 0), (0, True, (1, 0), 1)])

                def refused(bucket, stage):
                    if comm.rank == 0:
                        raise KeyError(repr(bucket))
                    return doubled(bucket, stage)

                reducer.set_hook(refused)
                reducer.ready(1, bias)
                if comm.rank == 0:
                    with self.assertRaisesRegex(KeyError, "<dt.Bucket 0 of 2 parameters"):
                        reducer.ready(0, weight)
                else:
                    with self.assertRaisesRegex((dt.MismatchError, dt.AbortedError),
                                                "hook failed on rank 0.*it returned DT_ERR_ABORTED"):
                        reducer.ready(0, weight)
                        reducer.finish()
        run_ranks(2, body)

    def test_a_signal_leaves_dt_nothing_that_is_gone(self):
        class Values(array.array):
            """One that can be watched."""

        def interrupted(name, call):
            real = getattr(dt._raw, name)

            def called(*args):
                real(*args)
                raise KeyboardInterrupt
            with unittest.mock.patch.object(dt._raw, name, called), self.assertRaises(KeyboardInterrupt):
                call()
            gc.collect()

        with dt.Job(dt.Config(settings={"reducer.check_steps": 1})) as job, \
                dt.Reducer(job.world(), [dt.Param(4)]) as reducer:
            calls = []

            def step():
                reducer.ready(0, array.array("f", [1] * 4))
                reducer.finish()
                said, calls[:] = list(calls), []
                return said

            def hook(name):
                return lambda bucket, stage: calls.append(name)
            first, second = hook("first"), hook("second")
            alive = [weakref.ref(first), weakref.ref(second)]
            reducer.set_hook(first)
            interrupted("reducer_set_hook", lambda: reducer.set_hook(second))
            del first, second
            gc.collect()
            self.assertNotIn(None, [each() for each in alive])  # one of both is dt's
            self.assertEqual(step(), ["second"])
            interrupted("reducer_set_hook", lambda: reducer.set_hook(None))
            self.assertEqual(step(), [])
            with self.assertRaises(dt.InvalidArgumentError), \
                    unittest.mock.patch.object(reducer, "_handle", 0):
                reducer.set_hook(hook("refused"))
            reducer.set_hook(None)
            gc.collect()
            self.assertEqual([each() for each in alive], [None, None])

            watched = [Values("f", [1] * 4) for _ in range(2)]
            alive = [weakref.ref(each) for each in watched]
            reducer.watch(0, watched[0])
            interrupted("reducer_watch", lambda: reducer.watch(0, watched[1]))
            watched.clear()
            gc.collect()
            self.assertNotIn(None, [each() for each in alive])
            step()
            reducer.watch(0, None)
            gc.collect()
            self.assertEqual([each() for each in alive], [None, None])

    def test_power_sgd(self):
        def body(_, comm):
            with dt.Reducer(comm, [dt.Param(64), dt.Param(3)]) as reducer:
                reducer.power_sgd([8, 0], rank=1, seed=7)
                matrix = array.array("f", [(i // 8 + 1) * (i % 8 - 3) * (comm.rank + 1) for i in range(64)])
                reducer.ready(0, matrix)
                reducer.ready(1, array.array("f", [comm.rank] * 3))
                reducer.finish()
                for i in range(64):
                    self.assertAlmostEqual(matrix[i], (i // 8 + 1) * (i % 8 - 3) * 1.5, 3)
                reducer.power_sgd([8, 0], wire=dt.Wire.BF16)
                vector = array.array("f", [1.001] * 3)
                reducer.ready(0, matrix)
                reducer.ready(1, vector)
                reducer.finish()
                self.assertEqual(list(vector), [1.0] * 3)
                with self.assertRaisesRegex(dt.InvalidArgumentError, "1 rows for 2 parameters"):
                    reducer.power_sgd([8])
                with self.assertRaisesRegex(dt.InvalidArgumentError, "rank is 65"):
                    reducer.power_sgd([8, 0], rank=65)
        run_ranks(2, body)

    def test_tuned_buckets(self):
        def body(_, comm):
            options = dt.ReducerOptions(bucket_cap_bytes=1024, first_bucket_bytes=1024, tune_steps=3)
            with dt.Reducer(comm, [dt.Param(128)] * 8, options) as reducer:
                self.assertEqual(reducer.statistics().bucket_cap_bytes, 1024)
                while not reducer.statistics().tuned:
                    for index in range(8):
                        reducer.ready(index, array.array("f", [index] * 128))
                    reducer.finish()
                found = reducer.statistics()
                self.assertIn((found.steps, found.bucket_cap_bytes),
                              [(steps, cap) for steps in (6, 9) for cap in (256, 1024, 4096)])
            with self.assertRaisesRegex(dt.InvalidArgumentError, "tune_steps is 1; it must be 0, or at least 3"):
                dt.Reducer(comm, [dt.Param(1)], dt.ReducerOptions(tune_steps=1))
        run_ranks(2, body)

    def test_errors_of_8_bits_saved_and_loaded(self):
        def body(_, comm):
            def step(reducer):
                gradient = array.array("f", [1 + i / 7 + comm.rank for i in range(70)])
                reducer.ready(0, gradient)
                reducer.finish()
                return gradient

            params, options = [dt.Param(70)], dt.ReducerOptions(wire=dt.Wire.BITS8)
            with tempfile.TemporaryDirectory() as folder, dt.Reducer(comm, params, options) as reducer:
                path = pathlib.Path(folder, "errors")
                first = step(reducer)
                reducer.save(path)
                second = step(reducer)
                with dt.Reducer(comm, params, options) as resumed:
                    resumed.load(path)
                    self.assertEqual(step(resumed), second)
                    self.assertNotEqual(first, second)
                with dt.Reducer(comm, params) as plain:
                    with self.assertRaisesRegex(dt.MismatchError, 'with compression "8 bits"'):
                        plain.load(path)
        run_ranks(2, body)

    def test_the_sum_in_place_and_a_new_plan(self):
        def body(_, comm):
            reducer = dt.Reducer(comm, [dt.Param(4), dt.Param(300)],
                                 dt.ReducerOptions(sum=True, first_bucket_bytes=64, bucket_cap_bytes=64))
            for step in range(3):
                for i in (0, 1):
                    memoryview(reducer.grad(i))[:] = array.array("f", [comm.rank + i] * (4, 300)[i])
                    reducer.ready(i)
                reducer.finish()
                for i in (0, 1):
                    self.assertEqual(set(memoryview(reducer.grad(i))), {1.0 + 2 * i})
                gradient = reducer.grad(0)
                view = memoryview(gradient)
                with self.assertRaises(dt.InvalidStateError):
                    reducer.rebuild()
                view.release()
                changed = reducer.rebuild()
                self.assertEqual(changed, step == 0)
                if changed:
                    with self.assertRaises(BufferError):
                        memoryview(gradient)
            view = memoryview(reducer.grad(1))
            reducer.close()
            del reducer
            gc.collect()
            self.assertEqual(set(view), {3.0})  # it keeps what it lies in
        run_ranks(2, body)

    def test_what_is_missing_is_named_on_all_ranks(self):
        def body(_, comm):
            reducer = dt.Reducer(comm, [dt.Param(4, name="first"), dt.Param(4, name="second")])
            reducer.ready(0, array.array("f", [1] * 4))
            if comm.rank == 0:
                reducer.ready(1, array.array("f", [1] * 4))
                with self.assertRaises(dt.InvalidStateError):
                    reducer.ready(1, array.array("f", [1] * 4))
            with self.assertRaises(dt.InvalidStateError) as caught:
                reducer.finish()
            self.assertIn("second", str(caught.exception))
        run_ranks(2, body)

    def test_models_that_differ(self):
        def body(_, comm):
            with self.assertRaises(dt.MismatchError) as caught:
                dt.Reducer(comm, [dt.Param(4 + comm.rank, name="größe")])
            self.assertIn("größe", str(caught.exception))
        run_ranks(2, body)

    def test_parameters_that_diverge_are_named(self):
        def body(_, comm):
            reducer = dt.Reducer(comm, [dt.Param(4, name="weight")])
            weight = array.array("f", [1, 2, 3, 4])
            reducer.watch(0, weight)
            del weight  # the reducer keeps it
            gc.collect()
            for step in range(4):
                if step == 3 and comm.rank == 1:
                    other = array.array("f", [1, 2, 3, 5])
                    reducer.watch(0, other)
                reducer.ready(0, array.array("f", [1] * 4))
                if step < 3:
                    reducer.finish()
                    continue
                with self.assertRaises(dt.MismatchError) as caught:
                    reducer.finish()
                self.assertIn("#0 weight", str(caught.exception))
                self.assertIn("rank 1 (", str(caught.exception))
            reducer.watch(0, None)
            reducer.ready(0, array.array("f", [1] * 4))
            reducer.finish()
            with self.assertRaises(dt.InvalidArgumentError):
                reducer.watch(1, array.array("f", [1]))
        run_ranks(2, body, {"reducer.check_steps": 2})


class BatchStatistics(unittest.TestCase):
    def test_of_all_ranks(self):
        def body(_, comm):
            # Rank 0 has (1, 10), rank 1 nothing, rank 2 (3, 30).
            own = array.array("f", [[1, 10], [], [3, 30]][comm.rank])
            moments = comm.batch_moments(own, 2)
            self.assertEqual((list(moments.mean), list(moments.variance), moments.count), ([2, 20], [1, 100], 2))
            sums = comm.batch_gradient_sums(own, own, moments, epsilon=0)
            self.assertEqual((list(sums.sum), list(sums.product)), ([4, 40], [2, 20]))
            first = comm.batch_moments(array.array("d", [1, 2, 5, 5, 3, 6, 5, 5]), 2, spatial=2)
            self.assertEqual((list(first.mean), list(first.variance), first.count), ([3, 5], [3.5, 0], 12))
            with self.assertRaisesRegex(dt.InvalidArgumentError, "4 elements, which are no whole samples of 3"):
                comm.batch_moments(array.array("d", [1, 2, 3, 4]), 3)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "channels is 0"):
                comm.batch_moments(array.array("d", [1]), 0)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "channels is 1099511627776"):
                comm.batch_moments(array.array("d"), 1 << 40)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "dtype is i32"):
                comm.batch_moments(array.array("i", [1]), 1)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "give two arrays of one shape"):
                comm.batch_gradient_sums(array.array("d", [1, 2]), array.array("f", [1, 2]), moments)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "variance has 1 elements of F64; give 2 of F64"):
                comm.batch_gradient_sums(own, own, moments._replace(variance=[1.0]))
            with self.assertRaisesRegex(dt.InvalidArgumentError, "epsilon is -1"):
                comm.batch_gradient_sums(own, own, moments, epsilon=-1)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "no rank has an element"):
                comm.batch_moments(array.array("d"), 2)
            comm.barrier()  # it is whole
        run_ranks(3, body)

    def test_into_given_arrays(self):
        def body(_, comm):
            # Rank 0 has (1, 10), rank 1 nothing, rank 2 (3, 30).
            for dtype, rows in (("bfloat16", [[0x3F80, 0x4120], [], [0x4040, 0x41F0]]),
                                ("float16", [[0x3C00, 0x4900], [], [0x4200, 0x4F80]])):
                own = dt.Buffer(array.array("H", rows[comm.rank]), dtype=dtype)
                out = dt.BatchMoments(array.array("d", [0, 0]), array.array("d", [0, 0]), array.array("q", [0]))
                self.assertIs(comm.batch_moments(own, 2, out=out, stream=None), out)
                self.assertEqual((list(out.mean), list(out.variance), list(out.count)), ([2, 20], [1, 100], [2]))
                moments = comm.batch_moments(own, 2)
                self.assertEqual((out.mean, out.variance, out.count[0]), moments)
                sums = dt.BatchGradientSums(array.array("d", [0, 0]), array.array("d", [0, 0]))
                self.assertIs(comm.batch_gradient_sums(own, own, out, out=sums), sums)
                self.assertEqual(sums, comm.batch_gradient_sums(own, own, moments))
                self.assertEqual(sums, comm.batch_gradient_sums(own, own, dt.BatchMoments([2, 20], (1, 100), 2)))
            for wrong, message in (
                    (out._replace(mean=array.array("d", [0] * 3)), "out.mean has 3 elements of F64; give 2 of F64"),
                    (out._replace(variance=array.array("f", [0] * 2)),
                     "out.variance has 2 elements of F32; give 2 of F64"),
                    (out._replace(count=array.array("d", [0])), "out.count has 1 elements of F64; give 1 of I64"),
                    (out._replace(mean=bytes(16)), "out.mean: the array is read-only")):
                with self.assertRaisesRegex(dt.InvalidArgumentError, "batch_moments: " + message):
                    comm.batch_moments(own, 2, out=wrong)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "out.sum has 1 elements of F64; give 2 of F64"):
                comm.batch_gradient_sums(own, own, moments, out=sums._replace(sum=array.array("d", [0])))
            with self.assertRaisesRegex(dt.InvalidArgumentError, "moments.mean has 2 elements of F32; give 2 of F64"):
                comm.batch_gradient_sums(own, own, moments._replace(mean=array.array("f", [1, 2])))
            comm.barrier()  # it is whole
        run_ranks(3, body)


class Equality(unittest.TestCase):
    def test_arrays(self):
        def body(_, comm):
            comm.check_equal(array.array("d", [1, 2, 3]), "weights")
            comm.check_equal(b"")
            with self.assertRaises(dt.MismatchError) as caught:
                comm.check_equal(array.array("q", [7, 8 if comm.rank == 2 else 9]), "größe")
            self.assertIn("rank 2 (", str(caught.exception))
            self.assertIn("größe", str(caught.exception))
            self.assertEqual(caught.exception.rank, 2)
            comm.barrier()  # it is whole
        run_ranks(3, body)

    def test_samplers(self):
        def body(_, comm):
            dt.Sampler(100, comm.size, comm.rank, seed=5).check(comm)
            with self.assertRaises(dt.MismatchError) as caught:
                dt.Sampler(100, comm.size, comm.rank, seed=5 + comm.rank).check(comm)
            self.assertIn("has seed = 6", str(caught.exception))
            comm.barrier()
        run_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
