# SPDX-License-Identifier: Apache-2.0
"""Which samples of a data set a rank sees."""

import array
import operator
import threading
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Union

from . import _raw
from ._comm import Comm
from ._errors import invalid
from ._types import Array, Handle, Owner, Unpacker

_STATE = ("epoch", "consumed", "size", "order")  # as in dt_sampler_state
_SLICE = 1 << 16  # indices that an iterator fetches at once
Weights = Union[Array, Iterable[float]]


def _doubles(values: Weights) -> Any:
    """A buffer of doubles: `values` itself where it is one."""
    try:
        view: Any = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        return array.array("d", values)  # type: ignore[arg-type]
    return view if view.format == "d" and view.contiguous and view.ndim == 1 else array.array("d", view.tolist())


class Sampler(Owner):
    """Deals a data set out to ranks, index for index as PyTorch's DistributedSampler.

    size: samples of the data set
    world_size, rank: who asks
    seed: equal on all ranks, taken modulo 2**64
    shuffle: False: in order
    drop_last: leave the tail out, instead of repeating samples from the front
    whole_batches: next() and batches() leave out a last batch that would be shorter
    block: > 0: shuffle blocks of so many consecutive samples, and the samples within each window, without
        memory for any number of them; 1: one shuffle of all
    window: with block: samples of the order that mix; 0: those of 16 blocks
    weights: how often each sample is drawn, with replacement
    draws: with weights: of an epoch, over all ranks; 0: size
    It begins at epoch 0. len(sampler) is how many samples this rank has in the epoch, or in what was left
    of it where load_state_dict() set in. Iterating gives all of these and does not move what next() gives.
    """

    def __init__(self, size: int, world_size: int = 1, rank: int = 0, *, seed: int = 0,
                 shuffle: bool = True, drop_last: bool = False, whole_batches: bool = False, block: int = 0, window: int = 0,
                 weights: Optional[Weights] = None, draws: int = 0) -> None:
        wrapped = (operator.index(seed) + 2**63) % 2**64 - 2**63
        packed = b"" if weights is None else _doubles(weights)
        if weights is not None and len(packed) != operator.index(size):
            raise invalid(f"Sampler: {len(packed)} weights for {size} samples; give one for each sample")
        number = _raw.sampler_create(world_size, rank, size, wrapped, not shuffle, bool(drop_last),
                                     bool(whole_batches), block, window, packed, draws)
        super().__init__(Handle(number, _raw.sampler_destroy))
        self._of = f"{operator.index(size)} samples, rank {rank} of {world_size}"
        self._lock = threading.RLock()  # dt's sampler may be used by one thread at a time

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch's order, and goes to its front. The epoch that is chosen already goes on where
        it is, unless all of it was taken: a resumed job calls this in its loop as ever."""
        with self._lock:
            _raw.sampler_set_epoch(self._handle, epoch)

    def check(self, comm: Comm) -> None:
        """Raises MismatchError on all ranks of `comm` unless their samplers belong together: the same
        data set, seed, order, epoch and place in it, another part for each. Collective."""
        comm._wait(None, self._check, comm)

    def _check(self, comm: Comm) -> None:
        with self._lock:
            _raw.sampler_check(self._handle, comm._handle)

    def indices(self, first: int = 0, count: Optional[int] = None) -> "array.array[int]":
        """A range of this rank's sample indices, to the end without `count`. NumPy takes it without a
        copy."""
        with self._lock:
            if count is None:
                count = max(len(self) - operator.index(first), 0)
            return array.array("q", _raw.sampler_indices(self._handle, first, count))

    def next(self, count: int) -> "array.array[int]":
        """This rank's next indices, fewer than `count` only at the end, or with whole_batches never; none: the epoch has ended. After
        that it raises InvalidStateError until set_epoch()."""
        with self._lock:
            return array.array("q", _raw.sampler_next(self._handle, count))

    def batches(self, size: int) -> "Iterator[array.array[int]]":
        """What next(size) gives until the epoch's end."""
        while batch := self.next(size):
            yield batch

    def state_dict(self, taken: int = -1) -> Dict[str, int]:
        """Where the job is, for a checkpoint, when every rank has taken as many samples as this one. It
        does not depend on the world size.

        taken: samples that this rank has used, of len(self), where a loader reads ahead; -1: all that
            next() gave
        """
        with self._lock:
            packed = Unpacker(_raw.sampler_save(self._handle, taken))
        return {name: packed.number() for name in _STATE}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where a job was: what was left of the epoch is dealt out to the ranks that there are now."""
        absent = [name for name in _STATE if name not in state]
        if absent:
            raise invalid(f"load_state_dict: the state has no {', '.join(absent)}; give what state_dict() gave")
        with self._lock:
            _raw.sampler_resume(self._handle, *(state[name] for name in _STATE))

    def __len__(self) -> int:
        with self._lock:
            return int(_raw.sampler_length(self._handle))

    def __iter__(self) -> Iterator[int]:
        first = 0
        while True:
            with self._lock:
                part = self.indices(first, max(min(len(self) - first, _SLICE), 0))
            yield from part
            first += len(part)
            if not part:
                return

    def __repr__(self) -> str:
        return f"<dt.Sampler of {self._of}{', closed' if self._handle == 0 else ''}>"
