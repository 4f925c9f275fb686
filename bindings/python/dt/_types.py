# SPDX-License-Identifier: Apache-2.0
"""Enumerations, records, and how times and lists travel to dt."""

import _thread
import dataclasses
import enum
import math
import operator
import struct
from types import TracebackType
from typing import (TYPE_CHECKING, Any, Callable, Iterable, List, NoReturn, Optional, Protocol,
                    Sequence, Tuple, Type, TypeVar, Union)

from . import _raw
from ._errors import invalid, invalid_state

if TYPE_CHECKING:
    from ._raw import Buffer, Region

_LONGEST_MS = 2**62


class _HasBuffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


class _HasDlpack(Protocol):
    def __dlpack_device__(self) -> Tuple[Any, Any]: ...


class _HasCudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


class _HasCudaStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


class _HasPointer(Protocol):
    @property
    def ptr(self) -> int: ...


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


class _HasDtype(Protocol):
    @property
    def dtype(self) -> Any: ...


class _OfTorch(Protocol):
    @property
    def is_floating_point(self) -> bool: ...


# For type checkers, which need neither NumPy nor PyTorch for them.
Array = Union[_HasBuffer, _HasDlpack, _HasCudaArray, "Buffer", "Region"]  # what Buffer takes
Rows = Union[Array, Sequence[int]]
Stream = Union[int, _HasCudaStream, _HasPointer, None]  # PyTorch's and CuPy's
DtypeLike = Union[int, str, type, _HasName, _HasDtype, _OfTorch]  # what Dtype takes: also NumPy's, JAX's and PyTorch's


class Dtype(enum.IntEnum):
    """Element types. Arrays carry theirs; it is said only for plain memory."""

    I8 = 0
    U8 = 1
    I32 = 2
    U32 = 3
    I64 = 4
    U64 = 5
    F16 = 6
    BF16 = 7
    F32 = 8
    F64 = 9
    BOOL = 10
    I16 = 11
    U16 = 12
    F8E4M3 = 13
    F8E5M2 = 14

    if TYPE_CHECKING:
        def __new__(cls, value: DtypeLike) -> "Dtype": ...

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return (1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 2, 2, 1, 1)[self]

    @classmethod
    def _missing_(cls, value: object) -> "Dtype":
        """By a dtype of NumPy, PyTorch or JAX, or its name: Dtype(numpy.float32), Dtype("float32")."""
        dtype = value if isinstance(value, (str, type)) else getattr(value, "dtype", value)
        name = dtype.__name__ if isinstance(dtype, type) else getattr(dtype, "name", str(dtype))
        name = name.rpartition(".")[2]  # of "torch.float32"
        found = _DTYPES.get(name)
        if found is not None:
            return cls[found]
        if name in cls.__members__:
            return cls[name]
        raise invalid(f"dtype: {value!r} is none of dt's; give a dt.Dtype or one of "
                      f"{', '.join(_DTYPES)}")


_DTYPES = {"int8": "I8", "uint8": "U8", "int32": "I32", "uint32": "U32", "int64": "I64",
           "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
           "bool": "BOOL", "int16": "I16", "uint16": "U16", "float8_e4m3fn": "F8E4M3", "float8_e4m3fnuz": "F8E4M3",
           "float8_e5m2": "F8E5M2", "float8_e5m2fnuz": "F8E5M2"}


class ReduceOp(enum.IntEnum):
    """Reductions. 16-bit numbers are added in 32 bits; integers wrap; NaN goes through MIN and MAX.
    BAND, BOR and BXOR are of the bits of integers and bool; of bool SUM and MAX are "or"."""

    SUM = 0
    AVG = 1
    PROD = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7

    if TYPE_CHECKING:
        def __new__(cls, value: Union[int, str]) -> "ReduceOp": ...

    @classmethod
    def _missing_(cls, value: object) -> "ReduceOp":
        """By its name: ReduceOp("sum")."""
        found = cls.__members__.get(value.upper()) if isinstance(value, str) else None
        if found is None:
            raise invalid(f"op: {value!r} is no reduction; give a dt.ReduceOp or one of "
                          f"{', '.join(repr(each.lower()) for each in cls.__members__)}")
        return found


class LogLevel(enum.IntEnum):
    """Severity of a log message."""

    ERROR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rank stands: what Job.place gives."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    node_rank: int
    node_count: int
    attempt: int
    master_port: int
    master_addr: str
    job_id: str
    host: str
    launcher: str


def let_go(close: Callable[[], object], may_call: Callable[[], bool] = _raw.may_call,
           start: Callable[..., int] = _thread.start_new_thread) -> None:
    """How a handle ends. Where dt calls Python the garbage collector may run, also on a thread that the handle would
    have to end: then a thread of its own closes it. It is started without a lock, which this thread may have. The
    defaults are there when Python ends and the names of this module are gone."""
    if may_call():
        close()
        return
    try:
        start(close, ())
    except RuntimeError:
        pass  # no more threads, or Python ends: it stays open


class Unique:
    """What cannot be copied or pickled, because dt has one of it."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} of dt cannot be copied or pickled")


class Handle(Unique):
    """A handle of dt, dropped when the last one who needs it lets go."""

    __slots__ = ("number", "_destroy", "keeps", "__weakref__")

    def __init__(self, number: int, destroy: Callable[[int], None]) -> None:
        self.number = number
        self._destroy = destroy
        self.keeps: Any = None  # to be kept alive until destroy

    def close(self, end: Callable[[Callable[[], None]], None] = let_go) -> None:
        """Drops it now. A second time, or by two threads at once, is no harm."""
        number, self.number = self.number, 0
        if number != 0:
            end(lambda: self._destroy(number))

    def __del__(self) -> None:
        self.close()


_Opened = TypeVar("_Opened", bound="Owner")


class Owner(Unique):
    """What holds a handle until it is closed, also as a context manager."""

    __slots__ = ("_owner", "_handle", "__weakref__")

    def __init__(self, owner: Handle) -> None:
        self._owner: Optional[Handle] = owner
        self._handle: int = owner.number  # 0, which dt refuses, once it is closed

    def _open(self) -> Handle:
        owner = self._owner
        if owner is None:
            raise invalid_state(f"{type(self).__name__}: it is closed")
        return owner

    def close(self) -> None:
        """Drops the handle."""
        self._handle = 0
        self._owner = None

    def __enter__(self: _Opened) -> _Opened:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def milliseconds(timeout: Optional[float]) -> int:
    """Of seconds, rounded up; None and infinity: as long as dt's own limits allow."""
    if timeout is None or timeout == math.inf:
        return -1
    if not timeout >= 0:
        raise invalid(f"a timeout of {timeout} seconds; give None or a number of at least 0")
    # As a float: a NumPy integer would multiply in its own width.
    return math.ceil(float(min(timeout, _LONGEST_MS // 1000)) * 1000)


def stream_number(stream: Stream) -> int:
    """A CUDA stream as a number: an int, or what PyTorch and CuPy call a stream."""
    if isinstance(stream, int):
        return stream
    if stream is None:
        return 0
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    raise invalid(f"a {type(stream).__name__} is no CUDA stream; give its address as an int, or an "
                  "object with cuda_stream or ptr")


def integer(what: str, value: Any) -> int:
    """An int of anything that is one, such as NumPy's; `what`: for the error."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}, of type {type(value).__name__}; give an integer") from None


def integers(what: str, values: Iterable[Any]) -> List[int]:
    """The same of a list."""
    return [integer(f"{what}[{index}]", value) for index, value in enumerate(values)]


def bits(value: float) -> int:
    """Those of a double, for pack()."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def seed_bits(what: str, seed: Any) -> int:
    """The same of a seed, signed or unsigned."""
    number = integer(f"{what}: seed", seed)
    if not -2**63 <= number < 2**64:
        raise invalid(f"{what}: seed is {number}; give an integer of 64 bits")
    return number - 2**64 if number >= 2**63 else number


def options_of(what: str, of: type, record: Any, names: str) -> List[int]:
    """The named fields of an `of`, for pack(), as the types of its defaults say; a list follows its length."""
    parts: List[int] = []
    for name in names.split():
        value, default = getattr(record, name), getattr(of, name)
        if isinstance(default, tuple):
            parts += [len(value), *integers(f"{what}: options.{name}", value)]
        elif isinstance(default, (bool, float)):
            parts.append(bool(value) if isinstance(default, bool) else bits(value))
        else:
            parts.append(integer(f"{what}: options.{name}", value))
    return parts


def pack(items: Iterable[Union[str, bytes, int, None]]) -> bytes:
    """A list for _raw: numbers as they are, text and bytes after their size, None as absent."""
    packed = bytearray()
    for item in items:
        if item is None:
            packed += struct.pack("q", -1)
        elif isinstance(item, (str, bytes)):
            data = item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item
            packed += struct.pack("q", len(data)) + data
        else:
            number = integer("an argument", item)
            if not -1 << 63 <= number < 1 << 63:
                raise invalid(f"the argument {number} does not fit in signed 64 bits; give one from -2**63 to "
                              "2**63 - 1")
            packed += struct.pack("q", number)
    return bytes(packed)


def pack_keys(keys: Iterable[str]) -> bytes:
    """The same for keys, which have no NUL."""
    checked: List[str] = []
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"a key is a str, not {type(key).__name__}")
        if "\0" in key:
            raise invalid(f"the key {key!r} has a NUL character; dt's keys have none")
        checked.append(key)
    return pack(checked)


class Unpacker:
    """Reads what _raw packed."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._at = 0

    def number(self) -> int:
        """The next number."""
        (value,) = struct.unpack_from("q", self._packed, self._at)
        self._at += 8
        return int(value)

    def real(self) -> float:
        """The next number, which is the bits of a double."""
        (value,) = struct.unpack_from("d", self._packed, self._at)
        self._at += 8
        return float(value)

    def item(self) -> Optional[bytes]:
        """The next item; None where it is absent."""
        size = self.number()
        if size < 0:
            return None
        self._at += size
        return self._packed[self._at - size:self._at]

    def text(self) -> str:
        """The next item as text."""
        return (self.item() or b"").decode("utf-8", "replace")
