# SPDX-License-Identifier: Apache-2.0
"""dt: distributed training for programs that are linked, not scripted.

    import dt, numpy

    with dt.Job() as job:               # dt run -n 4 python3 program.py
        comm = job.world()
        values = numpy.full(1000, float(comm.rank))
        comm.allreduce(values)          # in place, without copies
        work = comm.allreduce_async(values, op=dt.ReduceOp.AVG)
        work.wait()                     # or: await work

Times are in seconds, counts in elements. Errors are subclasses of dt.Error. A closed object raises
InvalidArgumentError. dt.torch has a DistributedDataParallel for PyTorch, which is not loaded before.

When Python ends, a daemon thread inside a call of dt does not come back from it: an atexit handler that
waits for one must be registered after the import of dt.
"""

from . import _exit, _raw
from ._errors import (AbortedError, ConfigError, CudaError, Error, InternalError,
                      InvalidArgumentError, InvalidStateError, MismatchError, NcclError,
                      OutOfMemoryError, PeerLostError, Status, SystemCallError, TimeoutError,
                      UnsupportedError, VersionError)
from ._types import Dtype, LogLevel, Place, ReduceOp
from ._combine import Combine
from ._config import Config
from ._work import Work, wait_any
from ._memory import Gradient, Memory, Parameter
from ._comm import BatchGradientSums, BatchMoments, Comm
from ._store import Store, StoreServer
from ._job import Job
from ._statistics import JobStatistics, OperationStatistics, PeerStatistics
from ._named import Named, NamedOptions, NamedStatistics
from ._hook import Bucket
from ._reducer import Param, Reducer, ReducerOptions, ReducerStatistics, Wire
from ._sampler import Sampler
from ._shard import Optimizer, Piece, Shard, ShardOptions
from ._outer import Outer, OuterFormat, OuterOptions
from ._ps import (Ps, PsInitial, PsOptimizer, PsPlace, PsRole, PsServer, PsServerStatistics, PsStatistics,
                  PsVariable, ps_info)
from ._raw import Buffer

__all__ = [
    "AbortedError", "BatchGradientSums", "BatchMoments", "Bucket", "Buffer", "Combine", "Comm",
    "Config", "ConfigError", "CudaError", "Dtype", "Error", "Gradient", "InternalError",
    "InvalidArgumentError", "InvalidStateError", "Job", "JobStatistics", "LogLevel",
    "Memory", "MismatchError", "Named", "NamedOptions", "NamedStatistics", "NcclError",
    "OperationStatistics", "Optimizer", "OutOfMemoryError", "Outer", "OuterFormat", "OuterOptions", "Param",
    "Parameter", "PeerLostError", "PeerStatistics", "Piece", "Place", "Ps", "PsInitial", "PsOptimizer", "PsPlace",
    "PsRole", "PsServer", "PsServerStatistics", "PsStatistics", "PsVariable", "ReduceOp", "Reducer",
    "ReducerOptions", "ReducerStatistics", "Sampler", "Shard", "ShardOptions", "Status", "Store",
    "StoreServer",
    "SystemCallError", "TimeoutError", "UnsupportedError", "VersionError", "Wire", "Work",
    "abi_version", "build_info", "ps_info", "version", "wait_any",
]


def version() -> str:
    """Release of the library: "0.1.0"."""
    return str(_raw.version())


def abi_version() -> int:
    """The ABI that the library implements."""
    return int(_raw.abi_version())


def build_info() -> str:
    """How the library was built: one "name: value" line each."""
    return str(_raw.build_info())


__version__ = version()
_exit.register()
