# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks are started one by one, each in the namespace of its host."""

import os
import re
import signal
import subprocess
import tempfile
import time

from cases import Failed, PORT, environment, expect

# The error must be there within the deadline of the operation, or a second later where ranks that only wait leave
# those at the break the word; the rest is for a busy machine.
SLACK_S = 5


class Job:
    """Ranks in namespaces; hosts[r] is the host of rank r. Whatever is left is killed at the end."""

    program = ""

    def __init__(self, network, hosts, mode, variables=None, of_host=None, family=4, local_ranks=None):
        self.network = network
        self.local_ranks = local_ranks
        self.outputs = []
        self.processes = []
        for rank, host in enumerate(hosts):
            settings = environment(DT_RANK=str(rank), DT_WORLD_SIZE=str(len(hosts)),
                                   DT_MASTER_ADDR=network.address(hosts[0], family), DT_MASTER_PORT=str(PORT),
                                   DT_RENDEZVOUS_TIMEOUT_MS="30000", DT_COLLECTIVE_TIMEOUT_MS="30000")
            settings.update(variables or {})
            settings.update((of_host or {}).get(host, {}))
            if local_ranks:
                settings["DT_LOCAL_RANK"] = str(local_ranks[rank])
            output = tempfile.TemporaryFile(mode="w+")
            self.outputs.append(output)
            self.processes.append(subprocess.Popen(network.command(host, [Job.program, *mode]), env=settings,
                                                   stdin=subprocess.PIPE, stdout=output, stderr=output))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdin.close()

    def text(self, rank):
        self.outputs[rank].seek(0)
        return self.outputs[rank].read()

    def all_text(self):
        """The output of all ranks, for failure messages: the cause may be another rank's error."""
        return " | ".join(f"rank {rank}: {self.text(rank).strip()}" for rank in range(len(self.processes)))

    def wait_ready(self):
        """Every rank has printed `ready`."""
        self.wait_for("ready")

    def wait_for(self, word, but=()):
        """Every rank has printed the word."""
        limit = time.monotonic() + 60
        for rank, process in enumerate(self.processes):
            while rank not in but and word not in self.text(rank):
                expect(process.poll() is None, f"rank {rank} ended early: {self.text(rank)}")
                expect(time.monotonic() < limit, f"rank {rank} does not say {word!r}: {self.text(rank)}")
                os.sched_yield()

    def kill(self, rank):
        os.kill(self.processes[rank].pid, signal.SIGKILL)  # ip, unshare and sh have become the program

    def go(self, ranks=None):
        for rank, process in enumerate(self.processes):
            if ranks is not None and rank not in ranks:
                continue
            process.stdin.write(b"\n")
            process.stdin.flush()

    def end(self, seconds, but=()):
        """The exit codes, by rank."""
        limit = time.monotonic() + seconds
        codes = {}
        for rank, process in enumerate(self.processes):
            if rank in but:
                continue
            try:
                codes[rank] = process.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"rank {rank} did not end within {seconds} s; it said: {self.text(rank)}")
        return codes

    def expect_good(self, hosts):
        codes = self.end(120)
        for rank, code in codes.items():
            expect(code == 0, f"the ranks ended with {codes}: {self.all_text()}")
            found = re.search(r"local (\d+) of (\d+) on node (\d+) of (\d+)", self.text(rank))
            expect(found is not None, self.text(rank))
            expect(not self.local_ranks or int(found[1]) == self.local_ranks[rank], f"local rank: {self.text(rank)}")
            expect(int(found[2]) == hosts.count(hosts[rank]), f"local size: {self.text(rank)}")
            expect(int(found[4]) == len(set(hosts)), f"nodes: {self.text(rank)}")

    def expect_errors(self, deadline_s, pattern, but=(), status=None):
        """Every rank ends with code 9 within the deadline, with an error that the pattern is found in."""
        began = time.monotonic()
        codes = self.end(deadline_s + SLACK_S, but)
        for rank, code in codes.items():
            text = self.text(rank)
            expect(code == 9, f"the ranks ended with {codes}: {self.all_text()}")
            expect(re.search(pattern, text), f"rank {rank} does not say {pattern!r}: {text}")
            expect(status is None or re.search(f"saw DT_ERR_({status}) ", text), f"not {status}: {text}")
        first = self.text(min(codes)).splitlines()[-1]
        print(f"  all {len(codes)} ranks within {time.monotonic() - began:.1f} s; rank {min(codes)}: {first}")
