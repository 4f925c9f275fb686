#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stages_test.py: .ci/stages.sh and tests/results.py take for passed only what has passed."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stages(folder, lines, only=""):
    """The status and output of a program of stages."""
    program = f"set -euo pipefail; logs={folder}; only='{only}'; . {ROOT}/.ci/stages.sh; {lines}; finish"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def results(folder, found, *status):
    logs = Path(folder) / "meson-logs"
    logs.mkdir()
    log = [{"name": name, "result": result, "duration": 1, "stdout": "", "stderr": ""} for name, result in found]
    (logs / "testlog.json").write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf-8")
    done = subprocess.run([sys.executable, str(ROOT / "tests/results.py"), folder, *status], capture_output=True,
                          text=True, timeout=60)
    return done.returncode, done.stdout.splitlines()[-1]


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_passed_and_failed(self):
        status, said = stages(self.folder, "stage a 1 true; stage b 1 sh -c 'echo 3 passed, 0 failed, 1 skipped'")
        self.assertEqual((status, said.splitlines()[-1]), (0, "4 passed, 0 failed, 1 skipped"))
        status, said = stages(self.folder, "stage a 1 sh -c 'echo 3 passed, 0 failed, 0 skipped; exit 1'")
        self.assertEqual((status, said.splitlines()[-1]), (1, "3 passed, 1 failed, 0 skipped"))

    def test_chosen(self):
        status, said = stages(self.folder, "stage a 1 true; stage b_1 1 true; stage b_2 1 true", only="b")
        self.assertEqual((status, said.splitlines()[-1]), (0, "2 passed, 0 failed, 0 skipped"))
        status, said = stages(self.folder, "stage a 1 true", only="a c")
        self.assertEqual(status, 1)
        self.assertIn("there is no stage c", said)

    def test_results(self):
        passed = [("a", "OK"), ("b", "OK")]
        for number, (found, status, expected) in enumerate((
                (passed, (), (0, "2 passed, 0 failed, 0 skipped")),
                (passed, ("0",), (0, "2 passed, 0 failed, 0 skipped")),
                (passed, ("1",), (1, "2 passed, 1 failed, 0 skipped")),
                (passed + [("c", "FAIL")], ("1",), (1, "2 passed, 1 failed, 0 skipped")))):
            folder = Path(self.folder) / str(number)
            folder.mkdir()
            self.assertEqual(results(str(folder), found, *status), expected)


if __name__ == "__main__":
    unittest.main()
