# SPDX-License-Identifier: Apache-2.0
"""torch_ddp_bench.py: the time of a training step of dt.torch.DistributedDataParallel beside that of
PyTorch's own with gloo, on 2 ranks, in rounds by turns: median [least .. most]."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))

if __name__ == "__main__":
    program = os.path.join(os.path.dirname(__file__), "torch_ranks.py")
    sys.exit(subprocess.run([os.environ["DT_COMMAND"], "run", "-n", "2", sys.executable, "-I", program,
                             "bench"], timeout=300, check=False).returncode)
