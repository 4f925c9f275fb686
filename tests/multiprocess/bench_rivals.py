#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_rivals.py DT: `dt bench --compare` with the real rivals. Skipped, by name, where none is installed."""
import csv
import json
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
LIMIT_S = 1000  # all programs of a run out of time
RIVALS = ["openmpi", "mpich", "gloo", "torch"]
SIZES = ["8", "65536"]
TUNED = ["openmpi-tuned", "gloo-tuned"]


def bench(dt, folder, rounds, *words):
    environment = dict(os.environ, XDG_CACHE_HOME=os.path.join(folder, "cache"), TMPDIR=folder)
    command = [dt, "bench", *words, "--iters", "2", "-w", "1", "--rounds", str(rounds), "--timeout", "60"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def left_out(output):
    """{rival: why} of those that are not installed, cannot do it, or got no further on a busy machine (MPICH
    does not where its ranks share processors); anything else is a failure."""
    beginning = "# not measured: "
    reasons = {}
    for line in output.splitlines():
        if not line.startswith("# not measured"):
            continue
        assert line.startswith(beginning), line
        why = line[len(beginning):].removeprefix("--compare ")
        assert "; install it (Debian: apt install " in why or "; leave out one of the two" in why or (
            " was not done after " in why), line
        reasons[why.split()[0].rstrip(":").removesuffix("-tuned")] = line
    return reasons


def check_rows(rows, programs, collective, rounds, with_rivals):
    measured = {(row["program"], row["size_bytes"], row["place"]) for row in rows}
    sizes = 1 if collective == "barrier" else len(SIZES)
    for program in programs:
        for place in ("out", "in"):
            assert len([key for key in measured if key[0] == program and key[2] == place]) == sizes, (
                collective, program, sorted(measured))
    for row in rows:
        assert row["wrong"] == "0" and row["collective"] == collective and row["ranks"] == "2", row
        assert int(row["rounds"]) == rounds and float(row["median_us"]) > 0, row
        if with_rivals:
            assert (row["best_rival_ratio"] != "") == row["program"].startswith("dt-"), row


def compare(dt, folder, collectives, *more, rounds=1):
    """What --compare all leaves out. Each round starts all programs again, and PyTorch alone takes seconds to start."""
    table, text = os.path.join(folder, "a.csv"), os.path.join(folder, "a.json")
    run = bench(dt, folder, rounds, collectives, "--compare", "all", "-n", "2", "--sizes", ",".join(SIZES), "--csv", table,
                "--json", text, *more)
    assert run.returncode == 0, (collectives, run.stdout, run.stderr)
    out = left_out(run.stdout)
    rivals = [name for name in RIVALS if name not in out]
    slow = any(" was not done after " in line for line in out.values())
    programs = ["dt-shared", "dt-private", *rivals, *(name for name in TUNED if name.split("-")[0] in rivals)]
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for collective in collectives.split(","):
        mine = [row for row in rows if row["collective"] == collective]
        check_rows(mine, programs, collective, rounds, bool(rivals) and not slow)
    with open(text, encoding="utf-8") as file:
        runs = json.load(file)
    for one in runs if isinstance(runs, list) else [runs]:
        names = {program["name"] for program in one["programs"]}
        assert slow or names == set(programs), (names, programs)
    for program in programs:
        assert f"# {program}: " in run.stdout, run.stdout
    assert "# Out of bounds values : 0 OK\n" in run.stdout, run.stdout
    return out


def main():
    dt = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="dt-rivals-") as folder:
        missing = compare(dt, folder, "allreduce", rounds=2)
        found = [name for name in RIVALS if name not in missing]
        print(*missing.values(), "measured: " + " ".join(found), sep="\n")
        # MPI has no f16, and that is said; the others have it.
        out = compare(dt, folder, "allgather", "--dtype", "f16")
        assert {"openmpi", "mpich"} <= set(out), out
        compare(dt, folder, "reduce", "--dtype", "i64", "--op", "max")
        compare(dt, folder, "alltoallv,scatter,pingpong")
        left = [name for name in os.listdir(folder) if name.startswith("dt-bench-")]
        assert not left, left
    return 0 if found else SKIPPED


sys.exit(main())
