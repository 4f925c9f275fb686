# SPDX-License-Identifier: Apache-2.0
"""The exceptions of dt: one class per status, all of them dt.Error."""

import builtins
import enum
from typing import Dict, Type, Union

from . import _raw
from ._words import pythonic


class Status(enum.IntEnum):
    """What a failed call asks of the program."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_STATE = 2
    UNSUPPORTED = 3
    VERSION = 4
    CONFIG = 11
    OUT_OF_MEMORY = 12
    SYSTEM = 13
    CUDA = 14
    NCCL = 15
    TIMEOUT = 21
    PEER_LOST = 22
    MISMATCH = 23
    ABORTED = 24
    INTERNAL = 31


class Error(Exception):
    """A failed call of dt. Its text says what, where, why and what to do next.

    status: the Status; a plain int where this release does not know it
    rank: world rank behind the failure, -1 unknown
    host: that rank's host, "" unknown
    pid: that rank's process, 0 unknown
    operation: "allreduce", "" none
    sequence: number of the operation on its communicator, -1 none
    """

    status: Union[Status, int] = Status.INTERNAL
    rank: int = -1
    host: str = ""
    pid: int = 0
    operation: str = ""
    sequence: int = -1


class InvalidArgumentError(Error, ValueError):
    """The call is wrong: an argument, or a handle that is closed."""

    status: Union[Status, int] = Status.INVALID_ARGUMENT


class InvalidStateError(Error, RuntimeError):
    """The call comes at the wrong time: after finalize(), inside a group, twice."""

    status: Union[Status, int] = Status.INVALID_STATE


class UnsupportedError(Error, NotImplementedError):
    """This build or backend cannot do it."""

    status: Union[Status, int] = Status.UNSUPPORTED


class VersionError(Error):
    """Two releases of dt that do not fit together."""

    status: Union[Status, int] = Status.VERSION


class ConfigError(Error):
    """A setting is unknown, out of range, or refused by the job."""

    status: Union[Status, int] = Status.CONFIG


class OutOfMemoryError(Error, MemoryError):
    """Memory of the host or of the GPU is short."""

    status: Union[Status, int] = Status.OUT_OF_MEMORY


class SystemCallError(Error):
    """The operating system refused something; the text has its reason."""

    status: Union[Status, int] = Status.SYSTEM


class CudaError(Error):
    """CUDA failed."""

    status: Union[Status, int] = Status.CUDA


class NcclError(Error):
    """NCCL failed."""

    status: Union[Status, int] = Status.NCCL


class TimeoutError(Error, builtins.TimeoutError):  # pylint: disable=redefined-builtin
    """A limit of time has passed; the text names the ranks that did not come."""

    status: Union[Status, int] = Status.TIMEOUT


class PeerLostError(Error, ConnectionError):
    """A rank has died: rank, host and pid say which."""

    status: Union[Status, int] = Status.PEER_LOST


class MismatchError(Error):
    """Ranks called different things; the text has both sides."""

    status: Union[Status, int] = Status.MISMATCH


class AbortedError(Error):
    """A rank ended the job on purpose; the text has its message."""

    status: Union[Status, int] = Status.ABORTED


class InternalError(Error):
    """A bug in dt; please report it."""

    status: Union[Status, int] = Status.INTERNAL


_CLASSES: Dict[int, Type[Error]] = {
    int(each.status): each
    for each in (InvalidArgumentError, InvalidStateError, UnsupportedError, VersionError,
                 ConfigError, OutOfMemoryError, SystemCallError, CudaError, NcclError,
                 TimeoutError, PeerLostError, MismatchError, AbortedError, InternalError)}


def make(status: int, rank: int, host: str, pid: int, operation: str, sequence: int,
         message: str) -> Error:
    """The exception of a failed call; _raw raises what this gives."""
    ours, mark, said = message, "", ""
    if status == Status.ABORTED:  # what the program said when it aborted stays as it is
        ours, mark, said = message.partition(" aborted the job: ")
    error = _CLASSES.get(status, Error)(pythonic(ours) + mark + said)
    try:
        error.status = Status(status)
    except ValueError:
        error.status = status
    error.rank = rank
    error.host = host
    error.pid = pid
    error.operation = operation
    error.sequence = sequence
    return error


def invalid(message: str) -> Error:
    """What the layer above dt refuses by itself."""
    return make(Status.INVALID_ARGUMENT, -1, "", 0, "", -1, message)


def invalid_state(message: str) -> Error:
    """The same for what comes at the wrong time."""
    return make(Status.INVALID_STATE, -1, "", 0, "", -1, message)


def unsupported(message: str) -> Error:
    """The same for what dt cannot do."""
    return make(Status.UNSUPPORTED, -1, "", 0, "", -1, message)


_raw.set_exception_maker(make)
