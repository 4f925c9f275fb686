#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# coverage.sh [BUILD_DIR]: which share of the lines of runtime/ the tests of .ci/run execute, by folder, and
# which with those that only .ci/nightly has: a table in Markdown. Builds with gcov's counters. Processes that
# a test kills leave no counts, and kernels of a GPU are not counted.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build-coverage}
logs=$build-logs
"$root/tests/packages.sh" gcovr
# Counters are files of the build; without their sources' paths as they are, gcovr would not find those.
export CCACHE_DISABLE=1
measure() { # name, meson test options...
  local name=$1
  shift
  "$root/tests/build_and_test.sh" "$build" --unity on --unity-size 40 -Dcuda=disabled -Ddocs=disabled \
    -Db_coverage=true -Doptimization=1 -Ddebug=false -- --timeout-multiplier 4 "$@" >"$logs/$name.log" 2>&1 ||
    echo "coverage.sh: tests failed, see $logs/$name.log" >&2
  tail -n 1 "$logs/$name.log" >&2
  gcovr -j "$(nproc)" --root "$root" --filter "$root/runtime/" --gcov-ignore-parse-errors \
    --json-summary "$build/$name.json" "$build" >"$logs/gcovr.log" 2>&1
}
rm -rf "$build"
mkdir -p "$logs"
measure run --no-suite rivals --no-suite tidy
measure nightly --suite rivals
python3 - "$build/run.json" "$build/nightly.json" <<'END'
import collections, json, sys

def by_folder(path):
    sums = collections.defaultdict(lambda: [0, 0])
    for each in json.load(open(path))["files"]:
        for folder in (each["filename"].rsplit("/", 1)[0], "all"):
            sums[folder][0] += each["line_covered"]
            sums[folder][1] += each["line_total"]
    return sums

run, nightly = map(by_folder, sys.argv[1:])
print("| folder | lines | .ci/run | with .ci/nightly |\n| --- | --- | --- | --- |")
for folder in sorted(run, key=lambda name: (name == "all", name)):
    covered, total = run[folder]
    print(f"| {folder} | {total} | {100 * covered / total:.1f} % | {100 * nightly[folder][0] / total:.1f} % |")
END
