#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# repeat.sh N [BUILD_DIR]: the multiprocess tests N times while every core is kept busy by something
# else. Stops at the first failure and prints its log.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "repeat.sh N [BUILD_DIR]: N is a number above 0" >&2; exit 2; }
count=$1
build=${2:-$root/build-tests}
[ -f "$build/build.ninja" ] || { echo "repeat.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }

# One loop for each core; they look now and then whether this script is still there.
busy=()
for ((core = 0; core < $(nproc); ++core)); do
  bash -c 'while kill -0 "$1" 2>/dev/null; do for ((i = 0; i < 1000000; ++i)); do :; done; done' busy $$ &
  busy+=($!)
done
trap 'kill "${busy[@]}" 2>/dev/null || true; wait' EXIT

for ((round = 1; round <= count; ++round)); do
  begin=$SECONDS
  # Busy cores make everything slower; what the tests themselves promise stays as it is. Four tests for
  # each core: many of them wait more than they compute. What is repeated is meeting, exchanging, failing and
  # ending, and not whole trainings and benchmarks.
  if ! meson test -C "$build" --suite multiprocess --no-suite rivals --no-suite trainings --no-suite benches \
    --timeout-multiplier 4 --print-errorlogs --num-processes $((4 * $(nproc))) \
    >"$build/repeat.log" 2>&1 </dev/null; then
    cat "$build/repeat.log"
    echo "round $round of $count failed"
    exit 1
  fi
  echo "round $round of $count: $("$root/tests/results.py" "$build" | tail -n 1) in $((SECONDS - begin)) s"
done
