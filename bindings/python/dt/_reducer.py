# SPDX-License-Identifier: Apache-2.0
"""Gradients reduced in buckets while the backward pass runs."""

import array
import dataclasses
import enum
import os
import struct
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _raw
from ._comm import Comm
from ._errors import Error, invalid, invalid_state
from ._hook import Hook, HookCalls
from ._interruptible import Result, interruptible
from ._memory import Gradient
from ._types import (Array, Dtype, DtypeLike, Handle, Owner, Rows, Stream, Unpacker, bits, integer, integers,
                     options_of, pack, seed_bits, stream_number)


@dataclasses.dataclass(frozen=True)
class Param:
    """One parameter, in the order of registration."""

    count: int
    dtype: DtypeLike = Dtype.F32
    name: str = ""
    uses: int = 1  # calls of ready() in a step, each with a part of the gradient
    shape: Sequence[int] = ()  # in the file of Shard.save(); its product is count; empty: one dimension

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", Dtype(self.dtype))
        object.__setattr__(self, "count", integer("Param: count", self.count))
        object.__setattr__(self, "uses", integer("Param: uses", self.uses))
        object.__setattr__(self, "shape", tuple(integers("Param: shape", self.shape)))


class Wire(enum.IntEnum):
    """What gradients of F32 travel as, where links are slow."""

    SAME = 0
    F16 = 1  # what is larger than 65520 becomes infinite
    BF16 = 2
    BITS8 = 3  # in blocks of 64, each with a scale; what rounding leaves out is added to the next gradient


@dataclasses.dataclass(frozen=True)
class ReducerOptions:
    """How a reducer works. 0 bytes: as the config says."""

    sum: bool = False  # instead of the mean
    bucket_cap_bytes: int = 0  # a bucket closes when it reaches this
    first_bucket_bytes: int = 0  # cap of the first bucket of each dtype
    keep_plan: bool = False  # never rebuild by arrival order
    find_unused: bool = False  # a parameter may have no gradient in a step, see Reducer.unused()
    divide_by_users: bool = False  # an average is over the ranks that had a gradient; with find_unused or static_graph
    wire: Wire = Wire.SAME
    order: Sequence[int] = ()  # Reducer.order() of an earlier run: the plan is made by it, and stays
    predivide: float = 0.0  # divides gradients before they are summed; 0: averaged as allreduce does
    # > 2: bucket_cap_bytes is tuned: a quarter, a sixteenth and four times of it are used for so many steps each,
    # and the fastest stays. After grad() each change waits for rebuild().
    tune_steps: int = 0
    static_graph: bool = False  # each step has the gradients of step 1, in as many parts, and no others
    row_elements: Sequence[int] = ()  # of each parameter: > 0: its gradient comes by Reducer.ready_rows()
    # Arrays in which gradients lie and are reduced, without a copy: grad() gives these. Neighbours in one array, such
    # as parts of a flat one, share buckets. None: of a parameter without elements, or that comes as rows.
    grads: Sequence[Optional[Array]] = ()


@dataclasses.dataclass(frozen=True)
class ReducerStatistics:
    """What a reducer did. Times in nanoseconds of this rank."""

    bucket_count: int
    steps: int
    bytes: int  # of gradients, last step
    communication_ns: int  # last step: while at least one bucket was under way
    exposed_ns: int  # last step: while finish() waited
    total_bytes: int
    total_communication_ns: int
    total_exposed_ns: int
    rebuilt: bool  # whether the plan follows the arrival order
    tuned: bool  # whether tune_steps have found bucket_cap_bytes
    memory_bytes: int  # of the buckets now, and of a shard's parameters
    total_gather_ns: int  # of a shard: that parameters were waited for
    bucket_cap_bytes: int  # of the plan in use
    hidden_share: float  # all steps: 1 - exposed / communication


_FORMATS: Dict[Dtype, Any] = {Dtype.F32: "f", Dtype.F64: "d", Dtype.F16: "H", Dtype.BF16: "H",
                             Dtype.I32: "i", Dtype.I64: "q", Dtype.U8: "B", Dtype.I8: "b",
                             Dtype.U16: "H", Dtype.I16: "h", Dtype.U32: "I", Dtype.U64: "Q",
                             Dtype.BOOL: "?"}


def row_indices(what: str, rows: Rows) -> Tuple[int, int, int, bool, Any]:
    """What _raw.buffer() says of int64 in host memory, or of a list."""
    numbers: Any = array.array("q", rows) if isinstance(rows, (list, tuple, range)) else rows
    found: Tuple[int, int, int, bool, Any] = _raw.buffer(numbers, False, f"{what}: rows")
    if found[2] != Dtype.I64 or found[3]:
        raise invalid(f"{what}: rows are of {Dtype(found[2]).name}{' in GPU memory' if found[3] else ''}; give int64 "
                      "in host memory, or a list")
    return found


def places_of(grads: Sequence[Optional[Array]], params: Sequence[Param], on_gpu: bool) -> Tuple[List[int], List[Any]]:
    """Addresses, and what keeps the arrays."""
    addresses, kept = [], []
    for index, (grad, param) in enumerate(zip(grads, params)):
        if grad is None:
            addresses.append(0)
            continue
        what = f"Reducer: options.grads[{index}]"
        address, count, dtype, is_on_gpu, keep = _raw.buffer(grad, True, what)
        if (count, dtype, is_on_gpu) != (param.count, param.dtype, on_gpu):
            where = {False: "host memory", True: "GPU memory"}
            raise invalid(f"{what} has {count} elements of {Dtype(dtype).name} in {where[is_on_gpu]}; the parameter has "
                          f"{param.count} of {Dtype(param.dtype).name} in {where[on_gpu]}")
        addresses.append(address)
        kept.append(keep)
    return addresses, kept


def pack_model(what: str, params: Sequence[Param], options: Optional[ReducerOptions],
               places: Sequence[int] = ()) -> List[Any]:
    """The parts that raw.h calls a Model; `what`: for the error."""
    chosen = ReducerOptions() if options is None else options
    if not params:
        raise invalid(f"{what}: params is empty; give a Param for each parameter")
    for name, given in (("order", chosen.order), ("row_elements", chosen.row_elements), ("grads", chosen.grads)):
        if len(given) not in (0, len(params)):
            raise invalid(f"{what}: options.{name} has {len(given)} elements; give one for each of {len(params)} "
                          "parameters")
    parts: List[Any] = options_of(
        what, ReducerOptions, chosen, "sum keep_plan find_unused bucket_cap_bytes first_bucket_bytes "
        "divide_by_users wire predivide static_graph tune_steps order row_elements")
    parts += [len(places), *places]
    for each in params:
        parts += [each.count, Dtype(each.dtype), each.uses, len(each.shape), *each.shape, each.name or ""]
    return parts


class Reducer(Owner):
    """Plans buckets over the parameters, and checks on all ranks that the model is the same.

    Collective over `comm`. Broadcasts nothing. In each step every gradient is said to be ready once,
    and finish() ends the step. Methods may be called from any thread; they wait for each other, so while
    finish() runs the others do.
    """

    _row_elements: Sequence[int] = ()  # that of a shard has none

    def __init__(self, comm: Comm, params: Sequence[Param],
                 options: Optional[ReducerOptions] = None) -> None:
        params = list(params)
        self._row_elements = [] if options is None else integers("Reducer: options.row_elements",
                                                                 options.row_elements)
        places, kept = places_of([] if options is None else options.grads, params, comm._on_gpu)
        packed = pack(pack_model("Reducer", params, options, places))

        def create() -> Handle:
            owner = Handle(_raw.reducer_create(comm._handle, packed), _raw.reducer_destroy)
            owner.keeps = kept
            return owner

        self._own(comm, params, comm._wait(kept, create))

    def _own(self, comm: Comm, params: List[Param], owner: Handle) -> "Reducer":
        super().__init__(owner)
        self._params = params
        self._on_gpu: bool = comm._on_gpu
        self._waits: bool = comm._waits
        self._lock: Any = threading.RLock()  # dt's reducer may be used by one thread at a time
        self._borrowed: List[Any] = []  # gradients by pointer of this step
        self._borrowed_before: List[Any] = []  # a GPU may still be copying back to those
        self._watched: Dict[int, Any] = {}  # parameters that dt reads in finish()
        self._gradients: Dict[int, "weakref.ref[Gradient]"] = {}
        self._hooks: Tuple[HookCalls, ...] = ()  # dt has one; more after a set_hook() that a signal ended
        self._keeps_places = True  # from step to step
        return self

    def grad(self, index: int, *, stream: Stream = 0) -> Gradient:
        """Memory where gradient `index` is to be written, so that nothing is copied. Of a shard from stage 2 on
        it is another one in each step, valid until ready(), and undefined before it is written.

        stream: CUDA stream that will write there, and waits for what used the memory before; ignored over
            host memory
        """
        writer = stream_number(stream)
        with self._lock:
            known = self._gradients.get(index) if self._keeps_places else None
            gradient = None if known is None else known()
            owner = self._owner  # a close() beside this does not end it
            if gradient is None or gradient.address == 0 or owner is None:
                address = _raw.reducer_grad(0 if owner is None else owner.number, index, writer)
                assert owner is not None  # else dt has refused it
                param = self._params[index]
                gradient = Gradient(address, param.count, Dtype(param.dtype), self._on_gpu)
                gradient._owner = owner
                self._gradients[index] = weakref.ref(gradient)
            return gradient

    def ready(self, index: int, gradient: Optional[Array] = None, *, stream: Stream = 0) -> None:
        """Says that gradient `index` of this step is complete, or a part of it; any thread.

        gradient: an array of it, in which finish() leaves the result; None: it was written where
            grad() said
        stream: CUDA stream that produces it; ignored over host memory
        """
        self._arrive("ready", index, gradient, stream)

    def ready_rows(self, index: int, rows: Rows, values: Array) -> None:
        """Adds rows to gradient `index`, whose parameter has ReducerOptions.row_elements, such as an embedding of
        which a step uses some rows. Rows may come several times, and in several calls; each rank calls it at
        least once per step, with empty arrays if it has none.

        rows: int64 in host memory, or a list; values: an array of those rows. Both are copied.
        """
        place, row_count, _, _, kept = row_indices("Reducer.ready_rows", rows)
        address, count, dtype, on_gpu, keep = _raw.buffer(values, False, "Reducer.ready_rows: values")
        width = self._row_elements[index] if 0 <= index < len(self._row_elements) else 0
        if width > 0 and (count != row_count * width or dtype != self._params[index].dtype or on_gpu):
            raise invalid(f"Reducer.ready_rows: values have {count} elements of {Dtype(dtype).name}"
                          f"{' on a GPU' if on_gpu else ''}; give {row_count} rows of {width} "
                          f"{Dtype(self._params[index].dtype).name} in host memory")
        with self._lock:
            _raw.reducer_ready_rows(self._handle, index, place, row_count, address)
        del kept, keep

    def rows(self, index: int) -> "Tuple[memoryview[int], memoryview[float]]":
        """The rows that any rank gave in the last step, ascending, and the mean of each, of rows and columns;
        16-bit floats as "H"."""
        width = self._row_elements[index] if 0 <= index < len(self._row_elements) else 0
        row_bytes = width * Dtype(self._params[index].dtype).itemsize if width > 0 else 0  # 0: dt refuses it
        with self._lock:
            packed = memoryview(_raw.reducer_rows(self._handle, index, row_bytes))
        kind = Dtype(self._params[index].dtype)
        count = packed[:8].cast("q")[0]
        values: Any = packed[8 * count + 16:]  # an item is behind its size
        if count > 0:
            values = values.cast(_FORMATS[kind], (count, width))
        return packed[8:8 * count + 8].cast("q"), values

    def set_hook(self, hook: Optional[Hook]) -> None:
        """Has a function reduce the buckets, the same on all ranks; between steps. None: no longer.

        hook(bucket, stage) is called with stage 0 as soon as a bucket is full. It may give the Work of an
        operation that it has started, and is then called with the next stage once that is done, in
        finish(), until it gives None; bucket.data then holds the result. It runs on a thread inside
        ready(), unused() or finish(), and calls no method of the reducer. What it raises comes out of
        that call; other ranks get an Error that names this one: a MismatchError or an AbortedError.
        """
        calls = None if hook is None else HookCalls(hook, self._on_gpu)
        wanted = () if calls is None else (calls,)
        with self._lock:
            before = self._hooks
            self._hooks = before + wanted  # a signal may end this function before and after dt has changed it
            try:
                _raw.reducer_set_hook(self._handle, 0 if calls is None else _raw.hook_function(),
                                      0 if calls is None else id(calls))
            except Error:
                self._hooks = before
                raise
            self._hooks = wanted

    def power_sgd(self, rows: Sequence[int], *, rank: int = 1, start_step: int = 0, min_compression: float = 2,
                  error_feedback: bool = True, warm_start: bool = True, seed: int = 0,
                  wire: Wire = Wire.SAME) -> None:
        """Has gradients travel as products of two matrices of `rank` columns (PowerSGD), the same on all
        ranks; set_hook(None) ends it.

        rows: of each parameter as a matrix; 0: it is none
        start_step: steps before it are averaged as they are
        min_compression: matrices are compressed by at least that
        wire: F16 or BF16: what the matrices and all other gradients of F32 travel as
        """
        if len(rows) != len(self._params):
            raise invalid(f"Reducer.power_sgd: {len(rows)} rows for {len(self._params)} parameters; give one each")
        what = "Reducer.power_sgd: "
        packed = pack([integer(what + "rank", rank), integer(what + "start_step", start_step), bits(min_compression),
                       not error_feedback, not warm_start, seed_bits("Reducer.power_sgd", seed),
                       integer(what + "wire", wire), *integers(what + "rows", rows)])
        with self._lock:
            _raw.reducer_power_sgd(self._handle, packed)
            self._hooks = ()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the errors that steps carry on (Wire.BITS8, PowerSGD) to a file in the layout of safetensors,
        between steps. Each rank needs a path of its own. Not collective."""
        with self._lock:
            _raw.reducer_save(self._handle, os.fspath(path))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads what save() wrote on this rank, before the first step. The same bits as without the break need
        the same plan as well: ReducerOptions(order=...). Collective."""
        self._together(lambda: _raw.reducer_load(self._handle, os.fspath(path)))

    def _together(self, function: Callable[[], Result], keep: Any = None) -> Result:
        """function() with the lock; it waits for the other ranks and uses the memory of `keep`."""
        def locked() -> Result:
            with self._lock:
                return function()
        # A hook that calls its reducer has the lock, for which a helper would wait for ever: dt refuses the call.
        if self._waits and not self._lock._is_owned():
            return interruptible(keep, locked)
        return locked()

    def _hooked(self, call: Any, *args: Any) -> None:
        owner = self._owner  # keeps ReducerOptions.grads, also beside a close()
        try:
            call(self._handle, *args)
        except Error:
            for hook in self._hooks:
                error, hook.error = hook.error, None
                if error is not None:
                    raise error from None
            raise
        finally:
            del owner

    def accumulate(self, on: bool) -> None:
        """Turns accumulation on or off, for steps of several backward passes.

        While it is on, ready() adds to what the parameter has of this step, and completes nothing; turn
        it off before the last pass, which adds once more. A gradient that is written in place is the
        caller's to add.
        """
        with self._lock:
            _raw.reducer_accumulate(self._handle, bool(on))

    def unused(self, index: int, gradient: Optional[Array] = None, *, stream: Stream = 0) -> None:
        """Says that this rank has no gradient for parameter `index` in this step; it takes part with
        zeros. Needs ReducerOptions.find_unused. What is neither ready nor unused at finish() counts as
        unused. With static_graph this only says where the average goes.

        gradient: an array that receives the average if another rank has a gradient, and stays as it is
            if none has; None: the average is where grad() says, or zeros
        """
        self._arrive("unused", index, gradient, stream)

    def used(self, index: int) -> bool:
        """Whether any rank had a gradient for parameter `index` in the last step."""
        with self._lock:
            return bool(_raw.reducer_used(self._handle, index))

    def active(self) -> int:
        """How many ranks had a gradient at all in the last step; needs ReducerOptions.find_unused.

        A rank that has run out of batches goes on with finish() alone, and all stop at 0.
        """
        with self._lock:
            return int(_raw.reducer_active(self._handle))

    def _arrive(self, call: str, index: int, gradient: Optional[Array], stream: Stream) -> None:
        arrive = _raw.reducer_ready if call == "ready" else _raw.reducer_unused
        if gradient is None:
            with self._lock:
                self._hooked(arrive, index, 0, stream_number(stream))
            return
        address, count, dtype, on_gpu, keep = _raw.buffer(gradient, True, f"Reducer.{call}: gradient")
        if 0 <= index < len(self._params):
            param = self._params[index]
            if count != param.count or dtype != param.dtype or on_gpu is not self._on_gpu:
                raise invalid(
                    f"Reducer.{call}: gradient {index} ({param.name or 'no name'}) has {count} elements "
                    f"of {Dtype(dtype).name}{' on a GPU' if on_gpu else ''}, its parameter "
                    f"{param.count} of {Dtype(param.dtype).name}"
                    f"{' on a GPU' if self._on_gpu else ''}; give an array of that kind")
        if address == 0 and count == 0:
            address = 256  # some arrays without elements have no address, and 0 means grad()'s
        with self._lock:
            self._borrowed.append(keep)
            self._hooked(arrive, index, address, stream_number(stream))

    def watch(self, index: int, parameter: Optional[Array]) -> None:
        """Has finish() compare parameter `index` itself between ranks, as often as the setting
        reducer.check_steps says (by default never).

        parameter: an array of it, which is kept and may be changed between steps; None: no longer
        """
        if parameter is None:
            with self._lock:
                _raw.reducer_watch(self._handle, index, 0, 0)
                self._watched.pop(index, None)
            return
        address, count, dtype, on_gpu, keep = _raw.buffer(parameter, False, "Reducer.watch: parameter")
        if on_gpu is not self._on_gpu:
            raise invalid(f"Reducer.watch: parameter {index} is {'GPU' if on_gpu else 'host'} memory, and "
                          f"the communicator is over {'GPUs' if self._on_gpu else 'host memory'}; give "
                          "an array of that kind")
        with self._lock:
            before = self._watched.get(index)
            self._watched[index] = (before, keep)  # as in set_hook()
            try:
                _raw.reducer_watch(self._handle, index, address, count * Dtype(dtype).itemsize)
            except (Error, TypeError):
                self._watched[index] = before
                raise
            self._watched[index] = keep

    def finish(self, *, stream: Stream = 0) -> None:
        """Ends the step: waits until every bucket is reduced. Collective.

        InvalidStateError on all ranks when a gradient is missing anywhere; the reducer stays usable.
        MismatchError on all ranks when what watch() was told of differs between them; the gradients
        are reduced then. After Ctrl-C the step goes on, and other methods wait for its end.
        """
        self._together(lambda: self._finish(stream))

    def _finish(self, stream: Stream) -> None:
        try:
            self._hooked(_raw.reducer_finish, stream_number(stream))
        except Error:
            for hook in self._hooks:
                hook.forget()
            raise
        for hook in self._hooks:
            hook.end_step()
        self._borrowed_before = self._borrowed if self._on_gpu else []
        self._borrowed = []

    def clip_norm(self, max_norm: float, norm_type: float = 2.0, *, out: Optional[Array] = None,
                  stream: Stream = 0) -> float:
        """Scales the last step's gradients so that their norm over all parameters is at most `max_norm`,
        and gives the norm of before; where that is not finite nothing is scaled. Not collective,
        but for the reducer of a Shard.

        out: on GPUs an array of one F32 that receives the norm instead; then 0 is given
        """
        address, keep = 0, None
        if out is not None:
            address, count, dtype, on_gpu, keep = _raw.buffer(out, True, "Reducer.clip_norm: out")
            if count < 1 or dtype != Dtype.F32 or on_gpu is not self._on_gpu:
                raise invalid("Reducer.clip_norm: out must be an array of one F32"
                              f"{' on the GPU' if self._on_gpu else ''}")
        elif self._on_gpu:
            raise invalid("Reducer.clip_norm: out is missing; give an array of one F32 on the GPU")
        return self._together(lambda: float(_raw.reducer_clip_norm(
            self._handle, max_norm, norm_type, address, stream_number(stream))), (keep, self._owner))  # as in _hooked()

    def rebuild(self) -> bool:
        """Plans anew by the order in which gradients arrived on rank 0; for users of grad(), between
        steps. True: call grad() again. Collective.

        The memory moves, so no array may be made over it: else it is an InvalidStateError.
        """
        return self._together(self._rebuild)

    def _rebuild(self) -> bool:
        # Meanwhile nobody can make an array over them.
        taken = [(each, each._take()) for each in (known() for known in self._gradients.values())
                 if each is not None]
        changed = False
        try:
            used = sum(1 for each, _ in taken if each.address != 0)
            if used > 0:
                raise invalid_state(
                    f"Reducer.rebuild: arrays are made over {used} gradient(s), which may move; let "
                    "go of them first, and make them anew afterwards")
            changed = bool(_raw.reducer_rebuild(self._handle))
        finally:
            for each, address in taken:
                if not changed and address != 0:
                    each._give(address)
        return changed

    def order(self) -> List[int]:
        """Parameters in the order by which the plan in use was made, for ReducerOptions.order of a later
        run."""
        with self._lock:
            packed = _raw.reducer_order(self._handle, len(self._params))
        return list(struct.unpack(f"{len(self._params)}q", packed))

    def bucket(self, index: int) -> int:
        """In which bucket a parameter lies, in launch order."""
        with self._lock:
            return int(_raw.reducer_bucket(self._handle, index))

    def statistics(self) -> ReducerStatistics:
        """What it did so far."""
        packed = Unpacker(_raw.reducer_stats(self._handle))
        number = packed.number  # in this order
        return ReducerStatistics(
            bucket_count=number(), steps=number(), bytes=number(), communication_ns=number(),
            exposed_ns=number(), total_bytes=number(), total_communication_ns=number(),
            total_exposed_ns=number(), rebuilt=number() != 0, tuned=number() != 0, memory_bytes=number(),
            total_gather_ns=number(), bucket_cap_bytes=number(), hidden_share=packed.real())

    def close(self) -> None:
        """Drops the handle. Memory that grad() gave stays until nobody uses it any more."""
        super().close()

    def __repr__(self) -> str:
        state = "closed" if self._handle == 0 else f"{sum(each.count for each in self._params)} elements"
        return f"<dt.Reducer of {len(self._params)} parameters, {state}>"
