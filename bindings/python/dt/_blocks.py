# SPDX-License-Identifier: Apache-2.0
"""Collectives in which elements only change their place: alltoall, gather, scatter and those with a count
for each rank."""

import itertools
import operator
import struct
from typing import Any, List, Optional, Sequence, Tuple

from . import _raw
from ._arrays import Arrays, Names, carry_out, wrong_count
from ._errors import invalid
from ._types import stream_number
from ._work import Work

_ALLTOALL = Names("alltoall")
_ALLTOALLV = Names("alltoallv")
_GATHER = Names("gather")
_GATHERV = Names("gatherv")
_SCATTER = Names("scatter")
_SCATTERV = Names("scatterv")
_ALLGATHERV = Names("allgatherv")


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
    """What Comm inherits. The blocks of an array lie one behind the other, in rank order, or where offsets
    say."""

    __slots__ = ()

    def _for_each(self, names: Names, what: str, one: str, values: Sequence[int]) -> List[int]:
        """Counts or offsets, none below 0; `one`: how to call one of them, with its article."""
        numbers = [operator.index(each) for each in values]
        if len(numbers) != self._size:
            raise invalid(f"{names.operation}: {what} has {len(numbers)} {one.split()[1]}s, but the "
                          f"communicator has {self._size} ranks; give one for each rank")
        for rank, each in enumerate(numbers):
            if each < 0:
                raise invalid(f"{names.operation}: {what}[{rank}] is {each}; give {one} of at least 0")
        return numbers

    def _counts(self, names: Names, what: str, counts: Optional[Sequence[int]], array: str, count: int,
                offsets: Optional[Sequence[int]]) -> Table:
        """The counts and offsets, checked against the array that they divide."""
        if counts is None:
            raise invalid(f"{names.operation}: {what} is None; give a count for each of the {self._size} "
                          "ranks")
        values = self._for_each(names, what, "a count", counts)
        if offsets is not None:
            return values, self._offsets(names, what, values, array, count, offsets)
        if sum(values) != count:
            raise invalid(f"{names.operation}: {what} are {sum(values)} elements together, but {array} has "
                          f"{count}; give an array of as many elements")
        return values, None

    def _offsets(self, names: Names, counts_what: str, counts: List[int], array: str, count: int,
                 offsets: Sequence[int]) -> List[int]:
        what = counts_what.replace("counts", "offsets")
        begins = self._for_each(names, what, "an offset", offsets)
        for rank, each in enumerate(counts):
            if each == 0:
                begins[rank] = 0  # an empty block lies anywhere
            elif begins[rank] > count - each:
                raise invalid(f"{names.operation}: the block of rank {rank} does not lie in {array}: it has "
                              f"{each} elements and {what}[{rank}] is {begins[rank]}, but {array} has "
                              f"{count}; give a smaller offset or a larger array")
        return begins

    def _own(self, names: Names, what: str, counts: Sequence[int], array: str, count: int) -> None:
        if counts[self._rank] != count:
            raise invalid(f"{names.operation}: {what}[{self._rank}], which is this rank's, is "
                          f"{counts[self._rank]}, but {array} has {count} elements; give an array of as many")

    # ---- Arrays of each operation ----

    def _exchanging(self, send: Any, recv: Any) -> Tuple[int, int, int, int, Any]:
        sent, received, count, recv_count, dtype, keep = self._two(_ALLTOALL, send, recv)
        if count != recv_count:
            raise wrong_count(_ALLTOALL, count, recv_count, "both need the same number")
        if count % self._size != 0:
            raise invalid(f"alltoall: send has {count} elements, which is no multiple of the {self._size} "
                          "ranks; give equal parts, or use alltoallv")
        return sent, received, count // self._size, dtype, keep

    def _exchanging_v(self, send: Any, send_counts: Sequence[int], send_offsets: Optional[Sequence[int]],
                      recv: Any, recv_counts: Sequence[int],
                      recv_offsets: Optional[Sequence[int]]) -> Tuple[int, int, bytes, int, Any]:
        sent, received, count, recv_count, dtype, keep = self._two(_ALLTOALLV, send, recv)
        to = self._counts(_ALLTOALLV, "send_counts", send_counts, "send", count, send_offsets)
        come = self._counts(_ALLTOALLV, "recv_counts", recv_counts, "recv", recv_count, recv_offsets)
        return sent, received, _packed(to, come), dtype, keep

    def _gathering_root(self, send: Any, recv: Any, root: int) -> Tuple[int, int, int, int, Any]:
        if root != self._rank:
            address, count, dtype, keep = self._one(_GATHER.send, send, False)
            return address, 0, count, dtype, keep
        sent, received, count, recv_count, dtype, both = self._two(_GATHER, send, recv)
        if recv_count != count * self._size:
            raise wrong_count(_GATHER, count, recv_count,
                              f"recv needs {self._size} times as many (one part of each rank)")
        return sent, received, count, dtype, both

    def _gathering_root_v(self, send: Any, recv: Any, counts: Optional[Sequence[int]],
                          offsets: Optional[Sequence[int]],
                          root: int) -> Tuple[int, int, int, bytes, int, Any]:
        if root != self._rank:
            address, count, dtype, keep = self._one(_GATHERV.send, send, False)
            return address, count, 0, b"", dtype, keep
        sent, received, count, recv_count, dtype, both = self._two(_GATHERV, send, recv)
        table = self._counts(_GATHERV, "counts", counts, "recv", recv_count, offsets)
        self._own(_GATHERV, "counts", table[0], "send", count)
        return sent, count, received, _packed(table), dtype, both

    def _scattering_root(self, send: Any, recv: Any, root: int) -> Tuple[int, int, int, int, Any]:
        if root != self._rank:
            address, count, dtype, keep = self._one(_SCATTER.recv, recv, True)
            return 0, address, count, dtype, keep
        sent, received, send_count, count, dtype, both = self._two(_SCATTER, send, recv)
        if send_count != count * self._size:
            raise wrong_count(_SCATTER, send_count, count,
                              f"send needs {self._size} times as many (one part for each rank)")
        return sent, received, count, dtype, both

    def _scattering_root_v(self, send: Any, counts: Optional[Sequence[int]],
                           offsets: Optional[Sequence[int]], recv: Any,
                           root: int) -> Tuple[int, bytes, int, int, int, Any]:
        if root != self._rank:
            address, count, dtype, keep = self._one(_SCATTERV.recv, recv, True)
            return 0, b"", address, count, dtype, keep
        sent, received, send_count, count, dtype, both = self._two(_SCATTERV, send, recv)
        table = self._counts(_SCATTERV, "counts", counts, "send", send_count, offsets)
        self._own(_SCATTERV, "counts", table[0], "recv", count)
        return sent, _packed(table), received, count, dtype, both

    def _gathering_v(self, send: Any, recv: Any, counts: Sequence[int],
                     offsets: Optional[Sequence[int]]) -> Tuple[int, int, bytes, int, Any]:
        sent, received, count, recv_count, dtype, keep = self._two(_ALLGATHERV, send, recv)
        table = self._counts(_ALLGATHERV, "counts", counts, "recv", recv_count, offsets)
        self._own(_ALLGATHERV, "counts", table[0], "send", count)
        return sent, received, _packed(table), dtype, keep

    # ---- Collectives ----

    def alltoall(self, send: Any, recv: Any, *, stream: Any = 0) -> None:
        """Gives each rank its part of send, and gathers everybody's part for this rank in recv, in rank
        order; both have one part for each rank and may not overlap."""
        sent, received, count, dtype, keep = self._exchanging(send, recv)
        carry_out(_raw.alltoall, keep, self._handle, sent, received, count, dtype,
                  stream and stream_number(stream) or 0)

    def alltoall_async(self, send: Any, recv: Any, *, stream: Any = 0) -> Work:
        """As alltoall(), with a Work."""
        sent, received, count, dtype, keep = self._exchanging(send, recv)
        return self._issue(_raw.alltoall_async, keep, sent, received, count, dtype,
                           stream and stream_number(stream) or 0)

    def alltoallv(self, send: Any, send_counts: Sequence[int], recv: Any, recv_counts: Sequence[int], *,
                  send_offsets: Optional[Sequence[int]] = None,
                  recv_offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> None:
        """As alltoall(), with a count for each pair of ranks: send_counts[r] elements go to rank r, and
        recv_counts[r] come from it. The blocks lie one behind the other, or in send from send_offsets[r]
        on and in recv, where they may not overlap, from recv_offsets[r] on; what lies between them stays
        as it is. Where the two sides differ, all ranks get MismatchError."""
        sent, received, counts, dtype, keep = self._exchanging_v(
            send, send_counts, send_offsets, recv, recv_counts, recv_offsets)
        carry_out(_raw.alltoallv, keep, self._handle, sent, received, counts, dtype,
                  stream and stream_number(stream) or 0)

    def alltoallv_async(self, send: Any, send_counts: Sequence[int], recv: Any,
                        recv_counts: Sequence[int], *, send_offsets: Optional[Sequence[int]] = None,
                        recv_offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> Work:
        """As alltoallv(), with a Work."""
        sent, received, counts, dtype, keep = self._exchanging_v(
            send, send_counts, send_offsets, recv, recv_counts, recv_offsets)
        return self._issue(_raw.alltoallv_async, keep, sent, received, counts, dtype,
                           stream and stream_number(stream) or 0)

    def gather(self, send: Any, recv: Any = None, root: int = 0, *, stream: Any = 0) -> None:
        """Gathers everybody's elements in rank order on `root`, where recv is `size` times as large as
        send; elsewhere recv is ignored."""
        sent, received, count, dtype, keep = self._gathering_root(send, recv, root)
        carry_out(_raw.gather, keep, self._handle, sent, received, count, dtype, root,
                  stream and stream_number(stream) or 0)

    def gather_async(self, send: Any, recv: Any = None, root: int = 0, *, stream: Any = 0) -> Work:
        """As gather(), with a Work."""
        sent, received, count, dtype, keep = self._gathering_root(send, recv, root)
        return self._issue(_raw.gather_async, keep, sent, received, count, dtype, root,
                           stream and stream_number(stream) or 0)

    def gatherv(self, send: Any, recv: Any = None, counts: Optional[Sequence[int]] = None,
                root: int = 0, *, offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> None:
        """As gather(), with counts[r] elements of rank r, one behind the other or from offsets[r] on, where
        they may not overlap; elsewhere than on root, recv, counts and offsets are ignored. Where a rank
        sends another count, all ranks get MismatchError."""
        sent, count, received, packed, dtype, keep = self._gathering_root_v(send, recv, counts, offsets, root)
        carry_out(_raw.gatherv, keep, self._handle, sent, count, received, packed, dtype, root,
                  stream and stream_number(stream) or 0)

    def gatherv_async(self, send: Any, recv: Any = None, counts: Optional[Sequence[int]] = None,
                      root: int = 0, *, offsets: Optional[Sequence[int]] = None,
                      stream: Any = 0) -> Work:
        """As gatherv(), with a Work."""
        sent, count, received, packed, dtype, keep = self._gathering_root_v(send, recv, counts, offsets, root)
        return self._issue(_raw.gatherv_async, keep, sent, count, received, packed, dtype, root,
                           stream and stream_number(stream) or 0)

    def scatter(self, send: Any, recv: Any, root: int = 0, *, stream: Any = 0) -> None:
        """Gives each rank its part of root's send, which is `size` times as large as recv; elsewhere send
        is ignored and may be None."""
        sent, received, count, dtype, keep = self._scattering_root(send, recv, root)
        carry_out(_raw.scatter, keep, self._handle, sent, received, count, dtype, root,
                  stream and stream_number(stream) or 0)

    def scatter_async(self, send: Any, recv: Any, root: int = 0, *, stream: Any = 0) -> Work:
        """As scatter(), with a Work."""
        sent, received, count, dtype, keep = self._scattering_root(send, recv, root)
        return self._issue(_raw.scatter_async, keep, sent, received, count, dtype, root,
                           stream and stream_number(stream) or 0)

    def scatterv(self, send: Any, counts: Optional[Sequence[int]], recv: Any, root: int = 0, *,
                 offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> None:
        """As scatter(), with counts[r] elements for rank r, one behind the other or from offsets[r] on;
        elsewhere than on root, send, counts and offsets are ignored and may be None. Where a rank expects
        another count, all ranks get MismatchError."""
        sent, packed, received, count, dtype, keep = self._scattering_root_v(
            send, counts, offsets, recv, root)
        carry_out(_raw.scatterv, keep, self._handle, sent, packed, received, count, dtype, root,
                  stream and stream_number(stream) or 0)

    def scatterv_async(self, send: Any, counts: Optional[Sequence[int]], recv: Any, root: int = 0, *,
                       offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> Work:
        """As scatterv(), with a Work."""
        sent, packed, received, count, dtype, keep = self._scattering_root_v(
            send, counts, offsets, recv, root)
        return self._issue(_raw.scatterv_async, keep, sent, packed, received, count, dtype, root,
                           stream and stream_number(stream) or 0)

    def allgatherv(self, send: Any, recv: Any, counts: Sequence[int], *,
                   offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> None:
        """As allgather(), with counts[r] elements of rank r, one behind the other or from offsets[r] on,
        where they may not overlap; all ranks name the same counts, or all get MismatchError. Offsets may
        differ between ranks."""
        sent, received, packed, dtype, keep = self._gathering_v(send, recv, counts, offsets)
        carry_out(_raw.allgatherv, keep, self._handle, sent, received, packed, dtype,
                  stream and stream_number(stream) or 0)

    def allgatherv_async(self, send: Any, recv: Any, counts: Sequence[int], *,
                         offsets: Optional[Sequence[int]] = None, stream: Any = 0) -> Work:
        """As allgatherv(), with a Work."""
        sent, received, packed, dtype, keep = self._gathering_v(send, recv, counts, offsets)
        return self._issue(_raw.allgatherv_async, keep, sent, received, packed, dtype,
                           stream and stream_number(stream) or 0)
