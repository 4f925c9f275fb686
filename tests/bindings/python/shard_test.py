# SPDX-License-Identifier: Apache-2.0
"""Parameters in shards, of ranks that are threads: whatever the stage, the same bits."""

import array
import gc
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks

PARAMS = [dt.Param(300, name="embedding", shape=(30, 10)), dt.Param(7), dt.Param(0), dt.Param(130)]
UNITS = [0, 0, 1, 1]


DECAYS = [0.1, 0.0, 0.5, 0.2]
RATE = 0.01
ANY_STREAM = 12345  # over host memory it is ignored


def draw(*numbers):
    return ((hash(numbers) & 0xFFFF) - 0x8000) / 1000


def train(comm, options, steps=3):
    """Some steps of SGD on the pieces; (all parameters, the norms, elements updated)."""
    with dt.Shard(comm, PARAMS, options) as shard:
        for p, param in enumerate(PARAMS):
            shard.set(p, array.array("f", [draw(p, i) for i in range(param.count)]), stream=ANY_STREAM)
        norms, updated = [], 0
        for step in range(steps):
            gradients = []
            for p, param in enumerate(PARAMS):
                shard.gather(UNITS[p], stream=ANY_STREAM)
                values = memoryview(shard.param(p))
                gradients.append(array.array("f", [value + draw(p, i, step, comm.rank)
                                                   for i, value in enumerate(values)]))
                shard.release(UNITS[p], stream=ANY_STREAM)
            for p in reversed(range(len(PARAMS))):
                shard.gather(UNITS[p])
                if p == 3:
                    memoryview(shard.reducer.grad(p, stream=ANY_STREAM))[:] = gradients[p]
                    shard.reducer.ready(p, stream=ANY_STREAM)
                else:
                    shard.reducer.ready(p, gradients[p])
            shard.reducer.finish()
            norms.append(shard.reducer.clip_norm(20.0))
            whole = array.array("f", bytes(4 * PARAMS[0].count))
            shard.full_grad(0, whole, stream=ANY_STREAM)
            norms.append(whole.tobytes())
            for p in range(len(PARAMS)):
                piece = shard.piece(p, stream=ANY_STREAM)
                updated += piece.count
                assert shard.plan(p)[comm.rank] == piece[:2]
                if piece.count == 0:
                    assert piece.param is None and piece.grad is None
                    continue
                values, gradient = memoryview(piece.param), memoryview(piece.grad)
                for i in range(piece.count):
                    values[i] -= 0.1 * gradient[i]
            shard.updated(stream=ANY_STREAM)
        for unit in set(UNITS):
            shard.gather(unit)
        return b"".join(bytes(shard.param(p)) for p in range(len(PARAMS))), norms, updated


def optimize(comm, make, stage, steps=3):
    """All parameters after some steps of an optimizer, whose gradients are the same on all ranks."""
    shard = dt.Shard(comm, PARAMS, dt.ShardOptions(stage, units=UNITS))
    with make(shard) as optimizer:
        for p, param in enumerate(PARAMS):
            shard.set(p, array.array("f", [draw(p, i) for i in range(param.count)]))
        for step in range(1, steps + 1):
            for p, param in enumerate(PARAMS):
                shard.reducer.ready(p, array.array("f", [draw(p, i, step) for i in range(param.count)]))
            shard.reducer.finish()
            optimizer.step(RATE, stream=ANY_STREAM)
            for unit in set(UNITS):
                shard.gather(unit)
    values = [memoryview(shard.param(p)).tolist() for p in range(len(PARAMS))]
    shard.close()
    return values


def tensors_of(path):
    """What a file of safetensors has: {name: (dtype, shape, bytes)}."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__")
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:
                                                        begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def adamw_by_hand(p, i, steps=3):
    value, first, second = draw(p, i), 0.0, 0.0
    for step in range(1, steps + 1):
        gradient = draw(p, i, step)
        value *= 1 - RATE * DECAYS[p]
        first += 0.2 * (gradient - first)
        second += 0.1 * (gradient * gradient - second)
        value -= RATE * first / (1 - 0.8 ** step) / ((second / (1 - 0.9 ** step)) ** 0.5 + 1e-6)
    return value


def sgd_by_hand(p, i, steps=3):
    value, momentum = draw(p, i), 0.0
    for step in range(1, steps + 1):
        gradient = draw(p, i, step) + 0.3 * value
        momentum = 0.9 * momentum + gradient
        value -= RATE * (gradient + 0.9 * momentum)
    return value


class Shards(unittest.TestCase):
    def test_stages_and_bucket_sizes_end_with_the_same_bits(self):
        elements = sum(param.count for param in PARAMS)
        for world in (1, 2, 3):
            results = {}

            def body(_, comm):
                for stage in (0, 1, 2, 3):
                    for granules in ((), (30, 0, 0, 13)):
                        for cap in (1, 1 << 20):
                            results[comm.rank, stage, granules, cap] = train(comm, dt.ShardOptions(
                                stage, dt.ReducerOptions(bucket_cap_bytes=cap), granules, UNITS))

            run_ranks(world, body)
            self.assertEqual(len({(values, *norms) for values, norms, _ in results.values()}), 1)
            for stage, times in ((0, world), (1, 1), (2, 1), (3, 1)):
                for granules, cap in {key[2:] for key in results}:
                    self.assertEqual(sum(results[rank, stage, granules, cap][2] for rank in range(world)),
                                     3 * elements * times)

    def test_optimizers_compute_as_pytorch_does_in_every_stage(self):
        for make, by_hand in (
                (lambda shard: dt.Optimizer.adamw(shard, betas=(0.8, 0.9), eps=1e-6, weight_decay=DECAYS),
                 adamw_by_hand),
                (lambda shard: dt.Optimizer.sgd(shard, momentum=0.9, nesterov=True, weight_decay=0.3),
                 sgd_by_hand)):
            results = []
            for world in (1, 2):
                run_ranks(world, lambda _, comm: results.extend(
                    optimize(comm, make, stage) for stage in (0, 1, 2, 3)))
            self.assertEqual(len(results), 12)
            for p, param in enumerate(PARAMS):
                for i in range(param.count):
                    self.assertAlmostEqual(results[0][p][i], by_hand(p, i), delta=2e-5)
            for result in results[1:]:
                self.assertEqual(result, results[0])

    def test_a_step_that_is_not_finite_changes_nothing_where_that_is_asked_for(self):
        def body(job, comm):
            for make in dt.Optimizer.adamw, dt.Optimizer.sgd:
                with dt.Shard(comm, [dt.Param(3)]) as shard, make(shard, skip_non_finite=True) as optimizer:
                    for step in range(3):
                        bad = float("inf") if step != 1 and job.rank == 0 else 0.0
                        shard.reducer.ready(0, array.array("f", [1, 1, 1 + bad]))
                        shard.reducer.finish()
                        optimizer.step(RATE)
                    shard.gather(0)
                    value = memoryview(shard.param(0))[2]
                    self.assertTrue(-1 < value < 0, value)
                    self.assertEqual([optimizer.skipped(behind) for behind in (0, 1, 2, 3)], [2, 1, 1, 0])
                    with self.assertRaisesRegex(dt.InvalidArgumentError, "behind is 8; it must be between 0 and 7"):
                        optimizer.skipped(8)

        run_ranks(2, body)

    def test_optimizer_refusals(self):
        def body(_, comm):
            shard = dt.Shard(comm, [dt.Param(1)] * 2)
            for make, text in (
                    (lambda: dt.Optimizer.adamw(shard, betas=(1, 0.9)), "Optimizer.adamw: beta1 is 1; it must be in"),
                    (lambda: dt.Optimizer.adamw(shard, eps=-1), "epsilon is -1"),
                    (lambda: dt.Optimizer.sgd(shard, weight_decay=-1), "weight_decay is -1; it must be at least 0"),
                    (lambda: dt.Optimizer.adamw(shard, weight_decay=[0, -1]), r"weight_decays\[1\] is -1"),
                    (lambda: dt.Optimizer.adamw(shard, weight_decay=[0]), "1 weight decays for 2 parameters"),
                    (lambda: dt.Optimizer.sgd(shard, momentum=-1), "momentum is -1"),
                    (lambda: dt.Optimizer.sgd(shard, nesterov=True), "nesterov is 1; it goes with a momentum")):
                with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                    make()
            optimizer = dt.Optimizer.sgd(shard)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "rate is nan; it must be finite"):
                optimizer.step(float("nan"))
            with self.assertRaisesRegex(dt.InvalidStateError, "there are no gradients"):
                optimizer.step(1)
            shard.close()
            optimizer.close()
            optimizer.close()
            with self.assertRaisesRegex(dt.InvalidStateError, "Optimizer: it is closed"):
                optimizer.step(1)
            with self.assertRaisesRegex(dt.InvalidStateError, "Shard: it is closed"):
                dt.Optimizer.sgd(shard)

        run_ranks(1, body)

    def test_a_checkpoint_is_a_file_of_safetensors(self):
        def gradients(shard, step):
            for p, param in enumerate(PARAMS):
                shard.reducer.ready(p, array.array("f", [draw(p, i, step) for i in range(param.count)]))
            shard.reducer.finish()

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.safetensors"
            saved, ends = [], []

            def first(_, comm):
                with dt.Shard(comm, PARAMS) as shard, dt.Optimizer.adamw(shard) as optimizer:
                    for p, param in enumerate(PARAMS):
                        shard.set(p, array.array("f", [draw(p, i) for i in range(param.count)]))
                    gradients(shard, 1)
                    optimizer.step(RATE)
                    shard.save(path, optimizer)
                    shard.gather()
                    saved.append([bytes(shard.param(p)) for p in range(len(PARAMS))])
                    gradients(shard, 2)
                    optimizer.step(RATE)
                    shard.gather()
                    ends.append([bytes(shard.param(p)) for p in range(len(PARAMS))])

            def resumed(_, comm):
                options = dt.ShardOptions(0, offload=path.parent)
                with dt.Shard(comm, PARAMS, options) as shard, dt.Optimizer.adamw(shard) as optimizer:
                    with open("/proc/self/maps", encoding="utf-8") as maps:
                        self.assertIn(f"{folder}/", maps.read())
                    shard.load(str(path), optimizer)
                    shard.gather()
                    saved.append([bytes(shard.param(p)) for p in range(len(PARAMS))])
                    gradients(shard, 2)
                    optimizer.step(RATE)
                    ends.append([bytes(shard.param(p)) for p in range(len(PARAMS))])
                    shard.load(path)
                    saved.append([bytes(shard.param(p)) for p in range(len(PARAMS))])

            run_ranks(3, first)
            run_ranks(2, resumed)
            self.assertEqual(len(saved), 7)
            for each in saved:
                self.assertEqual(each, saved[0])
            for each in ends:
                self.assertEqual(each, ends[0])
            tensors = tensors_of(path)
            for p, param in enumerate(PARAMS):
                name = param.name or f"param.{p}"
                shape = list(param.shape) or [param.count]
                self.assertEqual(tensors[name], ("F32", shape, saved[0][p]))
                self.assertEqual(tensors[f"optimizer.exp_avg.{name}"][:2], ("F32", shape))
                self.assertEqual(tensors[f"optimizer.exp_avg_sq.{name}"][:2], ("F32", shape))
                step = array.array("q", [param.count > 0])
                self.assertEqual(tensors[f"optimizer.step.{name}"], ("I64", [1], step.tobytes()))
            try:
                from safetensors.numpy import load_file
            except ImportError:
                print("skipped: reading a checkpoint with safetensors, which is not here")
                return
            read = load_file(path)
            self.assertEqual(set(read), set(tensors))
            for name, (_, shape, data) in tensors.items():
                self.assertEqual((list(read[name].shape), read[name].tobytes()), (shape, data))

    def test_checkpoint_refusals(self):
        def body(_, comm):
            shard = dt.Shard(comm, [dt.Param(1)])
            optimizer = dt.Optimizer.sgd(shard)
            with self.assertRaisesRegex(dt.InvalidArgumentError,
                                        r"parameter 0 \(w\) cannot have the shape \(2, 3\): it has 5 elements"):
                dt.Shard(comm, [dt.Param(5, name="w", shape=(2, 3))])
            with self.assertRaisesRegex(dt.SystemCallError,
                                        'Shard on comm "world": rank 0 .*: cannot make a file in "/nowhere": No such file'):
                dt.Shard(comm, [dt.Param(1)], dt.ShardOptions(offload="/nowhere"))
            for call in (shard.save, shard.load):
                with self.assertRaisesRegex(dt.SystemCallError, '"/nowhere/dt_model.*": No such file or directory'):
                    call("/nowhere/dt_model", optimizer)
                with self.assertRaisesRegex(dt.InvalidArgumentError, "path is empty"):
                    call("")
                with self.assertRaises(TypeError):
                    call(None)
            optimizer.close()
            for call in (shard.save, shard.load):
                with self.assertRaisesRegex(dt.InvalidStateError, "Optimizer: it is closed"):
                    call("/nowhere/model", optimizer)
            shard.close()
            with self.assertRaisesRegex(dt.InvalidStateError, "Shard: it is closed"):
                shard.save("/nowhere/model")

        run_ranks(1, body)

    def test_memory_outlives_the_shard(self):
        def body(_, comm):
            shard = dt.Shard(comm, [dt.Param(4, dt.Dtype.F64)])
            shard.set(0, array.array("d", [1, 2, 3, 4]))
            values = memoryview(shard.param(0))
            shard.close()
            shard.close()
            self.assertEqual(repr(shard), "<dt.Shard of 1 parameters, closed>")
            del shard
            gc.collect()
            self.assertEqual(values.tolist(), [1, 2, 3, 4])

        run_ranks(2, body)

    def test_arrays_live_as_long_as_the_calls_that_use_them(self):
        def body(_, comm):
            memory = comm.alloc(4, dt.Dtype.F64)
            exports = []

            class Lent:
                """Each export is an object of its own, which counts in `exports` until it is let go."""

                def __dlpack_device__(self):
                    return 1, 0

                def __dlpack__(self, **_):
                    return memory.__dlpack__()

            def used(*_):
                exports.append(memory.exports)

            with dt.Shard(comm, [dt.Param(4, dt.Dtype.F64)]) as shard, \
                    mock.patch.object(dt._raw, "shard_set", used), mock.patch.object(dt._raw, "shard_full_grad", used):
                shard.set(0, Lent())
                shard.full_grad(0, Lent())
            self.assertEqual((exports, memory.exports), ([1, 1], 0))

        run_ranks(1, body)

    def test_refusals(self):
        def body(_, comm):
            for options, text in (
                    (dt.ShardOptions(stage=4), r"Shard: stage is 4; it must be in \[0, 3\]"),
                    (dt.ShardOptions(prefetch=-1), "Shard: prefetch is -1"),
                    (dt.ShardOptions(shard_ranks=3), r"shard_ranks is 3; it must be 0 or divide the \d+ ranks"),
                    (dt.ShardOptions(offload=""), "Shard: offload is empty; give the path of a directory"),
                    (dt.ShardOptions(offload="a\0b"), "NUL"),
                    (dt.ShardOptions(units=[1]), "Shard: 1 units for 2 parameters; give one each"),
                    (dt.ShardOptions(granules=[0, -1]), r"granules\[1\] is -1"),
                    (dt.ShardOptions(units=[0, -1]), r"units\[1\] is -1")):
                with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                    dt.Shard(comm, [dt.Param(1)] * 2, options)
            with dt.Shard(comm, [dt.Param(2, name="weight")]) as shard:
                for call in (shard.gather, shard.release):
                    with self.assertRaisesRegex(dt.InvalidArgumentError, "unit is 3, which no parameter has"):
                        call(3)
                with self.assertRaisesRegex(dt.InvalidArgumentError,
                                            r"values of parameter 0 \(weight\) are 2 elements of F64, it has 2 of F32"):
                    shard.set(0, array.array("d", [1, 2]))
                with self.assertRaisesRegex(dt.InvalidArgumentError, "parameters 0 to 0"):
                    shard.piece(1)
                self.assertEqual(repr(shard), "<dt.Shard of 1 parameters, 2 elements>")
            for call in (shard.updated, shard.gather, shard.release,
                         lambda: shard.full_grad(0, array.array("f", [1, 2])), lambda: shard.param(0), lambda: shard.piece(0),
                         lambda: shard.set(0, array.array("f", [1, 2]))):
                with self.assertRaisesRegex(dt.InvalidStateError, "Shard: it is closed"):
                    call()

        run_ranks(1, body)


if __name__ == "__main__":
    unittest.main()
