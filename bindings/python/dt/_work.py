# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations, and who keeps their buffers."""

import math
import struct
import sys
import threading
import time
from typing import Any, Dict, Generator, Optional, Sequence

from . import _raw
from ._errors import Error, invalid
from ._types import Stream, Unique, let_go, milliseconds, stream_number

# A wait goes back to Python that often, for a signal such as Ctrl-C.
_SLICE_MS = 100

# What keeps the buffers of works that nobody holds any more, by handle: dt goes on with them. A signal
# may end any function of this module in any call, so buffers stay here until dt is done with them.
_abandoned: Dict[int, Any] = {}

# For plain calls, which wait in slices on the thread that handles signals.
_raw.set_waiting(_abandoned, threading.main_thread().ident)


def _finished(handle: int) -> bool:
    try:
        return bool(_raw.work_test(handle))
    except Error:
        return True  # it has failed, and dt no longer uses its buffers


def _retire(handle: int) -> bool:
    """Whether it has finished, so that its buffers are let go of."""
    if _finished(handle):
        if _abandoned.pop(handle, None) is not None:  # else another thread has it
            _raw.work_destroy(handle)
        return True
    if sys.is_finalizing():
        _raw.keep_forever(_abandoned.get(handle))  # dt may write there until the process is gone
    return False


def _slice_before(end: Optional[float]) -> int:
    if end is None:
        return _SLICE_MS
    return max(0, min(math.ceil((end - time.monotonic()) * 1000), _SLICE_MS))


def sweep() -> None:
    """Lets go of the buffers of abandoned works that have completed."""
    for handle in list(_abandoned):
        _retire(handle)


def sweep_first() -> None:
    """The same up to the first that is under way, so that a plain call tests few of them."""
    for handle in list(_abandoned):
        if not _retire(handle):
            break


def keep_all() -> None:
    """At the end of Python: buffers still in use stay where they are."""
    for keep in list(_abandoned.values()):
        _raw.keep_forever(keep)


class Work(Unique):
    """One asynchronous operation: what Comm's methods that end in _async give.

    Its buffers are dt's until it is done, and are kept alive as long, also when the Work is closed or
    forgotten before. `await work` works in any asyncio loop; cancelling the task that waits cancels
    nothing here.
    """

    __slots__ = ("_handle", "_keep", "_comm", "_operation", "_combination", "__weakref__")

    def __init__(self, keep: Any, comm: Any, operation: str, combination: Any = None) -> None:
        self._handle = 0  # the communicator issues the operation and sets it
        self._keep = keep
        self._comm = comm
        self._operation = operation
        self._combination = combination  # whose exception is raised, or None
        if _abandoned:
            sweep()

    def test(self) -> bool:
        """Whether it has completed; raises its error once it failed."""
        return self._ask(_raw.work_test)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        try:
            return self.test()
        except Exception:  # pylint: disable=broad-exception-caught
            if self._handle == 0:
                raise
            return True

    def error(self) -> Optional[Exception]:
        """Why it failed; None while it runs and when it succeeded."""
        try:
            self.test()
        except Exception as error:  # pylint: disable=broad-exception-caught
            if self._handle == 0:
                raise
            return error
        return None

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it has completed, `timeout` seconds at most; False when the time was over first,
        which cancels nothing. Raises its error if it failed."""
        limit = -1 if timeout is None else milliseconds(timeout)
        if 0 <= limit <= _SLICE_MS:
            return self._ask(_raw.work_wait, limit)
        end = None if limit < 0 else time.monotonic() + limit / 1000
        while not self._ask(_raw.work_wait, _slice_before(end)):
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def wait_stream(self, stream: Stream) -> None:
        """Orders it before later work of a CUDA stream. Over host memory it is wait()."""
        number = stream_number(stream)
        if not getattr(self._comm, "_on_gpu", True):  # closed works and those of a Ps have none
            self.wait()  # Ctrl-C ends it, and it raises what a function of a reduction raised
        else:
            _raw.work_wait_stream(self._handle, number)

    def close(self) -> None:
        """Lets go of it; the operation goes on."""
        keep = self._keep  # before the handle: see _ask()
        handle, self._handle = self._handle, 0
        if handle != 0 and keep is not None:
            _abandoned[handle] = keep  # before any call: a signal may end this function there
        self._keep = None
        self._comm = None
        if handle == 0:
            return
        if keep is None:
            _raw.work_destroy(handle)
        else:
            _retire(handle)

    def __del__(self) -> None:
        handle = self._handle
        if handle == 0:
            return
        if _raw.may_call():
            self.close()
        else:
            _abandoned[handle] = () if self._keep is None else self._keep  # let_go() may start no thread
            let_go(lambda: _retire(handle))

    def __repr__(self) -> str:
        try:
            state = "done" if self.test() else "under way"
        except Exception as error:  # pylint: disable=broad-exception-caught
            state = "closed" if self._handle == 0 else f"failed: {type(error).__name__}"
        return f"<dt.Work {self._operation}, {state}>"

    def __await__(self) -> Generator[Any, None, None]:
        if not self.test():
            from ._asyncio import completion  # asyncio is not loaded for those who do not use it
            yield from completion(self).__await__()

    def _ask(self, question: Any, *args: int) -> bool:
        """Buffers go once it has ended. A close() beside this has taken them before its handle is
        invalid, and then they are its own to keep."""
        handle = self._handle
        try:
            done = question(handle, *args)
        except Error:
            if handle != 0:
                self._keep = None
            raise
        if done:
            self._keep = None
            if self._combination is not None:
                self._combination.check()
        return bool(done)


def wait_any(works: Sequence[Work], timeout: Optional[float] = None) -> Optional[int]:
    """Index of the first work that has ended, well or not (ask it); None when `timeout` seconds were
    over first. The works may be of several communicators and jobs."""
    limit = milliseconds(timeout)
    if not works:
        raise invalid("wait_any: no works were given; there is nothing to wait for")
    packed = struct.pack(f"{len(works)}q", *(work._handle for work in works))
    end = None if limit < 0 else time.monotonic() + limit / 1000
    while True:
        index = _raw.work_wait_any(packed, _slice_before(end))
        if index >= 0:
            return int(index)
        if end is not None and time.monotonic() >= end:
            return None
