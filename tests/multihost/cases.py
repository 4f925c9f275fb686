# SPDX-License-Identifier: Apache-2.0
"""What the tests over network namespaces share: their settings, what fails a case, and the list of cases."""

import os
import subprocess
import time

from network import Network, Unavailable

PORT = 29500  # in a namespace of our own: nobody else is there
TOKEN = "5a" * 32


class Failed(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Failed(what)


def environment(**settings):
    """This process's, with these settings of dt and the token, and no others."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("DT_")}
    return {**others, "DT_TOKEN": TOKEN, **settings}


def run_cases(cases, wanted):
    """Those whose names are wanted, or all; the exit code, which is 77 where namespaces cannot be made."""
    if os.geteuid() != 0:
        print("skipped: making network namespaces needs root")
        return 77
    try:
        with Network(2):
            pass
    except (Unavailable, FileNotFoundError) as reason:
        print(f"skipped: no network namespaces here: {reason}")
        return 77
    failed = []
    for case in cases:
        if wanted and case.__name__ not in wanted:
            continue
        began = time.monotonic()
        try:
            case()
            print(f"ok      {case.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except (Failed, Unavailable, OSError, subprocess.SubprocessError) as problem:
            failed.append(case.__name__)
            print(f"FAILED  {case.__name__}: {problem}", flush=True)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0
