# SPDX-License-Identifier: Apache-2.0
"""Ranks of a test, as threads of this process. Needs no launcher, and pytest only for the fixture.

    from dt.testing import run_ranks

    def test_sum():
        def body(job, comm):
            return comm.allreduce(comm.rank)
        assert run_ranks(3, body) == [3, 3, 3]

With pytest, write pytest_plugins = ["dt.testing"] into the topmost conftest.py; then tests may take
the fixture dt_ranks, which is run_ranks.
"""

import sys
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Tuple, TypeVar

from ._comm import Comm
from ._config import Config
from ._errors import Error
from ._job import Job
from ._store import StoreServer

__all__ = ["rank_config", "run_ranks"]

T = TypeVar("T")


def rank_config(rank: int, world_size: int, port: int,
                settings: Optional[Mapping[str, object]] = None) -> Config:
    """The Config of one rank of a job whose store is served on `port` of this host.

    port: StoreServer.port, of a server with job.id "test" and this world size
    settings: more of them, which win
    """
    return Config(settings={
        "job.id": "test", "job.rank": rank, "job.world_size": world_size,
        "job.master_addr": "127.0.0.1", "job.master_port": port, "job.store_served": True,
        "rendezvous.timeout_ms": 20000, "collective.timeout_ms": 20000, **(settings or {})})


def run_ranks(world_size: int, body: Callable[[Job, Comm], T],
              settings: Optional[Mapping[str, object]] = None, timeout: float = 60) -> List[T]:
    """Runs body(job, comm) as every rank of a new job, each on a thread; gives what each returned.

    It raises the first exception of any rank, one of the body's own before the errors of dt that it
    led to on other ranks. Ranks that run after `timeout` seconds are an AssertionError.

    settings: of every rank, by default with limits of 20 seconds
    """
    results: List[Any] = [None] * world_size
    errors: List[Tuple[bool, int, BaseException]] = []
    with Config(settings={"job.id": "test", "job.world_size": world_size}) as config:
        server = StoreServer(config)

    def run(rank: int) -> None:
        try:
            with Job(rank_config(rank, world_size, server.port, settings)) as job:
                results[rank] = body(job, job.world())
        except BaseException as error:  # pylint: disable=broad-exception-caught
            errors.append((isinstance(error, Error), rank, error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True, name=f"rank {rank}")
               for rank in range(world_size)]
    with server:
        for thread in threads:
            thread.start()
        end = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
        late = ", ".join(thread.name for thread in threads if thread.is_alive())
        if late:
            raise AssertionError(f"{late} did not end in {timeout} seconds; errors so far: "
                                 f"{errors}")
    if errors:
        raise min(errors, key=lambda each: each[:2])[2]
    return results


def _ranks() -> Callable[..., Any]:
    """run_ranks(), for tests of pytest."""
    return run_ranks


# Not imported here: it may not be installed, and takes its time.
_pytest = sys.modules.get("pytest")
if _pytest is not None:
    dt_ranks: Any = _pytest.fixture(name="dt_ranks")(_ranks)
