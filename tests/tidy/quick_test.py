#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quick_test.py BUILD_DIR: tests/quick.py finds the tests that are built from a file."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import quick  # noqa: E402

BUILD = sys.argv.pop(1)


class Quick(unittest.TestCase):
    def test_sources(self):
        found = quick.tests_of_sources(BUILD, quick.introspect(BUILD, "tests"))
        for path, names in (("tests/unit/store/relay_test.cc", {"store"}),
                            ("tests/multiprocess/hook_test.cc", {"hook"}),
                            ("tests/multiprocess/run_nodes_test.cc", {"run_nodes", "run_nodes_relay"}),
                            ("tests/tidy/quick_test.py", {"quick_test"})):
            self.assertEqual(found.get(path), names, path)

    def test_runtime(self):
        self.assertIn("store", quick.patterns_for("runtime/store/server.cc"))


if __name__ == "__main__":
    unittest.main()
