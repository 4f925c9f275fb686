# SPDX-License-Identifier: Apache-2.0
"""Reductions that are functions of the caller's."""

import struct
import traceback
from typing import Any, Callable, Optional

from . import _raw
from ._errors import invalid

# Formats of the memoryviews that a function gets, by dtype. A dtype without a format shows its bits.
_FORMATS = "bBiIqQeHfd?hHBB"


class Combine:
    """A reduction of the caller's, where `op` is taken; function(in, inout) alone is one of single
    elements.

    function: combines in place, inout[i] = inout[i] op in[i]; associative and commutative. It gets
        memoryviews of the array's dtype (BF16 and 8-bit floats as unsigned integers) of any part of the
        elements, for numpy.asarray() say, and may keep none. It runs on any thread and must not call
        dt. After an exception this rank leaves inout as it is, and raises the first one from the call or
        the work (of a group: from its end) when the operation has ended. Other ranks do not see it, and
        the result is undefined on all.
    items: elements of the array that belong together, such as 2 for pairs
    """

    __slots__ = ("_function", "_items")

    def __init__(self, function: Callable[[memoryview, memoryview], Any], items: int = 1) -> None:
        if not callable(function) or items < 1:
            raise invalid(f"Combine: {function!r} of {items!r} items; give a function and at least 1")
        self._function = function
        self._items = items


class Combination:
    """A Combine in one operation."""

    __slots__ = ("_function", "_format", "_items", "element_bytes", "error", "__weakref__")

    def __init__(self, op: Any, dtype: int) -> None:
        combine = op if isinstance(op, Combine) else Combine(op)
        self._function = combine._function
        self._items = combine._items
        self._format = _FORMATS[dtype]
        self.element_bytes = struct.calcsize(self._format) * combine._items
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
            count *= self._items
            itemsize = self.element_bytes // self._items
            with _raw.view(source, count, self._format, itemsize) as given:
                with _raw.view(target, count, self._format, itemsize) as inout:
                    self._function(given, inout)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            # Nobody may look at the memory through the frames of the function later.
            traceback.clear_frames(error.__traceback__)
            if self.error is None:
                self.error = error

    def check(self) -> None:
        """Once the operation has ended: raises what the function raised."""
        if self.error is not None:
            raise self.error
