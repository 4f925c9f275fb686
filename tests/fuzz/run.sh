#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh SECONDS [BUILD_DIR]: builds the fuzz targets with clang, and runs each for so long. What makes
# one fail is left in BUILD_DIR/found; what it learnt in BUILD_DIR/learnt, for the next time.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "run.sh SECONDS [BUILD_DIR]: SECONDS is a number above 0" >&2; exit 2; }
seconds=$1
build=${2:-$root/build-fuzz}
command -v clang++ >/dev/null || { echo "skipped: clang is not here"; exit 77; }

if [ ! -f "$build/build.ninja" ]; then
  CC=clang CXX=clang++ meson setup "$build" "$root" -Dcuda=disabled -Dfuzzers=true -Ddocs=disabled \
    -Db_sanitize=address,undefined -Db_lundef=false
fi
targets=(discover frames guard hostlist toml torch trace)
ninja --quiet -C "$build" "${targets[@]/#/tests/fuzz/fuzz_}"

passed=0 failed=0
for name in "${targets[@]}"; do
  mkdir -p "$build/learnt/$name" "$build/found"
  # The outer limit is for a target that hangs without libFuzzer's noticing.
  if timeout -k 10 $((seconds + 120)) "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" \
    -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/found/$name-" \
    "$build/learnt/$name" "$root/tests/fuzz/corpus/$name" >"$build/$name.log" 2>&1 </dev/null; then
    passed=$((passed + 1))
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs, no fault"
  else
    failed=$((failed + 1))
    tail -n 60 "$build/$name.log"
    echo "fuzz_$name: failed; the input is in $build/found"
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
