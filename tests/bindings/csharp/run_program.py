#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one of the programs of tests.exe in processes of its own and checks what it says."""

import argparse
import subprocess
import sys

LIMIT_S = 120


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    sys.stdout.write(done.stdout + done.stderr)
    return done


def collectives(mono, dt):
    for ranks in ("2", "3"):
        assert run([dt, "run", "-n", ranks, *mono, "collectives"]).returncode == 0


def peer_death(mono, dt):
    done = run([dt, "run", "-n", "2", "--no-prefix", *mono, "peer-death"])
    assert done.returncode == 137, done.returncode
    lines = done.stdout.split("\n")
    pid = next(line.split()[1] for line in lines if line.startswith("pid "))
    lost = next(line.split() for line in lines if line.startswith("lost "))
    assert lost[1] == "1" and lost[2] == pid and lost[4] == "True" and lost[5] == "PeerLost", lost
    assert f"again 1 {pid}" in lines, lines


def leave_open(mono, dt):
    for _ in range(5):
        done = run([*mono, "leave-open"])
        assert done.returncode == 0, done.returncode
        assert done.stdout == "" and done.stderr == ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mono", required=True)
    parser.add_argument("--dt", required=True)
    parser.add_argument("--tests", required=True, help="tests.exe")
    parser.add_argument("program", choices=["collectives", "peer-death", "leave-open"])
    options = parser.parse_args()
    test = {"collectives": collectives, "peer-death": peer_death, "leave-open": leave_open}[options.program]
    test([options.mono, options.tests, "program"], options.dt)


if __name__ == "__main__":
    main()
