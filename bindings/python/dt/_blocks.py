# SPDX-License-Identifier: Apache-2.0
"""Collectives in which elements only change their place: alltoall, gather, scatter and those with a
count for each rank."""

import itertools
import operator
import struct
from typing import Any, List, Optional, Sequence, Tuple

from ._arrays import (ALLGATHERV, ALLTOALL, ALLTOALLV, GATHER, GATHERV, REDUCE_SCATTERV, SCATTER,
                      SCATTERV, SUM, Arrays, Kind, Launch, Op)
from ._errors import invalid
from ._types import Array, Stream
from ._work import Work

Numbers = Optional[Sequence[int]]
# Counts, and offsets or None.
Table = Tuple[List[int], Optional[List[int]]]


def _behind(counts: Sequence[int]) -> List[int]:
    """Offsets of blocks that lie one behind the other."""
    return [0] + list(itertools.accumulate(counts))[:-1]


def _packed(*tables: Table) -> bytes:
    """All counts, and then, where any has offsets, those of all."""
    numbers = [each for counts, _ in tables for each in counts]
    if any(offsets is not None for _, offsets in tables):
        for counts, offsets in tables:
            numbers += _behind(counts) if offsets is None else offsets
    return struct.pack(f"{len(numbers)}q", *numbers)


class Blocks(Arrays):
    """What Comm inherits. The blocks of an array lie one behind the other, in rank order, or where
    offsets say."""

    __slots__ = ()

    def _for_each(self, kind: Kind, what: str, one: str, values: Sequence[int]) -> List[int]:
        """Counts or offsets, none below 0; `one`: how to call one of them, with its article."""
        numbers = [operator.index(each) for each in values]
        if len(numbers) != self._size:
            raise invalid(f"{kind.operation}: {what} has {len(numbers)} {one.split()[1]}s, but the "
                          f"communicator has {self._size} ranks; give one for each rank")
        for rank, each in enumerate(numbers):
            if each < 0:
                raise invalid(f"{kind.operation}: {what}[{rank}] is {each}; give {one} of at least 0")
        return numbers

    def _table(self, kind: Kind, what: str, counts: Numbers, array: str, count: int,
               offsets: Numbers) -> Table:
        """The counts and offsets, checked against the array that they divide."""
        if counts is None:
            raise invalid(f"{kind.operation}: {what} is None; give a count for each of the "
                          f"{self._size} ranks")
        values = self._for_each(kind, what, "a count", counts)
        if offsets is not None:
            return values, self._offsets(kind, what, values, array, count, offsets)
        if sum(values) != count:
            raise invalid(f"{kind.operation}: {what} are {sum(values)} elements together, but {array} "
                          f"has {count}; give an array of as many elements")
        return values, None

    def _offsets(self, kind: Kind, counts_what: str, counts: List[int], array: str, count: int,
                 offsets: Sequence[int]) -> List[int]:
        what = counts_what.replace("counts", "offsets")
        begins = self._for_each(kind, what, "an offset", offsets)
        for rank, each in enumerate(counts):
            if each == 0:
                begins[rank] = 0  # an empty block lies anywhere
            elif begins[rank] > count - each:
                raise invalid(f"{kind.operation}: the block of rank {rank} does not lie in {array}: it "
                              f"has {each} elements and {what}[{rank}] is {begins[rank]}, but {array} "
                              f"has {count}; give a smaller offset or a larger array")
        return begins

    # ---- Arrays of each operation ----

    def _halves(self, send: Array, recv: Array) -> Launch:
        sent, received, count, dtype, keep = self._fitting(ALLTOALL, send, recv)
        if count % self._size != 0:
            raise invalid(f"alltoall: send has {count} elements, which is no multiple of the "
                          f"{self._size} ranks; give equal parts, or use alltoallv")
        return sent, received, count // self._size, dtype, keep

    def _pairs(self, send: Array, send_counts: Numbers, send_offsets: Numbers, recv: Array,
               recv_counts: Numbers, recv_offsets: Numbers) -> Tuple[Launch, bytes]:
        sent, received, count, recv_count, dtype, keep = self._two(ALLTOALLV, send, recv)
        to = self._table(ALLTOALLV, "send_counts", send_counts, "send", count, send_offsets)
        come = self._table(ALLTOALLV, "recv_counts", recv_counts, "recv", recv_count, recv_offsets)
        return (sent, received, 0, dtype, keep), _packed(to, come)

    def _divided(self, kind: Kind, send: Any, recv: Any, counts: Numbers, offsets: Numbers,
                 root: Optional[int] = None) -> Tuple[Launch, bytes]:
        """Of one array with a table, and one that has this rank's block."""
        if kind.root_has and root != self._rank:
            return self._not_root(kind, send, recv), b""
        sent, received, count, recv_count, dtype, keep = self._two(kind, send, recv)
        if kind in (SCATTERV, REDUCE_SCATTERV):
            whole, whole_count, own, own_count = "send", count, "recv", recv_count
        else:
            whole, whole_count, own, own_count = "recv", recv_count, "send", count
        table = self._table(kind, "counts", counts, whole, whole_count, offsets)
        if table[0][self._rank] != own_count:
            raise invalid(f"{kind.operation}: counts[{self._rank}], which is this rank's, is "
                          f"{table[0][self._rank]}, but {own} has {own_count} elements; give an array "
                          "of as many")
        return (sent, received, own_count, dtype, keep), _packed(table)

    # ---- Collectives ----

    def alltoall(self, send: Array, recv: Array, *, stream: Stream = 0, name: Optional[str] = None,
                 timeout: Optional[float] = None) -> None:
        """Gives each rank its part of send, and gathers everybody's part for this rank in recv, in rank
        order; both have one part for each rank and may not overlap."""
        self._run(ALLTOALL, self._halves(send, recv), SUM, 0, stream, name, timeout)

    def alltoall_async(self, send: Array, recv: Array, *, stream: Stream = 0,
                       name: Optional[str] = None, timeout: Optional[float] = None) -> Work:
        """As alltoall(), with a Work."""
        return self._start(ALLTOALL, self._halves(send, recv), SUM, 0, stream, name, timeout)

    def alltoallv(self, send: Array, send_counts: Sequence[int], recv: Array,
                  recv_counts: Sequence[int], *, send_offsets: Numbers = None,
                  recv_offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                  timeout: Optional[float] = None) -> None:
        """As alltoall(), with a count for each pair of ranks: send_counts[r] elements go to rank r, and
        recv_counts[r] come from it. The blocks lie one behind the other, or in send from send_offsets[r]
        on and in recv, where they may not overlap, from recv_offsets[r] on; what lies between them stays
        as it is. Where the two sides differ, all ranks get MismatchError."""
        launch, tables = self._pairs(send, send_counts, send_offsets, recv, recv_counts, recv_offsets)
        self._run(ALLTOALLV, launch, SUM, 0, stream, name, timeout, tables)

    def alltoallv_async(self, send: Array, send_counts: Sequence[int], recv: Array,
                        recv_counts: Sequence[int], *, send_offsets: Numbers = None,
                        recv_offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                        timeout: Optional[float] = None) -> Work:
        """As alltoallv(), with a Work."""
        launch, tables = self._pairs(send, send_counts, send_offsets, recv, recv_counts, recv_offsets)
        return self._start(ALLTOALLV, launch, SUM, 0, stream, name, timeout, tables)

    def gather(self, send: Array, recv: Optional[Array] = None, root: int = 0, *, stream: Stream = 0,
               name: Optional[str] = None, timeout: Optional[float] = None) -> None:
        """Gathers everybody's elements in rank order on `root`, where recv is `size` times as large as
        send; elsewhere recv is ignored."""
        self._run(GATHER, self._fitting(GATHER, send, recv, root), SUM, root, stream, name, timeout)

    def gather_async(self, send: Array, recv: Optional[Array] = None, root: int = 0, *,
                     stream: Stream = 0, name: Optional[str] = None,
                     timeout: Optional[float] = None) -> Work:
        """As gather(), with a Work."""
        return self._start(GATHER, self._fitting(GATHER, send, recv, root), SUM, root, stream, name,
                           timeout)

    def gatherv(self, send: Array, recv: Optional[Array] = None, counts: Numbers = None,
                root: int = 0, *, offsets: Numbers = None, stream: Stream = 0,
                name: Optional[str] = None, timeout: Optional[float] = None) -> None:
        """As gather(), with counts[r] elements of rank r, one behind the other or from offsets[r] on, where
        they may not overlap; elsewhere than on root, recv, counts and offsets are ignored. Where a rank
        sends another count, all ranks get MismatchError."""
        launch, tables = self._divided(GATHERV, send, recv, counts, offsets, root)
        self._run(GATHERV, launch, SUM, root, stream, name, timeout, tables)

    def gatherv_async(self, send: Array, recv: Optional[Array] = None, counts: Numbers = None,
                      root: int = 0, *, offsets: Numbers = None, stream: Stream = 0,
                      name: Optional[str] = None, timeout: Optional[float] = None) -> Work:
        """As gatherv(), with a Work."""
        launch, tables = self._divided(GATHERV, send, recv, counts, offsets, root)
        return self._start(GATHERV, launch, SUM, root, stream, name, timeout, tables)

    def scatter(self, send: Optional[Array], recv: Array, root: int = 0, *, stream: Stream = 0,
                name: Optional[str] = None, timeout: Optional[float] = None) -> None:
        """Gives each rank its part of root's send, which is `size` times as large as recv; elsewhere send
        is ignored and may be None."""
        self._run(SCATTER, self._fitting(SCATTER, send, recv, root), SUM, root, stream, name, timeout)

    def scatter_async(self, send: Optional[Array], recv: Array, root: int = 0, *, stream: Stream = 0,
                      name: Optional[str] = None, timeout: Optional[float] = None) -> Work:
        """As scatter(), with a Work."""
        return self._start(SCATTER, self._fitting(SCATTER, send, recv, root), SUM, root, stream, name,
                           timeout)

    def scatterv(self, send: Optional[Array], counts: Numbers, recv: Array, root: int = 0, *,
                 offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                 timeout: Optional[float] = None) -> None:
        """As scatter(), with counts[r] elements for rank r, one behind the other or from offsets[r] on;
        elsewhere than on root, send, counts and offsets are ignored and may be None. Where a rank expects
        another count, all ranks get MismatchError."""
        launch, tables = self._divided(SCATTERV, send, recv, counts, offsets, root)
        self._run(SCATTERV, launch, SUM, root, stream, name, timeout, tables)

    def scatterv_async(self, send: Optional[Array], counts: Numbers, recv: Array, root: int = 0, *,
                       offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                       timeout: Optional[float] = None) -> Work:
        """As scatterv(), with a Work."""
        launch, tables = self._divided(SCATTERV, send, recv, counts, offsets, root)
        return self._start(SCATTERV, launch, SUM, root, stream, name, timeout, tables)

    def allgatherv(self, send: Array, recv: Array, counts: Sequence[int], *,
                   offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                   timeout: Optional[float] = None) -> None:
        """As allgather(), with counts[r] elements of rank r, one behind the other or from offsets[r] on,
        where they may not overlap; all ranks name the same counts, or all get MismatchError. Offsets may
        differ between ranks."""
        launch, tables = self._divided(ALLGATHERV, send, recv, counts, offsets)
        self._run(ALLGATHERV, launch, SUM, 0, stream, name, timeout, tables)

    def allgatherv_async(self, send: Array, recv: Array, counts: Sequence[int], *,
                         offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                         timeout: Optional[float] = None) -> Work:
        """As allgatherv(), with a Work."""
        launch, tables = self._divided(ALLGATHERV, send, recv, counts, offsets)
        return self._start(ALLGATHERV, launch, SUM, 0, stream, name, timeout, tables)

    def reduce_scatterv(self, send: Array, counts: Numbers, recv: Array, op: Op = SUM, *,
                        offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                        timeout: Optional[float] = None) -> None:
        """As reduce_scatter(), with counts[r] elements for rank r, one behind the other or from
        offsets[r] on. The counts are the same on all ranks, or all ranks get MismatchError. recv may be
        this rank's block of send, where no other block overlaps it. Statistics count one reduce for each rank."""
        launch, tables = self._divided(REDUCE_SCATTERV, send, recv, counts, offsets)
        self._run(REDUCE_SCATTERV, launch, op, 0, stream, name, timeout, tables)

    def reduce_scatterv_async(self, send: Array, counts: Numbers, recv: Array, op: Op = SUM, *,
                              offsets: Numbers = None, stream: Stream = 0, name: Optional[str] = None,
                              timeout: Optional[float] = None) -> Work:
        """As reduce_scatterv(), with a Work."""
        launch, tables = self._divided(REDUCE_SCATTERV, send, recv, counts, offsets)
        return self._start(REDUCE_SCATTERV, launch, op, 0, stream, name, timeout, tables)
