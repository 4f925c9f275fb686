# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks, with tags and from any source, of the backend of torch.distributed in Python."""

import array
import contextlib
import ctypes
import queue
import struct
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
import torch.distributed

from ._errors import Error, InvalidArgumentError, UnsupportedError
from ._errors import TimeoutError as DtTimeoutError
from ._raw import Buffer
from ._types import Dtype, ReduceOp
from ._work import Work, wait_any

_HEADER = struct.Struct("<qqqi")  # group, tag, bytes of the message, whether it is a farewell
_LOOK_S = 0.005  # how soon the thread sees what has been posted meanwhile
_REST_S = 0.01  # where nobody waits
_WORKS_MAX = 1000  # of a wait for any
_VOTES = 61  # elements of the allreduce by which ranks leave; a vote of the program has fewer
_USER, _BARRIER = 0, 1  # whose tags are those of a message
_CALLS, _HAS_LEFT, _IS_HERE, _ASKS, _PASSES = range(5)  # what ranks of a monitored barrier tell each other

Ended = Callable[..., None]  # with the error, or None; of a receive also with the rank of the group that sent it


def timed_out(text: str) -> Exception:
    """In the words of gloo, for which programs look."""
    return torch.distributed.DistBackendError(f"backend dt: Timed out on {text}")


_WORDS = {"Comm.shrink": "dt.torch.shrink_group()", "Job.finalize": "destroy_process_group()",
          "raise collective.timeout_ms": "raise the group's timeout", "Job.create_comm": "new_group",
          "alltoallv": "all_to_all", "allgatherv": "all_gather", "reduce_scatterv": "reduce_scatter",
          "the store's process (dt run, ": "the store's process (rank 0, "}


def torch_error(error: Exception) -> Exception:
    """What programs catch, with what users of torch.distributed can call and set; wrong arguments, and what dt cannot
    do, are Python's own exceptions already."""
    if isinstance(error, (InvalidArgumentError, UnsupportedError)) or not isinstance(error, Error):
        return error
    text = str(error)
    if " aborted the job: " not in text:  # the rest of which is what the program said
        for ours, theirs in _WORDS.items():
            text = text.replace(ours, theirs)
    return timed_out(text) if isinstance(error, DtTimeoutError) else torch.distributed.DistBackendError(text)


@contextlib.contextmanager
def as_torch_raises() -> Iterator[None]:
    """Makes errors of dt what programs catch, as the backend in C++ does."""
    try:
        yield
    except Error as error:
        found = torch_error(error)
        if found is error:
            raise
        raise found from error


def _value_or_error(future: Any) -> Any:
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value


class Results(List[torch.Tensor]):
    """What a future gives."""

    source = -1  # the rank of the group that has sent it


class Waiter:
    """The end of one call."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._outcome: Any = None
        self._base: Any = None
        self._future: Any = None

    def end(self, results: Results, error: Optional[Exception]) -> None:
        with self._lock:
            self._outcome = results if error is None else torch_error(error)
            base = self._base
            self._ended.set()
        if base is None:
            return
        try:  # its callbacks may block
            threading.Thread(target=base.set_result, args=(self._outcome,), name="dt-torch", daemon=True).start()
        except RuntimeError:  # Python ends, or has no more threads
            base.set_result(self._outcome)

    def wait(self, timeout: Optional[float] = None) -> bool:
        if not self._ended.wait(timeout):
            assert timeout is not None
            raise timed_out(f"{self._title} after {1000 * timeout:.0f} ms; the operation itself goes on")
        with self._lock:
            future = self._future
        if future is not None:  # it is done before its callbacks run
            with contextlib.suppress(Exception):  # raised below
                future.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return True

    def future(self) -> Any:
        """PyTorch's C++ sees an error of a future only if a callback has raised it."""
        with self._lock:
            if self._future is None:
                self._base = torch.futures.Future()
                self._future = self._base.then(_value_or_error)
                if self._ended.is_set():
                    self._base.set_result(self._outcome)
            return self._future


def _no_thread(what: str) -> Exception:
    return torch.distributed.DistBackendError(f"{what}: no thread can be started for it: Python ends; or look at "
                                              "ulimit -u and the memory limit")


class _Receive:
    """A receive that is not satisfied yet."""

    def __init__(self, group: int, tag: int, sources: Dict[int, int], memory: Buffer, what: str, end: float,
                 ended: Ended) -> None:
        self.group = group
        self.tag = tag
        self.sources = sources  # ranks of the job that may send it, and which they are in the group
        self.memory = memory
        self.bytes = memory.count * Dtype(memory.dtype).itemsize
        self.what = what  # for errors
        self.end = end
        self._ended = ended
        self.source = -1  # the rank of the job that has sent it

    def ended(self, error: Optional[Exception]) -> None:
        self._ended(error, self.sources.get(self.source, -1))


class _Arrived:
    """A message whose header has come; without `receive`, one that no receive wants yet."""

    def __init__(self, group: int, tag: int, source: int, data: Any) -> None:
        self.group = group
        self.tag = tag
        self.source = source
        self.data = data  # a bytearray, or the memory of `receive`
        self.receive: Optional[_Receive] = None
        self.work: Optional[Work] = None  # None: all of it is here


class Messages:
    """The messages of a process, in all groups of one job.

    dt matches the n-th send of a pair with the n-th receive. So each message has a header before it, by which the
    receiver decides where it goes: to the first receive that wants it, or into memory of its own until one does. A
    rank has a receive for a header under way (it listens) while a receive that is not satisfied names that peer. One
    thread takes in what has come; there is one while there is something to wait for. As dt cannot take a receive
    back, ranks that leave the job tell each other, and those that are listened to say farewell.

    A message that is not taken in time fails alone; dt keeps a send, which may still arrive.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._sending = threading.Lock()  # a header and its message stand one behind the other
        self._changed = threading.Condition()  # its lock is for all below
        self._waiting: List[_Receive] = []  # in the order of the calls
        self._arrived: List[_Arrived] = []  # in the order of their headers
        self._headers: Dict[int, Any] = {}  # of peers that this rank listens to: (memory, work)
        self._sends: List[Any] = []  # (works, end, what, ended, peer)
        self._beginning = 0  # sends that are about to be in it
        self._parting: Set[int] = set()  # they will say farewell
        self._parted: Set[int] = set()  # they have
        self._error: Optional[Exception] = None
        self._thread: Optional[threading.Thread] = None

    def send(self, header: bytes, memory: Buffer, peer: int, what: str, end: float, ended: Ended) -> None:
        kept = bytearray(header)
        with self._changed:
            if not self._wake() and peer not in self._parting:  # before anything has begun
                raise _no_thread(what)
            self._beginning += 1  # keeps the thread
        works: List[Work] = []
        sending = (works, float("inf"), what, lambda _: None, peer)  # where this raises, and dt has the header
        try:
            with self._sending:
                works.append(self._comm.send_async(kept, peer, timeout=float("inf")))
                if memory.count > 0:
                    works.append(self._comm.send_async(memory, peer, timeout=float("inf")))
            sending = (works, end, what, ended, peer)
        finally:
            with self._changed:
                self._beginning -= 1
                if works:
                    self._sends.append(sending)
                self._wake()  # the thread may have failed meanwhile

    def post(self, receive: _Receive) -> None:
        done: List[Callable[[], None]] = []
        with self._changed:
            if self._error is not None:
                raise type(self._error)(*self._error.args)
            unclaimed = (each for each in self._arrived if each.receive is None)
            message = next((each for each in unclaimed if self._matches(receive, each)), None)
            if message is not None:
                self._hand_over(message, receive, done)
            else:
                if not self._wake():  # before anything has begun
                    raise _no_thread(receive.what)
                self._waiting.append(receive)
                for peer in receive.sources:
                    self._listen(peer, done)
        for each in done:
            each()

    def withdraw(self, receives: List[_Receive]) -> None:
        """Nobody waits for these any more."""
        with self._changed:
            self._waiting = [each for each in self._waiting if each not in receives]

    def failure(self) -> Optional[Exception]:
        """Why no message can move any more."""
        with self._changed:
            error = self._error
        try:
            if error is None:
                self._comm.check()
        except Error as broken:
            error = torch_error(broken)
        return error

    @staticmethod
    def _matches(receive: _Receive, message: _Arrived) -> bool:
        return (receive.group, receive.tag) == (message.group, message.tag) and message.source in receive.sources

    # ---- With the lock held; what they add to `done` is to be called without it ----

    def _wake(self) -> bool:
        """False: no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="dt-torch", daemon=True)
            with contextlib.suppress(RuntimeError):  # Python ends, or has no more threads
                thread.start()
                self._thread = thread
        self._changed.notify_all()
        return self._thread is not None

    def _hand_over(self, message: _Arrived, receive: _Receive, done: List[Callable[[], None]]) -> None:
        """A message that came before its receive."""
        message.receive = receive
        if message.work is None:
            self._end(message, None, done)

    def _end(self, message: _Arrived, error: Optional[Exception], done: List[Callable[[], None]]) -> None:
        """All of it is here, or it has failed."""
        message.work = None
        receive = message.receive
        if receive is None:
            return  # it stays until one wants it
        receive.source = message.source
        self._arrived.remove(message)
        if error is None and isinstance(message.data, bytearray):
            if len(message.data) != receive.bytes:
                error = torch.distributed.DistBackendError(
                    f"{receive.what}: room for {receive.bytes} bytes, but the message has {len(message.data)}")
            elif message.data:
                ctypes.memmove(receive.memory.address, (ctypes.c_char * receive.bytes).from_buffer(message.data),
                               receive.bytes)
        outcome = None if error is None else torch_error(error)
        done.append(lambda: receive.ended(outcome))

    def _listen(self, peer: int, done: List[Callable[[], None]]) -> None:
        if peer == self._comm.rank or peer in self._headers or self._error is not None:
            return
        memory = bytearray(_HEADER.size)
        try:
            self._headers[peer] = memory, self._comm.recv_async(memory, peer, timeout=float("inf"))
        except Error as error:
            self._fail(torch_error(error), done)

    def _take(self, peer: int, header: bytearray, done: List[Callable[[], None]]) -> None:
        """A header has come."""
        group, tag, size, is_farewell = _HEADER.unpack(header)
        if is_farewell:
            self._parting.discard(peer)
            self._parted.add(peer)
            return
        message = _Arrived(group, tag, peer, bytearray())
        receive = next((each for each in self._waiting if self._matches(each, message)), None)
        if receive is not None:
            self._waiting.remove(receive)
            message.receive = receive
        self._arrived.append(message)
        message.data = receive.memory if receive is not None and receive.bytes == size else bytearray(size)
        if size == 0:
            self._end(message, None, done)
        else:
            try:
                message.work = self._comm.recv_async(Buffer(message.data, Dtype.U8) if isinstance(
                    message.data, bytearray) else _bytes_of(message.data), peer)
            except Error as error:
                self._end(message, torch_error(error), done)
                self._fail(torch_error(error), done)
        if peer in self._parting or any(peer in each.sources for each in self._waiting):
            self._listen(peer, done)

    def _fail(self, error: Exception, done: List[Callable[[], None]]) -> None:
        """The communicator is broken, or the group destroyed."""
        self._error = self._error or error
        for receive in self._waiting:
            done.append(lambda receive=receive: receive.ended(error))  # type: ignore[misc]
        self._waiting.clear()

    # ---- The thread ----

    def _take_in(self) -> None:
        """Takes in what has come, and ends what is done or too late."""
        done: List[Callable[[], None]] = []
        try:
            with self._changed:
                for peer, (memory, work) in list(self._headers.items()):
                    if not work.done():
                        continue
                    del self._headers[peer]
                    error = work.error()
                    if error is not None:
                        self._fail(torch_error(error), done)
                    else:
                        self._take(peer, memory, done)
                for message in [each for each in self._arrived if each.work is not None]:
                    assert message.work is not None
                    if message.work.done():
                        error = message.work.error()
                        self._end(message, error, done)
                        if error is not None:
                            self._fail(torch_error(error), done)
                now = time.monotonic()
                for receive in [each for each in self._waiting if now >= each.end]:
                    self._waiting.remove(receive)
                    late = timed_out(f"{receive.what}: no message came in time")
                    done.append(lambda receive=receive, late=late: receive.ended(late))  # type: ignore[misc]
                for each in list(self._sends):
                    works, end, what, ended, peer = each
                    if all(work.done() for work in works):
                        error = next((work.error() for work in works if work.error() is not None), None)
                        self._sends.remove(each)
                    elif now >= end:
                        error = timed_out(f"{what}: it was not received in time, and may still arrive")
                        self._sends.remove(each)
                        self._sends.append((works, float("inf"), what, lambda _: None, peer))  # dt still has it
                    else:
                        continue
                    done.append(lambda ended=ended, error=error: ended(error))  # type: ignore[misc]
        finally:
            for call in done:
                call()

    def _is_moving(self) -> bool:
        """Whether dt carries anything out, or has and nobody knows; with the lock held."""
        return bool(self._headers or self._sends or any(each.work is not None for each in self._arrived))

    def _works(self) -> List[Work]:
        with self._changed:
            works = [work for _, work in self._headers.values()]
            works += [each.work for each in self._arrived if each.work is not None]
            return works + [work for each in self._sends for work in each[0] if not work.done()]

    def _serve(self) -> None:
        try:
            self._take_in_all()
        except Exception as error:  # pylint: disable=broad-exception-caught
            done: List[Callable[[], None]] = []
            with self._changed:  # else all would wait for this thread
                self._thread = None
                self._fail(error, done)
                for ended in [each[3] for each in self._sends]:
                    done.append(lambda ended=ended: ended(error))  # type: ignore[misc]
                for receive in [each.receive for each in self._arrived if each.receive is not None]:
                    done.append(lambda receive=receive: receive.ended(error))  # type: ignore[misc]
                self._sends.clear()
                self._arrived.clear()
            for call in done:
                call()
            raise

    def _take_in_all(self) -> None:
        while True:
            self._take_in()
            works = self._works()
            with self._changed:
                if self._error is not None and not (works or self._beginning or self._is_moving()):
                    self._thread = None
                    return
                seconds = _LOOK_S if self._waiting or any(each[1] < float("inf") for each in self._sends) else _REST_S
            if works:
                try:
                    wait_any(works[:_WORKS_MAX], seconds)
                except Error:  # for want of memory
                    with self._changed:
                        self._changed.wait(_LOOK_S)
                continue
            with self._changed:
                if self._is_moving():  # since then
                    continue
                if self._waiting:
                    self._changed.wait(_LOOK_S)
                    continue
                if not self._changed.wait(1.0) and not (self._waiting or self._beginning or self._is_moving()):
                    self._thread = None
                    return

    # ---- The end of the job ----

    def leave(self, world: Any, timeout: float, why: str) -> None:
        """Before the job ends, on all ranks: nothing of this class is under way afterwards. Raises nothing.

        why: what ranks read that call something else"""
        done: List[Callable[[], None]] = []
        with contextlib.suppress(Exception):
            self._say_farewell(world, time.monotonic() + timeout, timeout, why)
        with self._changed:
            for receive in self._waiting:
                gone = torch.distributed.DistBackendError(
                    f"{receive.what}: the process group was destroyed while this receive waited")
                done.append(lambda receive=receive, gone=gone: receive.ended(gone))  # type: ignore[misc]
            self._waiting.clear()
        for each in done:
            each()

    def _say_farewell(self, world: Any, end: float, timeout: float, why: str) -> None:
        size = world.size
        with self._changed:
            mine = bytearray(size)
            for peer in () if self._error else {*self._headers, *(each[4] for each in self._sends)}:
                mine[peer] = 1
        whether = bytearray([any(mine)] * _VOTES)
        world.allreduce(Buffer(whether, Dtype.U8), None, ReduceOp.MAX, name=why, timeout=timeout)
        if not whether[0]:
            return
        everything = bytearray(size * size)
        world.allgather(mine, everything, timeout=max(1.0, end - time.monotonic()))
        done: List[Callable[[], None]] = []
        end = max(end, time.monotonic() + 1)
        try:
            for peer in range(size):
                if not mine[peer] and not everything[peer * size + world.rank]:
                    continue
                with self._changed:
                    if peer not in self._parted:
                        self._parting.add(peer)
                        self._listen(peer, done)
                self.send(_HEADER.pack(0, 0, 0, 1), Buffer(bytearray(), Dtype.U8), peer, "farewell", end,
                          lambda _: None)
        finally:
            for each in done:
                each()
        while time.monotonic() < end:
            self._take_in()
            with self._changed:
                if self._error is not None or not (self._headers or self._sends):
                    return
                self._changed.wait(_LOOK_S)

    def close(self) -> None:
        """Receives that wait fail, and later ones are refused."""
        done: List[Callable[[], None]] = []
        self._take_in()
        with self._changed:
            self._fail(torch.distributed.DistBackendError("the process group was destroyed"), done)
        for each in done:
            each()


def _bytes_of(memory: Buffer) -> Buffer:
    return Buffer.from_address(memory.address, memory.count * Dtype(memory.dtype).itemsize, Dtype.U8, memory)


class GroupMessages:
    """Sends and receives of one process group, by its own ranks."""

    def __init__(self, messages: Optional[Messages], ranks: List[int], rank: int, name: str, number: int) -> None:
        """number: of this group alone, the same on its ranks; even"""
        self._messages = messages  # None: there is only this rank
        self._ranks = ranks  # of the job, by rank of the group
        self._rank = rank
        self._name = name
        self._number = number
        self._barriers = 0  # monitored ones that this rank has called; on rank 0: how often it has asked the others
        self._calls: Dict[int, int] = {}  # on rank 0: in which peers wait

    def _all(self) -> Messages:
        if self._messages is None:
            raise ValueError("a group of one rank has no messages")
        return self._messages

    def _member(self, peer: int) -> int:
        if 0 <= peer < len(self._ranks) and peer != self._rank:
            return self._ranks[peer]
        raise ValueError(f"rank {peer} is not another rank of {len(self._ranks)}")

    def _what(self, verb: str, peer: int, tag: int) -> str:
        return (f"{verb} {f'rank {peer}' if peer >= 0 else 'any rank'}, tag {tag}, on rank {self._rank} of group "
                f'"{self._name}"')

    def send(self, memory: Buffer, peer: int, tag: int, timeout: float, ended: Ended, kind: int = _USER) -> None:
        size = memory.count * Dtype(memory.dtype).itemsize
        with as_torch_raises():
            self._all().send(_HEADER.pack(self._number + kind, tag, size, 0), _bytes_of(memory), self._member(peer),
                             self._what("send to", peer, tag), time.monotonic() + timeout, ended)

    def receive(self, memory: Buffer, peer: int, tag: int, timeout: float, ended: Ended,
                kind: int = _USER) -> _Receive:
        """peer: -1: any other rank"""
        members = range(len(self._ranks)) if peer < 0 else [peer]
        sources = {self._ranks[each] if peer < 0 else self._member(each): each for each in members}
        receive = _Receive(self._number + kind, tag, sources, memory, self._what("recv from", peer, tag),
                           time.monotonic() + timeout, ended)
        self._all().post(receive)
        return receive

    # ---- monitored_barrier ----

    def _signal(self, peer: int, what: int, call: int, asked: int, timeout: float) -> Waiter:
        waiter = Waiter("dt:monitored_barrier")
        memory = Buffer(array.array("q", [what, call, asked]))
        self.send(memory, peer, 0, max(0.0, timeout), lambda error: waiter.end(Results(), error), _BARRIER)
        return waiter

    def _await_signal(self, peer: int, end: float, heard: "queue.SimpleQueue[Any]") -> _Receive:
        """Puts the peer, an error or None, and what it says into `heard`."""
        says = array.array("q", [0, 0, 0])

        def came(error: Optional[Exception], _: int) -> None:
            if error is None and says[0] == _CALLS:  # also where an interrupt has ended rank 0's call
                self._calls[peer] = says[1]
            heard.put((peer, error, says))

        return self.receive(Buffer(says), peer, 0, max(0.0, end - time.monotonic()), came, _BARRIER)

    def monitored_barrier(self, timeout: float, wait_for_all: bool) -> None:
        """A rank calls, and rank 0 asks whether it is still in that call, because calls that were given up may lie
        before the current one. When all are there, rank 0 asks again, since one may have given up while others came,
        and lets them pass. So it can name those that are missing, and the group stays usable. The texts are gloo's,
        which programs look for."""
        if len(self._ranks) == 1:
            return
        end = time.monotonic() + timeout
        if self._rank == 0:
            self._watch_barrier(end, timeout, wait_for_all)
            return
        self._barriers += 1
        number = self._barriers
        heard: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        posted: List[_Receive] = []
        try:
            self._signal(0, _CALLS, number, 0, timeout).wait()
            what = _CALLS
            while what != _PASSES:
                posted = [self._await_signal(0, end, heard)]
                _, error, (what, call, asked) = heard.get()
                if error is not None:
                    raise error
                if call != number:
                    what = _CALLS  # an answer to an earlier call comes too late
                elif what == _ASKS:
                    self._signal(0, _IS_HERE, number, asked, end - time.monotonic()).wait()
        except BaseException as error:
            self._all().withdraw(posted)
            with contextlib.suppress(Exception):  # the job has failed, as `error` says
                self._signal(0, _HAS_LEFT, number, 0, timeout)
            if not isinstance(error, Exception):
                raise
            raise torch.distributed.DistBackendError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n{error}"
            ) from error

    def _hear_all(self, end: float) -> Dict[int, Exception]:
        """Rank 0 asks all, and waits until all have said that they are in a call; why some are not."""
        self._barriers += 1
        number = self._barriers
        heard: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        posted: Dict[int, _Receive] = {}  # the last one of each peer
        awaited = set(range(1, len(self._ranks)))
        missing: Dict[int, Exception] = {}
        for peer in awaited:
            heard.put((peer, None, (_ASKS, 0, 0)))
        try:
            while awaited:
                peer, error, (what, call, asked) = heard.get()
                try:
                    if error is not None:
                        raise error
                    if what == _IS_HERE and (call, asked) == (self._calls.get(peer), number):
                        awaited.remove(peer)
                        continue
                    if what == _HAS_LEFT and call == self._calls.get(peer):
                        del self._calls[peer]
                    if what in (_CALLS, _ASKS) and peer in self._calls:  # it may wait since an earlier call of rank 0
                        self._signal(peer, _ASKS, self._calls[peer], number, end - time.monotonic())
                    posted[peer] = self._await_signal(peer, end, heard)
                except Exception as failure:  # pylint: disable=broad-exception-caught
                    awaited.discard(peer)
                    missing[peer] = failure
        except BaseException:  # KeyboardInterrupt
            self._all().withdraw(list(posted.values()))
            raise
        return missing

    def _watch_barrier(self, end: float, timeout: float, wait_for_all: bool) -> None:
        limit = f"{1000 * timeout:.0f} ms"

        def check(missing: Dict[int, Exception]) -> None:
            failed = self._all().failure() if missing else None
            if failed is not None:
                raise torch.distributed.DistBackendError(
                    f"[Rank 0]: monitoredBarrier failed with the job\n Original exception: \n{failed}") from failed
            if missing and wait_for_all:
                ranks = ", ".join(map(str, sorted(missing)))
                raise torch.distributed.DistBackendError(
                    f"[Rank 0]: Ranks {ranks} failed to pass monitoredBarrier in {limit}\n Original exception: \n"
                    f"{missing[min(missing)]}")
            for peer in sorted(missing):
                raise torch.distributed.DistBackendError(f"[Rank 0]: Rank {peer} failed to pass monitoredBarrier in "
                                                         f"{limit}\n Original exception: \n{missing[peer]}")

        if not wait_for_all and time.monotonic() >= end:
            raise torch.distributed.DistBackendError(f"Rank 0 timed out in monitoredBarrier after {limit}.\nNo ranks "
                                                     "successfully processed in monitoredBarrier.")
        asked: Optional[Dict[int, int]] = None
        while asked != self._calls:  # until all have said it again of the same calls
            asked = dict(self._calls)
            check(self._hear_all(end))
        missing, calls, self._calls = {}, self._calls, {}
        answers = {}
        for peer, call in calls.items():
            try:
                answers[peer] = self._signal(peer, _PASSES, call, 0, max(1.0, end - time.monotonic()))
            except Exception as error:  # pylint: disable=broad-exception-caught
                missing[peer] = error
        for peer, answer in answers.items():
            try:
                answer.wait()
            except Exception as error:  # pylint: disable=broad-exception-caught
                missing[peer] = error
        check(missing)
