# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch as memory that dt reads and writes."""

from typing import Any, Dict

import torch

from ._errors import invalid
from ._raw import Buffer
from ._types import Dtype

DTYPES: Dict[Any, Dtype] = {
    torch.int8: Dtype.I8, torch.uint8: Dtype.U8, torch.int32: Dtype.I32, torch.int64: Dtype.I64,
    torch.float16: Dtype.F16, torch.bfloat16: Dtype.BF16, torch.float32: Dtype.F32,
    torch.float64: Dtype.F64}


def buffer(tensor: torch.Tensor) -> Buffer:
    """The memory of a tensor, for any call of dt: also of one that requires a gradient, and faster than
    by DLPack. What dt writes there autograd does not see."""
    if not tensor.is_contiguous():
        raise invalid("dt.torch.buffer: the tensor is not contiguous; give tensor.contiguous()")
    dtype = DTYPES.get(tensor.dtype, Dtype.U8 if tensor.dtype == torch.bool else None)
    if dtype is None:
        raise invalid(f"dt.torch.buffer: dt has no {tensor.dtype}; convert the tensor")
    return Buffer.from_address(tensor.data_ptr(), tensor.numel(), dtype, tensor, tensor.is_cuda)


def not_compiled(function: Any) -> Any:
    """torch.compile() leaves the function out of its graphs and calls it."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)  # since torch 2.1
    return function if disable is None else disable(function)


def stream_of(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def any_buffer(tensor: torch.Tensor) -> Buffer:
    """As bytes, where dt has no such dtype."""
    if tensor.dtype in DTYPES:
        return buffer(tensor)
    return Buffer.from_address(tensor.data_ptr(), tensor.numel() * tensor.element_size(), Dtype.U8, tensor,
                               tensor.is_cuda)
