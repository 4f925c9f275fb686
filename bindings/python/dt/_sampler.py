# SPDX-License-Identifier: Apache-2.0
"""Which samples of a data set a rank sees."""

import array
import operator
import threading
from typing import Any, Iterator, Optional

from . import _raw
from ._types import Handle


class Sampler:
    """Deals a data set out to ranks, index for index as PyTorch's DistributedSampler.

    size: samples of the data set
    world_size, rank: who asks
    seed: equal on all ranks, taken modulo 2**64
    shuffle: False: in order
    drop_last: leave the tail out, instead of repeating samples from the front
    It begins at epoch 0. len(sampler) is how many samples this rank has per epoch.
    """

    def __init__(self, size: int, world_size: int = 1, rank: int = 0, *, seed: int = 0,
                 shuffle: bool = True, drop_last: bool = False) -> None:
        wrapped = (operator.index(seed) + 2**63) % 2**64 - 2**63
        number = _raw.sampler_create(world_size, rank, size, wrapped, not shuffle, bool(drop_last))
        self._owner: Optional[Handle] = Handle(number, _raw.sampler_destroy)
        self._handle: int = number
        self._lock = threading.RLock()  # dt's sampler may be used by one thread at a time

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch's order. A forgotten call repeats the same order."""
        with self._lock:
            _raw.sampler_set_epoch(self._handle, epoch)

    def check(self, comm: Any) -> None:
        """Raises MismatchError on all ranks of `comm` unless their samplers belong together: the same
        data set, seed, order and epoch, another part for each. Collective."""
        with self._lock:
            _raw.sampler_check(self._handle, comm._handle)

    def indices(self, first: int = 0, count: Optional[int] = None) -> "array.array[int]":
        """A range of this rank's sample indices, to the end without `count`. NumPy takes it without a
        copy; a job resumes by its position."""
        with self._lock:
            if count is None:
                count = max(len(self) - operator.index(first), 0)
            return array.array("q", _raw.sampler_indices(self._handle, first, count))

    def close(self) -> None:
        """Drops the handle."""
        self._handle = 0
        self._owner = None

    def __len__(self) -> int:
        with self._lock:
            return int(_raw.sampler_length(self._handle))

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices())

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
