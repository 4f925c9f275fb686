# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules trained with dt's reducer, and the backend "dt" of torch.distributed. Imports torch;
`import dt` alone does not."""

import contextlib
import weakref
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import torch

from ._comm import Comm
from ._errors import InvalidStateError, invalid, invalid_state
from ._raw import Buffer
from ._hook import Hook
from ._reducer import Param, Reducer, ReducerOptions, ReducerStatistics, Wire
from ._types import Dtype

if torch.distributed.is_available():
    from ._process_group import register as _register
    _register()

__all__ = ["DistributedDataParallel", "SyncBatchNorm", "broadcast", "buffer", "check_equal"]

_DTYPES: Dict[Any, Dtype] = {
    torch.int8: Dtype.I8, torch.uint8: Dtype.U8, torch.int32: Dtype.I32, torch.int64: Dtype.I64,
    torch.float16: Dtype.F16, torch.bfloat16: Dtype.BF16, torch.float32: Dtype.F32,
    torch.float64: Dtype.F64}


def buffer(tensor: torch.Tensor) -> Buffer:
    """The memory of a tensor, for any call of dt: also of one that requires a gradient, and faster than
    by DLPack. What dt writes there autograd does not see."""
    if not tensor.is_contiguous():
        raise invalid("dt.torch.buffer: the tensor is not contiguous; give tensor.contiguous()")
    dtype = _DTYPES.get(tensor.dtype, Dtype.U8 if tensor.dtype == torch.bool else None)
    if dtype is None:
        raise invalid(f"dt.torch.buffer: dt has no {tensor.dtype}; convert the tensor")
    return Buffer.from_address(tensor.data_ptr(), tensor.numel(), dtype, tensor, tensor.is_cuda)


def _not_compiled(function: Any) -> Any:
    """torch.compile() leaves the function out of its graphs and calls it."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)  # since torch 2.1
    return function if disable is None else disable(function)


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _any_buffer(tensor: torch.Tensor) -> Buffer:
    """As bytes, where dt has no such dtype."""
    if tensor.dtype in _DTYPES:
        return buffer(tensor)
    return Buffer.from_address(tensor.data_ptr(), tensor.numel() * tensor.element_size(), Dtype.U8, tensor,
                               tensor.is_cuda)


def broadcast(tensors: List[torch.Tensor], comm: Comm, root: int = 0) -> None:
    """Copies root's tensors, of any dtype, into everybody's. Collective."""
    sent = []
    for tensor in tensors:
        whole = tensor.contiguous().resolve_conj().resolve_neg()  # the same tensor if it is so already
        work = None
        if comm.on_gpu:
            comm.broadcast(_any_buffer(whole), root, stream=_stream(whole.device))
        else:
            work = comm.broadcast_async(_any_buffer(whole), root)
        sent.append((work, tensor, whole))
    for work, tensor, whole in sent:
        if work is not None:
            work.wait()
        if whole is not tensor:
            with torch.no_grad():
                tensor.copy_(whole)


def _tensors(values: Any, prefix: str = "") -> Iterator[Tuple[str, torch.Tensor]]:
    """All tensors in nested mappings and lists, with their names: "state.0.exp_avg"."""
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    for index, (key, each) in enumerate(pairs):
        name = f"{prefix}{index if isinstance(key, torch.Tensor) else key}"
        if isinstance(each, torch.Tensor):
            yield name, each
        elif isinstance(each, (Mapping, list, tuple)):
            yield from _tensors(each, name + ".")


def check_equal(module: Any, comm: Comm) -> None:
    """Raises MismatchError on all ranks unless all parameters and buffers of the module hold the same
    bytes; it names the first that differs and the ranks that have diverged. Collective.

    module: or an optimizer's state_dict(), or any mapping of names to tensors or to more of these; what
      is no tensor is left out
    """
    tensors = list(_tensors(module.state_dict() if isinstance(module, torch.nn.Module) else module))
    # First whether there are as many, else the calls below would not meet.
    layout = repr([(name, str(each.dtype), tuple(each.shape)) for name, each in tensors]).encode()
    everything = [("names and shapes", torch.tensor(list(layout), dtype=torch.uint8)), *tensors]
    for name, tensor in everything:
        whole = tensor.detach()
        if whole.is_cuda != comm.on_gpu:
            whole = whole.to("cuda" if comm.on_gpu else "cpu")
        whole = whole.contiguous().resolve_conj().resolve_neg()
        comm.check_equal(_any_buffer(whole), name, stream=_stream(whole.device))


class _Normalise(torch.autograd.Function):  # type: ignore[misc]
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
        comm.allgather(buffer(mine), buffer(parts), stream=_stream(mine.device))
        means, squares, counts = parts.split([channels, channels, 1], dim=1)
        total = counts.sum()
        joint = (means * counts).sum(0) / total
        joint_variance = (squares + counts * (means - joint).square()).sum(0) / total
        scale = (joint_variance + epsilon).rsqrt().to(input.dtype).view(shape)
        center = joint.to(input.dtype).view(shape)
        ctx.save_for_backward(given, weight, center, scale, total)
        ctx.comm, ctx.dims, ctx.shape = comm, dims, shape
        output = (input - center) * scale
        if weight is not None:
            output = output * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        unbiased = joint_variance * (total / (total - 1).clamp(min=1))
        ctx.mark_non_differentiable(joint, unbiased)
        return output.to(given.dtype), joint, unbiased

    @staticmethod
    def backward(ctx: Any, given_gradient: torch.Tensor, *_: Any) -> Any:
        given, weight, center, scale, total = ctx.saved_tensors
        gradient = given_gradient.to(center.dtype)
        normalised = (given.to(center.dtype) - center) * scale
        own = torch.cat([gradient.sum(ctx.dims), (gradient * normalised).sum(ctx.dims)])
        sums = own.to(torch.float64, copy=True)
        ctx.comm.allreduce(buffer(sums), stream=_stream(sums.device))
        means = (sums / total).to(center.dtype)
        of_gradient, of_product = (each.view(ctx.shape) for each in means.chunk(2))
        result = (gradient - of_gradient - normalised * of_product) * scale
        if weight is None:
            return result.to(given.dtype), None, None, None, None
        bias_gradient, weight_gradient = own.chunk(2)
        return ((result * weight.view(ctx.shape)).to(given.dtype), weight_gradient.to(weight.dtype),
                bias_gradient.to(weight.dtype), None, None)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """What DistributedDataParallel makes of torch.nn.SyncBatchNorm, whose own ranks are torch.distributed's:
    in training it normalises with the samples of all ranks of the communicator. A copy is PyTorch's again."""

    _comm: Comm

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As torch.nn.SyncBatchNorm, on any device."""
        self._check_input_dim(input)
        if not self.training:
            return torch.nn.modules.batchnorm._BatchNorm.forward(self, input)
        output, mean, variance = self._over_ranks(input)
        if self.track_running_stats and self.running_mean is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
            with torch.no_grad():
                for running, now in ((self.running_mean, mean), (self.running_var, variance)):
                    running.mul_(1 - share).add_(now.to(running.dtype), alpha=share)
        return output

    @_not_compiled
    def _over_ranks(self, input: torch.Tensor) -> Any:
        return _Normalise.apply(input, self.weight, self.bias, self._comm, self.eps)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name != "_comm"}
        return object.__new__, (torch.nn.SyncBatchNorm,), state


def _sync_layers(module: torch.nn.Module) -> List[torch.nn.Module]:
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


def _convert(layers: List[torch.nn.Module], comm: Comm) -> Optional[Comm]:
    """Makes them SyncBatchNorm over a communicator with the ranks of comm, in place. Collective."""
    # Their operations and the reducer's keep an order each.
    own = comm.split(0, comm.rank) if layers else None
    for each in layers:
        each.__class__ = SyncBatchNorm
        each._comm = own
    return own


def _let_go(hooks: List[Any], layers: List[torch.nn.Module], comm: Optional[Comm]) -> None:
    for hook in hooks:
        hook.remove()
    for each in layers:
        if each.__dict__.get("_comm") is comm:  # else another wrapper has it
            each.__class__ = torch.nn.SyncBatchNorm
            del each._comm


class DistributedDataParallel(torch.nn.Module):
    """A module whose gradients are averaged over all ranks while backward() runs.

    module: on every rank the same; its parameters and buffers become rank 0's
    comm: the communicator
    broadcast_buffers: also make buffers (of batch norm, say) rank 0's before each forward pass
    bucket_cap_bytes, first_bucket_bytes: of the reducer; 0: as the config says
    wire: what gradients of float32 travel as

    After loss.backward() every parameter has the mean gradient. Over host memory parameter.grad lies in
    dt's buckets from then on: with optimizer.zero_grad(set_to_none=False) nothing is copied.

    Every parameter that requires a gradient must get one in each step; backward() raises
    dt.InvalidStateError on all ranks otherwise, and names those that did not. With
    find_unused_parameters one that a rank did not use counts as zero there, and keeps its gradient where
    no rank used it; each rank must use at least one. A step also ends with the
    first graph that gives a gradient, so torch.utils.checkpoint needs use_reentrant=False here.

    When backward() ends with an exception on one rank, the others wait for it: its next forward pass
    ends the step, with a dt.InvalidStateError on all ranks where gradients are missing.

    Each torch.nn.SyncBatchNorm in the module becomes a dt.torch.SyncBatchNorm over comm, in place. It is
    torch.nn.SyncBatchNorm again when this is closed or forgotten.

    torch.compile() may be given the module or this; its graphs begin behind what dt does before the
    module's own forward pass.

    Until it is closed or forgotten backward() of the module averages; then it may be wrapped again.
    """

    def __init__(self, module: torch.nn.Module, comm: Comm, *, broadcast_buffers: bool = True,
                 bucket_cap_bytes: int = 0, first_bucket_bytes: int = 0,
                 find_unused_parameters: bool = False, wire: Wire = Wire.SAME) -> None:
        super().__init__()
        self.module = module
        self._comm = comm
        self._broadcast_buffers = broadcast_buffers
        self._synchronise = True
        self._in_step = False
        self._find_unused = find_unused_parameters
        self._used: Set[int] = set()  # in this step
        named: List[Tuple[str, torch.nn.Parameter]] = [
            (name, parameter) for name, parameter in module.named_parameters()
            if parameter.requires_grad]
        if not named:
            raise invalid("DistributedDataParallel: no parameter of the module requires a gradient; "
                          "there is nothing to average")
        for name, parameter in named:
            if parameter.dtype not in _DTYPES or not parameter.dtype.is_floating_point:
                raise invalid(f"DistributedDataParallel: parameter {name} is of {parameter.dtype}; dt "
                              "averages float16, bfloat16, float32 and float64")
        layers = _sync_layers(module)
        params = [Param(parameter.numel(), _DTYPES[parameter.dtype], name)
                  for name, parameter in named]
        self._reducer = Reducer(comm, params, ReducerOptions(
            bucket_cap_bytes=bucket_cap_bytes, first_bucket_bytes=first_bucket_bytes,
            find_unused=find_unused_parameters, wire=wire))
        self._device = named[0][1].device
        # Where gradients lie in the buckets; None: dt copies to and fro.
        self._views: List[Optional[torch.Tensor]] = [
            None if comm.on_gpu or parameter.numel() == 0
            else torch.from_dlpack(self._reducer.grad(index)).view(parameter.shape)
            for index, (_, parameter) in enumerate(named)]
        with torch.no_grad():
            broadcast([parameter.data for parameter in module.parameters()], comm)
            self._send_buffers()
        self._trained = [parameter for _, parameter in named]
        self._accumulators: List[Any] = []  # a hook lives as long as its node
        hooks = [self._hook(index, parameter) for index, parameter in enumerate(self._trained)]
        self._detach = weakref.finalize(self, _let_go, hooks, layers, _convert(layers, comm))
        self._detach.atexit = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's own, after its buffers have become rank 0's."""
        self._begin()
        return self.module(*inputs, **named)

    @_not_compiled
    def _begin(self) -> None:
        if not self._detach.alive:
            raise invalid("DistributedDataParallel: it is closed; wrap the module again")
        if self._in_step:
            self._end_broken_step()
        if self._broadcast_buffers and self._synchronise and self.training and torch.is_grad_enabled():
            self._send_buffers()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this block backward() only adds to the gradients of this rank; the first one after it
        averages the sums."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def set_hook(self, hook: Optional[Hook]) -> None:
        """Has a function reduce the buckets, see dt.Reducer.set_hook(); between steps."""
        self._reducer.set_hook(hook)

    def power_sgd(self, *, rank: int = 1, start_step: int = 1000, **options: Any) -> None:
        """Compresses gradients of two dimensions and more, see dt.Reducer.power_sgd(); between steps."""
        self._reducer.power_sgd([each.shape[0] if each.dim() > 1 else 0 for each in self._trained],
                                rank=rank, start_step=start_step, **options)

    def clip_norm(self, max_norm: float, norm_type: float = 2.0, *, out: Any = None) -> float:
        """Clips the gradients of the last step by their norm, see dt.Reducer.clip_norm()."""
        return self._reducer.clip_norm(max_norm, norm_type, out=out, stream=_stream(self._device))

    def statistics(self) -> ReducerStatistics:
        """What the reducer did so far."""
        return self._reducer.statistics()

    def close(self) -> None:
        """Lets go of the module, whose gradients are averaged no more."""
        self._detach()
        self._reducer.close()

    def _send_buffers(self) -> None:
        broadcast([each.data for each in self.module.buffers() if each.numel() > 0], self._comm)

    def _hook(self, index: int, parameter: torch.nn.Parameter) -> Any:
        weak = weakref.ref(self)  # the parameter keeps the hook

        def ready(*_: Any) -> None:
            this = weak()
            if this is not None and this._synchronise:
                this._ready(index)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            return parameter.register_post_accumulate_grad_hook(ready)
        # The node that adds to parameter.grad; a view of the parameter leads there.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._accumulators.append(accumulator)
        return accumulator.register_hook(ready)

    def _ready(self, index: int) -> None:
        parameter = self._trained[index]
        if not self._in_step:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._in_step = True
        gradient = parameter.grad
        if gradient is None:
            return  # finish() names it
        if gradient.is_sparse:
            raise invalid("DistributedDataParallel: a gradient is sparse; dt reduces dense ones")
        self._used.add(index)
        view = self._views[index]
        if view is not None:
            if gradient.data_ptr() != view.data_ptr():
                with torch.no_grad():
                    view.copy_(gradient)
                parameter.grad = view
            self._reducer.ready(index)
            return
        if not gradient.is_contiguous():
            parameter.grad = gradient = gradient.contiguous()
        self._reducer.ready(index, buffer(gradient), stream=_stream(gradient.device))

    def _finish(self) -> None:
        self._in_step = False
        unused = self._tell_unused() if self._find_unused else []
        self._used.clear()
        self._reducer.finish(stream=_stream(self._device))
        for index, gradient in unused:
            if self._reducer.used(index):
                self._trained[index].grad = gradient

    def _tell_unused(self) -> List[Tuple[int, torch.Tensor]]:
        """What this rank did not use, and where the mean of it goes."""
        unused = []
        for index in set(range(len(self._trained))) - self._used:
            parameter, view = self._trained[index], self._views[index]
            if view is None:
                gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
                self._reducer.unused(index, buffer(gradient), stream=_stream(gradient.device))
            else:
                gradient = view
                if parameter.grad is not None and parameter.grad.data_ptr() == view.data_ptr():
                    parameter.grad = parameter.grad.clone()  # the view becomes zero
                self._reducer.unused(index)
            unused.append((index, gradient))
        return unused

    def _end_broken_step(self) -> None:
        try:
            self._finish()
        except InvalidStateError as error:
            raise invalid_state(
                "DistributedDataParallel: the last backward() ended with an exception, so its step was "
                f"ended without a result on all ranks; go on with the next ({error})") from error
