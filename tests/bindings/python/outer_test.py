# SPDX-License-Identifier: Apache-2.0
"""Ranks that train by themselves, and come together now and then."""

import array
import gc
import os
import sys
import tempfile
import unittest
import weakref

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks

try:
    import torch

    import dt.torch
except ImportError:
    torch = None


class Values(array.array):
    """One that can be watched."""


def train(values, rank):
    for i, value in enumerate(values):
        values[i] = value + (rank + 1) * (i + 1)


class Outers(unittest.TestCase):
    def test_local_sgd_is_the_mean_of_the_parameters(self):
        def body(_, comm):
            arrays = [array.array("f", [10.0, 20.0]), memoryview(bytearray(12)).cast("f"), array.array("f")]
            with dt.Outer(comm, arrays, dt.OuterOptions(sync_every=3, rate=1, momentum=0)) as outer:
                for step in range(1, 7):
                    for each in arrays:
                        train(each, comm.rank)
                    self.assertEqual(outer.step(), step % 3 == 0)
                mean = sum(range(1, comm.size + 1)) / comm.size
                for first, each in ([10, 20], arrays[0]), ([0] * 3, arrays[1]):
                    for i, value in enumerate(each):
                        self.assertAlmostEqual(value, first[i] + 6 * mean * (i + 1), 4)
                train(arrays[0], comm.rank)
                outer.sync()
                comm.check_equal(arrays[0])
                self.assertEqual(repr(outer), "<dt.Outer of 3 parameters>")
        for size in (1, 2, 3):
            run_ranks(size, body)

    def test_diloco_with_names_and_checkpoints(self):
        def body(_, comm):
            with tempfile.TemporaryDirectory() as folder:
                paths = comm.allgather_objects(os.path.join(folder, "outer"))
                values = array.array("f", [1.0])
                with dt.Outer(comm, {"w": values}, dt.OuterOptions(sync_every=1)) as outer:
                    train(values, comm.rank)
                    self.assertTrue(outer.step())
                    wanted = 1 + 0.7 * 1.9 * 1.5  # the first step of Nesterov's momentum
                    self.assertAlmostEqual(values[0], wanted, 5)
                    if comm.rank == 0:
                        outer.save(paths[0])
                    comm.barrier()
                    values[0] = 5 + comm.rank
                    outer.step()
                    self.assertEqual(outer.steps, 2)
                    outer.load(paths[0])
                    self.assertEqual(outer.steps, 1)
                    self.assertAlmostEqual(values[0], wanted, 5)
                    train(values, comm.rank)
                    outer.step()
                    self.assertAlmostEqual(values[0], wanted + 0.7 * 1.5 * (1 + 0.9 * 1.9), 5)
                    part = comm.split(0)
                    outer.move(part)
                    train(values, comm.rank)
                    outer.step()
                    comm.check_equal(values)
                comm.barrier()
        run_ranks(2, body)

    def test_arrays_live_as_long_as_it(self):
        def body(_, comm):
            values = Values("f", [1.0])
            alive = weakref.ref(values)
            outer = dt.Outer(comm, [values], dt.OuterOptions(rate=1, momentum=0))
            del values
            gc.collect()
            outer.step()
            self.assertEqual(alive()[0], 1)
            outer.close()
            outer.close()
            gc.collect()
            self.assertIsNone(alive())
            for call in (outer.step, outer.sync, lambda: outer.move(comm), lambda: outer.save("x"),
                         lambda: outer.steps, lambda: outer.load("x")):
                with self.assertRaisesRegex(dt.InvalidStateError, "Outer: it is closed"):
                    call()
        run_ranks(1, body)

    def test_refusals(self):
        def body(_, comm):
            one = array.array("f", [1])
            for params, options, text in (
                    ([], {}, "Outer: count is 0"),
                    ([array.array("d", [1])], {}, r"Outer: params\[0\].dtype is f64; it must be f32, f16 or bf16"),
                    ([one, b"abcd"], {}, r"Outer: params\[1\]: the array is read-only"),
                    ({"w": 1}, {}, r"Outer: params\['w'\]"),
                    ([one], {"sync_every": 0}, "Outer: sync_every is 0; it must be at least 1"),
                    ([one], {"fragments": 2}, "fragments is 2; it must divide sync_every, which is 1"),
                    ([one], {"alpha": 2}, r"alpha is 2; it must be in \[0, 1\]"),
                    ([one], {"format": 9}, "format is 9")):
                with self.assertRaisesRegex((dt.InvalidArgumentError, TypeError), text):
                    dt.Outer(comm, params, dt.OuterOptions(**options))
            with dt.Outer(comm, [one]) as outer:
                with self.assertRaisesRegex(dt.SystemCallError, "/nowhere"):
                    outer.save("/nowhere/model")
                with self.assertRaises(TypeError):
                    outer.load(None)
        run_ranks(1, body)

    @unittest.skipIf(torch is None, "PyTorch is not here")
    def test_a_module(self):
        def body(_, comm):
            module = torch.nn.Linear(3, 2)
            dt.torch.broadcast(list(module.parameters()), comm)
            with dt.torch.outer(module, comm, dt.OuterOptions(rate=1, momentum=0)) as outer:
                with torch.no_grad():
                    module.weight += comm.rank
                first = module.weight.detach().clone() - comm.rank
                outer.step()
                torch.testing.assert_close(module.weight.detach(), first + 0.5)
        run_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
