#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh SECONDS [BUILD_DIR [NAME...]]: builds the fuzz targets (or the named ones) with clang, and runs each for so
# long, as many at a time as there are processors. What makes one fail is left in BUILD_DIR/found; what it learnt in
# BUILD_DIR/learnt, for the next time.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "run.sh SECONDS [BUILD_DIR [NAME...]]: SECONDS is a number above 0" >&2; exit 2; }
seconds=$1
build=${2:-$root/build-fuzz}
command -v clang++ >/dev/null || { echo "skipped: clang is not here"; exit 77; }

if [ ! -f "$build/build.ninja" ]; then
  # -O1 and line numbers alone build in half the time, several sources at once in half of that.
  CC=clang CXX=clang++ meson setup "$build" "$root" -Dcuda=disabled -Dfuzzers=true -Ddocs=disabled \
    -Doptimization=1 -Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1 --unity on --unity-size 40 \
    -Dc_link_args=-fuse-ld=gold -Dcpp_link_args=-fuse-ld=gold \
    -Db_sanitize=address,undefined -Db_lundef=false
fi
targets=("${@:3}")
[ ${#targets[@]} -gt 0 ] ||
  mapfile -t targets < <(cd "$root/tests/fuzz" && printf '%s\n' fuzz_*.cc | sed 's/^fuzz_\(.*\)\.cc$/\1/')
ninja --quiet -C "$build" "${targets[@]/#/tests/fuzz/fuzz_}"

fuzz() { # name
  mkdir -p "$build/learnt/$1" "$build/found"
  local dictionary=()
  [ ! -f "$root/tests/fuzz/$1.dict" ] || dictionary=("-dict=$root/tests/fuzz/$1.dict")
  # The outer limit is for a target that hangs without libFuzzer's noticing.
  timeout -k 10 $((seconds + 120)) "$build/tests/fuzz/fuzz_$1" -max_total_time="$seconds" \
    -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 "${dictionary[@]}" \
    -artifact_prefix="$build/found/$1-" \
    "$build/learnt/$1" "$root/tests/fuzz/corpus/$1" >"$build/$1.log" 2>&1 </dev/null
}

processors=$(nproc)
running=()
passed=0 failed=0
await() { # the target that began first
  local name=${running[0]%%:*}
  if wait "${running[0]##*:}"; then
    passed=$((passed + 1))
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs, no fault"
  else
    failed=$((failed + 1))
    tail -n 60 "$build/$name.log"
    echo "fuzz_$name: failed; the input is in $build/found"
  fi
  running=("${running[@]:1}")
}
for name in "${targets[@]}"; do
  [ "${#running[@]}" -lt "$processors" ] || await
  fuzz "$name" &
  running+=("$name:$!")
done
while [ "${#running[@]}" -gt 0 ]; do await; done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
