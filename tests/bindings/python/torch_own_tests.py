#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed, which its wheel carries, on a backend:

    torch_own_tests.py --backend dt --ranks 2 [NAMES...]

Prints each result and the counts. Needs the package expecttest. A test that PyTorch keeps for gloo
runs on dt too."""

import argparse
import collections
import os
import sys
import tempfile
import unittest

LIMIT_S = 60  # of one test


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="dt")
    parser.add_argument("--ranks", type=int, default=2)
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


def main():
    options = parse()
    folder = tempfile.mkdtemp(prefix="dt-torch-own-")
    os.environ.update({
        "BACKEND": options.backend, "WORLD_SIZE": str(options.ranks), "TEMP_DIR": folder,
        "INIT_METHOD": f"file://{folder}/meeting", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT_S),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    if options.backend != "gloo":
        answer_as_gloo()
    import torch
    from torch.testing._internal.common_distributed import DistTestCases
    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(options.backend)
    from torch.testing._internal.distributed import distributed_test

    class OwnTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """Ranks are forks, which is quicker than new interpreters; no test uses dt before."""

        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    loader = unittest.TestLoader()
    names = [name for name in loader.getTestCaseNames(OwnTests)
             if not options.names or any(part in name for part in options.names)]
    results = Results()
    unittest.TestSuite(map(OwnTests, names)).run(results)
    print(f"{options.backend}, {options.ranks} ranks: "
          + ", ".join(f"{count} {what}" for what, count in sorted(results.counts.items())))
    return 1 if results.counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
