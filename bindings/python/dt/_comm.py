# SPDX-License-Identifier: Apache-2.0
"""Communicators and their collectives."""

import array
import contextlib
import math
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from . import _raw
from ._arrays import Names, carry_out, groups, wrong_count
from ._blocks import Blocks
from ._errors import Error, invalid
from ._memory import Memory, make_memory
from ._types import Dtype, Handle, ReduceOp, Unpacker, milliseconds, stream_number
from ._work import Work

_SUM = ReduceOp.SUM

_ALLREDUCE = Names("allreduce")
_REDUCE = Names("reduce")
_ALLGATHER = Names("allgather")
_REDUCE_SCATTER = Names("reduce_scatter")


class BatchMoments(NamedTuple):
    """Of each channel, over all ranks: arrays of doubles, and elements of each channel. The variance is
    without Bessel's correction."""

    mean: "array.array[float]"
    variance: "array.array[float]"
    count: int


class BatchGradientSums(NamedTuple):
    """Of each channel, over all ranks: sums of the gradient, and of it times the normalised input."""

    sum: "array.array[float]"
    product: "array.array[float]"


def _batch(operation: str, count: int, channels: int, spatial: int) -> int:
    """Samples of an input; what is no number of channels is left to dt to refuse."""
    if channels < 1 or spatial < 1:
        return 0
    if count % (channels * spatial) != 0:
        raise invalid(f"{operation}: input has {count} elements, which are no whole samples of "
                      f"{channels} channels x {spatial}; give it as [batch, channels, spatial]")
    return count // (channels * spatial)


def _halves(packed: bytes) -> Tuple["array.array[float]", "array.array[float]"]:
    doubles = array.array("d", packed)
    middle = len(doubles) // 2
    return doubles[:middle], doubles[middle:]


class Comm(Blocks):
    """An ordered set of ranks that runs collectives: what Job.world(), Comm.split() and Comm.shrink() give.

    Arrays are whatever has the buffer protocol (NumPy, array.array, bytes, ...), DLPack (PyTorch, JAX,
    CuPy, ...) or __cuda_array_interface__, contiguous and in the machine's byte order; nothing is
    copied, and count and dtype are the array's. All ranks call the same collectives in the same order
    with the same counts, dtypes and reductions; issue them from one thread per communicator.

    Each collective has two forms. The plain one returns when the result is there (over GPU memory:
    when it is ordered on the stream), and a signal is handled after that. The one that ends in _async
    returns a Work at once; both arrays are dt's until that is done. `stream` is the CUDA stream that
    produces `send`, as an int or as PyTorch's or CuPy's object; it is ignored over host memory.
    """

    __slots__ = ("_owner", "__weakref__")

    def __init__(self, handle: int, on_gpu: bool) -> None:
        self._owner: Optional[Handle] = Handle(handle, _raw.comm_destroy)
        self._handle = handle
        self._on_gpu = on_gpu
        self._rank = int(_raw.comm_rank(handle))
        self._size = int(_raw.comm_size(handle))

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

    def world_rank(self, rank: int) -> int:
        """World rank of a rank of this communicator."""
        return int(_raw.comm_world_rank(self._handle, rank))

    def split(self, color: Optional[int], key: int = 0) -> Optional["Comm"]:
        """Ranks of equal color form a new communicator, ordered by (key, rank). Collective.

        color: at least 0; None: this rank is in none, and gets None
        """
        handle = _raw.comm_split(self._handle, -1 if color is None else color, key)
        return Comm(handle, self._on_gpu) if handle != 0 else None

    def shrink(self) -> "Comm":
        """The ranks that are left after a failure, as a communicator of their own, in the same order:
        the job outlives its ranks. Collective over the ranks that live. This one stays broken."""
        return Comm(_raw.comm_shrink(self._handle), self._on_gpu)

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

    def alloc(self, count: int, dtype: Dtype = Dtype.F32) -> Memory:
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
        arrays: List[Any] = []
        groups.append(arrays)
        try:
            _raw.group_begin(self._handle)
            try:
                yield self
            except BaseException:
                with contextlib.suppress(Error):
                    _raw.group_end(self._handle)
                raise
            _raw.group_end(self._handle)
        finally:
            groups[:] = [each for each in groups if each is not arrays]

    def close(self) -> None:
        """Drops the handle; works and memory of it go on. Never waits for peers."""
        self._handle = 0
        self._owner = None

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Arrays of each operation ----

    def _reduction(self, names: Names, send: Any, recv: Any) -> Tuple[int, int, int, int, Any]:
        if recv is None:
            address, count, dtype, keep = self._one(names.operation, send, True)
            return address, address, count, dtype, keep
        sent, received, count, recv_count, dtype, keep = self._two(names, send, recv)
        if count != recv_count:
            raise wrong_count(names, count, recv_count, "both need the same number")
        return sent, received, count, dtype, keep

    def _reduce_arrays(self, send: Any, recv: Any, root: int) -> Tuple[int, int, int, int, Any]:
        if recv is None and root != self._rank:
            address, count, dtype, keep = self._one(_REDUCE.send, send, False)
            return address, 0, count, dtype, keep
        return self._reduction(_REDUCE, send, recv)

    def _gathering(self, send: Any, recv: Any) -> Tuple[int, int, int, int, Any]:
        sent, received, count, recv_count, dtype, keep = self._two(_ALLGATHER, send, recv)
        if recv_count != count * self._size:
            raise wrong_count(_ALLGATHER, count, recv_count,
                              f"recv needs {self._size} times as many (one part of each rank)")
        return sent, received, count, dtype, keep

    def _scattering(self, send: Any, recv: Any) -> Tuple[int, int, int, int, Any]:
        sent, received, send_count, count, dtype, keep = self._two(_REDUCE_SCATTER, send, recv)
        if send_count != count * self._size:
            raise wrong_count(_REDUCE_SCATTER, send_count, count,
                              f"send needs {self._size} times as many (one part for each rank)")
        return sent, received, count, dtype, keep

    # ---- Collectives ----

    def allreduce(self, send: Any, recv: Any = None, op: ReduceOp = _SUM, *,
                  stream: Any = 0) -> None:
        """Sums (or averages, ...) over all ranks; every rank ends with the same bits.

        recv: as large as send; None: the result replaces send
        """
        sent, received, count, dtype, keep = self._reduction(_ALLREDUCE, send, recv)
        carry_out(_raw.allreduce, keep, self._handle, sent, received, count, dtype, op,
                   stream and stream_number(stream) or 0)

    def allreduce_async(self, send: Any, recv: Any = None, op: ReduceOp = _SUM, *,
                        stream: Any = 0) -> Work:
        """As allreduce(), with a Work."""
        sent, received, count, dtype, keep = self._reduction(_ALLREDUCE, send, recv)
        return self._issue(_raw.allreduce_async, keep, sent, received, count, dtype, op,
                           stream and stream_number(stream) or 0)

    def reduce(self, send: Any, recv: Any = None, op: ReduceOp = _SUM, root: int = 0, *,
               stream: Any = 0) -> None:
        """As allreduce(), with the result on `root` alone; elsewhere recv may be None."""
        sent, received, count, dtype, keep = self._reduce_arrays(send, recv, root)
        carry_out(_raw.reduce, keep, self._handle, sent, received, count, dtype, op, root,
                   stream and stream_number(stream) or 0)

    def reduce_async(self, send: Any, recv: Any = None, op: ReduceOp = _SUM, root: int = 0, *,
                     stream: Any = 0) -> Work:
        """As reduce(), with a Work."""
        sent, received, count, dtype, keep = self._reduce_arrays(send, recv, root)
        return self._issue(_raw.reduce_async, keep, sent, received, count, dtype, op, root,
                           stream and stream_number(stream) or 0)

    def broadcast(self, array: Any, root: int = 0, *, stream: Any = 0) -> None:
        """Copies root's array, which may be read-only, into everybody's."""
        address, count, dtype, keep = self._one("broadcast", array, root != self._rank)
        carry_out(_raw.broadcast, keep, self._handle, address, count, dtype, root,
                   stream and stream_number(stream) or 0)

    def broadcast_async(self, array: Any, root: int = 0, *, stream: Any = 0) -> Work:
        """As broadcast(), with a Work."""
        address, count, dtype, keep = self._one("broadcast", array, root != self._rank)
        return self._issue(_raw.broadcast_async, keep, address, count, dtype, root,
                           stream and stream_number(stream) or 0)

    def allgather(self, send: Any, recv: Any, *, stream: Any = 0) -> None:
        """Gathers everybody's elements in rank order on every rank; recv is `size` times as large as
        send, which may be this rank's part of it."""
        sent, received, count, dtype, keep = self._gathering(send, recv)
        carry_out(_raw.allgather, keep, self._handle, sent, received, count, dtype,
                   stream and stream_number(stream) or 0)

    def allgather_async(self, send: Any, recv: Any, *, stream: Any = 0) -> Work:
        """As allgather(), with a Work."""
        sent, received, count, dtype, keep = self._gathering(send, recv)
        return self._issue(_raw.allgather_async, keep, sent, received, count, dtype,
                           stream and stream_number(stream) or 0)

    def reduce_scatter(self, send: Any, recv: Any, op: ReduceOp = _SUM, *, stream: Any = 0) -> None:
        """Reduces over all ranks and leaves the r-th part on rank r; send is `size` times as large as
        recv, which may be this rank's part of it."""
        sent, received, count, dtype, keep = self._scattering(send, recv)
        carry_out(_raw.reduce_scatter, keep, self._handle, sent, received, count, dtype, op,
                   stream and stream_number(stream) or 0)

    def reduce_scatter_async(self, send: Any, recv: Any, op: ReduceOp = _SUM, *,
                             stream: Any = 0) -> Work:
        """As reduce_scatter(), with a Work."""
        sent, received, count, dtype, keep = self._scattering(send, recv)
        return self._issue(_raw.reduce_scatter_async, keep, sent, received, count, dtype, op,
                           stream and stream_number(stream) or 0)

    def barrier(self, *, stream: Any = 0) -> None:
        """Returns when every rank has called it."""
        _raw.barrier(self._handle, stream and stream_number(stream) or 0)

    def barrier_async(self, *, stream: Any = 0) -> Work:
        """As barrier(), with a Work."""
        return self._issue(_raw.barrier_async, None, stream and stream_number(stream) or 0)

    def check_equal(self, array: Any, name: str = "", *, stream: Any = 0) -> None:
        """Raises MismatchError on all ranks unless their arrays hold the same bytes; it names the ranks
        that differ from the majority. The communicator stays usable.

        name: what it is, for messages; compared, too
        """
        address, count, dtype, keep = self._one("check_equal: array", array, False)
        _raw.check_equal(self._handle, address, count * Dtype(dtype).itemsize, name,
                         stream and stream_number(stream) or 0)
        del keep

    # ---- Batch statistics ----

    def batch_moments(self, input: Any, channels: int, *, spatial: int = 1) -> BatchMoments:
        """Mean and variance of each channel over the batches of all ranks, the same bits on all: the
        forward half of batch normalisation. Collective; a rank may have no samples.

        input: [batch, channels, spatial] elements, F32 or F64
        spatial: elements of a channel of one sample that lie together; 1 where channels are last
        """
        address, count, dtype, keep = self._one("batch_moments: input", input, False)
        packed = bytes(_raw.batch_moments(self._handle, address,
                                          _batch("batch_moments", count, channels, spatial),
                                          channels, spatial, dtype))
        del keep
        mean, variance = _halves(packed[8:])
        return BatchMoments(mean, variance, Unpacker(packed).number())

    def batch_gradient_sums(self, input: Any, gradient: Any, moments: BatchMoments, *, spatial: int = 1,
                            epsilon: float = 1e-5) -> BatchGradientSums:
        """What the gradient of the input needs of all ranks: the backward half. Collective.

        input, moments: as batch_moments() had and gave them
        gradient: of the loss, by the normalised input after weight and bias
        """
        operation = "batch_gradient_sums"
        channels = len(moments.mean)
        if len(moments.variance) != channels:
            raise invalid(f"{operation}: moments have {channels} means and {len(moments.variance)} "
                          "variances; give what batch_moments() gave")
        address, count, dtype, keep = self._one(f"{operation}: input", input, False)
        other, other_count, other_dtype, keep_other = self._one(f"{operation}: gradient", gradient, False)
        if (count, dtype) != (other_count, other_dtype):
            raise invalid(f"{operation}: input has {count} elements of {Dtype(dtype).name}, gradient "
                          f"{other_count} of {Dtype(other_dtype).name}; give two arrays of one shape")
        known = array.array("d", moments.mean) + array.array("d", moments.variance)
        packed = bytes(_raw.batch_gradient_sums(self._handle, address, other,
                                                _batch(operation, count, channels, spatial), channels,
                                                spatial, dtype, known, epsilon))
        del keep, keep_other
        return BatchGradientSums(*_halves(packed))

    # ---- Between two ranks ----

    def send(self, array: Any, peer: int, *, stream: Any = 0) -> None:
        """Sends to a rank of the communicator, which calls recv() with as many elements of this dtype."""
        address, count, dtype, keep = self._one("send", array, False)
        carry_out(_raw.send, keep, self._handle, address, count, dtype, peer,
                   stream and stream_number(stream) or 0)

    def send_async(self, array: Any, peer: int, *, stream: Any = 0) -> Work:
        """As send(), with a Work. Adjacent sends and receives progress together."""
        address, count, dtype, keep = self._one("send", array, False)
        return self._issue(_raw.send_async, keep, address, count, dtype, peer,
                           stream and stream_number(stream) or 0)

    def recv(self, array: Any, peer: int, *, stream: Any = 0) -> None:
        """Receives what a rank of the communicator sends with send()."""
        address, count, dtype, keep = self._one("recv", array, True)
        carry_out(_raw.recv, keep, self._handle, address, count, dtype, peer,
                   stream and stream_number(stream) or 0)

    def recv_async(self, array: Any, peer: int, *, stream: Any = 0) -> Work:
        """As recv(), with a Work."""
        address, count, dtype, keep = self._one("recv", array, True)
        return self._issue(_raw.recv_async, keep, address, count, dtype, peer,
                           stream and stream_number(stream) or 0)
