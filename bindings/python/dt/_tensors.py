# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch as memory that dt reads and writes."""

from typing import Any, Dict, List, Optional

import torch
from torch.utils.dlpack import from_dlpack

from ._comm import Comm
from ._errors import invalid
from ._memory import Region
from ._raw import Buffer
from ._types import Dtype

DTYPES: Dict[Any, Dtype] = {
    torch.int8: Dtype.I8, torch.uint8: Dtype.U8, torch.int32: Dtype.I32, torch.int64: Dtype.I64,
    torch.float16: Dtype.F16, torch.bfloat16: Dtype.BF16, torch.float32: Dtype.F32,
    torch.float64: Dtype.F64}
# What is not a parameter's or a gradient's; some came with later releases of PyTorch.
_MORE_DTYPES: Dict[Any, Dtype] = {
    getattr(torch, name): dtype for name, dtype in (
        ("bool", Dtype.BOOL), ("int16", Dtype.I16), ("uint16", Dtype.U16), ("uint32", Dtype.U32),
        ("uint64", Dtype.U64), ("float8_e4m3fn", Dtype.F8E4M3), ("float8_e5m2", Dtype.F8E5M2))
    if hasattr(torch, name)}


def dtype_of(kind: torch.dtype) -> Optional[Dtype]:
    """None: dt has no such elements."""
    return DTYPES.get(kind, _MORE_DTYPES.get(kind))


def _check_place(tensor: torch.Tensor) -> None:
    """An address of another device, or none, would be taken for one of the host."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise invalid(f"dt.torch: a tensor is on {tensor.device}, and dt reads host memory and memory of CUDA; copy it "
                      "there, as by tensor.cpu()")


def buffer(tensor: torch.Tensor) -> Buffer:
    """The memory of a tensor, for any call of dt: also of one that requires a gradient, and faster than
    by DLPack. What dt writes there autograd does not see."""
    if not tensor.is_contiguous():
        raise invalid("dt.torch.buffer: the tensor is not contiguous; give tensor.contiguous()")
    _check_place(tensor)
    dtype = dtype_of(tensor.dtype)
    if dtype is None:
        raise invalid(f"dt.torch.buffer: dt has no {tensor.dtype}; convert the tensor")
    return Buffer.from_address(tensor.data_ptr(), tensor.numel(), dtype, tensor, tensor.is_cuda)


def not_compiled(function: Any) -> Any:
    """torch.compile() leaves the function out of its graphs and calls it."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)  # since torch 2.1
    return function if disable is None else disable(function)


def stream_of(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


class _OfGpu:
    """A region as PyTorch takes it: it has no integers of 16 bits without a sign, which bf16 looks like."""

    def __init__(self, region: Region) -> None:
        described = region.__cuda_array_interface__
        if region.dtype == Dtype.BF16:
            described["typestr"] = "<i2"
        self.__cuda_array_interface__ = described
        self._region = region  # PyTorch keeps this object as long as the tensor


def tensor_over(region: Region, device: torch.device) -> torch.Tensor:
    """A tensor over memory of dt's, which it keeps."""
    if not region.on_gpu:
        return from_dlpack(region)
    tensor = torch.as_tensor(_OfGpu(region), device=device)
    if tensor.data_ptr() != region.address:
        raise invalid(f"dt.torch: dt's memory is not on {device}, where the module's parameters are; move the module "
                      "to the GPU of the communicator, which the setting backend.device names")
    return tensor.view(torch.bfloat16) if region.dtype == Dtype.BF16 else tensor


class StreamUsers:
    """The CUDA streams that use some memory. The first one was told when it may; the others wait for that one.
    Over host memory there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: List[Any] = []

    def add(self) -> None:
        """The current stream uses it, too."""
        if self._device.type != "cuda":
            return
        current = torch.cuda.current_stream(self._device)
        if current not in self._streams:
            if self._streams:
                current.wait_stream(self._streams[0])
            self._streams.append(current)

    def join(self) -> None:
        """The current stream waits for all that they were given so far."""
        if self._streams:
            current = torch.cuda.current_stream(self._device)
            for each in self._streams:
                if each != current:
                    current.wait_stream(each)


def any_buffer(tensor: torch.Tensor) -> Buffer:
    """As bytes, where dt has no such dtype."""
    if tensor.dtype in DTYPES:
        return buffer(tensor)
    _check_place(tensor)
    return Buffer.from_address(tensor.data_ptr(), tensor.numel() * tensor.element_size(), Dtype.U8, tensor,
                               tensor.is_cuda)


def broadcast(tensors: List[torch.Tensor], comm: Comm, root: int = 0) -> None:
    """Copies root's tensors, of any dtype, into everybody's. Collective."""
    sent = []
    for tensor in tensors:
        whole = tensor.contiguous().resolve_conj().resolve_neg()  # the same tensor if it is so already
        work = None
        if comm.on_gpu:
            comm.broadcast(any_buffer(whole), root, stream=stream_of(whole.device))
        else:
            work = comm.broadcast_async(any_buffer(whole), root)
        sent.append((work, tensor, whole))
    for work, tensor, whole in sent:
        if work is not None:
            work.wait()
        if whole is not tensor:
            with torch.no_grad():
                tensor.copy_(whole)
