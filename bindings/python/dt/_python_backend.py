# SPDX-License-Identifier: Apache-2.0
"""The backend "dt" of torch.distributed in Python, for hosts without a C++ compiler: over host memory. It runs
on communicators that _process_group has made, with the calls and the texts of the backend in C++."""

import collections
import datetime
import threading
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed
import torch._C._distributed_c10d as of_torch

from ._python_messages import GroupMessages, Messages, Results, Waiter, as_torch_raises
from ._raw import Buffer
from ._tensors import dtype_of
from ._types import Dtype, ReduceOp

__all__ = ["Backend", "Messages"]

c10d: Any = of_torch  # its types say less than it has
_OPS = {"SUM": ReduceOp.SUM, "AVG": ReduceOp.AVG, "PRODUCT": ReduceOp.PROD, "MIN": ReduceOp.MIN,
        "MAX": ReduceOp.MAX, "BAND": ReduceOp.BAND, "BOR": ReduceOp.BOR, "BXOR": ReduceOp.BXOR}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class _Elements(NamedTuple):
    """How dt moves or reduces the elements of a tensor."""

    type: torch.dtype  # what the tensor is converted to, where that is another one
    dtype: Dtype
    factor: int  # elements of dt in one of `type`
    op: ReduceOp = ReduceOp.SUM
    scale: Any = None  # of a premultiplied sum

    def scaled(self, tensor: torch.Tensor) -> torch.Tensor:
        """What dt reduces."""
        return tensor if self.scale is None else tensor.detach().to(self.type) * self.scale


def _moved(tensor: torch.Tensor) -> _Elements:
    dtype = dtype_of(tensor.dtype)
    return _Elements(tensor.dtype, Dtype.U8 if dtype is None else dtype,
                     tensor.element_size() if dtype is None else 1)


def _reduced(tensor: torch.Tensor, reduction: Any) -> _Elements:
    kind, dtype = tensor.dtype, dtype_of(tensor.dtype)
    name = getattr(reduction, "op", reduction).name
    whole = not (kind.is_floating_point or kind.is_complex)
    op, scale = _OPS.get(name, ReduceOp.SUM), None

    def refuse(what: str) -> None:
        raise NotImplementedError(f"dt has no {what} of {kind}")
    if name == "PREMUL_SUM" and not whole and hasattr(reduction, "factor"):
        scale = reduction.factor
    elif name not in _OPS:
        refuse("premultiplied sum")
    if op in _BITWISE and not whole:
        refuse("bitwise reduction")
    if kind == torch.bool and op is ReduceOp.AVG:
        refuse("average")
    if kind.is_complex:  # as pairs
        dtype = dtype_of(torch.view_as_real(torch.empty(0, dtype=kind)).dtype)
        if dtype is None or op not in (ReduceOp.SUM, ReduceOp.AVG):
            refuse("such reduction")
        return _Elements(kind, dtype, 2, op, scale)  # type: ignore[arg-type]
    if kind.is_floating_point and kind.itemsize == 1:  # dt moves them, and reduces none
        return _Elements(torch.float32, Dtype.F32, 1, op, scale)
    if dtype is None:
        refuse("reduction")
    return _Elements(kind, dtype, 1, op, scale)  # type: ignore[arg-type]


class _Call:
    """One call of torch.distributed: the operations of dt it consists of, and their memory."""

    def __init__(self, title: str, size: int, options: Any = None) -> None:
        self.title = title
        self.size = size
        limit = getattr(options, "timeout", datetime.timedelta(-1)).total_seconds()
        self.timeout = limit if limit > 0 else None
        self.operations: List[Tuple[str, Tuple[Any, ...]]] = []
        self.copies: List[Tuple[torch.Tensor, torch.Tensor]] = []  # to, from; afterwards
        self.results = Results()

    def add(self, name: str, *arguments: Any) -> None:
        self.operations.append((name, arguments))

    def refuse(self, why: str) -> None:
        raise ValueError(f"{self.title}: {why}")

    def memory(self, given: List[torch.Tensor], elements: _Elements, reads: bool, writes: bool) -> Buffer:
        """Memory of tensors one behind the other, each in its logical order: their own, or a copy."""
        for each in given:
            if each.device.type != "cpu" or each.layout != torch.strided:
                raise NotImplementedError(
                    f"{self.title}: this is the backend dt in Python, which takes dense tensors in host memory; this "
                    f"one is {each.layout} on {each.device}. Tensors on GPUs need the one in C++: install a compiler "
                    "on every host (docs/torch.md)")
            if writes and torch._debug_has_internal_overlap(each) == 1:
                self.refuse("a tensor that takes the result has several elements at one place, as expand() makes it; "
                            "give tensor.contiguous()")
        only = given[0] if len(given) == 1 else None
        if (only is not None and only.is_contiguous() and only.dtype == elements.type and not only.is_conj()
                and not only.is_neg()):
            whole = only
        else:
            whole = torch.empty(sum(each.numel() for each in given), dtype=elements.type)
            offset = 0
            with torch.no_grad():
                for each in given:
                    part = whole.narrow(0, offset, each.numel()).view(each.shape)
                    offset += each.numel()
                    if reads:
                        part.copy_(each)
                    if writes:
                        self.copies.append((each, part))
        return Buffer.from_address(whole.data_ptr(), whole.numel() * elements.factor, elements.dtype, whole)

    def check_list(self, given: List[torch.Tensor], part: torch.Tensor, equal: bool = False) -> None:
        """A list has a tensor for each rank, of the type of `part`."""
        if len(given) != self.size:
            self.refuse(f"{len(given)} tensors for {self.size} ranks")
        if any(each.dtype != part.dtype for each in given):
            self.refuse("tensors of different types")
        if equal and any(each.numel() != part.numel() for each in given):
            self.refuse("tensors of different sizes")

    def check_own(self, given: List[torch.Tensor], part: torch.Tensor, rank: int) -> None:
        """This rank's own tensor of a list has the elements of `part`."""
        if given[rank].numel() != part.numel():
            self.refuse(f"on rank {rank}: tensor {rank} of the list has {given[rank].numel()} elements, but this "
                        f"rank's single tensor has {part.numel()}; make them equal")

    def check_sizes(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """`whole` has the elements of a `part` of each rank."""
        if whole.dtype != part.dtype:
            self.refuse("tensors of different types")
        if whole.numel() != part.numel() * self.size:
            self.refuse(f"{whole.numel()} elements, but the {self.size} ranks have {part.numel()} each")

    def rows(self, tensor: torch.Tensor, splits: List[int], elements: _Elements) -> List[int]:
        """Elements that each rank gets of the rows of a tensor; without splits equally many."""
        count = tensor.shape[0] if tensor.dim() else 1
        if not splits and count % self.size == 0:
            splits = [count // self.size] * self.size
        if len(splits) != self.size or sum(splits) != count:
            self.refuse(f"the first dimension, {count}, is not the sum of a split for each rank")
        row = tensor.numel() // count * elements.factor if count else 0
        return [each * row for each in splits]

    def end(self, waiter: Waiter, errors: List[Optional[Exception]]) -> None:
        """After the operations."""
        error = next((each for each in errors if each is not None), None)
        try:
            if error is None:
                for to, result in self.copies:
                    with torch.inference_mode(to.is_inference()), torch.no_grad():
                        to.copy_(result)
        except Exception as failure:  # pylint: disable=broad-exception-caught
            error = failure
        waiter.end(self.results, error)


class _Work(c10d.Work):  # type: ignore[misc]
    """PyTorch forwards these two methods to Python; the others are answered by the future."""

    def __init__(self, waiter: Waiter) -> None:
        super().__init__()
        self._waiter = waiter

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        seconds = timeout.total_seconds() if timeout else 0
        return self._waiter.wait(seconds if seconds > 0 else None)

    def get_future(self) -> Any:
        return self._waiter.future()


def _answer_by_future() -> None:
    """PyTorch wraps a work of Python in one of C++ that is never completed, and knows no source."""
    unchanged = {name: getattr(c10d.Work, name) for name in ("is_completed", "is_success", "_source_rank")}

    def answer(name: str, by_future: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def method(work: Any) -> Any:
            try:
                is_ours = int(work._get_op_type()) == int(c10d.OpType.UNKNOWN)
                future = work.get_future() if is_ours else None
            except RuntimeError:  # of another backend
                future = None
            return unchanged[name](work) if future is None else by_future(future)
        return method

    def is_success(future: Any) -> bool:
        try:
            return bool(future.done() and future.value() is not None)
        except RuntimeError:
            return False

    c10d.Work.is_completed = answer("is_completed", lambda future: future.done())
    c10d.Work.is_success = answer("is_success", is_success)
    c10d.Work._source_rank = answer("_source_rank", lambda future: future.wait().source)


_answer_by_future()


class _InOrder:
    """Waits for the works of a communicator in their order, on a thread of its own while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: Deque[Tuple[List[Any], _Call, Waiter]] = collections.deque()

    def add(self, works: List[Any], call: _Call, waiter: Waiter) -> None:
        with self._lock:
            self._queue.append((works, call, waiter))
            if len(self._queue) > 1:
                return
        try:
            threading.Thread(target=self._run, name="dt-torch", daemon=True).start()
        except RuntimeError:  # Python ends, or has no more threads
            self._run()

    def _run(self) -> None:
        while True:
            works, call, waiter = self._queue[0]  # this thread alone takes it away
            call.end(waiter, [_error_of(work) for work in works])
            del works, call, waiter
            with self._lock:
                self._queue.popleft()
                if not self._queue:
                    return


def _error_of(work: Any) -> Optional[Exception]:
    """After it has ended."""
    try:
        work.wait()
    except Exception as error:  # pylint: disable=broad-exception-caught
        return error
    return None


class Backend(c10d.Backend):  # type: ignore[misc]
    """See the class of this name in C++."""

    def __init__(self, rank: int, size: int, group: Any, messages: Optional[Messages], ranks: List[int],
                 timeout_ms: int, name: str, number: int) -> None:
        super().__init__(rank, size)
        self._mine, self._all = rank, size
        self._comm = group.comm
        self._group = group
        self._timeout = timeout_ms / 1000
        self._messages = GroupMessages(messages, ranks, rank, name, number)
        self._in_order = _InOrder()
        self._sequence = 0
        self._options = c10d.Backend.Options("dt", datetime.timedelta(milliseconds=timeout_ms))

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        return "dt"

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        pass

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._comm.set_timeout(timeout.total_seconds())
        self._options._timeout = timeout
        self._timeout = timeout.total_seconds()

    def _run(self, call: _Call, results: List[torch.Tensor], options: Any) -> Any:
        call.results.extend(results)
        self._sequence += len(call.operations)
        waiter = Waiter(call.title)
        blocks = not getattr(options, "asyncOp", True)
        works = []
        with as_torch_raises():
            for name, arguments in call.operations:
                if blocks:
                    getattr(self._comm, name)(*arguments, timeout=call.timeout)
                else:
                    works.append(getattr(self._comm, name + "_async")(*arguments, timeout=call.timeout))
        if blocks:
            call.end(waiter, [])
        else:
            self._in_order.add(works, call, waiter)
        return _Work(waiter)

    # ---- Collectives ----

    def broadcast(self, tensors: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:broadcast", self._all, options)
        for each in tensors:
            is_root = self._mine == options.rootRank
            call.add("broadcast", call.memory([each], _moved(each), is_root, not is_root), options.rootRank)
        return self._run(call, tensors, options)

    def allreduce(self, tensors: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:all_reduce", self._all, options)
        for each in tensors:
            if each.layout == torch.sparse_coo:
                self._add_sparse(call, each, options.reduceOp)
                continue
            elements = _reduced(each, options.reduceOp)
            call.add("allreduce", *self._in_place(call, each, elements), elements.op)
        return self._run(call, tensors, options)

    allreduce_sparse = allreduce_coalesced = allreduce

    def _in_place(self, call: _Call, tensor: torch.Tensor, elements: _Elements) -> Tuple[Buffer, Optional[Buffer]]:
        """Buffers of a reduction whose result replaces the tensor."""
        if elements.scale is None:
            return call.memory([tensor], elements, True, True), None
        sent = call.memory([elements.scaled(tensor)], elements, True, False)
        return sent, call.memory([tensor], elements, False, True)

    def _add_sparse(self, call: _Call, tensor: torch.Tensor, reduction: Any) -> None:
        """Every rank gets the indices and values of all, and adds them up."""
        name = getattr(reduction, "op", reduction).name
        if name not in ("SUM", "AVG"):
            raise NotImplementedError("dt has no such reduction of sparse tensors, but sum and average")
        if name == "AVG" and tensor.dtype == torch.bool:
            raise NotImplementedError("dt has no average of torch.bool")
        mine = tensor.detach().coalesce()
        layout = f"{mine.dtype} of {list(mine.shape)} with {mine.sparse_dim()} sparse dimensions"
        with as_torch_raises():
            parts = self._comm.allgather_objects((layout, mine.indices(), mine.values()), timeout=call.timeout)
        for rank, (theirs, _, _) in enumerate(parts):
            if theirs != parts[0][0]:
                raise torch.distributed.DistBackendError(
                    f"{call.title}: ranks disagree: rank 0 has {parts[0][0]}, rank {rank} {theirs} (this is rank "
                    f"{self._mine})")
        total = torch.sparse_coo_tensor(torch.cat([each for _, each, _ in parts], 1),
                                        torch.cat([each for _, _, each in parts]), mine.shape).coalesce()
        if name == "AVG":
            whole = not (total.dtype.is_floating_point or total.dtype.is_complex)
            total.values().div_(self._all, rounding_mode="trunc" if whole else None)
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.copy_(total)

    def reduce(self, tensors: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:reduce", self._all, options)
        for each in tensors:
            elements = _reduced(each, options.reduceOp)
            if self._mine == options.rootRank:
                call.add("reduce", *self._in_place(call, each, elements), elements.op, options.rootRank)
            else:
                call.add("reduce", call.memory([elements.scaled(each)], elements, True, False), None, elements.op,
                         options.rootRank)
        return self._run(call, tensors, options)

    def _gather_all(self, call: _Call, outputs: List[torch.Tensor], given: torch.Tensor) -> None:
        call.check_list(outputs, given)
        call.check_own(outputs, given, self._mine)
        elements = _moved(given)
        call.add("allgatherv", call.memory([given], elements, True, False),
                 call.memory(outputs, elements, False, True), [each.numel() * elements.factor for each in outputs])

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:all_gather", self._all, options)
        if len(outputs) != 1 or len(inputs) != 1:
            call.refuse("needs one tensor")
        self._gather_all(call, outputs[0], inputs[0])
        return self._run(call, outputs[0], options)

    def allgather_coalesced(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:all_gather", self._all, options)
        results = []
        for number, each in enumerate(inputs):
            parts = [of_rank[number] for of_rank in outputs]
            self._gather_all(call, parts, each)
            results += parts
        return self._run(call, results, options)

    def all_gather_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                    options: Any) -> Any:
        call = _Call("dt:_all_gather_base", self._all, options)
        for output, each in zip(outputs, inputs):
            elements = _moved(each)
            call.check_sizes(output, each)
            call.add("allgather", call.memory([each], elements, True, False),
                     call.memory([output], elements, False, True))
        return self._run(call, outputs, options)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, options: Any) -> Any:
        return self.all_gather_single_coalesced([output], [given], options)

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:gather", self._all, options)
        is_root = self._mine == options.rootRank
        if len(inputs) != 1 or len(outputs) != (1 if is_root else 0):
            call.refuse("needs one tensor")
        elements = _moved(inputs[0])
        sent, received = call.memory(inputs, elements, True, False), None
        if is_root:
            call.check_list(outputs[0], inputs[0], True)
            received = call.memory(outputs[0], elements, False, True)
        call.add("gather", sent, received, options.rootRank)
        return self._run(call, outputs[0] if is_root else [], options)

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], options: Any) -> Any:
        call = _Call("dt:scatter", self._all, options)
        is_root = self._mine == options.rootRank
        if len(outputs) != 1 or len(inputs) != (1 if is_root else 0):
            call.refuse("needs one tensor")
        elements = _moved(outputs[0])
        received, sent = call.memory(outputs, elements, False, True), None
        if is_root:
            call.check_list(inputs[0], outputs[0], True)
            sent = call.memory(inputs[0], elements, True, False)
        call.add("scatter", sent, received, options.rootRank)
        return self._run(call, outputs, options)

    def reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], options: Any) -> Any:
        call = _Call("dt:reduce_scatter", self._all, options)
        if len(outputs) != 1 or len(inputs) != 1:
            call.refuse("needs one tensor")
        elements = _reduced(outputs[0], options.reduceOp)
        call.check_list(inputs[0], outputs[0])
        call.check_own(inputs[0], outputs[0], self._mine)
        call.add("reduce_scatterv", call.memory([elements.scaled(each) for each in inputs[0]], elements, True, False),
                 [each.numel() * elements.factor for each in inputs[0]],
                 call.memory(outputs, elements, False, True), elements.op)
        return self._run(call, outputs, options)

    def reduce_scatter_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        options: Any) -> Any:
        call = _Call("dt:_reduce_scatter_base", self._all, options)
        for output, each in zip(outputs, inputs):
            elements = _reduced(each, options.reduceOp)
            call.check_sizes(each, output)
            call.add("reduce_scatter", call.memory([elements.scaled(each)], elements, True, False),
                     call.memory([output], elements, False, True), elements.op)
        return self._run(call, outputs, options)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, options: Any) -> Any:
        return self.reduce_scatter_single_coalesced([output], [given], options)

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], options: Any) -> Any:
        call = _Call("dt:all_to_all", self._all, options)
        call.check_list(outputs, outputs[0])
        call.check_list(inputs, outputs[0])
        elements = _moved(inputs[0])
        counts = [[each.numel() * elements.factor for each in given] for given in (inputs, outputs)]
        call.add("alltoallv", call.memory(inputs, elements, True, False), counts[0],
                 call.memory(outputs, elements, False, True), counts[1])
        return self._run(call, outputs, options)

    def all_to_all_single(self, output: torch.Tensor, given: torch.Tensor, output_splits: List[int],
                          input_splits: List[int], options: Any) -> Any:
        call = _Call("dt:all_to_all", self._all, options)
        if output.dtype != given.dtype:
            call.refuse("tensors of different types")
        elements = _moved(given)
        counts = call.rows(given, input_splits, elements), call.rows(output, output_splits, elements)
        if given.untyped_storage().data_ptr() == output.untyped_storage().data_ptr():
            given = given.detach().clone()
        call.add("alltoallv", call.memory([given], elements, True, False), counts[0],
                 call.memory([output], elements, False, True), counts[1])
        return self._run(call, [output], options)

    def barrier(self, options: Any) -> Any:
        call = _Call("dt:barrier", self._all, options)
        call.add("barrier")
        return self._run(call, [], options)

    # Their names in releases before 2.15.
    _allgather_base, _reduce_scatter_base, alltoall_base = all_gather_single, reduce_scatter_single, all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- Messages ----

    def _message(self, title: str, tensors: List[torch.Tensor], sends: bool, peer: int, tag: int) -> Any:
        call = _Call(title, self._all)
        if len(tensors) != 1:
            call.refuse("needs one tensor")
        call.results.extend(tensors)
        memory = call.memory(tensors, _moved(tensors[0]), sends, not sends)
        self._sequence += 1
        waiter = Waiter(title)

        def ended(error: Optional[Exception], source: int = -1) -> None:
            call.results.source = source
            call.end(waiter, [error])

        start = self._messages.send if sends else self._messages.receive
        start(memory, peer, tag, self._timeout, ended)
        return _Work(waiter)

    def send(self, tensors: List[torch.Tensor], peer: int, tag: int) -> Any:
        return self._message("dt:send", tensors, True, peer, tag)

    def recv(self, tensors: List[torch.Tensor], peer: int, tag: int) -> Any:
        return self._message("dt:recv", tensors, False, self._all if peer < 0 else peer, tag)

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int) -> Any:
        return self._message("dt:recv", tensors, False, -1, tag)

    def monitored_barrier(self, options: Any, wait_for_all: bool = False) -> None:
        seconds = options.timeout.total_seconds()
        self._messages.monitored_barrier(seconds if seconds >= 0 else self._timeout, wait_for_all)

    # ---- Its end ----

    def abort(self) -> None:
        self._group.abort()

    def shutdown(self) -> None:
        self._group.shutdown()

    # torch calls it on ranks outside of a new group; they have nothing to do.
    def perform_nocolor_split(self, _: Any) -> None:
        pass
