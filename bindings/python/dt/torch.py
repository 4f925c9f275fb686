# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules trained with dt's reducer, and the backend "dt" of torch.distributed. Imports torch;
`import dt` alone does not."""

from typing import Any, Iterator, Mapping, Optional, Tuple

import torch

from ._batch_norm import SyncBatchNorm
from ._comm import Comm
from ._distributed_data_parallel import DistributedDataParallel
from ._outer import Outer, OuterOptions
from ._sharded_data_parallel import ShardedDataParallel
from ._tensors import any_buffer, broadcast, buffer, stream_of

if torch.distributed.is_available():
    from ._process_group import register as _register
    from ._process_group import shrink_group
    _register()

__all__ = ["DistributedDataParallel", "ShardedDataParallel", "SyncBatchNorm", "broadcast", "buffer", "check_equal",
           "outer", "shrink_group"]


def _tensors(values: Any, prefix: str = "") -> Iterator[Tuple[str, torch.Tensor]]:
    """All tensors in nested mappings and lists, with their names: "state.0.exp_avg"."""
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    for index, (key, each) in enumerate(pairs):
        name = f"{prefix}{index if isinstance(key, torch.Tensor) else key}"
        if isinstance(each, torch.Tensor):
            yield name, each
        elif isinstance(each, (Mapping, list, tuple)):
            yield from _tensors(each, name + ".")


def check_equal(module: Any, comm: Comm) -> None:
    """Raises MismatchError on all ranks unless all parameters and buffers of the module hold the same
    bytes; it names the first that differs and the ranks that have diverged. Collective.

    module: or an optimizer's state_dict(), or any mapping of names to tensors or to more of these; what
      is no tensor is left out
    """
    tensors = list(_tensors(module.state_dict() if isinstance(module, torch.nn.Module) else module))
    # First whether there are as many, else the calls below would not meet.
    layout = repr([(name, str(each.dtype), tuple(each.shape)) for name, each in tensors]).encode()
    everything = [("names and shapes", torch.tensor(list(layout), dtype=torch.uint8)), *tensors]
    for name, tensor in everything:
        whole = tensor.detach()
        if whole.is_cuda != comm.on_gpu:
            whole = whole.to("cuda" if comm.on_gpu else "cpu")
        whole = whole.contiguous().resolve_conj().resolve_neg()
        comm.check_equal(any_buffer(whole), name, stream=stream_of(whole.device))


def outer(module: torch.nn.Module, comm: Comm, options: Optional[OuterOptions] = None) -> Outer:
    """An outer optimizer of a module's parameters, where they lie in host memory now, by their names. Collective."""
    return Outer(comm, {name: buffer(each) for name, each in module.named_parameters()}, options)
