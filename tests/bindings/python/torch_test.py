# SPDX-License-Identifier: Apache-2.0
"""dt.torch.DistributedDataParallel beside PyTorch's own with gloo, on 2 ranks."""

import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from ranks import dt_run


class Training(unittest.TestCase):
    def test_the_losses_are_those_of_pytorchs_own(self):
        run = dt_run(2, os.path.join(os.path.dirname(__file__), "torch_ranks.py"))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("largest difference"), 2, run.stdout)
        print(run.stdout, end="")

    def test_the_benchmark_compares_each_way(self):
        run = dt_run(2, os.path.join(os.path.dirname(__file__), "torch_ddp_bench.py"),
                     "--models", "7 k", "--rounds", "1", "--losses", "5")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("| 7,050 |"), 5, run.stdout)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not here (Debian: python3-torch)")
        sys.exit(77)
    unittest.main()
