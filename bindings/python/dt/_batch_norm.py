# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation with the samples of all ranks."""

from typing import Any, List, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from ._comm import Comm
from ._errors import invalid
from ._tensors import buffer, not_compiled, stream_of


class _Normalise(torch.autograd.Function):
    """Batch normalisation with the mean and variance of all ranks' samples (docs/batch_norm.md), on any
    device. Ranks may bring different numbers of samples, also none."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: Optional[torch.Tensor], bias: Optional[torch.Tensor],
                comm: Comm, epsilon: float) -> Any:
        input = given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
        channels = input.shape[1]
        dims, shape = [0, *range(2, input.dim())], [1, channels] + [1] * (input.dim() - 2)
        count = input.numel() // channels
        variance, mean = (torch.var_mean(input, dims, unbiased=False) if count > 0
                          else (input.new_zeros(channels), input.new_zeros(channels)))
        mine = torch.cat([mean.double(), variance.double() * count,
                          mean.new_full((1,), count, dtype=torch.float64)])
        parts = mine.new_empty(comm.size, mine.numel())
        comm.allgather(buffer(mine), buffer(parts), stream=stream_of(mine.device))
        means, squares, counts = torch.split(parts, [channels, channels, 1], dim=1)
        total = counts.sum()
        joint = (means * counts).sum(0) / total
        joint_variance = (squares + counts * (means - joint).square()).sum(0) / total
        scale = (joint_variance + epsilon).rsqrt().to(input.dtype).view(shape)
        center = joint.to(input.dtype).view(shape)
        ctx.save_for_backward(given, weight, center, scale, total)
        ctx.comm, ctx.dims, ctx.shape = comm, dims, shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        output = (input - center) * scale
        if weight is not None:
            output = output * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        unbiased = joint_variance * (total / (total - 1).clamp(min=1))
        ctx.mark_non_differentiable(joint, unbiased)
        return output.to(given.dtype), joint, unbiased

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given, weight, center, scale, total = ctx.saved_tensors
        gradient = gradients[0].to(center.dtype)
        normalised = (given.to(center.dtype) - center) * scale
        own = torch.cat([gradient.sum(ctx.dims), (gradient * normalised).sum(ctx.dims)])
        sums = own.to(torch.float64, copy=True)
        ctx.comm.allreduce(buffer(sums), stream=stream_of(sums.device))
        means = (sums / total).to(center.dtype)
        of_gradient, of_product = (each.view(ctx.shape) for each in means.chunk(2))
        result = (gradient - of_gradient - normalised * of_product) * scale
        if weight is not None:
            result = result * weight.view(ctx.shape)
        bias_gradient, weight_gradient = own.chunk(2)
        of_weight = weight_gradient.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        of_bias = bias_gradient.to(ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        return result.to(given.dtype), of_weight, of_bias, None, None


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """What DistributedDataParallel makes of torch.nn.SyncBatchNorm, whose own ranks are torch.distributed's:
    in training it normalises with the samples of all ranks of the communicator. A copy is PyTorch's again."""

    _comm: Comm

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As torch.nn.SyncBatchNorm, on any device."""
        self._check_input_dim(input)
        if not self.training:
            return torch.nn.modules.batchnorm._BatchNorm.forward(self, input)
        normalised: Tuple[torch.Tensor, torch.Tensor, torch.Tensor] = self._over_ranks(input)
        output, mean, variance = normalised
        tracked: Any = self.num_batches_tracked
        if self.track_running_stats and self.running_mean is not None:
            tracked.add_(1)
            share = 1 / tracked.item() if self.momentum is None else self.momentum
            statistics: Any = ((self.running_mean, mean), (self.running_var, variance))
            with torch.no_grad():
                for running, now in statistics:
                    running.mul_(1 - share).add_(now.to(running.dtype), alpha=share)
        return output

    @not_compiled
    def _over_ranks(self, input: torch.Tensor) -> Any:
        return _Normalise.apply(input, self.weight, self.bias, self._comm, self.eps)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name != "_comm"}
        return object.__new__, (torch.nn.SyncBatchNorm,), state


def sync_layers(module: torch.nn.Module) -> List[torch.nn.SyncBatchNorm]:
    """Each torch.nn.SyncBatchNorm in module; an error if dt cannot take its place."""
    found = []
    for name, each in module.named_modules():
        if not isinstance(each, torch.nn.SyncBatchNorm):
            continue
        name = name or "the module"
        if type(each) not in (torch.nn.SyncBatchNorm, SyncBatchNorm):
            raise invalid(f"DistributedDataParallel: {name} is a {type(each).__name__}, derived from "
                          "torch.nn.SyncBatchNorm; its ranks are torch.distributed's, and dt takes the place "
                          "of torch.nn.SyncBatchNorm alone")
        if each.process_group is not None:
            raise invalid(f"DistributedDataParallel: {name} is a torch.nn.SyncBatchNorm with a process_group "
                          "of torch.distributed; make it without, and it normalises over the communicator")
        found.append(each)
    return found


def convert(layers: List[Any], comm: Comm) -> Optional[Comm]:
    """Makes them SyncBatchNorm over a communicator with the ranks of comm, in place. Collective."""
    # Their operations and the reducer's keep an order each.
    own = comm.split(0, comm.rank) if layers else None
    for each in layers:
        each.__class__ = SyncBatchNorm
        each._comm = own
    return own


def let_go(hooks: List[Any], layers: List[Any], comm: Optional[Comm]) -> None:
    for hook in hooks:
        hook.remove()
    for each in layers:
        if each.__dict__.get("_comm") is comm:  # else another wrapper has it
            each.__class__ = torch.nn.SyncBatchNorm
            del each._comm
