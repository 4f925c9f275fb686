#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed, which its wheel carries:

    torch_own_tests.py --ranks 2 3 4                         # dt, and gloo beside it
    torch_own_tests.py --ranks 2 --backend dt [NAMES...]     # one backend, each result

Without --backend it names each test that passes with one of the two only, and fails if dt lacks one
for another reason than those of KNOWN. Needs the package expecttest. A test that PyTorch keeps for
gloo runs on dt too."""

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
import unittest

LIMIT_S = 60  # of one test
KNOWN = {  # what passes with gloo and cannot with dt
    "test_ddp_logging_data_cpu": "PyTorch logs every backend but its own as \"custom\"",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", help="default: dt and gloo")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("names", nargs="*", help="parts of names of tests; default: all")
    return parser.parse_args()


class AlsoGloo(str):
    """The name of a backend that says yes where a test asks for gloo, also by a set of names."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")


def answer_as_gloo():
    """Of the variable BACKEND, which the tests read when they are loaded."""
    environ = type(os.environ)
    plain = environ.__getitem__
    environ.__getitem__ = lambda self, name: (AlsoGloo if name == "BACKEND" else str)(plain(self, name))


class Results(unittest.TestResult):
    """Prints as it goes, and counts."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def note(self, test, what, why=""):
        self.counts[what] += 1
        print(f"{what:8} {test.id().rpartition('.')[2]}{': ' if why else ''}{why}", flush=True)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addFailure(self, test, err):
        lines = [line for line in str(err[1]).splitlines() if "Error" in line]
        self.note(test, "failed", lines[-1] if lines else str(err[1])[-200:])

    addError = addFailure


def results_of(backend, ranks, names):
    """Result and reason by name of test, of another process."""
    run = subprocess.run([sys.executable, os.path.abspath(__file__), "--ranks", str(ranks), "--backend", backend,
                          *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    found = re.findall(r"^(passed|failed|skipped) +(test_\w+)(?:: (.*))?$", run.stdout, re.MULTILINE)
    if not re.search(rf"^{backend}, {ranks} ranks: ", run.stdout, re.MULTILINE):
        raise SystemExit(f"{backend}, {ranks} ranks: ended with {run.returncode} after {len(found)} tests")
    return {name: (result, why) for result, name, why in found}


def compare(ranks, names):
    """@return how many tests pass with dt; how many pass with gloo alone, without and with a known reason."""
    ours, theirs = results_of("dt", ranks, names), results_of("gloo", ranks, names)
    counts = {name: collections.Counter(result for result, _ in results.values())
              for name, results in (("dt", ours), ("gloo", theirs))}
    for name, count in counts.items():
        print(f"{ranks} ranks, {name}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    failed = known = 0
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name, ("missing", "")), theirs.get(name, ("missing", ""))
        if mine[0] == "passed" and other[0] != "passed":
            print(f"  {name} passes with dt, {other[0]} with gloo: {other[1]}")
        elif mine[0] != "passed" and other[0] == "passed":
            known += name in KNOWN
            failed += name not in KNOWN
            print(f"  {name} passes with gloo, {mine[0]} with dt: {mine[1]}; {KNOWN.get(name, 'NOT EXPECTED')}")
        elif mine[0] == "failed":
            print(f"  {name} failed with dt, {other[0]} with gloo: {mine[1]}")
    sys.stdout.flush()
    return counts["dt"]["passed"], failed, known


def main():
    options = parse()
    if options.backend is None:
        passed, failed, known = map(sum, zip(*(compare(ranks, options.names) for ranks in options.ranks)))
        print(f"{passed} passed, {failed} failed, {known} skipped")  # those of KNOWN
        return 1 if failed else 0
    return run(options.backend, options.ranks[0], options.names)


def run(backend, ranks, chosen):
    folder = tempfile.mkdtemp(prefix="dt-torch-own-")
    os.environ.update({
        "BACKEND": backend, "WORLD_SIZE": str(ranks), "TEMP_DIR": folder,
        "INIT_METHOD": f"file://{folder}/meeting", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT_S),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    if backend != "gloo":
        answer_as_gloo()
    import torch
    from torch.testing._internal.common_distributed import DistTestCases
    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test

    class OwnTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """Ranks are forks, which is quicker than new interpreters; no test uses dt before."""

        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    loader = unittest.TestLoader()
    names = [name for name in loader.getTestCaseNames(OwnTests)
             if not chosen or any(part in name for part in chosen)]
    results = Results()
    unittest.TestSuite(map(OwnTests, names)).run(results)
    print(f"{backend}, {ranks} ranks: "
          + ", ".join(f"{count} {what}" for what, count in sorted(results.counts.items())))
    return 1 if results.counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
