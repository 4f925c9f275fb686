# SPDX-License-Identifier: Apache-2.0
"""What collectives have in common: the table of kinds, their arrays, and how they are launched."""

import math
import re
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from . import _raw
from ._combine import Combination, Combine
from ._errors import AbortedError, Error, OutOfMemoryError, SystemCallError, invalid, invalid_state
from ._types import Array, Owner, ReduceOp, Stream, milliseconds, stream_number
from ._work import Work, _abandoned, sweep_first


# Whether two handles are of one communicator, by their numbers. These are not used again, so an answer stays true.
_same: Dict[Tuple[int, int], bool] = {}
_MOST_ANSWERS = 1000  # then all are forgotten; an answer that is missing is asked for again


class Held:
    """What keeps the arrays of the plain calls of a group: dt uses them until its end, or until the work of
    the group is done."""

    __slots__ = ("all", "_comm", "_on_gpu", "__weakref__")

    def __init__(self, comm: int, on_gpu: bool) -> None:
        self.all: List[Any] = []
        self._comm = comm
        self._on_gpu = on_gpu

    def is_of(self, comm: int, on_gpu: bool) -> bool:
        """Whether it is a group of this handle's communicator, which may have several; while it is open."""
        if comm == self._comm:
            return True
        # Over GPUs the question would cost GPU memory. Holding too much is harmless, and no call over GPUs waits.
        if on_gpu or self._on_gpu:
            return on_gpu and self._on_gpu
        same = _same.get((comm, self._comm))
        if same is None:
            try:
                same = bool(_raw.same_comm(comm, self._comm))
            except (OutOfMemoryError, SystemCallError):  # not known: holding too much is harmless
                return True
            except Error:  # one of them is closed or broken: no call of it joins a group
                return False
            if len(_same) >= _MOST_ANSWERS:
                _same.clear()
            _same[comm, self._comm] = same
        return same

    def outlive_group(self) -> None:
        """It also gets the arrays of plain calls as long as somebody keeps it: a call that began before the
        group may have become one of its operations."""
        _ended.append(weakref.ref(self, _ended.remove))

    def combinations(self) -> "Combinations":
        """The reductions by functions among the calls."""
        return Combinations([keep[-1] for keep in self.all
                             if isinstance(keep, tuple) and keep and isinstance(keep[-1], Combination)])


class Combinations:
    """Of a group."""

    __slots__ = ("_all",)

    def __init__(self, combinations: List[Combination]) -> None:
        self._all = combinations

    def check(self) -> None:
        """Raises the first exception of their functions."""
        for each in self._all:
            each.check()


# One for each group that is open, of any communicator and thread.
groups: List[Held] = []

_ended: List["weakref.ref[Held]"] = []  # see outlive_group()

# Where an operation has one table, nothing needs to tell two apart.
_TABLES = re.compile(r"\b(?:send|recv)_(?=counts|offsets)")

Op = Union[ReduceOp, str, Combine, Callable[["memoryview[Any]", "memoryview[Any]"], object]]
SUM = ReduceOp.SUM  # also of what reduces nothing

# Addresses of send and recv, count, dtype, and what keeps the arrays.
Launch = Tuple[int, int, int, int, Any]


def _hold(own: List[Held], keep: Any) -> None:
    """Also by the groups that have ended: their arrays are few, and their communicator may be closed, so that
    nobody can tell whether the call was of it."""
    for group in [*own, *(each() for each in list(_ended))]:
        if group is not None:
            group.all.append(keep)


class Kind:
    """One operation as data.

    number: of its dt_kind
    larger: the array that is `size` times as large as the other one; "": none
    root_has: the array that the root alone has; "": none
    """

    __slots__ = ("number", "operation", "larger", "root_has", "send", "recv")

    def __init__(self, number: int, operation: str, larger: str = "", root_has: str = "") -> None:
        self.number = number
        self.operation = operation
        self.larger = larger
        self.root_has = root_has
        self.send = operation + ": send"  # how messages call the arrays
        self.recv = operation + ": recv"


ALLREDUCE = Kind(0, "allreduce")
REDUCE = Kind(1, "reduce", root_has="recv")
BROADCAST = Kind(2, "broadcast")
ALLGATHER = Kind(3, "allgather", larger="recv")
REDUCE_SCATTER = Kind(4, "reduce_scatter", larger="send")
BARRIER = Kind(5, "barrier")
SEND = Kind(6, "send")
RECV = Kind(7, "recv")
ALLTOALL = Kind(8, "alltoall")
ALLTOALLV = Kind(9, "alltoallv")
GATHER = Kind(10, "gather", larger="recv", root_has="recv")
GATHERV = Kind(11, "gatherv", root_has="recv")
SCATTER = Kind(12, "scatter", larger="send", root_has="send")
SCATTERV = Kind(13, "scatterv", root_has="send")
ALLGATHERV = Kind(14, "allgatherv")
REDUCE_SCATTERV = Kind(15, "reduce_scatterv")


def _limit(kind: Kind, timeout: float) -> int:
    if timeout == math.inf:
        return -1
    limit = milliseconds(timeout)
    if limit == 0:
        raise invalid(f"{kind.operation}: a timeout of 0; give more than 0 seconds, math.inf for "
                      "no limit, or None for the communicator's")
    return limit


def _named(error: Error, kind: Kind) -> Error:
    """What dt says of the call, with the names of the operation and its arguments."""
    if isinstance(error, AbortedError):
        return error  # what a rank said when it aborted is its own
    text = str(error).replace("Comm.size", kind.operation)
    if kind is not ALLTOALLV:
        text = _TABLES.sub("", text)
    error.args = (text,)
    return error


class Arrays(Owner):
    """What Comm inherits."""

    __slots__ = ("_on_gpu", "_rank", "_size", "_waits")

    _on_gpu: bool
    _rank: int
    _size: int
    _waits: bool  # whether plain calls wait for other ranks
    _named: int = 0  # handle of the Named that operations are submitted to

    def _one(self, what: str, array: Array, writable: bool) -> Launch:
        """One array, in the place of both."""
        return _raw.one(array, writable, what, self._on_gpu)  # type: ignore[no-any-return]

    def _two(self, kind: Kind, send: Array, recv: Array) -> Tuple[int, int, int, int, int, Any]:
        return _raw.two(send, recv, kind.send, kind.recv,  # type: ignore[no-any-return]
                        kind.operation, self._on_gpu)

    def _not_root(self, kind: Kind, send: Any, recv: Any) -> Launch:
        """The one array of a rank that is not the root."""
        if kind.root_has == "recv":
            return self._one(kind.send, send, False)
        return self._one(kind.recv, recv, True)

    def _fitting(self, kind: Kind, send: Any, recv: Any, root: Optional[int] = None) -> Launch:
        """Both arrays, whose sizes fit together, or the one that this rank has."""
        if kind.root_has and root != self._rank:
            return self._not_root(kind, send, recv)
        sent, received, count, recv_count, dtype, keep = _raw.two(
            send, recv, kind.send, kind.recv, kind.operation, self._on_gpu)
        larger = kind.larger
        if not larger:
            if count == recv_count:
                return sent, received, count, dtype, keep
            rule = "both need the same number"
        elif larger == "recv":
            if recv_count == count * self._size:
                return sent, received, count, dtype, keep
            rule = f"recv needs {self._size} times as many (one part of each rank)"
        else:
            if count == recv_count * self._size:
                return sent, received, recv_count, dtype, keep
            rule = f"send needs {self._size} times as many (one part for each rank)"
        raise invalid(f"{kind.operation}: send has {count} elements and recv {recv_count}, but "
                      f"{rule}; give arrays of matching sizes")

    def _check_ungrouped(self, operation: str, result: str, instead: str = "") -> None:
        """Refuses an operation that uses a result at once, which is not there before the end of a group."""
        if self._own_groups():
            raise invalid_state(f"{operation}: inside a group the result {result} is not there yet{instead}")

    def _own_groups(self) -> List[Held]:
        """The open groups of this communicator, which any thread may have begun; at most one, but over GPUs."""
        return [each for each in list(groups) if each.is_of(self._handle, self._on_gpu)]

    def _resolve(self, kind: Kind, launch: Launch, op: Any, tables: Optional[bytes]
                 ) -> Tuple[Launch, ReduceOp, Optional[Combination], Optional[bytes]]:
        """A reduction by its name, or one of the caller's, which is kept with the arrays: then counts are in its
        elements."""
        if not (isinstance(op, Combine) or callable(op)):
            return launch, ReduceOp(op), None, tables
        sent, received, count, dtype, keep = launch
        combination = Combination(op, dtype)
        count = combination.elements(kind.operation, count)
        if tables is not None:
            tables = combination.tables(kind.operation, tables)
        return (sent, received, count, dtype, (keep, combination)), SUM, combination, tables

    def _run(self, kind: Kind, launch: Launch, op: Op, peer: int, stream: Stream,
             name: Optional[str], timeout: Optional[float], tables: Optional[bytes] = None) -> None:
        combination = None
        if op.__class__ is not ReduceOp:
            launch, op, combination, tables = self._resolve(kind, launch, op, tables)
        sent, received, count, dtype, keep = launch
        own = self._own_groups() if groups else None
        if own:
            _hold(own, keep)  # also if a signal ends this function after the call
        try:
            _raw.carry_out(keep, self._waits and not own, self._handle, kind.number, dtype, op,
                           peer, sent, received, count, tables,
                           stream and stream_number(stream) or 0,
                           0 if timeout is None else _limit(kind, timeout), name, combination,
                           self._named)
        except Error as error:
            raise _named(error, kind)
        if _abandoned:
            sweep_first()
        if groups or _ended:
            own = self._own_groups()
            _hold(own, keep)  # if another thread has begun the group meanwhile
        if combination is not None and not own:
            combination.check()

    def _start(self, kind: Kind, launch: Launch, op: Op, peer: int, stream: Stream,
               name: Optional[str], timeout: Optional[float],
               tables: Optional[bytes] = None) -> Work:
        combination = None
        if op.__class__ is not ReduceOp:
            launch, op, combination, tables = self._resolve(kind, launch, op, tables)
        sent, received, count, dtype, keep = launch
        stream = stream and stream_number(stream) or 0
        limit = 0 if timeout is None else _limit(kind, timeout)
        work = Work(keep, self, kind.operation, combination)
        try:
            work._handle = _raw.start(self._handle, kind.number, dtype, op, peer, sent, received,
                                      count, tables, stream, limit, name, combination, self._named)
        except Error as error:
            raise _named(error, kind)  # nothing was issued
        except TypeError:
            raise  # likewise
        except BaseException:
            # A signal's: the operation is under way, and nobody has its handle.
            _raw.keep_forever(keep)
            raise
        return work
