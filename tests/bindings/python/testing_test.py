# SPDX-License-Identifier: Apache-2.0
"""dt.testing: ranks on threads, and the fixture of pytest."""

import importlib.util
import os
import sys
import tempfile
import textwrap
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from dt import testing
from ranks import python


class Ranks(unittest.TestCase):
    def test_results_come_in_rank_order(self):
        found = testing.run_ranks(3, lambda job, comm: (comm.rank, comm.size, job.world_size,
                                                        comm.allreduce(comm.rank)))
        self.assertEqual(found, [(rank, 3, 3, 3) for rank in range(3)])

    def test_settings_reach_every_rank(self):
        seen = testing.run_ranks(2, lambda job, comm: job.place.job_id, {"job.attempt": 0})
        self.assertEqual(seen, ["test"] * 2)
        with self.assertRaises(dt.ConfigError):
            testing.run_ranks(2, lambda job, comm: None, {"no.such": 1})

    def test_the_bodys_own_exception_comes_first(self):
        def body(_, comm):
            if comm.rank == 1:
                raise KeyError("mine")
            comm.barrier()
        with self.assertRaisesRegex(KeyError, "mine"):
            testing.run_ranks(2, body)

    def test_ranks_that_do_not_end_are_named(self):
        end = threading.Event()
        self.addCleanup(end.set)
        with self.assertRaisesRegex(AssertionError, "rank 1 did not end in 0.5 seconds"):
            testing.run_ranks(2, lambda job, comm: comm.rank == 1 and end.wait(), {"job.finalize_timeout_ms": 100},
                              timeout=0.5)

    def test_a_config_of_one_rank(self):
        with dt.StoreServer(dt.Config(settings={"job.id": "test", "job.world_size": 1})) as server:
            with dt.Job(testing.rank_config(0, 1, server.port, {"collective.timeout_ms": 5})) as job:
                self.assertEqual((job.rank, job.world_size), (0, 1))


# What the fixture needs of pytest, where that is not installed.
STAND_IN = """
import importlib.util, sys
def fixture(name):
    def mark(function):
        function.fixture_name = name
        return function
    return mark
if __name__ == "__main__":
    sys.modules["pytest"] = sys.modules["__main__"]
    conftest = {}
    exec(open("conftest.py").read(), conftest)
    plugin = __import__(conftest["pytest_plugins"][0], fromlist=["dt_ranks"])
    assert plugin.dt_ranks.fixture_name == "dt_ranks"
    tests = {}
    exec(open("test_ranks.py").read(), tests)
    tests["test_sum"](plugin.dt_ranks())
    print("1 passed")
"""


class Fixture(unittest.TestCase):
    def test_it_is_one_of_pytest_and_of_nobody_else(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("conftest.py", 'pytest_plugins = ["dt.testing"]\n'), ("stand_in.py", STAND_IN),
                               ("test_ranks.py", """
                def test_sum(dt_ranks):
                    assert dt_ranks(3, lambda job, comm: comm.allreduce(comm.rank)) == [3] * 3
                """)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(textwrap.dedent(text))
            real = importlib.util.find_spec("pytest") is not None
            run = python(*(("-m", "pytest", "-q", "-p", "no:cacheprovider") if real else ("stand_in.py",)),
                         cwd=folder)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("1 passed", run.stdout)
        self.assertFalse(hasattr(testing, "dt_ranks"))

    def test_it_does_not_load_pytest(self):
        run = python("-c", "import dt.testing, sys; print('pytest' in sys.modules)")
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "False\n", ""))


if __name__ == "__main__":
    unittest.main()
