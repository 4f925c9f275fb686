# SPDX-License-Identifier: Apache-2.0
"""What the programs for PyTorch's tensors have in common. Imported where there is no PyTorch or no GPU, it
ends the program with 77."""

import os
import sys

try:
    import torch
except ImportError:
    print("skipped: there is no PyTorch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: PyTorch sees no GPU")
    sys.exit(77)


def take_gpu():
    """The local rank's, or one that ranks share."""
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def values(rank, dtype=torch.float32, count=5003, step=0):
    """Small whole numbers, which every type holds, as it does their sums."""
    return ((torch.arange(count, device="cuda") * 3 + rank * 5 + step) % 7).to(dtype)


def same(what, given, wanted):
    """Raises if an element differs, or one of them is not on the GPU."""
    assert given.is_cuda == wanted.is_cuda, what
    assert torch.equal(given, wanted), f"{what}: {given.flatten()[:8].tolist()}, not {wanted.flatten()[:8].tolist()}"


def close(what, given, wanted, most):
    """Raises if an element is off by more than `most`."""
    error = (given.double().cpu() - wanted.double().cpu()).abs().max().item()
    assert error <= most, f"{what}: off by {error}, more than {most}"
