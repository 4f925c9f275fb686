# SPDX-License-Identifier: Apache-2.0
"""Memory of dt's as arrays."""

import operator
from typing import Any, Callable, Dict

from . import _raw
from ._errors import invalid_state
from ._types import Dtype, DtypeLike, Handle, Unique, let_go

# By Dtype. NumPy has no bf16 and no 8-bit floats, so that they are their bits.
_TYPESTRS = ("|i1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f2", "<u2", "<f4", "<f8", "|b1", "<i2", "<u2", "|u1", "|u1")


class Region(_raw.Region, Unique):
    """Memory that arrays are made over: numpy.asarray(region), memoryview(region) and
    torch.from_dlpack(region) share it and keep it alive. It is as long as its `count`.

    Memory of a GPU has __cuda_array_interface__ instead. The buffer protocol has no bf16, DLPack does:
    without it such memory looks like unsigned integers of 16 bits.
    """

    _owner: Handle

    @property
    def dtype(self) -> Dtype:
        """Of the elements."""
        return Dtype(self._dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self.count * self.itemsize)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self.on_gpu:
            raise AttributeError("host memory; use numpy.asarray()")
        if self.address == 0:
            raise invalid_state("the memory is closed; allocate it anew")
        return {"shape": (self.count,), "typestr": _TYPESTRS[self._dtype], "strides": None,
                "data": (self.address, False), "version": 3}

    def __len__(self) -> int:
        return int(self.count)

    def __repr__(self) -> str:
        where = "closed" if self.address == 0 else f"at {self.address:#x}"
        return f"<dt.{type(self).__name__} of {self.count} {self.dtype.name} {where}>"


class Memory(Region):
    """Memory that all local ranks can reach, so that reductions read it where it lies: what
    Comm.alloc() gives. It keeps its communicator until it is closed or forgotten."""

    def close(self) -> None:
        """Frees it. InvalidStateError while arrays are made over it; of GPU memory nobody counts."""
        address = self._take()
        if address == 0:
            if self.address != 0:
                raise invalid_state(f"the memory cannot be freed: {self.exports} array(s) or "
                                    "operation(s) use it; let go of them first")
            return
        try:
            _raw.mem_free(self._owner.number, address)
        finally:
            del self._owner

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, end: Callable[[Callable[[], None]], None] = let_go) -> None:
        if self.address != 0:
            end(self._forget)

    def _forget(self) -> None:
        try:
            self.close()
        except Exception:  # pylint: disable=broad-exception-caught
            pass  # the job has taken it along


class Gradient(Region):
    """Where a gradient is to be written, inside its bucket: what Reducer.grad() gives. It keeps its
    reducer."""


class Parameter(Region):
    """A parameter, or a piece of one: what Shard.param() and Shard.piece() give. It keeps its shard."""


def make_memory(owner: Handle, count: int, dtype: DtypeLike, on_gpu: bool) -> Memory:
    """Allocates it."""
    kind, count = Dtype(dtype), operator.index(count)  # a NumPy integer multiplies in its own width
    memory = Memory(_raw.mem_alloc(owner.number, count * kind.itemsize), count, kind, on_gpu)
    memory._owner = owner
    return memory
