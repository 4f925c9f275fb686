#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shards_test.py GPT TEXT [STEPS]: the example language model learns the same over two hosts in shards of every stage.

Two ranks on each of two hosts, which are network namespaces; ends with 77 where those cannot be made. The losses of
all stages with three sizes of buckets differ by 1e-6 at most, also from those of one host. Prints a table in Markdown.
"""
import csv
import os
import sys
import tempfile

from cases import Failed, expect, ranks
from network import Network, Unavailable

TOLERANCE = 1e-6
HOSTS, RANKS = 2, 2
MODEL = ["--device", "cpu", "--layers", "2", "--channels", "48", "--heads", "3", "--length", "48", "--batch", "8",
         "--lr", "0.003"]
BUCKETS = (4_000, 40_000, 400_000)
WAYS = [("stage 0, one host of 4 ranks", 1, ["--zero", "0"])]
WAYS += [(f"stage {stage}, buckets of {size}", HOSTS, ["--zero", str(stage), "--bucket-bytes", str(size)])
         for stage in range(4) for size in BUCKETS]


def losses(gpt, text, steps, hosts, options):
    with tempfile.TemporaryDirectory() as folder, Network(hosts) as network:
        log = os.path.join(folder, "loss.csv")
        output = ranks(network, [gpt, *MODEL, *options, "--steps", steps, "--loss-log", log, text],
                       HOSTS * RANKS // hosts)
        expect("parameters equal on all 4 ranks" in output, output)
        with open(log, newline="", encoding="utf-8") as file:
            found = [float(row["loss"]) for row in csv.DictReader(file)]
        expect(len(found) == int(steps), output)
        return found


def main():
    gpt, text, steps = [*sys.argv[1:], "4"][:3]
    if os.geteuid() != 0:
        print("skipped: making network namespaces needs root")
        return 77
    try:
        wanted = losses(gpt, text, steps, HOSTS, ["--zero", "0"])
        print(f"Loss of step 1 {wanted[0]:.6f}, of step {steps} {wanted[-1]:.6f}.\n")
        print(f"| | largest relative difference in {steps} steps |\n| --- | --- |")
        for name, hosts, options in WAYS:
            found = losses(gpt, text, steps, hosts, options)
            worst = max(abs(a / b - 1) for a, b in zip(found, wanted))
            print(f"| {name} | {worst:.1e} |", flush=True)
            expect(worst <= TOLERANCE, f"{name}: {found}, not {wanted}")
    except (Unavailable, FileNotFoundError) as reason:
        print(f"skipped: no network namespaces here: {reason}")
        return 77
    except Failed as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
