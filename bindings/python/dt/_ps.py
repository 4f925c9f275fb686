# SPDX-License-Identifier: Apache-2.0
"""Parameter servers, and the workers that push gradients to them and pull values."""

import array
import dataclasses
import enum
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Tuple, Type, TypeVar, Union, overload

from . import _raw
from ._config import Config
from ._errors import Error, invalid
from ._interruptible import Result, interruptible
from ._reducer import row_indices
from ._store import _handle_of
from ._types import Array, Handle, Owner, Rows, Unpacker, bits, milliseconds, pack, seed_bits
from ._work import Work

_Out = TypeVar("_Out", bound=Array)
_Name = TypeVar("_Name", bound="_ByName")
_PUSH, _PULL, _SET = range(3)


class PsRole(enum.IntEnum):
    """What a process is in a job with parameter servers."""

    WORKER = 0
    SERVER = 1
    EVALUATOR = 2  # only pulls; workers do not wait for it


class _ByName(enum.IntEnum):
    if TYPE_CHECKING:
        def __new__(cls: Type[_Name], value: Union[int, str]) -> _Name: ...

    @classmethod
    def _missing_(cls, value: object) -> Any:
        """By its name: PsOptimizer("sgd")."""
        found = cls.__members__.get(value.upper()) if isinstance(value, str) else None
        if found is None:
            raise invalid(f"{cls.__name__}: {value!r} is none; give one of "
                          f"{', '.join(repr(each.lower()) for each in cls.__members__)}")
        return found


class PsOptimizer(_ByName):
    """How servers update a variable, by the formulas of PyTorch."""

    SGD = 0
    MOMENTUM = 1  # SGD with momentum, and nesterov
    ADAGRAD = 2  # epsilon
    ADAM = 3  # beta1, beta2, epsilon; it counts the updates of each row


class PsInitial(_ByName):
    """What the elements of a variable begin with. They follow from seed, row and column alone."""

    CONSTANT = 0  # initial_value
    UNIFORM = 1  # between -initial_value and initial_value
    NORMAL = 2  # with the standard deviation initial_value


@dataclasses.dataclass(frozen=True)
class PsPlace:
    """Where a process stands: what ps_info() gives."""

    role: PsRole
    index: int  # of the server, the worker or the evaluator
    servers: int  # how many there are
    workers: int  # likewise; 0: not known
    attempt: int  # how often the job was started again


@dataclasses.dataclass(frozen=True)
class PsServerStatistics:
    """What a server did so far."""

    workers: int  # that are connected
    pushes: int  # requests: a call of a worker may be several
    pulls: int  # likewise
    pushed_rows: int
    pulled_rows: int
    saves: int  # checkpoints that were written
    busy_ns: int  # of a processor, by the thread that serves


@dataclasses.dataclass(frozen=True)
class PsStatistics:
    """What a worker did so far."""

    pushes: int  # also set()
    pulls: int
    pushed_rows: int  # as they were given
    pulled_rows: int
    sent_bytes: int  # of requests, without headers
    received_bytes: int
    reconnects: int  # of servers that were lost
    clock: int  # of Ps.clock()
    most_ahead: int  # of the slowest worker, when Ps.clock() returned


def _numbers(packed: bytes) -> Iterator[int]:
    unpacker = Unpacker(packed)
    return (unpacker.number() for _ in range(len(packed) // 8))


def _given(config: Optional[Config]) -> int:
    return 0 if config is None else _handle_of(config)


def ps_info(config: Optional[Config] = None) -> PsPlace:
    """What this process is in a job with parameter servers: a program that is all of them makes a PsServer or a Ps
    by it. It is said by `dt run --servers N`, by TF_CONFIG, or by ps.servers, ps.index and ps.workers."""
    role, *others = _numbers(_raw.ps_info(_given(config)))
    return PsPlace(PsRole(role), *others)


class _Endpoint(Owner):
    """What a server and a worker have in common."""

    def __init__(self, make: Callable[[], int], destroy: Callable[[int], None]) -> None:
        super().__init__(interruptible(None, lambda: Handle(make(), destroy)))

    def _call(self, function: Callable[..., Result], *args: Any) -> Result:
        return interruptible(self._owner, function, self._handle, *args)

    def close(self) -> None:
        """Drops it now."""
        owner = self._owner
        super().close()
        if owner is not None:
            owner.close()  # also where a call or a work has it


class PsServer(_Endpoint):
    """The parameter server that this process is. It serves once this is made: then wait().

    config: ps.servers (port 0: the kernel chooses), ps.index, ps.workers, job.id
    checkpoint: a directory that is there, for this server's file; a server that finds it begins with it
    save_every_ms: between checkpoints, while pushes come; 0: at the end and by Ps.save() only
    absent_ms: how long the server waits for a lost worker once another has left
    arrival_ms: how long it waits for workers that have not come yet, and for one to come back where all were lost
    """

    def __init__(self, config: Optional[Config] = None, checkpoint: Union[str, "os.PathLike[str]", None] = None,
                 save_every_ms: int = 60_000, absent_ms: int = 10_000, arrival_ms: int = 300_000) -> None:
        path = None if checkpoint is None else os.fspath(checkpoint)
        super().__init__(
            lambda: int(_raw.ps_serve(_given(config), path, save_every_ms, absent_ms, arrival_ms)),
            _raw.ps_server_destroy)

    @property
    def port(self) -> int:
        """Where it serves."""
        return int(_raw.ps_server_port(self._handle))

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until all workers have left, or were lost for long, and the last checkpoint is written; `timeout`
        seconds at most. False when the time was over first."""
        return bool(self._call(_raw.ps_server_wait, milliseconds(timeout)))

    def statistics(self) -> PsServerStatistics:
        """What it did so far."""
        return PsServerStatistics(*_numbers(_raw.ps_server_stats(self._handle)))


class PsVariable:
    """A matrix of float32 on the servers: what Ps.variable() gives.

    Arrays are float32 in host memory, `rows` by `columns` elements, or as many rows as are named. Rows are an array
    of int64 or a list, in any order; None: all. Each call without _async returns when it is done; the others give a
    Work, which can be awaited. Each first waits for room where more than queue_bytes would be under way, at most
    timeout_ms; Ctrl-C takes effect after that wait, and ends the wait for the servers at once. Pushes of one thread
    take effect in their order.
    """

    def __init__(self, ps: "Ps", number: int, name: str, rows: int, columns: int) -> None:
        self._ps = ps
        self._number = number
        self.name = name
        self.rows = rows
        self.columns = columns

    def push(self, gradients: Array, rows: Optional[Rows] = None, rate: float = -1) -> None:
        """Gives the servers gradients, with which they update rows. Gradients of equal rows are added up; a row
        without a gradient stays as it is. rate: of learning, for this push; < 0: the variable's."""
        self.push_async(gradients, rows, rate).wait()

    def push_async(self, gradients: Array, rows: Optional[Rows] = None, rate: float = -1) -> Work:
        """The same without waiting. The gradients are copied before it returns."""
        return self._issue(_PUSH, "push", "gradients", gradients, rows, rate)

    @overload
    def pull(self, out: None = None, rows: Optional[Rows] = None) -> "memoryview[float]": ...

    @overload
    def pull(self, out: _Out, rows: Optional[Rows] = None) -> _Out: ...

    def pull(self, out: Any = None, rows: Optional[Rows] = None) -> Any:
        """Reads rows, behind this worker's earlier pushes. Gives `out`; without one a new memoryview of rows and
        columns."""
        chosen = None if rows is None else self._rows("pull", rows)
        if out is None:
            count = self.rows if chosen is None else chosen[1]
            out = memoryview(bytearray(4 * count * self.columns)).cast("f")
            if count > 0:
                out = out.cast("B").cast("f", (count, self.columns))
        self.pull_async(out, rows).wait()
        return out

    def pull_async(self, out: Array, rows: Optional[Rows] = None) -> Work:
        """The same without waiting. `out` is dt's until the work is done."""
        return self._issue(_PULL, "pull", "out", out, rows, -1)

    def set(self, values: Array, rows: Optional[Rows] = None) -> None:
        """Writes rows, and leaves what the optimizer keeps of them. Of equal rows the last one counts."""
        self.set_async(values, rows).wait()

    def set_async(self, values: Array, rows: Optional[Rows] = None) -> Work:
        """The same without waiting. The values are copied before it returns."""
        return self._issue(_SET, "set", "values", values, rows, -1)

    def _rows(self, operation: str, rows: Rows) -> Tuple[int, int, Any]:
        address, count, _, _, keep = row_indices(f"PsVariable.{operation}", rows)
        return address, count, keep

    def _issue(self, action: int, operation: str, argument: str, values: Array, rows: Optional[Rows],
               rate: float) -> Work:
        what = f"PsVariable.{operation}: {argument}"
        place, row_count, kept_rows = (0, -1, None) if rows is None else self._rows(operation, rows)
        address, count, dtype, on_gpu, kept = _raw.buffer(values, action == _PULL, what)
        if on_gpu:
            raise invalid(f"{what} is GPU memory; give float32 in host memory")
        # Without the owner, a worker that nobody holds any more would be gone, and the operation aborted.
        keep = (kept, self._ps._owner) if action == _PULL else None
        work = Work(keep, self._ps, operation)
        try:
            work._handle = _raw.ps_rows_async(self._ps._handle, self._number, self.rows, self.columns, action, place,
                                              row_count, address, count, dtype, float(rate))
        except (Error, TypeError) as error:
            if isinstance(error, Error):
                error.args = (str(error).replace("pull: values", "pull: out"),)
            raise  # nothing was issued
        except BaseException:
            # A signal's: the operation is under way, and nobody has its handle.
            _raw.keep_forever(keep)
            raise
        del kept_rows
        return work

    def __repr__(self) -> str:
        return f"<dt.PsVariable {self.name!r} of {self.rows} rows, {self.columns} columns>"


class Ps(_Endpoint):
    """A worker's connection to the parameter servers of its job, or an evaluator's.

    config: ps.servers, job.id
    worker: which worker this is, of no other process; -1: as ps_info() says
    connect_ms: all servers must be there within
    timeout_ms: of each later call, within which a lost server may come back; < 0: no limit
    queue_bytes: what calls may have under way; one with more waits for others

    Any thread, but clock() one at a time. A `with` block that ends well calls leave(); without it the servers take this
    worker for lost, at the latest when it is closed: one that is only dropped may stay connected for a while.
    """

    def __init__(self, config: Optional[Config] = None, worker: int = -1, connect_ms: int = 300_000,
                 timeout_ms: int = 1_800_000, queue_bytes: int = 268_435_456) -> None:
        super().__init__(
            lambda: int(_raw.ps_connect(_given(config), worker, connect_ms, timeout_ms, queue_bytes)),
            _raw.ps_destroy)

    def variable(self, name: str, rows: int = 1, columns: int = 1, optimizer: Union[PsOptimizer, str] = "sgd",
                 rate: float = 0.01, momentum: float = 0.0, nesterov: bool = False, beta1: float = 0.9,
                 beta2: float = 0.999, epsilon: float = 1e-8, initial: Union[PsInitial, str] = "constant",
                 initial_value: float = 0.0, seed: int = 0) -> PsVariable:
        """Makes a variable, or finds the one that another worker has made with the same arguments."""
        numbers = (int(PsOptimizer(optimizer)), bool(nesterov), int(PsInitial(initial)), seed_bits("Ps.variable", seed))
        reals = map(bits, map(float, (rate, momentum, beta1, beta2, epsilon, initial_value)))
        number = self._call(_raw.ps_variable, name, rows, columns, pack((*numbers, *reals)))
        return PsVariable(self, int(number), name, rows, columns)

    def clock(self, ahead: int) -> None:
        """Ends a step of this worker. Returns once no worker that is connected is more than `ahead` steps behind;
        then a pull sees all that they pushed up to that step. -1: counts the step and does not wait. After an error
        the step has not ended: the next call tries again, and ends one that another thread is in with AbortedError."""
        self._call(_raw.ps_clock, ahead)

    def save(self) -> None:
        """Makes every server write a checkpoint, and waits for that."""
        self._call(_raw.ps_save)

    def leave(self) -> None:
        """Says goodbye to the servers, behind all that is under way. They end when all workers have."""
        self._call(_raw.ps_leave)

    def statistics(self) -> PsStatistics:
        """What this worker did so far."""
        return PsStatistics(*_numbers(_raw.ps_stats(self._handle)))

    def fileno(self) -> int:
        """An eventfd that is readable when works have ended since it was last read; this one's own: do not close
        it."""
        return int(_raw.ps_fd(self._handle))

    def close(self) -> None:
        """Drops it now; what is under way ends with AbortedError."""
        super().close()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            if self._handle != 0 and (error is None or (isinstance(error, SystemExit) and error.code in (None, 0))):
                self.leave()
        finally:
            self.close()
