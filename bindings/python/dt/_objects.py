# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, pickled, on top of the collectives of arrays."""

import array
import itertools
import pickle
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ._errors import invalid, invalid_state

# Of all objects of one call. More means that a rank sent something else than sizes.
_LIMIT = 1 << 40
# In the place of a size: the rank has no objects to give, and all ranks raise.
_FAILED = -1


class Objects:
    """What Comm inherits.

    Sizes travel first, and all ranks see the same of them, so that an object which cannot be pickled
    is an error on every rank. Objects are unpickled where they arrive: only for ranks that you trust.
    """

    __slots__ = ()

    _on_gpu: bool
    _rank: int
    _size: int
    broadcast: Callable[..., None]
    allgather: Callable[..., None]
    allgatherv: Callable[..., None]
    gatherv: Callable[..., None]
    scatterv: Callable[..., None]
    _check_ungrouped: Callable[..., None]

    def broadcast_object(self, value: Any = None, root: int = 0, *, name: Optional[str] = None,
                         timeout: Optional[float] = None) -> Any:
        """Gives root's object, which is pickled, to every rank. Elsewhere `value` is ignored."""
        here = "broadcast_object"
        packed, sizes, error = self._packed(here, [value] if self._rank == root else [], 1, root)
        self.broadcast(sizes, root, name=name, timeout=timeout)
        self._check(here, sizes, root, error)
        data = packed[0] if self._rank == root else bytearray(sizes[0])
        self.broadcast(data, root, name=name, timeout=timeout)
        return value if self._rank == root else pickle.loads(data)

    def gather_objects(self, value: Any, root: int = 0, *, name: Optional[str] = None,
                       timeout: Optional[float] = None) -> Optional[List[Any]]:
        """A list of every rank's object, in rank order, on `root`; None elsewhere."""
        packed, sizes = self._exchanged("gather_objects", value, name, timeout)
        data = bytearray(sum(sizes)) if self._rank == root else None
        self.gatherv(packed, data, sizes, root, name=name, timeout=timeout)
        return None if data is None else _unpacked(data, sizes)

    def allgather_objects(self, value: Any, *, name: Optional[str] = None,
                          timeout: Optional[float] = None) -> List[Any]:
        """A list of every rank's object, in rank order, on every rank."""
        packed, sizes = self._exchanged("allgather_objects", value, name, timeout)
        data = bytearray(sum(sizes))
        self.allgatherv(packed, data, sizes, name=name, timeout=timeout)
        return _unpacked(data, sizes)

    def scatter_objects(self, values: Optional[Sequence[Any]] = None, root: int = 0, *,
                        name: Optional[str] = None, timeout: Optional[float] = None) -> Any:
        """Gives each rank its object of root's list. Elsewhere `values` is ignored."""
        here = "scatter_objects"
        at_root = self._rank == root
        packed, sizes, error = self._packed(here, values if at_root else [], self._size, root)
        self.broadcast(sizes, root, name=name, timeout=timeout)
        self._check(here, sizes, root, error)
        own = bytearray(sizes[self._rank])
        self.scatterv(b"".join(packed) if at_root else None, sizes if at_root else None, own, root,
                      name=name, timeout=timeout)
        return pickle.loads(own)

    def _packed(self, here: str, values: Optional[Sequence[Any]], count: int,
                giver: int) -> Tuple[List[bytes], "array.array[int]", Optional[Exception]]:
        """The pickled objects of the rank that gives them, and their sizes, or what says that it
        has none; of other ranks room for those."""
        if self._on_gpu:
            raise invalid(f"{here}: objects travel through host memory, and the communicator is over"
                          " GPU memory; use job.store, or a job over host memory")
        self._check_ungrouped(here, "of the sizes")
        if giver != self._rank:
            return [], array.array("q", [0] * count), None
        try:
            if values is None or len(values) != count:
                given = "None" if values is None else f"{len(values)} objects"
                raise invalid(f"{here}: values is {given}; give one for each of the {count} ranks")
            packed = [pickle.dumps(each, pickle.HIGHEST_PROTOCOL) for each in values]
        except Exception as error:  # pylint: disable=broad-exception-caught
            return [], array.array("q", [_FAILED] * count), error
        return packed, array.array("q", map(len, packed)), None

    def _exchanged(self, here: str, value: Any, name: Optional[str],
                   timeout: Optional[float]) -> Tuple[bytes, "array.array[int]"]:
        packed, own, error = self._packed(here, [value], 1, self._rank)
        sizes = array.array("q", [0] * self._size)
        self.allgather(own, sizes, name=name, timeout=timeout)
        for rank, size in enumerate(sizes):
            self._check(here, [size], rank, error)
        return packed[0], sizes

    def _check(self, here: str, sizes: Sequence[int], rank: int,
               error: Optional[Exception]) -> None:
        """Whether these sizes, of what one rank gives, are sizes."""
        if error is not None and rank == self._rank:
            raise error
        if _FAILED in sizes:
            raise invalid_state(f"{here}: rank {rank} could not give its objects; its own "
                                "error says why")
        if min(sizes) < 0 or sum(sizes) > _LIMIT:
            raise invalid_state(f"{here}: rank {rank} sent sizes that cannot be "
                                f"({list(sizes)[:4]}); see that all ranks call {here}()")


def _unpacked(data: bytearray, sizes: Sequence[int]) -> List[Any]:
    view = memoryview(data)
    ends = list(itertools.accumulate(sizes))
    return [pickle.loads(view[end - size:end]) for size, end in zip(sizes, ends)]
