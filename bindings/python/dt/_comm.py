# SPDX-License-Identifier: Apache-2.0
"""Communicators and their collectives."""

import array
import contextlib
import math
from typing import Any, Callable, Iterator, NamedTuple, Optional, Tuple, Union, overload

from . import _raw
from ._arrays import (ALLGATHER, ALLREDUCE, BARRIER, BROADCAST, RECV, REDUCE, REDUCE_SCATTER, SEND,
                      SUM, Held, Launch, Op, groups)
from ._blocks import Blocks
from ._combine import Combine
from ._errors import Error, invalid
from ._interruptible import Result, interruptible
from ._memory import Memory, make_memory
from ._objects import Objects
from ._types import (Array, Dtype, DtypeLike, Handle, ReduceOp, Stream, milliseconds, stream_number)
from ._work import Work

_NOTHING: Launch = (0, 0, 0, 0, ())


class BatchMoments(NamedTuple):
    """Of each channel, over all ranks: arrays of doubles, and elements of each channel, an int; or the
    caller's arrays that take them. The variance is without Bessel's correction."""

    mean: Any
    variance: Any
    count: Any


class BatchGradientSums(NamedTuple):
    """Of each channel, over all ranks: sums of the gradient, and of it times the normalised input, as arrays
    of doubles; or the caller's arrays that take them."""

    sum: Any
    product: Any


def _batch(operation: str, count: int, channels: int, spatial: int) -> int:
    """Samples of an input; what is no number of channels is left to dt to refuse."""
    if channels < 1 or spatial < 1:
        return 0
    if count % (channels * spatial) != 0:
        raise invalid(f"{operation}: input has {count} elements, which are no whole samples of "
                      f"{channels} channels x {spatial}; give it as [batch, channels, spatial]")
    return count // (channels * spatial)


def _room(channels: int) -> int:
    """Elements of an array with one for each channel; 0: dt refuses so many."""
    return channels if 1 <= channels <= 1 << 24 else 0


class Comm(Blocks, Objects):
    """An ordered set of ranks that runs collectives: what Job.world(), Comm.split() and Comm.shrink()
    give.

    Arrays are whatever has the buffer protocol (NumPy, array.array, bytes, ...), DLPack (PyTorch, JAX,
    CuPy, ...) or __cuda_array_interface__, contiguous and in the machine's byte order; nothing is
    copied, and count and dtype are the array's. All ranks call the same collectives in the same order
    with the same counts, dtypes and reductions; issue them from one thread per communicator.

    Each collective has two forms. The plain one returns when the result is there (over GPU memory:
    when it is ordered on the stream). The one that ends in _async returns a Work at once; both arrays
    are dt's until that is done.

    Ctrl-C ends a plain call, and split(), shrink() and check_equal(), within a tenth of a second, as any
    exception of a signal handler does; over GPUs these three return first. The operation itself goes
    on: its arrays stay dt's until it is done, and its result is undefined. The three have several
    steps: the next operation of the communicator must not begin before they have ended on all ranks.

    op: a ReduceOp, its name such as "sum", a function(in, inout), or a Combine, which says more
    stream: the CUDA stream that produces `send`, as an int or as PyTorch's or CuPy's object; ignored
        over host memory
    name: for messages and traces, the same on all ranks
    timeout: limit of this operation in seconds; None: the communicator's; math.inf: none. When it
        passes, the communicator is broken.
    """

    __slots__ = ()

    def __init__(self, handle: int, on_gpu: bool) -> None:
        super().__init__(Handle(handle, _raw.comm_destroy))
        self._on_gpu = on_gpu
        self._rank = int(_raw.comm_rank(handle))
        self._size = int(_raw.comm_size(handle))
        self._waits = self._size > 1 and not on_gpu

    # ---- Who is in it ----

    @property
    def rank(self) -> int:
        """This rank's index in the communicator."""
        return int(_raw.comm_rank(self._handle))

    @property
    def size(self) -> int:
        """Number of ranks in the communicator."""
        return int(_raw.comm_size(self._handle))

    @property
    def on_gpu(self) -> bool:
        """Whether its arrays are GPU memory."""
        return self._on_gpu

    @property
    def handle(self) -> int:
        """The dt_comm* of dt.h as a number, for code in C and C++ that is linked with the package's
        libdt.so.0 (its headers are in dt/include). Borrowed: good until close(); 0 after it."""
        return self._handle

    def world_rank(self, rank: int) -> int:
        """World rank of a rank of this communicator."""
        return int(_raw.comm_world_rank(self._handle, rank))

    def split(self, color: Optional[int], key: int = 0) -> Optional["Comm"]:
        """Ranks of equal color form a new communicator, ordered by (key, rank). Collective.

        color: at least 0; None: this rank is in none, and gets None
        """
        def split() -> Optional["Comm"]:
            handle = _raw.comm_split(self._handle, -1 if color is None else color, key)
            return Comm(handle, self._on_gpu) if handle != 0 else None
        return self._wait(None, split)

    def host(self) -> "Comm":
        """The same ranks over host memory, in a job on GPUs for what lies there. Over GPUs it has an
        order of its own, the same on all ranks for it, Job.agree() and split()."""
        return Comm(_raw.comm_host(self._handle), False)

    def shrink(self) -> "Comm":
        """The ranks that are left after a failure, as a communicator of their own, in the same order:
        the job outlives its ranks. Collective over the ranks that live. This one stays broken."""
        return self._wait(None, lambda: Comm(_raw.comm_shrink(self._handle), self._on_gpu))

    # ---- Its state ----

    def set_timeout(self, timeout: Optional[float]) -> None:
        """Limit of each later operation in seconds; when it passes, the operation fails with a
        TimeoutError that names the ranks that did not come. None: collective.timeout_ms again;
        math.inf: no limit."""
        limit = 0 if timeout == math.inf else milliseconds(timeout)
        if timeout is not None and limit == 0 and timeout != math.inf:
            raise invalid("Comm.set_timeout: a timeout of 0; give more than 0 seconds, or math.inf")
        _raw.comm_set_timeout(self._handle, limit)

    def check(self) -> None:
        """Raises the error that broke the communicator, if any. Call it before keeping a result that was
        only ordered on a stream."""
        _raw.comm_check(self._handle)

    def fileno(self) -> int:
        """An eventfd that is readable when works have completed since it was last read; the
        communicator's own: do not close it."""
        return int(_raw.work_fd(self._handle))

    def alloc(self, count: int, dtype: DtypeLike = Dtype.F32) -> Memory:
        """Zeroed memory that all local ranks can reach, so that reductions read it where it lies; of a
        communicator over GPUs, memory of this rank's GPU."""
        owner = self._owner
        if owner is None:
            _raw.comm_check(0)
        assert owner is not None  # else dt has refused it
        return make_memory(owner, count, dtype, self._on_gpu)

    @contextlib.contextmanager
    def group(self) -> Iterator["Comm"]:
        """The operations of the block are carried out as one, so that ranks may send to each other. The
        plain forms return at once, and their results are there after the block; a work of the block may
        only be waited for after it."""
        held = Held(self._handle, self._on_gpu)
        keep = (held, self._owner)  # until dt has ended the group, also after Ctrl-C and close()
        with self._grouped(held, lambda handle: self._wait(keep, _raw.group_end, handle)):
            yield self
        held.combinations().check()

    @contextlib.contextmanager
    def group_async(self) -> Iterator[Work]:
        """As group(), but the end of the block waits for nothing. Gives a Work, to be used after the
        block: it has completed when all operations of the block have, those with a work of their own,
        too, and raises the error of the first that failed."""
        held = Held(self._handle, self._on_gpu)
        work = Work(held, self, "group")

        def end(handle: int) -> None:
            held.outlive_group()
            work._combination = held.combinations()
            try:
                work._handle = _raw.group_end_async(handle)
            except Error:
                work._keep = None
                raise
            except BaseException:
                _raw.keep_forever(held)  # a signal's: the group is under way, and nobody has its handle
                raise

        with self._grouped(held, end):
            yield work

    @contextlib.contextmanager
    def _grouped(self, held: Held, end: Callable[[int], None]) -> Iterator[None]:
        """A group that `end` ends, or, after an exception of the block, group_end()."""
        # close() inside the block would destroy the handle before dt is done with the arrays of `held`.
        owner, handle = self._owner, self._handle
        groups.append(held)
        try:
            _raw.group_begin(handle)
            try:
                yield
            except BaseException:
                with contextlib.suppress(Error):
                    self._wait((held, owner), _raw.group_end, handle)
                raise
            end(handle)
        finally:
            groups[:] = [each for each in groups if each is not held]
            del owner

    def close(self) -> None:
        """Drops the handle; works, memory and an open group of it go on. Never waits for peers."""
        super().close()

    def __repr__(self) -> str:
        if self._handle == 0:
            return "<dt.Comm closed>"
        return f"<dt.Comm rank {self._rank} of {self._size}{', GPU memory' if self._on_gpu else ''}>"

    # ---- Collectives ----

    def _wait(self, keep: Any, function: Callable[..., Result], *args: Any) -> Result:
        """function(*args), which waits for the other ranks and uses the memory of `keep`."""
        return interruptible(keep, function, *args) if self._waits else function(*args)

    def _reduction(self, send: Array, recv: Optional[Array]) -> Launch:
        if recv is None:
            return self._one("allreduce", send, True)
        return self._fitting(ALLREDUCE, send, recv)

    def _reduction_to(self, send: Array, recv: Optional[Array], root: int) -> Launch:
        if recv is None and root == self._rank:
            return self._one("reduce", send, True)
        return self._fitting(REDUCE, send, recv, root)

    def _sum_of_numbers(self, number: Union[int, float], op: Op, name: Optional[str],
                        timeout: Optional[float]) -> Union[int, float]:
        if self._on_gpu:
            raise invalid("allreduce: a number lies in host memory, and the communicator is over GPU "
                          "memory; give an array of one element")
        self._check_ungrouped("allreduce", "of a number", "; give an array of one element")
        whole = isinstance(number, int) and (callable(op) or isinstance(op, Combine)
                                             or ReduceOp(op) is not ReduceOp.AVG)
        try:
            value = array.array("q" if whole else "d", [number])
        except OverflowError:
            raise invalid(f"allreduce: {number} does not fit in 64 bits; give a float") from None
        self._run(ALLREDUCE, self._one("allreduce", value, True), op, 0, 0, name, timeout)
        return value[0]

    @overload
    def allreduce(self, send: int, recv: None = None, op: Op = SUM, *, stream: Stream = 0,
                  name: Optional[str] = None, timeout: Optional[float] = None) -> int: ...

    @overload
    def allreduce(self, send: float, recv: None = None, op: Op = SUM, *, stream: Stream = 0,
                  name: Optional[str] = None, timeout: Optional[float] = None) -> float: ...

    @overload
    def allreduce(self, send: Array, recv: Optional[Array] = None, op: Op = SUM, *,
                  stream: Stream = 0, name: Optional[str] = None,
                  timeout: Optional[float] = None) -> None: ...

    def allreduce(self, send: Any, recv: Optional[Array] = None, op: Op = SUM, *,
                  stream: Stream = 0, name: Optional[str] = None,
                  timeout: Optional[float] = None) -> Any:
        """Sums (or averages, ...) over all ranks; every rank ends with the same bits.

        send: an array; or an int or a float, of the same type on all ranks: then the result is returned, so not
            inside group()
        recv: as large as send; None: the result replaces send
        """
        if recv is None and isinstance(send, (int, float)):
            return self._sum_of_numbers(send, op, name, timeout)
        self._run(ALLREDUCE, self._reduction(send, recv), op, 0, stream, name, timeout)
        return None

    def allreduce_async(self, send: Array, recv: Optional[Array] = None, op: Op = SUM, *,
                        stream: Stream = 0, name: Optional[str] = None,
                        timeout: Optional[float] = None) -> Work:
        """As allreduce(), with a Work."""
        return self._start(ALLREDUCE, self._reduction(send, recv), op, 0, stream, name,
                           timeout)

    def reduce(self, send: Array, recv: Optional[Array] = None, op: Op = SUM, root: int = 0, *,
               stream: Stream = 0, name: Optional[str] = None,
               timeout: Optional[float] = None) -> None:
        """As allreduce(), with the result on `root` alone; elsewhere recv may be None."""
        self._run(REDUCE, self._reduction_to(send, recv, root), op, root, stream, name,
                  timeout)

    def reduce_async(self, send: Array, recv: Optional[Array] = None, op: Op = SUM, root: int = 0,
                     *, stream: Stream = 0, name: Optional[str] = None,
                     timeout: Optional[float] = None) -> Work:
        """As reduce(), with a Work."""
        return self._start(REDUCE, self._reduction_to(send, recv, root), op, root,
                           stream, name, timeout)

    def broadcast(self, array: Array, root: int = 0, *, stream: Stream = 0, name: Optional[str] = None,
                  timeout: Optional[float] = None) -> None:
        """Copies root's array, which may be read-only, into everybody's."""
        self._run(BROADCAST, self._one("broadcast", array, root != self._rank), SUM, root,
                  stream, name, timeout)

    def broadcast_async(self, array: Array, root: int = 0, *, stream: Stream = 0,
                        name: Optional[str] = None, timeout: Optional[float] = None) -> Work:
        """As broadcast(), with a Work."""
        return self._start(BROADCAST, self._one("broadcast", array, root != self._rank), SUM, root,
                           stream, name, timeout)

    def allgather(self, send: Array, recv: Array, *, stream: Stream = 0, name: Optional[str] = None,
                  timeout: Optional[float] = None) -> None:
        """Gathers everybody's elements in rank order on every rank; recv is `size` times as large as
        send, which may be this rank's part of it."""
        self._run(ALLGATHER, self._fitting(ALLGATHER, send, recv), SUM, 0, stream, name, timeout)

    def allgather_async(self, send: Array, recv: Array, *, stream: Stream = 0,
                        name: Optional[str] = None, timeout: Optional[float] = None) -> Work:
        """As allgather(), with a Work."""
        return self._start(ALLGATHER, self._fitting(ALLGATHER, send, recv), SUM, 0, stream, name,
                           timeout)

    def reduce_scatter(self, send: Array, recv: Array, op: Op = SUM, *, stream: Stream = 0,
                       name: Optional[str] = None, timeout: Optional[float] = None) -> None:
        """Reduces over all ranks and leaves the r-th part on rank r; send is `size` times as large as
        recv, which may be this rank's part of it."""
        self._run(REDUCE_SCATTER, self._fitting(REDUCE_SCATTER, send, recv), op, 0,
                  stream, name, timeout)

    def reduce_scatter_async(self, send: Array, recv: Array, op: Op = SUM, *, stream: Stream = 0,
                             name: Optional[str] = None, timeout: Optional[float] = None) -> Work:
        """As reduce_scatter(), with a Work."""
        return self._start(REDUCE_SCATTER, self._fitting(REDUCE_SCATTER, send, recv), op, 0,
                           stream, name, timeout)

    def barrier(self, *, stream: Stream = 0, name: Optional[str] = None,
                timeout: Optional[float] = None) -> None:
        """Returns when every rank has called it."""
        self._run(BARRIER, _NOTHING, SUM, 0, stream, name, timeout)

    def barrier_async(self, *, stream: Stream = 0, name: Optional[str] = None,
                      timeout: Optional[float] = None) -> Work:
        """As barrier(), with a Work."""
        return self._start(BARRIER, _NOTHING, SUM, 0, stream, name, timeout)

    def check_equal(self, array: Array, name: str = "", *, stream: Stream = 0) -> None:
        """Raises MismatchError on all ranks unless their arrays hold the same bytes; it names the ranks
        that differ from the majority. The communicator stays usable.

        name: what it is, for messages; compared, too
        """
        address, _, count, dtype, keep = self._one("check_equal: array", array, False)
        self._wait(keep, _raw.check_equal, self._handle, address, count * Dtype(dtype).itemsize, name,
                   stream and stream_number(stream) or 0)

    # ---- Batch statistics ----

    def _doubles(self, operation: str, room: int) -> "array.array[float]":
        if self._on_gpu:
            raise invalid(f"{operation}: the communicator is over GPU memory, where the results lie; give arrays "
                          "for them as out")
        return array.array("d", bytes(8 * room))

    def _sized(self, what: str, given: Array, room: int, dtype: Dtype, writable: bool) -> Tuple[int, int, Any]:
        """Address, count, and what keeps the array; a room of 0: any count."""
        address, _, count, found, keep = self._one(what, given, writable)
        if found != dtype or room not in (0, count):
            raise invalid(f"{what} has {count} elements of {Dtype(found).name}; give {room or count} of "
                          f"{dtype.name}")
        return address, count, keep

    def batch_moments(self, input: Array, channels: int, *, spatial: int = 1, out: Optional[BatchMoments] = None,
                      stream: Stream = 0) -> BatchMoments:
        """Mean and variance of each channel over the batches of all ranks, the same bits on all: the
        forward half of batch normalisation. Collective; a rank may have no samples.

        input: [batch, channels, spatial] elements, F16, BF16, F32 or F64
        spatial: elements of a channel of one sample that lie together; 1 where channels are last
        out: arrays that take the results, and are returned: F64 with one element for each channel, and I64
            with one for the count; over GPUs they must be given, and have the results in the stream's order
        """
        operation = "batch_moments"
        address, _, elements, dtype, keep = self._one(f"{operation}: input", input, False)
        batch, room = _batch(operation, elements, channels, spatial), _room(channels)
        results = out or BatchMoments(self._doubles(operation, room), self._doubles(operation, room),
                                      array.array("q", [0]))
        mean, _, keep_mean = self._sized(f"{operation}: out.mean", results.mean, room, Dtype.F64, True)
        variance, _, keep_variance = self._sized(
            f"{operation}: out.variance", results.variance, room, Dtype.F64, True)
        count, _, keep_count = self._sized(f"{operation}: out.count", results.count, 1, Dtype.I64, True)
        self._wait((keep, keep_mean, keep_variance, keep_count), _raw.batch_moments, self._handle, address,
                   batch, channels, spatial, dtype, mean, variance, count, stream and stream_number(stream) or 0)
        return out or results._replace(count=results.count[0])

    def batch_gradient_sums(self, input: Array, gradient: Array, moments: BatchMoments, *, spatial: int = 1,
                            epsilon: float = 1e-5, out: Optional[BatchGradientSums] = None,
                            stream: Stream = 0) -> BatchGradientSums:
        """What the gradient of the input needs of all ranks: the backward half. Collective.

        input, moments: as batch_moments() had and gave them; means and variances may also be lists
        gradient: of the loss, by the normalised input after weight and bias
        out: as that of batch_moments()
        """
        operation = "batch_gradient_sums"
        address, _, count, dtype, keep = self._one(f"{operation}: input", input, False)
        other, _, other_count, other_dtype, keep_other = self._one(
            f"{operation}: gradient", gradient, False)
        if (count, dtype) != (other_count, other_dtype):
            raise invalid(f"{operation}: input has {count} elements of {Dtype(dtype).name}, gradient "
                          f"{other_count} of {Dtype(other_dtype).name}; give two arrays of one shape")
        known = [array.array("d", each) if isinstance(each, (list, tuple)) else each
                 for each in (moments.mean, moments.variance)]
        mean, channels, keep_mean = self._sized(f"{operation}: moments.mean", known[0], 0, Dtype.F64, False)
        batch, room = _batch(operation, count, channels, spatial), _room(channels)
        variance, _, keep_variance = self._sized(
            f"{operation}: moments.variance", known[1], room, Dtype.F64, False)
        results = out or BatchGradientSums(self._doubles(operation, room), self._doubles(operation, room))
        total, _, keep_sum = self._sized(f"{operation}: out.sum", results.sum, room, Dtype.F64, True)
        product, _, keep_product = self._sized(
            f"{operation}: out.product", results.product, room, Dtype.F64, True)
        self._wait((keep, keep_other, keep_mean, keep_variance, keep_sum, keep_product),
                   _raw.batch_gradient_sums, self._handle, address, other, batch, channels, spatial, dtype,
                   mean, variance, epsilon, total, product, stream and stream_number(stream) or 0)
        return results

    # ---- Between two ranks ----

    def send(self, array: Array, peer: int, *, stream: Stream = 0, name: Optional[str] = None,
             timeout: Optional[float] = None) -> None:
        """Sends to a rank of the communicator, which calls recv() with as many elements of this dtype."""
        self._run(SEND, self._one("send", array, False), SUM, peer, stream, name, timeout)

    def send_async(self, array: Array, peer: int, *, stream: Stream = 0, name: Optional[str] = None,
                   timeout: Optional[float] = None) -> Work:
        """As send(), with a Work."""
        return self._start(SEND, self._one("send", array, False), SUM, peer, stream, name, timeout)

    def recv(self, array: Array, peer: int, *, stream: Stream = 0, name: Optional[str] = None,
             timeout: Optional[float] = None) -> None:
        """Receives what a rank of the communicator sends with send()."""
        self._run(RECV, self._one("recv", array, True), SUM, peer, stream, name, timeout)

    def recv_async(self, array: Array, peer: int, *, stream: Stream = 0, name: Optional[str] = None,
                   timeout: Optional[float] = None) -> Work:
        """As recv(), with a Work."""
        return self._start(RECV, self._one("recv", array, True), SUM, peer, stream, name, timeout)
