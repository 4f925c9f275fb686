# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module whose gradients dt's reducer averages."""

import contextlib
import weakref
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

import torch
from torch.utils.dlpack import from_dlpack

from ._batch_norm import convert, let_go, sync_layers
from ._comm import Comm
from ._errors import InvalidStateError, invalid, invalid_state
from ._hook import Hook
from ._reducer import Param, Reducer, ReducerOptions, ReducerStatistics, Wire
from ._tensors import DTYPES, broadcast, buffer, not_compiled, stream_of


class DistributedDataParallel(torch.nn.Module):
    """A module whose gradients are averaged over all ranks while backward() runs.

    module: on every rank the same; its parameters and buffers become rank 0's
    comm: the communicator
    broadcast_buffers: also make buffers (of batch norm, say) rank 0's before each forward pass
    bucket_cap_bytes, first_bucket_bytes: of the reducer; 0: as the config says
    wire: what gradients of float32 travel as
    tune_steps: more than 2: the size of buckets is tuned, with so many steps for each of four; 0: it is not

    After loss.backward() every parameter has the mean gradient. Over host memory parameter.grad lies in
    dt's buckets from then on: with optimizer.zero_grad(set_to_none=False) nothing is copied.

    Every parameter that requires a gradient must get one in each step; backward() raises
    dt.InvalidStateError on all ranks otherwise, and names those that did not. With
    find_unused_parameters one that a rank did not use counts as zero there, and keeps its gradient where
    no rank used it; each rank must use at least one. One whose grad is not None, as after a pass in no_sync(),
    counts as used. static_graph says that every step uses the parameters
    of the first one: what a rank does not use is learned there, and later steps exchange nothing for it. A
    step also ends with the first graph that gives a gradient, so torch.utils.checkpoint needs use_reentrant=False here.

    When backward() ends with an exception on one rank after a parameter has got its gradient, the others wait
    for it: its next forward pass ends the step, with a dt.InvalidStateError on all ranks where gradients are
    missing. Where none is, and with find_unused_parameters, the other ranks get the averages and no error; only this
    rank gets that error, and its parameters may differ from theirs from then on. In the first step of static_graph
    the same holds, and this rank has learned to use only what had a gradient: make the wrapper anew on all ranks.
    After an exception before the first gradient no step has begun on this rank: its next backward() would take part
    in the step of the others, so end the program, or do that backward() again. An exception in no_sync() breaks no
    step; the sum of this rank lacks what was not added.

    Gradients of torch.nn.Embedding and EmbeddingBag with sparse=True travel as rows, and stay sparse; over
    host memory.

    Each torch.nn.SyncBatchNorm in the module becomes a dt.torch.SyncBatchNorm over comm, in place. It is
    torch.nn.SyncBatchNorm again when this is closed or forgotten.

    torch.compile() may be given the module or this; its graphs begin behind what dt does before the
    module's own forward pass.

    Until it is closed or forgotten backward() of the module averages; then it may be wrapped again.
    """

    def __init__(self, module: torch.nn.Module, comm: Comm, *, broadcast_buffers: bool = True,
                 bucket_cap_bytes: int = 0, first_bucket_bytes: int = 0,
                 find_unused_parameters: bool = False, static_graph: bool = False,
                 wire: Wire = Wire.SAME, tune_steps: int = 0) -> None:
        super().__init__()
        self.module = module
        self._comm = comm
        self._broadcast_buffers = broadcast_buffers
        self._synchronise = True
        self._in_step = False
        self._find_unused = find_unused_parameters
        self._static = static_graph
        self._tuning = tune_steps > 0
        self._never_used: Optional[Set[int]] = None  # on this rank, in a static graph; None: not known yet
        self._used: Set[int] = set()  # in this step
        named: List[Tuple[str, torch.nn.Parameter]] = [
            (name, parameter) for name, parameter in module.named_parameters()
            if parameter.requires_grad]
        if not named:
            raise invalid("DistributedDataParallel: no parameter of the module requires a gradient; "
                          "there is nothing to average")
        for name, parameter in named:
            if parameter.dtype not in DTYPES or not parameter.dtype.is_floating_point:
                raise invalid(f"DistributedDataParallel: parameter {name} is of {parameter.dtype}; dt "
                              "averages float16, bfloat16, float32 and float64")
        layers = sync_layers(module)
        params = [Param(parameter.numel(), DTYPES[parameter.dtype], name, shape=tuple(parameter.shape))
                  for name, parameter in named]
        rows = {id(layer.weight): layer.weight.shape[1] for layer in module.modules()
                if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and layer.sparse}
        row_elements = [rows.get(id(parameter), 0) for _, parameter in named] if rows else []
        if any(row_elements) and any(parameter.device.type != "cpu" for _, parameter in named):
            raise invalid("DistributedDataParallel: the module has an embedding with sparse=True and parameters on a "
                          "GPU; sparse gradients are for modules in host memory")
        self._by_rows = {index for index, elements in enumerate(row_elements) if elements > 0}
        self._device = named[0][1].device
        self._trained = [parameter for _, parameter in named]
        # Where gradients lie in the buckets; None: dt copies to and fro.
        self._views: List[Optional[torch.Tensor]] = [None] * len(named)
        with torch.no_grad():
            broadcast([parameter.data for parameter in module.parameters()], comm)
            self._send_buffers()
        self._reducer = self._make_reducer(params, ReducerOptions(
            bucket_cap_bytes=bucket_cap_bytes, first_bucket_bytes=first_bucket_bytes,
            find_unused=find_unused_parameters, static_graph=static_graph, wire=wire,
            tune_steps=tune_steps, row_elements=row_elements))
        if not self._tuning:
            self._make_views()
        self._accumulators: List[Any] = []  # a hook lives as long as its node
        hooks = [self._hook(index, parameter) for index, parameter in enumerate(self._trained)]
        hooks += self._module_hooks()
        self._detach = weakref.finalize(self, let_go, hooks, layers, convert(layers, comm))
        self._detach.atexit = False

    def _make_reducer(self, params: List[Param], options: ReducerOptions) -> Reducer:
        return Reducer(self._comm, params, options)

    def _make_views(self) -> None:
        for index, parameter in enumerate(self._trained):
            if not self._comm.on_gpu and parameter.numel() > 0 and index not in self._by_rows:
                self._views[index] = from_dlpack(self._reducer.grad(index)).view(parameter.shape)

    def _module_hooks(self) -> List[Any]:
        return []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's own, after its buffers have become rank 0's."""
        self._begin()
        return self.module(*inputs, **named)

    @not_compiled
    def _begin(self) -> None:
        if not self._detach.alive:
            raise invalid("DistributedDataParallel: it is closed; wrap the module again")
        if self._in_step:
            self._end_broken_step()
        if self._broadcast_buffers and self._sends() and self.training and torch.is_grad_enabled():
            self._send_buffers()

    def _sends(self) -> bool:
        return self._synchronise

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
        return self._reducer.clip_norm(max_norm, norm_type, out=out, stream=stream_of(self._device))

    def statistics(self) -> ReducerStatistics:
        """What the reducer did so far."""
        return self._reducer.statistics()

    def close(self) -> None:
        """Lets go of the module, whose gradients are averaged no more."""
        self._detach()
        self._reducer.close()

    def _send_buffers(self) -> None:
        broadcast([each.data for each in self.module.buffers() if each.numel() > 0], self._comm)

    def _hook(self, index: int, parameter: Any) -> Any:
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
        if gradient is not None:  # else finish() names it
            self._pass_on(index, gradient)

    def _pass_on(self, index: int, gradient: torch.Tensor) -> None:
        parameter = self._trained[index]
        if gradient.is_sparse != (index in self._by_rows):
            raise invalid(f"DistributedDataParallel: gradient {index} is {'sparse' if gradient.is_sparse else 'dense'}; "
                          "those of Embedding and EmbeddingBag with sparse=True must be sparse, and no others")
        self._used.add(index)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            self._reducer.ready_rows(index, buffer(gradient.indices()[0].contiguous()),
                                     buffer(gradient.values().contiguous()))
            return
        view = self._views[index]
        if view is not None:
            if gradient.data_ptr() != view.data_ptr():
                with torch.no_grad():
                    view.copy_(gradient)
                parameter.grad = view
            self._reducer.ready(index)
            return
        self._give(index, gradient)

    def _give(self, index: int, gradient: torch.Tensor) -> None:
        if not gradient.is_contiguous():
            self._trained[index].grad = gradient = gradient.contiguous()
        self._reducer.ready(index, buffer(gradient), stream=stream_of(gradient.device))

    def _finish(self) -> None:
        self._in_step = False
        if self._find_unused or (self._static and self._never_used is None):
            self._pass_on_earlier()
        missing = set(range(len(self._trained))) - self._used - self._by_rows
        self._used.clear()
        if self._never_used is not None:
            missing = self._never_used  # finish() names others
        unused = self._tell_unused(missing) if self._find_unused or self._static else []
        self._reducer.finish(stream=stream_of(self._device))
        if self._tuning and self._reducer.statistics().tuned:  # buckets stay where they are from now on
            self._tuning = False
            self._make_views()
        if self._static:
            self._never_used = missing
        for index, gradient in unused:
            if self._reducer.used(index):
                self._trained[index].grad = gradient
        for index in self._by_rows:
            if not (self._find_unused or self._static) or self._reducer.used(index):
                self._trained[index].grad = self._sparse(index)

    def _pass_on_earlier(self) -> None:
        """Gradients of parameters that earlier passes in no_sync() used, and the last one did not."""
        for index in sorted(set(range(len(self._trained))) - self._used):
            gradient = self._trained[index].grad
            if gradient is not None:
                self._pass_on(index, gradient)

    def _sparse(self, index: int) -> torch.Tensor:
        """The mean of a gradient that came as rows."""
        parameter: Any = self._trained[index]
        rows, values = self._reducer.rows(index)
        if len(rows) == 0:
            make: Callable[..., torch.Tensor] = torch.sparse_coo_tensor  # PyTorch's annotations lack this form
            return make(parameter.shape, dtype=parameter.dtype)
        indices = torch.frombuffer(bytearray(rows), dtype=torch.int64)
        return torch.sparse_coo_tensor(
            indices[None], torch.frombuffer(bytearray(values), dtype=parameter.dtype).view(len(rows), -1),
            parameter.shape).coalesce()

    def _tell_unused(self, indices: Set[int]) -> List[Tuple[int, torch.Tensor]]:
        """What this rank did not use, and where the mean of it goes."""
        unused = []
        for index in indices:
            parameter, view = self._trained[index], self._views[index]
            if view is None:
                gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
                self._reducer.unused(index, buffer(gradient), stream=stream_of(gradient.device))
            else:
                gradient = view
                if parameter.grad is not None and parameter.grad.data_ptr() == view.data_ptr():
                    parameter.grad = parameter.grad.clone()  # the view becomes zero
                self._reducer.unused(index)
            unused.append((index, gradient))
        return unused

    def _end_broken_step(self) -> None:
        learns = self._static and self._never_used is None
        try:
            self._finish()
        except InvalidStateError as error:
            raise invalid_state(
                "DistributedDataParallel: the last backward() ended with an exception, so its step was "
                f"ended without a result on all ranks; go on with the next ({error})") from error
        learned = learns and bool(self._never_used)
        if self._comm.size > 1 or learned:  # for the other ranks this one only did not use what is missing
            raise invalid_state(self._text_of_completed(learned))

    def _text_of_completed(self, learned: bool) -> str:
        """Of the error where a broken step has results. learned: that this rank does not use what was missing."""
        again = (", and make this wrapper anew on all ranks: with static_graph it has learned from this step that this "
                 "rank uses only parameters that had a gradient") if learned else ""
        return ("DistributedDataParallel: the last backward() ended with an exception on this rank, and its step was "
                "completed without the gradients that this rank had not given. Ranks whose backward() succeeded have "
                "the means and may have updated their parameters by them. End the program, or make parameters and the "
                f"optimizer's state the same on all ranks again, as from a checkpoint{again}")
