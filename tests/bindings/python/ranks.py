# SPDX-License-Identifier: Apache-2.0
"""Ranks for the tests: on threads of this process, or as processes under `dt run`."""

import os
import subprocess
import sys
import threading

import dt

LIMIT_S = 150  # of anything that should take seconds at most; less than the limit of a test


def rank_config(rank, world_size, port, settings=None):
    """A config for one rank that is a thread."""
    return dt.Config(settings={
        "job.id": "test", "job.rank": rank, "job.world_size": world_size,
        "job.master_addr": "127.0.0.1", "job.master_port": port, "job.store_served": True,
        "rendezvous.timeout_ms": 20000, "collective.timeout_ms": 20000, **(settings or {})})


def run_ranks(world_size, body, settings=None):
    """Runs body(job, comm) as every rank, each on a thread; gives what each returned, and raises the
    first exception of any."""
    results, errors = [None] * world_size, []
    with dt.Config(settings={"job.id": "test", "job.world_size": world_size}) as config:
        server = dt.StoreServer(config)

    def run(rank):
        try:
            with dt.Job(rank_config(rank, world_size, server.port, settings)) as job:
                results[rank] = body(job, job.world())
        except BaseException as error:  # told by the caller's thread
            errors.append((isinstance(error, dt.Error), rank, error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"a rank hangs; so far: {errors}"
    server.close()
    if errors:
        raise min(errors, key=lambda each: each[:2])[2]  # a failed check before what it led to
    return results


def python(*args, **options):
    """Runs this interpreter, isolated, and gives its CompletedProcess."""
    return subprocess.run([sys.executable, "-I", *args], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False, **options)


def dt_run(count, *args):
    """Runs this interpreter as ranks under `dt run`."""
    return subprocess.run([os.environ["DT_COMMAND"], "run", "-n", str(count), sys.executable, "-I", *args],
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
