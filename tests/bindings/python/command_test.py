# SPDX-License-Identifier: Apache-2.0
"""The command `dt` of the package, where PATH has nothing but the environment that it is installed in."""

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import LIMIT_S

BIN = os.path.dirname(sys.executable)
# In both ways that a user may start it.
STARTS = ([os.path.join(BIN, "dt")], [sys.executable, "-m", "dt"])
HELLO = """
import dt
with dt.Job() as job:
    print(job.place.launcher, job.world().allreduce(job.rank + 1.0))
"""


def environment():
    kept = {name: value for name, value in os.environ.items() if name not in ("DT_COMMAND", "DT_VERSION")}
    return {**kept, "PATH": BIN}


def command(start, *args):
    return subprocess.run([*start, *args], env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
                          check=False)


class Command(unittest.TestCase):
    def test_the_licences_of_its_parts_come_with_it(self):
        package = importlib.metadata.distribution("dt-runtime")
        names = package.metadata.get_all("License-File")
        self.assertEqual(names, ["LICENSE", "THIRD_PARTY_LICENSES.txt"])
        for name in names:
            self.assertIn("Apache License", package.read_text(f"licenses/{name}"))

    def test_two_ranks_run_a_program(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "hello.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(HELLO)
            for start in STARTS:
                with self.subTest(start):
                    run = command(start, "run", "-n", "2", "python", program)
                    self.assertEqual((run.returncode, run.stderr), (0, ""))
                    self.assertEqual(sorted(run.stdout.splitlines()), ["[0] dt run 3.0", "[1] dt run 3.0"])

    def test_it_is_that_of_this_release(self):
        for start in STARTS:
            with self.subTest(start):
                run = command(start, "--version")
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertIn(dt.version(), run.stdout)

    def test_what_ends_a_rank_ends_the_command(self):
        for start in STARTS:
            with self.subTest(start):
                run = command(start, "run", "-n", "2", "python", "-c", "import sys; sys.exit(7)")
                self.assertEqual(run.returncode, 7, run.stderr)
                self.assertIn("exited with code 7", run.stderr)

    def test_a_wrong_option_has_the_commands_own_text(self):
        run = command(STARTS[0], "run", "--no-such-option")
        self.assertEqual(run.returncode, subprocess.run([os.environ["DT_COMMAND"], "run", "--no-such-option"],
                                                        capture_output=True, timeout=LIMIT_S, check=False).returncode)
        self.assertIn("--no-such-option", run.stderr)

    def test_the_doctor_and_the_benchmark_find_their_files(self):
        run = command(STARTS[0], "doctor")
        self.assertIn(dt.version(), run.stdout, run.stderr)
        run = command(STARTS[0], "bench", "allreduce", "-n", "2", "-b", "8", "-e", "8")
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_it_takes_over_the_process_and_its_signals(self):
        rank = """
            import signal, sys
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            print("ready", flush=True)
            signal.sigwait([signal.SIGTERM])
            sys.exit(5)
            """
        for start in STARTS:
            with self.subTest(start), contextlib.ExitStack() as stack:
                process = stack.enter_context(subprocess.Popen(
                    [*start, "run", "-n", "1", "--no-prefix", "python", "-c", textwrap.dedent(rank)],
                    env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                stack.callback(process.kill)  # before Popen waits for it
                self.assertEqual(process.stdout.readline(), "ready\n")
                self.assertEqual(os.readlink(f"/proc/{process.pid}/exe"),
                                 os.path.join(os.path.dirname(dt.__file__), "dt"))
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=LIMIT_S)
                self.assertEqual(process.returncode, 5)

    def test_ranks_ignore_what_they_ignore_without_python(self):
        shown = [subprocess.run([*start, "run", "-n", "1", "--no-prefix", "/bin/grep", "SigIgn", "/proc/self/status"],
                                env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
                 for start in ([os.environ["DT_COMMAND"]], *STARTS)]
        self.assertEqual(shown[1:], shown[:1] * 2)


if __name__ == "__main__":
    unittest.main()
