# SPDX-License-Identifier: Apache-2.0
"""Functions that reduce the buckets of a reducer in its place."""

import dataclasses
import struct
from typing import Callable, List, Optional, Tuple

from . import _raw
from ._errors import invalid
from ._memory import Region
from ._types import Dtype
from ._work import Work


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A full bucket, for the function of Reducer.set_hook()."""

    index: int  # in launch order
    last: bool  # of the step
    params: Tuple[int, ...]  # indices of its parameters, in the order of memory
    # Gradients at multiples of 256 bytes, and padding of any value, or those of ReducerOptions.grads one behind the
    # other; for the call alone.
    data: Region
    stream: int  # on GPUs the CUDA stream in whose order the gradients are complete

    def __repr__(self) -> str:
        return f"<dt.Bucket {self.index} of {len(self.params)} parameters, {self.data.count} elements>"


Hook = Callable[[Bucket, int], Optional[Work]]


class HookCalls:
    """What dt calls for a reducer."""

    __slots__ = ("_function", "_on_gpu", "_combined", "error")

    def __init__(self, function: Hook, on_gpu: bool) -> None:
        self._function = function
        self._on_gpu = on_gpu
        self._combined: List[Work] = []  # works of this step whose reduction is a function, which may raise
        self.error: Optional[BaseException] = None

    def run(self, index: int, last: int, params: bytes, address: int, count: int, dtype: int,
            stream: int, stage: int) -> int:
        """dt calls it, and takes no exception."""
        try:
            indices = struct.unpack(f"{len(params) // 4}i", params)
            data = Region(address, count, Dtype(dtype), self._on_gpu)
            work = self._function(Bucket(index, bool(last), indices, data, stream), stage)
            if work is None:
                return 0
            if not isinstance(work, Work):
                raise invalid(f"Reducer.set_hook: the function gave {work!r}; give a dt.Work or None")
            if work._combination is not None:
                self._combined.append(work)
            return int(_raw.work_share(work._handle))
        except BaseException as error:  # pylint: disable=broad-exception-caught
            if self.error is None:
                self.error = error
            return -1

    def forget(self) -> None:
        """The step has failed, and its works with it."""
        self._combined = []

    def end_step(self) -> None:
        """Raises what a reduction of the step has raised."""
        works, self._combined = self._combined, []
        for work in works:
            work.wait()  # it is done
