# SPDX-License-Identifier: Apache-2.0
"""Calls that wait for other ranks, and that C cannot interrupt: Ctrl-C ends them all the same."""

import os
import queue
import threading
from typing import Any, Callable, List, TypeVar

from ._work import _SLICE_MS

Result = TypeVar("Result")

_main = threading.main_thread().ident
_idle: List["queue.SimpleQueue[Any]"] = []  # of helpers that wait for a call
_over = False  # Python ends: no other thread comes back from dt


def _serve(calls: "queue.SimpleQueue[Any]") -> None:
    while True:
        function, args, keep, outcome, done = calls.get()
        try:
            outcome.append((function(*args), None))
        except BaseException as error:
            outcome.append((None, error))
        del function, args, keep, outcome  # a result that nobody waits for any more is closed here
        _idle.append(calls)
        done.release()
        del done


def _helper() -> "queue.SimpleQueue[Any]":
    try:
        return _idle.pop()
    except IndexError:
        calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name="dt helper", daemon=True).start()
        return calls


def interruptible(keep: Any, function: Callable[..., Result], *args: Any) -> Result:
    """function(*args). On the main thread, which handles signals, a helper carries it out; when a
    signal's handler raises meanwhile, it goes on there, and keeps `keep` until it is done."""
    if _over or threading.get_ident() != _main:
        return function(*args)
    try:
        calls = _helper()
    except RuntimeError:  # Python starts no more threads
        return function(*args)
    outcome: List[Any] = []
    done = threading.Lock()
    done.acquire()
    calls.put((function, args, keep, outcome, done))
    try:
        while not done.acquire(timeout=_SLICE_MS / 1000):
            pass
    except BaseException:
        del outcome  # whoever keeps the traceback keeps this frame, and must not keep a late result
        raise
    result, error = outcome.pop()
    if error is None:
        return result  # type: ignore[no-any-return]
    try:
        raise error
    finally:
        del error  # it refers to this frame


def stop() -> None:
    """From now on calls are carried out by who makes them."""
    global _over
    _over = True


os.register_at_fork(after_in_child=_idle.clear)
