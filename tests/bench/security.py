#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""security.py BUILD_DIR [--rounds N]: what security.mode costs, in the three modes, which take turns.

A join and the store over loopback (security_cost), and allreduce between two hosts that are network
namespaces joined by a switch (dt bench under dt run; root only, else that part is left out and said so).
Prints tables in Markdown: medians, with the lowest and the highest round in brackets, and ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "multihost"))

from network import Network, Unavailable  # noqa: E402

MODES = ("none", "auth", "encrypt")
TOKEN = "5a" * 32
PORT = 29500  # in a namespace of our own
SIZES = {"1K": 1024, "1M": 1 << 20, "25M": 25 << 20}
TIMEOUT_S = 600


def environment(mode):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DT_")}
    kept.update(DT_TOKEN=TOKEN, DT_SECURITY_MODE=mode)
    return kept


def on_one_processor():
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def checked(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def joins_and_store(build, rounds, **options):
    """{(what, ranks, mode): [us]}"""
    kept = environment("auto")
    del kept["DT_SECURITY_MODE"]  # the program says it itself
    lines = checked([f"{build}/tests/bench/security_cost", str(rounds)], env=kept, **options).splitlines()
    found = {}
    for line in lines[lines.index("warm") + 1:]:
        what, ranks, mode, value = line.split()
        found.setdefault((what, int(ranks), mode), []).append(float(value))
    return found


def bench(dt, network, mode):
    """{size: us} of one job of two ranks, one on each host."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/figures.json"
        agents = []
        for node in range(2):
            program = [dt, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(node), "--rendezvous",
                       f"{network.address(0)}:{PORT}", dt, "bench", "allreduce", "--sizes", ",".join(SIZES),
                       "--rounds", "3", "--budget-ms", "100", "--memory", "private", "--json", path]
            agents.append(subprocess.Popen(network.command(node, program), env=environment(mode),
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        for agent in agents:
            output, _ = agent.communicate(timeout=TIMEOUT_S)
            if agent.returncode != 0:
                sys.exit(f"dt bench with security.mode = {mode} ended with {agent.returncode}: {output}")
        with open(path) as file:
            rows = json.load(file)["programs"][0]["rows"]
        if any(row["in_place"]["wrong"] for row in rows):
            sys.exit(f"dt bench with security.mode = {mode}: wrong elements: {rows}")
        return {row["size_bytes"]: row["in_place"]["median_us"] for row in rows}


def row(name, of_mode):
    medians = {mode: statistics.median(of_mode[mode]) for mode in MODES}
    cells = [f"{medians[mode]:.0f} [{min(of_mode[mode]):.0f} .. {max(of_mode[mode]):.0f}]" for mode in MODES]
    # The lowest are those that other programs disturbed least.
    lowest = {mode: min(of_mode[mode]) for mode in MODES}
    ratios = [f"{medians[mode] / medians['none']:.2f} ({lowest[mode] / lowest['none']:.2f})" for mode in MODES[1:]]
    return f"| {name} | " + " | ".join(cells + ratios) + " |"


def table(title, rows):
    print(f"\n| {title} | none | auth | encrypt | auth / none | encrypt / none |")
    print("|---|---|---|---|---|---|")
    for each in rows:
        print(each)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    subprocess.run(["ninja", "--quiet", "-C", build, "tests/bench/security_cost", "runtime/cli/dt",
                    "runtime/cli/dt-bench-worker"], check=True)
    uname = os.uname()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, {uname.sysname} {uname.release}, {arguments.rounds} rounds, load average "
          f"{load:.1f} before; us, medians [lowest .. highest], ratios of the medians (of the lowest)")

    found = joins_and_store(build, arguments.rounds)
    # On two processors a call takes half or twice as long by where the kernel wakes the store.
    together = joins_and_store(build, arguments.rounds, preexec_fn=on_one_processor)
    names = {"set": "set of 16 bytes", "get": "get of 16 bytes", "set_1m": "set of 1 MiB", "get_1m": "get of 1 MiB"}
    table("join", [row(f"{ranks} ranks", {mode: found["join", ranks, mode] for mode in MODES})
                   for ranks in sorted({key[1] for key in found})])
    table("store, all on one processor",
          [row(name, {mode: together[what, 2, mode] for mode in MODES}) for what, name in names.items()])

    try:
        with Network(2) as network:
            rounds = [{mode: bench(f"{build}/runtime/cli/dt", network, mode) for mode in MODES}
                      for _ in range(max(1, arguments.rounds // 3))]
    except Unavailable as why:
        print(f"\nskipped: allreduce between hosts needs network namespaces: {why}")
        return
    table("allreduce, 2 hosts", [row(name, {mode: [each[mode][size] for each in rounds] for mode in MODES})
                                 for name, size in SIZES.items()])


main()
