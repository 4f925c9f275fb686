#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Of a job over several hosts, which are network namespaces, ranks and hosts go: the others go on without them.

shrink_test.py PROGRAM [case ...]; ends with 77 where namespaces cannot be made.
"""

import re
import sys

from cases import expect, run_cases
from job import Job
from network import Network

HOSTS = [0, 0, 1, 1, 2, 2]
SILENCE_MS = 6000
PATIENCE_S = 120  # far above what a busy machine needs; the program's own deadlines end it before


def expect_survivors(job, ranks, codes):
    """They have ended well; the program has compared every sum, and what else a smaller job can do."""
    for rank in ranks:
        text = job.text(rank)
        expect(codes[rank] == 0, f"rank {rank} ended with {codes[rank]}: {text}")
        expect(f"good with {len(ranks)}" in text, f"rank {rank}: {text}")


def kill_a_rank_then_a_host():
    with Network(3) as network:
        with Job(network, HOSTS, ["survive", "3"]) as job:
            job.wait_ready()
            job.kill(3)
            job.wait_for("shrunk to 5", but=[3])
            job.kill(4)
            job.kill(5)
            expect_survivors(job, [0, 1, 2], job.end(PATIENCE_S, but=[3, 4, 5]))


def local_ranks_in_another_order():
    """Those that are left keep the order of their ranks."""
    with Network(2) as network:
        with Job(network, [0, 0, 0, 1, 1, 1], ["survive", "4"], local_ranks=[2, 0, 1, 0, 2, 1]) as job:
            job.wait_ready()
            job.kill(1)
            job.wait_for("shrunk to 5", but=[1])
            job.kill(3)
            expect_survivors(job, [0, 2, 4, 5], job.end(PATIENCE_S, but=[1, 3]))


def host_falls_silent():
    """Those that are cut off from the store have nothing to agree with, and say so."""
    with Network(3) as network:
        with Job(network, HOSTS, ["survive", "4"], {"DT_HEARTBEAT_TIMEOUT_MS": str(SILENCE_MS)}) as job:
            job.wait_ready()
            network.unplug(2)
            codes = job.end(PATIENCE_S)
            expect_survivors(job, [0, 1, 2, 3], codes)
            says = (rf"saw DT_ERR_PEER_LOST of rank 0 host named pid {job.processes[0].pid}: dt_comm_shrink of comm "
                    r'"world": rank 0 \(host0 pid \d+\).*the ranks that are left can agree on nothing without the store')
            for rank in (4, 5):
                text = job.text(rank)
                expect(codes[rank] == 9 and re.search(says, text), f"rank {rank} ended with {codes[rank]}: {text}")


CASES = [kill_a_rank_then_a_host, local_ranks_in_another_order, host_falls_silent]


if __name__ == "__main__":
    Job.program = sys.argv[1]
    sys.exit(run_cases(CASES, 1))
