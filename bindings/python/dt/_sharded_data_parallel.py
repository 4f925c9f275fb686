# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module of whose parameters each rank updates its own pieces."""

import contextlib
import dataclasses
import functools
import os
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch
from torch.utils._pytree import tree_map

from ._comm import Comm
from ._distributed_data_parallel import DistributedDataParallel
from ._errors import invalid, invalid_state, unsupported
from ._reducer import Param, Reducer, ReducerOptions
from ._shard import Optimizer, Shard, ShardOptions
from ._tensors import StreamUsers, buffer, not_compiled, stream_of, tensor_over


def _listed(module: torch.nn.Module) -> List[torch.nn.Module]:
    """The elements of its outermost lists of modules: the blocks of a transformer, say. Nobody calls a
    ModuleList or a ModuleDict, so one in a list stands for its elements."""
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return [each for child in module.children() for each in _listed(child)]
    found: List[torch.nn.Module] = []
    for child in module.children():
        if isinstance(child, torch.nn.ModuleDict):
            found += child.children()
        else:
            found += _listed(child) if isinstance(child, torch.nn.ModuleList) else [child]
    return found


def _storage_of(tensor: Any) -> int:
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return int(storage.data_ptr())


class ShardedDataParallel(DistributedDataParallel):
    """A module of whose parameters each rank updates its own pieces: with stage 1 as PyTorch's
    ZeroRedundancyOptimizer, with stage 3 as FSDP2.

    stage, prefetch, shard_ranks, offload: as in dt.ShardOptions
    units: modules in the module, in the order of its forward pass; the parameters of each are gathered
      together, before its forward pass and, with stage 3, before its backward pass, and lie nowhere else.
      What belongs to none of them, or to several, is one more unit, gathered from the forward to the end of
      the backward pass. By default the elements of all ModuleLists and Sequentials. All ranks call the same
      ones in each step, as modules
    reshard_after_forward: False: with stage 3 a unit's parameters keep their memory from its forward to its backward
      pass, which gathers nothing then; for more memory a step moves two thirds of the bytes
    The rest is DistributedDataParallel's.

    A step: loss.backward(), then step(optimizer, rate) with an optimizer of dt's, as
    dt.Optimizer.adamw(model.shard). Or an optimizer of torch.optim that was given pieces(), if it updates
    elements by themselves, and updated() behind its step. No parameter has a gradient: those of the pieces
    do. backward() replaces them; of several passes for one step all but the last belong into no_sync().
    Outside the forward and the backward pass parameters are in gathered() only; with stage 3 they are NaN
    elsewhere.

    Over GPUs the parameters lie in dt's memory of the GPU, and what this calls is ordered by the current streams of
    PyTorch. So is step(optimizer, rate); the optimizer's own step(rate) is not, unless it is given the stream.
    find_unused_parameters needs stage 2 or less there.

    With stage 3 ranks call the same units in the same order, in the backward pass, too. So an exception in a
    pass of one rank cannot be taken back: let it end the program, and go on from a checkpoint.
    torch.utils.checkpoint needs use_reentrant=False; torch.compile() is for parts of units.

    After close(), or when it is forgotten, the parameters are not the module's any more. Keep their values
    in gathered() before, if they are needed. Parameters without requires_grad stay the module's, whole on each rank.
    shard.save() writes neither these nor buffers.
    """

    def __init__(self, module: torch.nn.Module, comm: Comm, *, stage: int = 3,
                 units: Optional[Sequence[torch.nn.Module]] = None, prefetch: int = 1, shard_ranks: int = 0,
                 offload: Optional[Union[str, "os.PathLike[str]"]] = None, reshard_after_forward: bool = True,
                 **options: Any) -> None:
        self._reshards = reshard_after_forward
        self._chosen = ShardOptions(stage, prefetch=prefetch, shard_ranks=shard_ranks, offload=offload)
        if stage == 3 and comm.on_gpu and options.get("find_unused_parameters"):
            raise unsupported(
                "ShardedDataParallel: stage 3 with find_unused_parameters is not supported on GPUs: a rank reports "
                "unused parameters at the end of its backward pass, so ranks could enqueue gathers and reductions in "
                "different orders and wait for each other forever; use stage=2, or leave find_unused_parameters out "
                "and use every parameter in each step")
        self._unit_modules = _listed(module) if units is None else list(units)
        for name, parameter in module.named_parameters():
            if parameter.numel() > 1 and not any(parameter.stride()):
                raise invalid(f"ShardedDataParallel: parameter {name} has no values: they are in the shard of another "
                              "wrapper; give a new module, and load it with what gathered() of that wrapper has")
        super().__init__(module, comm, **options)

    def _make_views(self) -> None:
        """None: a shard's buckets give their memory away."""

    def _make_reducer(self, params: List[Param], options: ReducerOptions) -> Reducer:
        if any(options.row_elements) or options.static_graph:
            raise invalid("ShardedDataParallel: static_graph, and Embedding with sparse=True, are for "
                          "DistributedDataParallel; leave them out here")
        owners: Dict[int, Set[int]] = {}
        for number, each in enumerate(self._unit_modules, 1):
            for parameter in each.parameters():
                owners.setdefault(id(parameter), set()).add(number)
        self._unit_of = [next(iter(found)) if len(found) == 1 else 0
                         for found in (owners.get(id(each), set()) for each in self._trained)]
        self._members: Dict[int, List[int]] = {}
        for index, unit in enumerate(self._unit_of):
            self._members.setdefault(unit, []).append(index)
        self.shard: Shard = Shard(self._comm, params,
                           dataclasses.replace(self._chosen, reducer=options, units=self._unit_of))
        for index, parameter in enumerate(self._trained):
            self.shard.set(index, buffer(parameter.data.contiguous()), stream=self._stream())
        self._here: Dict[int, StreamUsers] = {}  # units whose parameters are whole
        self._seen = 0  # updates of the shard; with more of them nothing is here
        self._brought: Set[int] = set()  # units that were ever here
        self._in_backward = False
        self._to_come: Dict[int, Set[int]] = {}  # gradients of units, in this backward pass
        self._index_at: Dict[int, int] = {}  # with stage 3 of the parameter whose memory begins there
        self._accumulates = False
        self._adds = False  # of the pass that is not finished: it began in no_sync()
        self._added: Set[int] = set()  # gradients that dt has a part of in this step
        self._hidden: Dict[int, torch.Tensor] = {}
        self._pieces: List[Tuple[int, torch.nn.Parameter]] = []
        for index, parameter in enumerate(self._trained):
            self._hide(index)
            if self._chosen.stage < 3:
                self._show(index)
            piece = self.shard.piece(index, stream=self._stream())
            values = parameter.data.new_empty(0) if piece.param is None else tensor_over(piece.param, self._device)
            self._pieces.append((index, torch.nn.Parameter(values)))
        return self.shard.reducer

    def _stream(self) -> int:
        """That of this thread: autograd has its own for the backward pass."""
        return stream_of(self._device)

    def _module_hooks(self) -> List[Any]:
        weak = weakref.ref(self)
        hooks: List[Any] = []

        def enter(_: Any, __: Any, unit: int) -> None:
            weak()._bring(unit)  # type: ignore[union-attr]

        def leave(_: Any, __: Any, output: Any, unit: int) -> Any:
            return weak()._leave(unit, output)  # type: ignore[union-attr]

        for number, each in enumerate(self._unit_modules, 1):
            if number not in self._members:
                continue
            # Before hooks that compute a weight from parameters, as that of torch.nn.utils.weight_norm.
            hooks.append(each.register_forward_pre_hook(functools.partial(enter, unit=number)))
            order: Any = each._forward_pre_hooks  # an OrderedDict
            order.move_to_end(hooks[-1].id, last=False)
            if self._chosen.stage == 3:
                hooks.append(each.register_forward_hook(functools.partial(leave, unit=number)))
        return hooks

    def pieces(self) -> List[torch.nn.Parameter]:
        """This rank's piece of each parameter, in one dimension, for an optimizer: some are empty. They have
        gradients after backward()."""
        return [piece for _, piece in self._pieces]

    def updated(self) -> None:
        """Says that this rank has updated its pieces, as an optimizer of torch.optim does. Collective."""
        self._drop_all()
        self.shard.updated(stream=self._stream())

    def step(self, optimizer: Optimizer, rate: float) -> None:
        """Updates the pieces as optimizer.step(rate) does, on the current stream of the module's device. Collective.

        optimizer: a dt.Optimizer of `shard`
        """
        if not isinstance(optimizer, Optimizer):
            raise invalid(f"ShardedDataParallel.step: the optimizer is a {type(optimizer).__name__}, not a "
                          "dt.Optimizer; call its own step(), then updated()")
        if optimizer._shard is not self.shard:
            raise invalid("ShardedDataParallel.step: the optimizer is of another shard, so it would update other "
                          "parameters; make one of this wrapper's `shard`")
        self._drop_all()
        optimizer.step(rate, stream=self._stream())

    @contextlib.contextmanager
    def gathered(self, *, write: bool = False) -> Iterator[torch.nn.Module]:
        """In this block the module's parameters are whole: for a checkpoint, say. Collective.

        write: at its end they are what the block has written to them, the same on all ranks
        """
        for unit in self._members:
            self._bring(unit)
        try:
            yield self.module
            for index, parameter in enumerate(self._trained if write else ()):
                self.shard.set(index, buffer(parameter.data), stream=self._stream())
        finally:
            self._drop_all()

    @not_compiled
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's own, with gathered parameters."""
        self._begin()
        self._bring(0)
        if self._chosen.stage < 3:
            return self.module(*inputs, **named)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            result = self.module(*inputs, **named)
        if torch.is_grad_enabled():
            return result
        return self._leave(0, result)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this block backward() only adds to the gradients of this rank, which have memory meanwhile; the
        first one after it averages the sums."""
        before, self._accumulates = self._accumulates, True
        self._reducer.accumulate(True)
        try:
            yield
        finally:
            self._accumulates = before
            self._reducer.accumulate(before)

    def close(self) -> None:
        """Lets go of the module, whose parameters stay the shard's."""
        super().close()
        self.shard.close()

    def _show(self, index: int) -> None:
        parameter = self._trained[index]
        if parameter.numel() > 0:
            parameter.data = tensor_over(self.shard.param(index), self._device).view(parameter.shape)
            self._index_at[_storage_of(parameter)] = index

    def _hide(self, index: int) -> None:
        parameter = self._trained[index]
        self._index_at.pop(_storage_of(parameter), None)
        if index not in self._hidden:  # it may be a kernel
            self._hidden[index] = parameter.new_full((), float("nan")).expand(parameter.shape)
        parameter.data = self._hidden[index]

    def _sends(self) -> bool:
        return not self._accumulates

    @not_compiled
    def _begin(self) -> None:
        self._in_backward = False
        super()._begin()

    def _bring(self, unit: int) -> None:
        self._brought.add(unit)
        if self._seen != self.shard._updates:
            self._seen = self.shard._updates
            self._drop_all()
        if unit not in self._members:
            return
        if unit in self._here:
            self._here[unit].add()
            return
        self.shard.gather(unit, stream=self._stream())
        self._here[unit] = StreamUsers(self._device)
        self._here[unit].add()
        if self._chosen.stage == 3:
            for index in self._members[unit]:
                self._show(index)

    def _bring_backward(self, unit: int) -> None:
        self._in_backward = True
        self._bring(unit)

    def _leave(self, unit: int, output: Any) -> Any:
        """A unit's forward pass ends, whose backward pass begins with the gradient of `output`. What lies in
        a parameter's own memory is copied."""
        def prepared(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            if self._parameter_of(tensor) is not None:
                tensor = tensor.clone()
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._bring_backward(unit))
            return tensor

        output = tree_map(prepared, output)
        # In the backward pass torch.utils.checkpoint computes again what that needs.
        if not self._in_backward and (self._reshards or not torch.is_grad_enabled()):
            self._drop(unit)
        return output

    def _drop(self, unit: int) -> None:
        if self._chosen.stage == 3 and unit in self._here:
            self._here.pop(unit).join()
            for index in self._members[unit]:
                self._hide(index)
            self.shard.release(unit, stream=self._stream())

    def _drop_all(self) -> None:
        for unit in sorted(self._here):
            self._drop(unit)
        for users in self._here.values():  # below stage 3
            users.join()
        self._here.clear()

    def _pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps for the backward pass: of a parameter only which part of it that is."""
        index = self._parameter_of(tensor)
        if index is None:
            return tensor
        if tensor.dtype != self._trained[index].dtype or tensor.is_conj() or tensor.is_neg():
            return tensor.detach().clone()
        return index, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _parameter_of(self, tensor: torch.Tensor) -> Optional[int]:
        """In whose memory it lies."""
        return self._index_at.get(_storage_of(tensor)) if tensor.layout == torch.strided else None

    def _unpack(self, kept: Any) -> Any:
        if isinstance(kept, torch.Tensor):
            return kept
        index, *part = kept
        self._bring_backward(self._unit_of[index])
        return self._trained[index].data.as_strided(*part)

    def _ready(self, index: int) -> None:
        unit = self._unit_of[index]
        if unit not in self._brought:
            what = f"units[{unit - 1}]" if unit > 0 else "no unit"
            raise invalid_state(f"ShardedDataParallel: parameter #{index} of {what} was used without its values: call "
                                "the wrapper, and in it each unit as a module, or choose other units")
        if not self._in_step:
            self._adds = self._accumulates
        super()._ready(index)
        self._trained[index].grad = None
        to_come = self._to_come.setdefault(unit, set(self._members[unit]))
        to_come.discard(index)
        if not to_come and unit != 0:
            self._drop(unit)

    def _give(self, index: int, gradient: torch.Tensor) -> None:
        if gradient.numel() == 0:
            super()._give(index, gradient)
            return
        # Given by pointer it would have memory until the end of the step.
        stream = stream_of(gradient.device)
        view = tensor_over(self._reducer.grad(index, stream=stream), gradient.device).view(gradient.shape)
        with torch.no_grad():
            if index in self._added:
                view.add_(gradient)
            else:
                view.copy_(gradient)
        self._added.add(index)
        self._reducer.ready(index, stream=stream)

    def _finish(self) -> None:
        self._to_come.clear()
        self._in_backward = False
        if self._adds:
            self._in_step = False
            self._used.clear()
            return
        for _, piece in self._pieces:
            piece.grad = None
        self._added.clear()
        try:
            super()._finish()
        finally:
            self._drop_all()
        for index, piece in self._pieces:
            used = not self._find_unused or self._reducer.used(index)
            if used:
                own = self.shard.piece(index, stream=self._stream())
                gradient = None if own.count == 0 else own.grad
                piece.grad = torch.zeros_like(piece) if gradient is None else tensor_over(gradient, self._device)

    def _end_broken_step(self) -> None:
        if self._chosen.stage == 3:
            raise invalid_state(
                "ShardedDataParallel: the last backward() ended with an exception, and with stage 3 the other ranks "
                "cannot go on without it; end the program, and go on from a checkpoint")
        if self._adds:  # nothing was sent, and no other rank waits
            self._finish()
            return
        self._reducer.accumulate(False)
        try:
            super()._end_broken_step()
        finally:
            self._reducer.accumulate(self._accumulates)

    def _text_of_completed(self, learned: bool) -> str:
        return ("ShardedDataParallel: the last backward() ended with an exception on this rank, and its step was "
                "completed without the gradients that this rank had not given. Ranks whose backward() succeeded have "
                "the means, and wait for this one in their next forward pass at the latest; here, too, pieces() have "
                "their means. End the program, or update the pieces as the other ranks do, and go on with the next "
                "pass")

    def _tell_unused(self, indices: Set[int]) -> List[Tuple[int, torch.Tensor]]:
        for index in sorted(indices):
            self._reducer.unused(index, stream=self._stream())
        return []
