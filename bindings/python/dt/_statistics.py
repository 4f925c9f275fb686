# SPDX-License-Identifier: Apache-2.0
"""What a rank did in a job so far."""

import dataclasses
from typing import Mapping

from . import _raw
from ._types import Unpacker

# In the order of dt_kind.
_KINDS = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "barrier", "send", "recv",
          "alltoall", "alltoallv", "gather", "gatherv", "scatter", "scatterv", "allgatherv",
          "reduce_scatterv")


@dataclasses.dataclass(frozen=True)
class OperationStatistics:
    """Operations of one kind, on all communicators."""

    operations: int  # that have ended, failures among them
    failures: int
    bytes: int  # of the larger of an operation's two buffers
    bus_bytes: int  # the same times the factor of nccl-tests for a bus bandwidth
    busy_ns: int  # from the start of each to its end
    busbw_gbs: float  # bus_bytes / busy_ns: GB/s


@dataclasses.dataclass(frozen=True)
class PeerStatistics:
    """How long calls of this rank were held up by another one."""

    waits: int
    waited_ns: int


@dataclasses.dataclass(frozen=True)
class JobStatistics:
    """What this rank did. Times in nanoseconds."""

    restarts: int  # how often the job was started before
    stalls: int  # operations that took watchdog.stall_warn_ms or longer
    uncounted: int  # operations that the flight recorder had no room for
    steps: int  # of all reducers, like the next four
    step_bytes: int  # of gradients
    communication_ns: int  # while at least one bucket was under way
    exposed_ns: int  # of that, the program waited
    hidden_share: float  # 1 - exposed / communication
    operations: Mapping[str, OperationStatistics]  # by kind: "allreduce"


def job_statistics(handle: int) -> JobStatistics:
    """Of the job behind the handle."""
    packed = Unpacker(_raw.job_stats(handle))
    number = packed.number
    sums = [number() for _ in range(7)]
    share = packed.real()
    kinds = {name: OperationStatistics(number(), number(), number(), number(), number(), packed.real())
             for name in _KINDS}
    return JobStatistics(*sums, share, kinds)  # type: ignore[call-arg, arg-type]


def peer_statistics(handle: int, rank: int) -> PeerStatistics:
    """Of that rank, as the job behind the handle saw it."""
    packed = Unpacker(_raw.job_peer_stats(handle, rank))
    return PeerStatistics(waits=packed.number(), waited_ns=packed.number())
