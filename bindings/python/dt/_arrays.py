# SPDX-License-Identifier: Apache-2.0
"""What collectives have in common: their arrays, their groups and how they are issued."""

from typing import Any, List, Tuple

from . import _raw
from ._errors import Error, invalid
from ._types import Dtype
from ._work import Work

_buffer = _raw.buffer

# For each group that is open, what keeps the arrays of its plain calls: dt uses them until its end.
# A communicator may have several handles, so any group counts for all calls.
groups: List[List[Any]] = []


def _hold(keep: Any) -> None:
    for group in list(groups):
        group.append(keep)


def carry_out(call: Any, keep: Any, *args: Any) -> None:
    if groups:
        _hold(keep)  # also if a signal ends this function after the call
    call(*args)
    if groups:
        _hold(keep)  # if another thread has begun the group meanwhile


class Names:
    """How messages call an operation and its arrays."""

    __slots__ = ("operation", "send", "recv")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.send = operation + ": send"
        self.recv = operation + ": recv"


def _wrong_device(what: str, on_gpu: bool) -> Error:
    if on_gpu:
        return invalid(f"{what}: the array is GPU memory, and the communicator is over host memory; "
                       'start the job with backend.name = "nccl", or copy the array to the host')
    return invalid(f"{what}: the array is host memory, and the communicator is over GPU memory; copy it "
                   "to the rank's GPU")


def wrong_count(names: Names, sent: int, received: int, rule: str) -> Error:
    return invalid(f"{names.operation}: send has {sent} elements and recv {received}, but {rule}; give "
                   "arrays of matching sizes")


class Arrays:
    """What Comm inherits."""

    __slots__ = ("_handle", "_on_gpu", "_rank", "_size")

    _handle: int
    _on_gpu: bool
    _rank: int
    _size: int

    def _one(self, what: str, array: Any, writable: bool) -> Tuple[int, int, int, Any]:
        address, count, dtype, on_gpu, keep = _buffer(array, writable, what)
        if on_gpu is not self._on_gpu:
            raise _wrong_device(what, on_gpu)
        return address, count, dtype, keep

    def _two(self, names: Names, send: Any, recv: Any) -> Tuple[int, int, int, int, int, Any]:
        sent, send_count, dtype, on_gpu, keep = _buffer(send, False, names.send)
        received, count, recv_dtype, recv_on_gpu, keep_recv = _buffer(recv, True, names.recv)
        if on_gpu is not self._on_gpu:
            raise _wrong_device(names.send, on_gpu)
        if recv_on_gpu is not self._on_gpu:
            raise _wrong_device(names.recv, recv_on_gpu)
        if dtype != recv_dtype:
            raise invalid(f"{names.operation}: send is of {Dtype(dtype).name} and recv of "
                          f"{Dtype(recv_dtype).name}; give two arrays of one dtype")
        return sent, received, send_count, count, dtype, (keep, keep_recv)

    def _issue(self, call: Any, keep: Any, *args: Any) -> Work:
        work = Work(keep, self)
        try:
            work._handle = call(self._handle, *args)
        except (Error, TypeError):
            raise  # nothing was issued
        except BaseException:
            _raw.keep_forever(keep)  # a signal's: the operation is under way, and nobody has its handle
            raise
        return work
