# SPDX-License-Identifier: Apache-2.0
"""Operations that ranks submit by name, each rank in an order of its own."""

import contextlib
import dataclasses
import struct
from typing import Any, Iterator, List, Optional, Tuple

from . import _raw
from ._arrays import Kind, Launch, Op, _limit
from ._comm import Comm
from ._errors import Error, invalid
from ._types import Handle, Owner, ReduceOp, Stream, Unpacker, integer, milliseconds, options_of, pack
from ._work import Work

_Batch = List[Tuple[Work, List[Any]]]


@dataclasses.dataclass(frozen=True)
class NamedOptions:
    """How names become operations; the same on all ranks."""

    fuse_bytes: int = 64 << 20  # allreduces of one dtype and op are put together up to so many; 0: each is alone
    cache: int = 1024  # names whose description does not travel again
    stall_ms: int = 60_000  # rank 0 logs a warning of a name that waits for ranks for so long; 0: none
    cycle_us: int = 1000  # how long rank 0 waits for more names while some are half there


@dataclasses.dataclass(frozen=True)
class NamedStatistics:
    """What this rank did by name so far."""

    answers: int  # lists of operations from rank 0
    tensors: int  # names in these
    operations: int  # that they became
    fused_tensors: int  # that shared an operation with others
    fused_bytes: int
    cache_hits: int  # names whose description did not travel
    stalls: int  # of rank 0: names that were warned of


class _Under(Comm):
    """The communicator, with operations that go by name."""

    __slots__ = ("_named", "_by", "_name")

    def __init__(self, by: "Named", name: str) -> None:
        comm = by._comm
        self._owner, self._handle, self._on_gpu = comm._owner, comm._handle, comm._on_gpu
        self._rank, self._size, self._waits = comm._rank, comm._size, comm._waits
        self._by = by
        self._named = by._open().number
        self._name = name

    def _run(self, kind: Kind, launch: Launch, op: Op, peer: int, stream: Stream, name: Optional[str],
             timeout: Optional[float], tables: Optional[bytes] = None) -> None:
        if self._by._batch is not None:
            raise invalid(f"{kind.operation}: it waits, and the group is submitted at its end; call "
                          f"{kind.operation}_async")
        super()._run(kind, self._kept(launch), op, peer, 0, name or self._name, timeout, tables)

    def _kept(self, launch: Launch) -> Launch:
        """With what takes the name kept as long as the arrays: without it the operation would be aborted. That is
        the handle, since a group is closed before its operations run."""
        sent, received, count, dtype, keep = launch
        return sent, received, count, dtype, (keep, self._by._open())

    def _start(self, kind: Kind, launch: Launch, op: Op, peer: int, stream: Stream, name: Optional[str],
               timeout: Optional[float], tables: Optional[bytes] = None) -> Work:
        launch = self._kept(launch)
        batch = self._by._batch
        if batch is None:
            return super()._start(kind, launch, op, peer, 0, name or self._name, timeout, tables)
        combination = None
        if op.__class__ is not ReduceOp:
            launch, op, combination, tables = self._resolve(kind, launch, op, tables)
        sent, received, count, dtype, keep = launch
        work = Work(keep, self, kind.operation, combination)
        custom = (0, 0) if combination is None else (1, combination.element_bytes)  # dt refuses it
        batch.append((work, [kind.number, dtype, op, integer(f"{kind.operation}: peer", peer), sent, received, count,
                             0 if timeout is None else _limit(kind, timeout), *custom, name or self._name]))
        return work


class Named(Owner):
    """Takes operations by name, from any thread and in any order, as Horovod does. Collective over `comm`, which
    is over host memory.

        named = dt.Named(comm)
        work = named.under("layer3.weight").allreduce_async(gradient, op="avg")
        work.wait()

    An operation runs once every rank has submitted the same under its name, which is free again once the work is
    done. allreduce, broadcast, allgather, reduce_scatter and alltoall go by name, with dt's own reductions; the
    time-out limits the wait for other ranks, and then the operation. After a time-out or the loss of a rank all
    works end with that error, and so do later calls: make a new one.
    """

    def __init__(self, comm: Comm, options: Optional[NamedOptions] = None) -> None:
        chosen = NamedOptions() if options is None else options
        packed = pack(options_of("Named", NamedOptions, chosen, "fuse_bytes cache stall_ms cycle_us"))
        self._comm = comm
        self._batch: Optional[_Batch] = None  # of a group
        super().__init__(comm._wait(
            None, lambda: Handle(_raw.named_create(comm._handle, packed), _raw.named_destroy)))

    def under(self, name: str) -> Comm:
        """The communicator, with operations that are submitted under this name of 1 to 1000 bytes. Everything
        else of it is as it was."""
        if not isinstance(name, str):
            raise TypeError(f"a name is a str, not {type(name).__name__}")
        if "\0" in name:
            raise invalid(f"Named.under: the name {name!r} has a NUL character; leave it out")
        return _Under(self, name)

    @contextlib.contextmanager
    def group(self) -> Iterator["Named"]:
        """What is submitted to the group that this gives runs together, once all ranks have submitted all of it;
        those ending in _async only. Nothing is submitted before the end of the block, nor if that raises.

            with named.group() as group:
                works = [group.under(name).allreduce_async(each) for name, each in gradients.items()]
        """
        part: "Named" = Named.__new__(Named)
        batch: _Batch = []
        Owner.__init__(part, self._open())
        part._comm, part._batch = self._comm, batch
        try:
            yield part
        finally:
            part.close()
        if batch:
            _submit(self._open().number, batch)

    def join(self, timeout: Optional[float] = None) -> Optional[int]:
        """For uneven inputs: this rank has no more, and gives zeros to what others submit until all have called
        this; these may be allreduces of sum, avg, bor and bxor only. Gives the rank that joined last; None when
        `timeout` seconds were over first: this rank stays joined, and may call it again to go on waiting."""
        last = self._comm._wait(None, _raw.named_join, self._open().number, milliseconds(timeout))
        return None if last < 0 else int(last)

    def report(self, timeout: Optional[float] = None) -> str:
        """The names that wait for other ranks, a line each, as rank 0 knows them; empty where none does."""
        return str(self._comm._wait(None, _raw.named_report, self._open().number, milliseconds(timeout)))

    def statistics(self) -> NamedStatistics:
        """What this rank did by name so far."""
        packed = Unpacker(_raw.named_stats(self._open().number))
        return NamedStatistics(*(packed.number() for _ in dataclasses.fields(NamedStatistics)))

    def close(self) -> None:
        """Drops it. What is not carried out yet ends with AbortedError, here and on the other ranks."""
        owner = self._owner
        super().close()
        if owner is not None and self._batch is None:
            owner.close()

    def __repr__(self) -> str:
        return f"<dt.Named{' closed' if self._owner is None else ''} over {self._comm!r}>"


def _submit(number: int, batch: _Batch) -> None:
    try:
        handles = _raw.named_submit_group(number, pack(part for _, parts in batch for part in parts))
        for (work, _), handle in zip(batch, struct.unpack(f"{len(batch)}q", handles)):
            work._handle = handle
    except (Error, TypeError):
        raise  # nothing was submitted
    except BaseException:
        # A signal's: the operations may be under way, and somebody may have no handle.
        for work, _ in batch:
            _raw.keep_forever(work._keep)
        raise
