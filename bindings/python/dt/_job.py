# SPDX-License-Identifier: Apache-2.0
"""Membership in a distributed run."""

import contextlib
from types import TracebackType
from typing import Iterable, Iterator, Optional, Type

from . import _raw
from ._comm import Comm
from ._config import Config
from ._errors import AbortedError, Error, PeerLostError
from ._interruptible import interruptible
from ._statistics import JobStatistics, PeerStatistics, job_statistics, peer_statistics
from ._store import Store, _handle_of
from ._types import Handle, Owner, Place, Unpacker, integers, milliseconds, pack

# Errors that every rank gets; others may be of this rank alone, a timeout of the store's for example.
_HEARD_BY_ALL = (PeerLostError, AbortedError)


class Job(Owner):
    """This process's (or thread's) membership in a distributed run.

    Joins the job that started this process; returns when all ranks are there. A process that nobody
    launched becomes rank 0 of 1 and opens no socket.

    As a context manager it leaves the job together with the others; when its block ends with an
    exception, the other ranks get an AbortedError with its text, and not a dead peer.
    """

    def __init__(self, config: Optional[Config] = None) -> None:
        settings = Config() if config is None else config
        self._on_gpu: bool = settings.get("backend.name") == "nccl"
        given = _handle_of(settings)
        # After Ctrl-C a job that begins all the same is given up at once.
        super().__init__(interruptible(settings, lambda: Handle(_raw.job_init(given), _raw.job_destroy)))
        self._store = Store(self)

    @property
    def place(self) -> Place:
        """Where this rank stands."""
        packed = Unpacker(_raw.job_place(self._handle))
        number, text = packed.number, packed.text  # in this order
        return Place(rank=number(), world_size=number(), local_rank=number(), local_size=number(),
                     node_rank=number(), node_count=number(), attempt=number(), master_port=number(),
                     master_addr=text(), job_id=text(), host=text(), launcher=text())

    @property
    def rank(self) -> int:
        """In [0, world_size)."""
        return self.place.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.place.world_size

    @property
    def store(self) -> Store:
        """Keys and values that the ranks share."""
        return self._store

    def world(self) -> Comm:
        """The communicator of all ranks: each time a new handle of the same one."""
        return Comm(_raw.job_world(self._handle), self._on_gpu)

    def create_comm(self, ranks: Iterable[int], name: Optional[str] = None) -> Comm:
        """A communicator of these world ranks in this order, which they alone make: the others are not
        asked. Collective over those ranks.

        name: for messages and traces, the same on all of them
        """
        members = pack(integers("Job.create_comm: ranks", ranks))
        return interruptible(
            None, lambda: Comm(_raw.comm_create(self._handle, members, name), self._on_gpu))

    def abort(self, message: Optional[str] = None) -> None:
        """Fails the job on every rank with an AbortedError of this message. Returns at once."""
        _raw.job_abort(self._handle, message)

    def trace_dump(self, directory: Optional[str] = None) -> None:
        """Writes the last operations of this rank into a file below `directory` (None: trace.dir) for
        the command dt trace."""
        _raw.job_trace_dump(self._handle, directory)

    def statistics(self) -> JobStatistics:
        """What this rank did so far, on all communicators and in all reducers."""
        return job_statistics(self._handle)

    def peer_statistics(self, rank: int) -> PeerStatistics:
        """How long calls of this rank were held up by that one."""
        return peer_statistics(self._handle, rank)

    @contextlib.contextmanager
    def busy(self, what: str, max_seconds: float) -> Iterator[None]:
        """Away on purpose while the block runs, as for a checkpoint: the other ranks wait instead of
        timing out, and this one's silence is no death.

        max_seconds: how long at most; then they wait no longer
        """
        _raw.job_busy_begin(self._handle, what, milliseconds(max_seconds))
        try:
            yield
        finally:
            _raw.job_busy_end(self._handle)

    def agree(self, agreed: bool) -> bool:
        """A vote of all ranks, as whether a step is kept: True where every rank says so."""
        return bool(interruptible(None, _raw.job_agree, self._handle, bool(agreed)))

    def request_stop(self) -> None:
        """Asks all ranks to stop: their stop_requested() says so from the next call on. For signal
        handlers, too."""
        _raw.job_request_stop(self._handle)

    def stop_requested(self) -> bool:
        """Whether to stop, in the same step on all ranks: a rank called request_stop(), or dt run was
        told to stop. All ranks call it in the same order as operations of world()."""
        return bool(interruptible(None, _raw.job_stop_requested, self._handle))

    def finalize(self, timeout: Optional[float] = None) -> None:
        """Leaves the job together: returns when every rank has called it. After Ctrl-C it goes on
        without the caller.

        timeout: seconds to wait for the others; None: job.finalize_timeout_ms
        """
        interruptible(None, _raw.job_finalize, self._handle, milliseconds(timeout))

    def close(self) -> None:
        """Drops the handle, without waiting for anybody. Without finalize() the others hear of a
        death once communicators and the like are gone, too."""
        super().close()

    def __repr__(self) -> str:
        try:
            place = self.place
        except Error:
            return "<dt.Job closed>"
        return f"<dt.Job {place.job_id!r} rank {place.rank} of {place.world_size} on {place.host}>"

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            if self._handle == 0:
                return
            if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
                self.finalize()
            elif not isinstance(error, _HEARD_BY_ALL):
                text = f"{type(error).__name__}: {error}".replace("\0", " ")
                try:
                    self.abort(text.encode("utf-8", "replace").decode())
                except Error:
                    pass  # it has ended already; the block's exception says more
        finally:
            self.close()
