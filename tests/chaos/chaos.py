#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random harm to jobs, by seeds: every rank must end with the right error in time, or unharmed with right values.

chaos.py PROGRAM [--seed N] [--count N] [--jobs N] [--kind KIND] [--keep] [--verbose]   or   chaos.py --self-test
PROGRAM is chaos_rank. Seed N always makes the same schedule. The last line is "N passed, N failed, N skipped"; ends
with 77 where nothing could be run.
"""

import argparse
import collections
import os
import pathlib
import platform
import queue
import shutil
import sys
import threading
import time
import traceback

import hosts
import rules
import running
import schedule as schedules


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2, help="schedules at a time")
    parser.add_argument("--kind", choices=schedules.KINDS, help="only seeds of this kind")
    parser.add_argument("--keep", action="store_true", help="keep what ranks wrote")
    parser.add_argument("--verbose", action="store_true", help="every error of every rank")
    parser.add_argument("--self-test", action="store_true", help="test the rules, without a job")
    return parser.parse_args()


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "dt" in name}


class Chaos:
    def __init__(self, wanted, able):
        self.wanted, self.able = wanted, able
        self.abilities = frozenset(name for name, can in able.items() if can is True)
        self.lock = threading.Lock()
        self.passed, self.failed, self.skipped = [], [], collections.Counter()
        self.times = collections.defaultdict(list)  # kind -> ms from the fault to the last error
        self.limits = {}

    def seeds(self):
        seed, count = self.wanted.seed, 0
        while count < self.wanted.count:
            if self.wanted.kind is None or schedules.kind_of(seed) == self.wanted.kind:
                count += 1
                yield seed
            seed += 1

    def work(self, seeds):
        while True:
            try:
                seed = seeds.get_nowait()
            except queue.Empty:
                return
            missing = [need for need in schedules.needs(seed) if need not in self.abilities]
            if missing:
                with self.lock:
                    self.skipped[f"{schedules.kind_of(seed)}: {self.able[missing[0]]}"] += 1
                continue
            try:
                self.one(seed)
            except Exception:  # one schedule's failure, whatever it is: the others go on
                self.report(schedules.make(seed, self.abilities), None, [traceback.format_exc()], 0)

    def one(self, seed):
        schedule = schedules.make(seed, self.abilities)
        began = time.monotonic()
        folder = hosts.folder_for(seed, self.wanted.keep)
        place = hosts.Namespaces if "hosts" in self.abilities else hosts.ThisMachine
        try:
            with place(schedule.hosts, seed) as network:
                outcome = running.Run(schedule, self.wanted.program, network, folder).do()
                hosts.kill_all(network.processes())
            found = rules.judge(schedule, outcome)
            self.report(schedule, outcome, found, time.monotonic() - began)
        finally:
            if self.wanted.keep:
                print(f"kept {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def report(self, schedule, outcome, found, seconds):
        with self.lock:
            took = rules.noticed_ms(schedule, outcome) if outcome is not None else None
            (self.failed if found else self.passed).append(schedule.seed)
            if took is not None and not found:
                self.times[schedule.kind, schedule.limit_ms()].append(took)
            noticed = "" if took is None else f"; all errors after {took:.0f} ms"
            print(f"{'FAILED' if found else 'ok    '} {schedule.text()}{noticed} ({seconds:.1f} s)")
            for text in found:
                print(f"    {text}")
            if outcome is not None and (found or self.wanted.verbose):
                for rank, events in outcome.events.items():
                    for event in events:
                        if event["event"] in ("error", "again", "end"):
                            after = (event["at"] - outcome.fault_ns) / 1e6
                            print(f"    rank {rank} at {after:.0f} ms: {event}")
                for rank, text in outcome.stderr.items():
                    if text.strip():
                        print(f"    stderr of rank {rank}: {text.strip()[-1500:]}")
            sys.stdout.flush()

    def table(self):
        print(f"\nms from the fault to the last rank's error, {platform.node()}, {os.cpu_count()} cores, "
              f"{self.wanted.jobs} schedules at a time:")
        print(f"{'kind':18} {'limit':>6} {'count':>5} {'p50':>7} {'p99':>7} {'max':>7}")
        for (kind, limit), times in sorted(self.times.items()):
            times.sort()
            p50, p99 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.99))
            print(f"{kind:18} {limit:6d} {len(times):5d} {p50:7.0f} {p99:7.0f} {times[-1]:7.0f}")

    def run(self):
        seeds = queue.Queue()
        for seed in self.seeds():
            seeds.put(seed)
        memory_before = shared_memory()
        workers = [threading.Thread(target=self.work, args=(seeds,)) for _ in range(self.wanted.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for name in shared_memory() - memory_before:
            self.failed.append(-1)
            print(f"left behind: /dev/shm/{name}")
        if self.times:
            self.table()
        for reason, count in sorted(self.skipped.items()):
            print(f"skipped: {count} of {reason}")
        if self.failed:
            print(f"again with: chaos.py {self.wanted.program} --count 1 --verbose --seed N; N = "
                  f"{', '.join(map(str, sorted(self.failed)))}")
        skipped = sum(self.skipped.values())
        print(f"{len(self.passed)} passed, {len(self.failed)} failed, {skipped} skipped")
        return 1 if self.failed else 0 if self.passed else 77


def main():
    wanted = options()
    if wanted.self_test:
        import rules_test
        return rules_test.run()
    if wanted.program is None:
        print("which program?", file=sys.stderr)
        return 2
    wanted.program = str(pathlib.Path(wanted.program).resolve())
    able = hosts.probe()
    if able.get("ranks") is not True:
        print(f"skipped: {able['ranks']}")
        print("0 passed, 0 failed, 1 skipped")
        return 77
    return Chaos(wanted, able).run()


if __name__ == "__main__":
    sys.exit(main())
