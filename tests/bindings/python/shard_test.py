# SPDX-License-Identifier: Apache-2.0
"""Parameters in shards, of ranks that are threads: whatever the stage, the same bits."""

import array
import gc
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks

PARAMS = [dt.Param(300, name="embedding"), dt.Param(7), dt.Param(0), dt.Param(130)]
UNITS = [0, 0, 1, 1]


def draw(*numbers):
    return ((hash(numbers) & 0xFFFF) - 0x8000) / 1000


def train(comm, options, steps=3):
    """Some steps of SGD on the pieces; (all parameters, the norms, elements updated)."""
    with dt.Shard(comm, PARAMS, options) as shard:
        for p, param in enumerate(PARAMS):
            shard.set(p, array.array("f", [draw(p, i) for i in range(param.count)]))
        norms, updated = [], 0
        for step in range(steps):
            gradients = []
            for p, param in enumerate(PARAMS):
                shard.gather(UNITS[p])
                values = memoryview(shard.param(p))
                gradients.append(array.array("f", [value + draw(p, i, step, comm.rank)
                                                   for i, value in enumerate(values)]))
            for p in reversed(range(len(PARAMS))):
                shard.reducer.ready(p, gradients[p])
            shard.reducer.finish()
            norms.append(shard.reducer.clip_norm(20.0))
            for p in range(len(PARAMS)):
                piece = shard.piece(p)
                updated += piece.count
                if piece.count == 0:
                    assert piece.param is None and piece.grad is None
                    continue
                values, gradient = memoryview(piece.param), memoryview(piece.grad)
                for i in range(piece.count):
                    values[i] -= 0.1 * gradient[i]
            shard.updated()
        for unit in set(UNITS):
            shard.gather(unit)
        return b"".join(bytes(shard.param(p)) for p in range(len(PARAMS))), norms, updated


class Shards(unittest.TestCase):
    def test_stages_and_bucket_sizes_end_with_the_same_bits(self):
        elements = sum(param.count for param in PARAMS)
        for world in (1, 2, 3):
            results = {}

            def body(_, comm):
                for stage in (0, 1):
                    for granules in ((), (30, 0, 0, 13)):
                        for cap in (1, 1 << 20):
                            results[comm.rank, stage, granules, cap] = train(comm, dt.ShardOptions(
                                stage, dt.ReducerOptions(bucket_cap_bytes=cap), granules, UNITS))

            run_ranks(world, body)
            self.assertEqual(len({(values, *norms) for values, norms, _ in results.values()}), 1)
            for stage, times in ((0, world), (1, 1)):
                for granules, cap in {key[2:] for key in results}:
                    self.assertEqual(sum(results[rank, stage, granules, cap][2] for rank in range(world)),
                                     3 * elements * times)

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

    def test_refusals(self):
        def body(_, comm):
            for options, text in (
                    (dt.ShardOptions(stage=2), "stage is 2; it must be 0 or 1"),
                    (dt.ShardOptions(units=[1]), "Shard: 1 units for 2 parameters; give one each"),
                    (dt.ShardOptions(granules=[0, -1]), r"granules\[1\] is -1"),
                    (dt.ShardOptions(units=[0, -1]), r"units\[1\] is -1")):
                with self.assertRaisesRegex(dt.InvalidArgumentError, text):
                    dt.Shard(comm, [dt.Param(1)] * 2, options)
            with dt.Shard(comm, [dt.Param(2, name="weight")]) as shard:
                with self.assertRaisesRegex(dt.InvalidArgumentError, "unit is 3, which no parameter has"):
                    shard.gather(3)
                with self.assertRaisesRegex(dt.InvalidArgumentError,
                                            r"values of parameter 0 \(weight\) are 2 elements of F64, it has 2 of F32"):
                    shard.set(0, array.array("d", [1, 2]))
                with self.assertRaisesRegex(dt.InvalidArgumentError, "parameters 0 to 0"):
                    shard.piece(1)
                self.assertEqual(repr(shard), "<dt.Shard of 1 parameters, 2 elements>")
            for call in (shard.updated, shard.gather, lambda: shard.param(0), lambda: shard.piece(0),
                         lambda: shard.set(0, array.array("f", [1, 2]))):
                with self.assertRaisesRegex(dt.InvalidStateError, "Shard: it is closed"):
                    call()

        run_ranks(1, body)


if __name__ == "__main__":
    unittest.main()
