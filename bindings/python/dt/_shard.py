# SPDX-License-Identifier: Apache-2.0
"""Parameters of which each rank updates its own pieces."""

import dataclasses
import os
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _raw
from ._comm import Comm
from ._errors import invalid
from ._memory import Gradient, Parameter
from ._reducer import Param, Reducer, ReducerOptions, pack_model
from ._types import Array, Dtype, Handle, Owner, Stream, Unpacker, bits, options_of, pack, stream_number


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """What each rank keeps, and how gradients are reduced."""

    #: 0: every rank updates all parameters; 1: each updates its own pieces; 2: gradients, too, have memory
    #: only until they are reduced, but for those of the rank's pieces; 3: parameters likewise, from gather() to
    #: release()
    stage: int = 1
    reducer: Optional[ReducerOptions] = None  # of the gradients
    granules: Sequence[int] = ()  # of each parameter, elements: it is cut at multiples of that only
    units: Sequence[int] = ()  # of each parameter: those of a unit are gathered together
    prefetch: int = 1  # of stage 3: units that are gathered ahead, in the order of the step before
    #: so many ranks, those of a host, say, have all pieces among them, and the next ones the same again (HSDP): a
    #: divisor of the communicator's size; 0: all ranks
    shard_ranks: int = 0
    #: Directory on a disk of this host: optimizers' state, and with stage 3 the rank's pieces of the parameters, lie
    #: in files there, without a name. It may differ between ranks. On GPUs the host then updates the pieces, and
    #: has them with stage 3, in pinned memory. None: in memory
    offload: Optional[Union[str, "os.PathLike[str]"]] = None


class Piece(NamedTuple):
    """What this rank updates of a parameter."""

    offset: int  # elements from the parameter's start
    count: int  # type: ignore[assignment]  # elements; 0: none
    param: Optional[Parameter]  # where these lie
    grad: Optional[Gradient]  # their gradient, from finish() of the reducer to the next step


class Shard(Owner):
    """Parameters in dt's memory, cut into a piece for each rank (ZeRO); the same on all ranks.

    Collective over `comm`. A step: gather() of each unit before the forward pass comes to it, ready() and
    finish() of `reducer`, which leave a rank the gradients of its pieces; then it updates its pieces and
    calls updated(). List parameters as the forward pass comes to them. Methods wait for each other, and for
    those of `reducer`.

    Over GPUs the memory is the GPU's. Each call has the CUDA stream that uses it: the stream waits instead
    of the call, and dt waits for what the stream holds. Over host memory streams are ignored.
    """

    def __init__(self, comm: Comm, params: Sequence[Param], options: Optional[ShardOptions] = None) -> None:
        chosen = ShardOptions() if options is None else options
        self._params: List[Param] = list(params)
        for name, given in (("granules", chosen.granules), ("units", chosen.units)):
            if len(given) not in (0, len(self._params)):
                raise invalid(f"Shard: {len(given)} {name} for {len(self._params)} parameters; give one each")
        if chosen.reducer is not None and len(chosen.reducer.grads) > 0:
            raise invalid("Shard: options.reducer.grads is set; a shard's gradients lie where reducer.grad() says")
        parts = options_of("Shard", ShardOptions, chosen, "stage prefetch shard_ranks granules units")
        packed = pack(parts + pack_model("Shard", self._params, chosen.reducer))
        offload = None if chosen.offload is None else os.fspath(chosen.offload)
        owner = comm._wait(
            None, lambda: Handle(_raw.shard_create(comm._handle, packed, offload), _raw.shard_destroy))
        super().__init__(owner)
        self._ranks: int = comm.size
        #: The reducer of its gradients. Arrays given to ready() stay as they are: results are in Piece.grad.
        #: From stage 1 on clip_norm() is collective; its norm has the same bits whatever the stage.
        self.reducer: Reducer = Reducer.__new__(Reducer)._own(
            comm, self._params, Handle(_raw.shard_reducer(owner.number), _raw.reducer_destroy))
        self.reducer._keeps_places = chosen.stage < 2
        self._updates = 0  # how often units that were gathered became old

    def _param(self, address: int, count: int, index: int) -> Parameter:
        memory = Parameter(address, count, Dtype(self._params[index].dtype), self.reducer._on_gpu)
        memory._owner = self._open()
        return memory

    def param(self, index: int) -> Parameter:
        """A parameter, whole; after updated() its values are valid from gather() of its unit, with stage 3 to
        release() or updated()."""
        address = _raw.shard_param(self._open().number, index)
        return self._param(address, self._params[index].count, index)

    def set(self, index: int, values: Array, *, stream: Stream = 0) -> None:
        """Copies a whole parameter in, on this rank only.

        values: an array of it, the same on all ranks; from stage 1 on updated() behind it gives all ranks
            what the pieces' owners have. Over GPUs it may be the host's or the GPU's; in the GPU's keep it
            until `stream` has passed the call
        stream: CUDA stream that copies, behind what it holds
        """
        address, keep = self._array(index, values, False, "set")
        with self.reducer._lock:
            _raw.shard_set(self._open().number, index, address, stream_number(stream))
        del keep

    def _array(self, index: int, values: Array, written: bool, method: str) -> Tuple[int, Any]:
        """Address of an array that has to be like a parameter, and what keeps the memory."""
        address, count, dtype, on_gpu, keep = _raw.buffer(values, written, f"Shard.{method}: values")
        if 0 <= index < len(self._params):
            param = self._params[index]
            wanted = self.reducer._on_gpu
            if count != param.count or dtype != param.dtype or (on_gpu is not wanted and (written or on_gpu)):
                raise invalid(f"Shard.{method}: values of parameter {index} ({param.name or 'no name'}) are {count} "
                              f"elements of {Dtype(dtype).name}{' on a GPU' if on_gpu else ''}, it has "
                              f"{param.count} of {Dtype(param.dtype).name}{' on a GPU' if wanted else ''}; give an "
                              "array of that kind")
        return int(address) or 256, keep

    def piece(self, index: int, *, stream: Stream = 0) -> Piece:
        """What this rank updates of a parameter, with stage 0 all of it; once nothing of it is sent any more.

        stream: CUDA stream that will write it
        """
        packed = Unpacker(self.reducer._together(
            lambda: _raw.shard_piece(self._open().number, index, stream_number(stream))))
        offset, count, param, grad = (packed.number() for _ in range(4))
        gradient = None
        if grad != 0:
            gradient = Gradient(grad, count, Dtype(self._params[index].dtype), self.reducer._on_gpu)
            gradient._owner = self.reducer._owner or self._open()
        return Piece(offset, count, self._param(param, count, index) if count else None, gradient)

    def plan(self, index: int) -> List[Tuple[int, int]]:
        """Which part of a parameter each rank of the communicator updates: offset and count, the same on all ranks."""
        packed = Unpacker(_raw.shard_plan(self._open().number, index, self._ranks))
        return [(packed.number(), packed.number()) for _ in range(self._ranks)]

    def full_grad(self, index: int, out: Array, *, stream: Stream = 0) -> None:
        """Collects a whole gradient of the last step from all ranks' pieces, into an array. Collective.

        out: over GPUs an array of the GPU
        stream: CUDA stream behind that of finish(), which will use `out`
        """
        address, keep = self._array(index, out, True, "full_grad")
        self.reducer._together(
            lambda: _raw.shard_full_grad(self._open().number, index, address, stream_number(stream)), keep)

    def updated(self, *, stream: Stream = 0) -> None:
        """Says that this rank has updated its pieces: begins to send them to all ranks. Collective.

        From here to gather() of its unit, or piece() of itself, a parameter may not be written.

        stream: CUDA stream that wrote them, and used the parameters as they were
        """
        self._update(lambda: _raw.shard_updated(self._open().number, stream_number(stream)))

    def _update(self, function: Callable[[], None]) -> None:
        def update() -> None:
            self._updates += 1
            function()
        self.reducer._together(update)

    def gather(self, unit: int = 0, *, stream: Stream = 0) -> None:
        """Waits until the parameters of a unit are those of updated() on all ranks. With stage 3 collective.

        stream: CUDA stream that will use them, and waits instead
        """
        self.reducer._together(lambda: _raw.shard_gather(self._open().number, unit, stream_number(stream)))

    def release(self, unit: int = 0, *, stream: Stream = 0) -> None:
        """With stage 3: the parameters of a unit are not used until the next gather() of it.

        stream: CUDA stream that used them
        """
        with self.reducer._lock:
            _raw.shard_release(self._open().number, unit, stream_number(stream))

    def save(self, path: Union[str, "os.PathLike[str]"], optimizer: Optional["Optimizer"] = None) -> None:
        """Writes the parameters, and the state of its optimizer, to one file that all ranks see. Collective.

        The file has the layout of safetensors, with whole tensors of Param.shape. load() reads it with any
        number of ranks and any ShardOptions. It replaces the file at `path` once all is on the disk.
        """
        self._file(_raw.shard_save, path, optimizer)

    def load(self, path: Union[str, "os.PathLike[str]"], optimizer: Optional["Optimizer"] = None) -> None:
        """Reads what save() wrote, or another file of safetensors with tensors of these names. Collective.

        Parameters are whole from gather() of their unit.
        """
        self._file(_raw.shard_load, path, optimizer)

    def _file(self, call: Callable[[int, int, str], None], path: Union[str, "os.PathLike[str]"],
              optimizer: Optional["Optimizer"]) -> None:
        self._update(lambda: call(self._open().number, 0 if optimizer is None else optimizer._open().number,
                                  os.fspath(path)))

    def close(self) -> None:
        """Drops it with its reducer. Memory that it gave stays until nobody uses it any more."""
        self.reducer.close()
        super().close()

    def __repr__(self) -> str:
        state = "closed" if self._owner is None else f"{sum(each.count for each in self._params)} elements"
        return f"<dt.Shard of {len(self._params)} parameters, {state}>"


class Optimizer(Owner):
    """Updates this rank's pieces of a shard, and keeps the state for these alone: AdamW or SGD, as PyTorch's.

    Of F16 and BF16 parameters it keeps the values in f32 besides, and updates those: they follow Shard.set() and
    load(), and what is written to a piece before updated().
    """

    def __init__(self, shard: Shard, number: int) -> None:
        super().__init__(Handle(number, _raw.optimizer_destroy))
        self._shard = shard

    @classmethod
    def adamw(cls, shard: Shard, *, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
              weight_decay: Union[float, Sequence[float]] = 0.01, skip_non_finite: bool = False) -> "Optimizer":
        """AdamW.

        weight_decay: of all parameters, or of each
        skip_non_finite: a step whose gradients are not all finite changes nothing, see skipped()
        """
        decay, *decays = _decay(shard, weight_decay)
        return cls(shard, _raw.optimizer_adamw(shard._open().number, pack(
            [*map(bits, (betas[0], betas[1], eps, decay)), bool(skip_non_finite), *map(bits, decays)])))

    @classmethod
    def sgd(cls, shard: Shard, *, momentum: float = 0, dampening: float = 0, nesterov: bool = False,
            weight_decay: Union[float, Sequence[float]] = 0, skip_non_finite: bool = False) -> "Optimizer":
        """SGD; weight_decay and skip_non_finite as of adamw()."""
        decay, *decays = _decay(shard, weight_decay)
        return cls(shard, _raw.optimizer_sgd(shard._open().number, pack(
            [*map(bits, (momentum, dampening, decay)), bool(nesterov), bool(skip_non_finite),
             *map(bits, decays)])))

    def step(self, rate: float, *, stream: Stream = 0) -> None:
        """Behind finish() of the shard's reducer: updates the pieces, then does what Shard.updated() does. A
        parameter that no rank had a gradient for stays as it is. Collective.

        stream: CUDA stream that updates them, behind that of finish()
        """
        self._shard._update(
            lambda: _raw.optimizer_step(self._open().number, float(rate), stream_number(stream)))

    def skipped(self, behind: int = 0) -> int:
        """How many steps skip_non_finite has skipped, but for the last `behind`, 0 to 7: the same number on all ranks,
        so that all lower the scale of a loss in the same step. On GPUs it waits until the counted steps are over.
        """
        with self._shard.reducer._lock:
            return int(_raw.optimizer_skipped(self._open().number, behind))

    def close(self) -> None:
        """Drops it with its state."""
        super().close()


def _decay(shard: Shard, weight_decay: Union[float, Sequence[float]]) -> List[float]:
    """That of all parameters, then that of each, or nothing."""
    if isinstance(weight_decay, (int, float)):
        return [weight_decay]
    if len(weight_decay) != len(shard._params):
        raise invalid(f"Optimizer: {len(weight_decay)} weight decays for {len(shard._params)} parameters; "
                      "give one each")
    return [0.0, *weight_decay]
