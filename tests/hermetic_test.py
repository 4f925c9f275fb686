#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hermetic_test.py PROGRAM: its last cases pass where the user has a token and is inside a launcher's job."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# In the vectors, but set on many machines outside of a job; or no reason for dt to see a job.
KEPT = {"CUDA_VISIBLE_DEVICES", "ENVIRONMENT", "HOSTNAME", "NCCL_ASYNC_ERROR_HANDLING"}
program = ""


def of_launchers():
    with open(TESTS / "vectors/launch_vectors.json", encoding="utf-8") as file:
        return {name: value for vector in json.load(file) for name, value in vector["env"].items()}


class Hermetic(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="dt-hermetic.")
        self.addCleanup(self.folder.cleanup)
        self.config = Path(self.folder.name, "user/.config/dt")
        self.config.mkdir(parents=True)

    def run_in(self, variables, *command):
        """Of a user with these variables, whose home is that of setUp()."""
        return subprocess.run([TESTS / "hermetic.sh", self.folder.name + "/empty", *command], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **variables, "HOME": str(self.config.parents[1]),
                                   "XDG_CONFIG_HOME": str(self.config.parent)})

    def test_nothing_of_a_user_or_a_launcher_is_left(self):
        unwanted = {**of_launchers(), "DT_TOKEN": "5a" * 32, "DT_RANK": "3", "OMPI_MCA_btl": "tcp", "SLURM_X": "y"}
        run = self.run_in({**unwanted, "TEST_DT_STORE_RELAY": "true", "KEPT": "a b"}, "env", "-0")
        left = dict(each.split("=", 1) for each in run.stdout.rstrip("\0").split("\0"))
        self.assertEqual([name for name in unwanted if name in left and name not in KEPT], [])
        self.assertEqual((left["DT_STORE_RELAY"], left["KEPT"]), ("true", "a b"))
        self.assertNotIn("TEST_DT_STORE_RELAY", left)
        self.assertEqual(left["HOME"], self.folder.name + "/empty")
        self.assertEqual(list(Path(left["XDG_CONFIG_HOME"]).iterdir()), [])

    def test_a_libdt_outside_of_the_build_is_not_loaded(self):
        root = Path(self.folder.name)
        folders = {name: root / name for name in ("others", "build/runtime/capi", "plain")}
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            if name != "plain":
                (folder / "libdt.so.0").touch()
        for given, kept in (("others", None), ("build/runtime/capi others plain", "build/runtime/capi plain")):
            text = ":".join(str(folders[name]) for name in given.split())
            run = subprocess.run([TESTS / "hermetic.sh", root / "build/tests/home", "env"], check=True,
                                 stdout=subprocess.PIPE, text=True, env={**os.environ, "LD_LIBRARY_PATH": text})
            left = dict(line.split("=", 1) for line in run.stdout.splitlines() if "=" in line)
            wanted = kept and ":".join(str(folders[name]) for name in kept.split())
            self.assertEqual(left.get("LD_LIBRARY_PATH"), wanted)

    def test_this_test_runs_so(self):
        self.assertEqual([name for name in os.environ if name.startswith(("DT_", "SLURM_", "OMPI_"))], [])
        self.assertFalse(Path(os.environ["XDG_CONFIG_HOME"], "dt").exists())

    def test_the_program_passes(self):
        token = self.config / "token"
        token.write_text("5a" * 32 + "\n", encoding="ascii")
        token.chmod(0o600)
        (self.config / "dt.toml").write_text("[reducer]\nbucket_cap_bytes = 1\n", encoding="ascii")
        in_job = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0",
                  "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "DT_SECURITY_MODE": "encrypt"}
        wrapper = shlex.split(os.environ.get("MESON_EXE_WRAPPER", ""))  # of a build for another machine
        run = self.run_in(in_job, *wrapper, program, "--last=3")
        self.assertEqual(run.returncode, 0, run.stdout[-4000:])


if __name__ == "__main__":
    program = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
