# SPDX-License-Identifier: Apache-2.0
"""dt.torch.ShardedDataParallel beside PyTorch's own DistributedDataParallel with gloo, on 2 ranks."""

import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from ranks import dt_run


class Shards(unittest.TestCase):
    def test_every_stage_trains_as_pytorch_does(self):
        run = dt_run(2, os.path.join(os.path.dirname(__file__), "torch_shard_ranks.py"), "check")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("the same bits"), 2, run.stdout)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not here (Debian: python3-torch)")
        sys.exit(77)
    unittest.main()
