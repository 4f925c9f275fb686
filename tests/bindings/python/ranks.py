# SPDX-License-Identifier: Apache-2.0
"""Ranks for the tests: on threads of this process, or as processes under `dt run`."""

import os
import subprocess
import sys

from dt import testing
from dt.testing import rank_config  # noqa: F401, for the tests

LIMIT_S = 150  # of anything that should take seconds at most; less than the limit of a test


def run_ranks(world_size, body, settings=None):
    """dt.testing's, with the limit of the tests here."""
    return testing.run_ranks(world_size, body, settings, LIMIT_S)


def python(*args, **options):
    """Runs this interpreter, isolated, and gives its CompletedProcess."""
    return subprocess.run([sys.executable, "-I", *args], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False, **options)


def dt_run(count, *args):
    """Runs this interpreter as ranks under `dt run`."""
    return subprocess.run([os.environ["DT_COMMAND"], "run", "-n", str(count), sys.executable, "-I", *args],
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
