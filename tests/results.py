#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""results.py BUILD_DIR [STATUS]: names the slowest tests, what failed and what was skipped, with the reason, in the
last run of `meson test`. The last line counts meson tests (a unit test program with all its cases is one):
"N passed, N failed, N skipped". Fails when a test failed, or when there was none. STATUS: how `meson test` itself
ended; if the tests do not explain it, that is one more failure, since then not all of them ran."""

import json
import sys
from pathlib import Path

# How much of a failed test's output is repeated at the end, which is what CI systems keep of a long log.
MOST_LINES = 8
MOST_CHARACTERS = 1500


def reason_of(result):
    """A test that skips itself says why in its last line."""
    lines = (result.get("stdout", "") + result.get("stderr", "")).strip().split("\n")
    return lines[-1].strip() or "no reason was given"


def failure_of(result):
    """The lines of a failed test's output that name a failure, otherwise its last lines. Meson's log has all."""
    lines = (result.get("stdout", "") + result.get("stderr", "")).strip().split("\n")
    telling = [line for line in lines if "FAIL" in line or "ERROR" in line]
    return [line[:MOST_CHARACTERS] for line in (telling[:MOST_LINES] or lines[-MOST_LINES:])]


def main():
    log = Path(sys.argv[1]) / "meson-logs" / "testlog.json"
    try:
        results = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line]
    except FileNotFoundError:
        print(f"no test was run: there is no {log}")
        results = []
    except ValueError as why:
        sys.exit(f"{log} is torn ({why}): two runs of meson test at once in one folder? Run the tests again")
    slowest = sorted(results, key=lambda result: -result["duration"])[:10]
    if len(results) > len(slowest):
        print("slowest: " + ", ".join(f"{result['name']} {result['duration']:.0f} s" for result in slowest))
    passed = failed = skipped = 0
    for result in results:
        if result["result"] in ("OK", "EXPECTEDFAIL"):
            passed += 1
        elif result["result"] == "SKIP":
            skipped += 1
            print(f"skipped: {result['name']}: {reason_of(result)}")
        else:
            failed += 1
            print(f"failed: {result['name']}: {result['result']} after {result['duration']:.1f} s")
            for line in failure_of(result):
                print(f"    {line}")
    status = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if status != 0 and failed == 0 and results:
        failed += 1
        print(f"failed: meson test ended with {status}, so some tests may not have run; its log says why")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
