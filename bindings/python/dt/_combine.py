# SPDX-License-Identifier: Apache-2.0
"""Reductions that are functions of the caller's."""

import struct
from typing import Any, Callable, Optional

from . import _raw
from ._errors import invalid
from ._types import Dtype


class Combine:
    """A reduction of the caller's, where `op` is taken; function(in, inout) alone is one of single
    elements.

    function: combines in place, inout[i] = inout[i] op in[i]; associative and commutative. It gets
        memoryviews of the array's dtype (BF16 and 8-bit floats as unsigned integers) of any part of the
        elements, for numpy.asarray() say, which are copies. It runs on any thread and must not call
        dt. After an exception this rank leaves inout as it is, and raises the first one from the call or
        the work (of a group: from its end) when the operation has ended. Other ranks do not see it, and
        the result is undefined on all.
    items: elements of the array that belong together, such as 2 for pairs
    """

    __slots__ = ("_function", "_items")

    def __init__(self, function: Callable[["memoryview[Any]", "memoryview[Any]"], object], items: int = 1) -> None:
        if not callable(function) or items < 1:
            raise invalid(f"Combine: {function!r} of {items!r} items; give a function and at least 1")
        self._function = function
        self._items = items


class _Part(_raw.Region):
    """A copy of elements, which lives as long as a view of it: a function may keep what it gets."""

    __slots__ = ("keep",)

    keep: Any


class Combination:
    """A Combine in one operation."""

    __slots__ = ("_function", "_dtype", "_items", "element_bytes", "error", "__weakref__")

    def __init__(self, op: Any, dtype: int) -> None:
        combine = op if isinstance(op, Combine) else Combine(op)
        self._function = combine._function
        self._items = combine._items
        self._dtype = Dtype(dtype)
        self.element_bytes = self._dtype.itemsize * combine._items
        self.error: Optional[BaseException] = None

    def elements(self, operation: str, count: int) -> int:
        """Of `count` elements of the array."""
        if count % self._items != 0:
            raise invalid(f"{operation}: {count} is no multiple of the {self._items} items of an element "
                          "of Combine; give whole elements")
        return count // self._items

    def tables(self, operation: str, packed: bytes) -> bytes:
        """Counts and offsets in elements."""
        numbers = struct.unpack(f"{len(packed) // 8}q", packed)
        return struct.pack(f"{len(numbers)}q", *(self.elements(operation, each) for each in numbers))

    def run(self, source: int, target: int, count: int) -> None:
        """dt calls it, and takes no exception."""
        if self.error is not None:
            return
        try:
            given = self._copy(source, count)
            inout = self._copy(target, count)
            self._function(memoryview(given), memoryview(inout))
            with _raw.view(target, count * self.element_bytes) as ours:
                ours[:] = memoryview(inout).cast("B")
        except BaseException as error:  # pylint: disable=broad-exception-caught
            if self.error is None:
                self.error = error

    def _copy(self, address: int, count: int) -> "_Part":
        with _raw.view(address, count * self.element_bytes) as memory:
            data = bytearray(memory)
        place, _, _, _, keep = _raw.buffer(data, True, "Combine")
        part = _Part(place, count * self._items, self._dtype)
        part.keep = keep
        return part

    def check(self) -> None:
        """Once the operation has ended: raises what the function raised."""
        if self.error is not None:
            raise self.error
