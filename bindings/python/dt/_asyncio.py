# SPDX-License-Identifier: Apache-2.0
"""Works as futures of asyncio: one epoll object per loop, over the eventfds of communicators and workers.

The eventfds are watched by edges and never read, so nothing is taken from others who watch them.
"""

import asyncio
import select
import weakref
from typing import Any, Dict

from ._errors import UnsupportedError

_EDGES = select.EPOLLIN | select.EPOLLET


class _Waker:
    """Completes the futures of one loop, on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._waiting: Dict["asyncio.Future[None]", Any] = {}
        loop.add_reader(self._epoll.fileno(), self._wake)

    def add(self, work: Any, future: "asyncio.Future[None]") -> None:
        """Completes `future` with what comes of `work`."""
        fd = work._comm.fileno()
        try:
            self._epoll.register(fd, _EDGES)
        except FileExistsError:
            pass  # an edge since then is still to be seen
        self._waiting[future] = work
        # Also when it is cancelled: it keeps the loop, and the loop what watches it.
        future.add_done_callback(self._forget)
        self._settle()  # it may have completed before it was watched

    def close(self) -> None:
        """Of a loop that has ended: nobody completes its futures any more."""
        self._waiting.clear()
        self._epoll.close()

    def _forget(self, future: "asyncio.Future[None]") -> None:
        self._waiting.pop(future, None)

    def _wake(self) -> None:
        self._epoll.poll(0)  # takes the edges away
        self._settle()

    def _settle(self) -> None:
        for future, work in list(self._waiting.items()):
            if _settled(work, future):
                self._forget(future)


def _settled(work: Any, future: "asyncio.Future[None]") -> bool:
    if future.done():  # cancelled: the work goes on by itself
        return True
    try:
        if not work.test():
            return False
        future.set_result(None)
    except Exception as error:  # pylint: disable=broad-exception-caught
        future.set_exception(error)
    return True


_wakers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker]" = (
    weakref.WeakKeyDictionary())


def _let_go_of_ended_loops() -> None:
    for loop in list(_wakers):
        waker = _wakers.pop(loop, None) if loop.is_closed() else None
        if waker is not None:
            waker.close()


def completion(work: Any) -> "asyncio.Future[Any]":
    """A future of the running loop that completes with the work."""
    loop = asyncio.get_running_loop()
    comm = work._comm
    if comm is None or comm._handle == 0:
        # What is closed has no eventfd any more; a thread waits instead.
        return loop.run_in_executor(None, work.wait)
    waker = _wakers.get(loop)
    if waker is None:
        _let_go_of_ended_loops()
        try:
            waker = _wakers[loop] = _Waker(loop)
        except NotImplementedError:  # a loop that watches no file descriptors
            return loop.run_in_executor(None, work.wait)
    future: "asyncio.Future[None]" = loop.create_future()
    try:
        waker.add(work, future)
    except UnsupportedError:  # host.progress = caller: nothing rings, and a thread that waits advances the work
        return loop.run_in_executor(None, work.wait)
    return future
