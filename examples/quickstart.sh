#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh [TRAINER_OPTIONS]: installs what is missing, builds, and trains a convolutional network
# on Fashion-MNIST with two ranks. Leaves the curves in fashion_mnist.png, where you are. What tests/run.sh
# has built is not built again.
# The plain run fails below 89 % test accuracy; with options of your own the accuracy is only told.
set -euo pipefail

wanted_percent=89
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build-quickstart
say() { printf 'quickstart: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

begin=$SECONDS
"$root/tests/packages.sh" g++ meson ninja-build pkg-config libuv1-dev libssl-dev libtomlplusplus-dev \
  nlohmann-json3-dev libcli11-dev zlib1g-dev libopenblas-dev libcairo2-dev dataset-fashion-mnist
installed=$SECONDS

log=$(mktemp "${TMPDIR:-/tmp}/dt-quickstart.XXXXXX")
output=$(mktemp -d "${TMPDIR:-/tmp}/dt-quickstart-output.XXXXXX")
trap 'rm -rf "$log" "$output"' EXIT
programs=(examples/fashion_mnist/fashion_mnist runtime/cli/dt)
tested=$root/build-tests
say "building, which takes a few minutes the first time"
if [ "$(grep -cE "^build (${programs[0]}|${programs[1]}):" "$tested/build.ninja" 2>/dev/null)" = 2 ] &&
  ! grep -q sanitize "$tested/setup_options" &&
  ninja -C "$tested" "${programs[@]}" >"$log" 2>&1 </dev/null; then
  build=$tested
elif [ ! -f "$build/build.ninja" ]; then
  # Several sources at once build in under half of the time, -O1 takes a third off that; the hot
  # loops carry -O3 of their own.
  meson setup "$build" "$root" -Dbuildtype=release -Doptimization=1 -Dtests=disabled \
    -Ddocs=disabled -Dcuda=disabled -Dpython=disabled -Djava=disabled -Dcsharp=disabled \
    --unity on --unity-size 40 >"$log" 2>&1 </dev/null ||
    { cat "$log" >&2; rm -f "$build/build.ninja"; die "meson setup failed (its output is above)"; }
fi
ninja -C "$build" "${programs[@]}" >"$log" 2>&1 </dev/null ||
  { tail -n 60 "$log" >&2; die "the build failed (its last lines are above)"; }
built=$SECONDS
say "installed in $((installed - begin)) s, built in $((built - installed)) s; training on 2 ranks"

status=0
"$build/runtime/cli/dt" run -n 2 --log-dir "$output" \
  "$build/examples/fashion_mnist/fashion_mnist" --curves fashion_mnist.png "$@" || status=$?
[ "$status" -eq 0 ] || die "training ended with $status"

accuracy=$(grep -oE 'test +[0-9]+\.[0-9]+ %' "$output/rank-0000.out" | tail -n 1 | grep -oE '[0-9]+\.[0-9]+') ||
  accuracy=
trained="trained in $((SECONDS - built)) s"
if [ $# -gt 0 ]; then
  say "$trained${accuracy:+, test accuracy $accuracy %}"
  exit 0
fi
[ -n "$accuracy" ] || die "$trained, but the trainer told no test accuracy"
awk -v got="$accuracy" -v wanted="$wanted_percent" 'BEGIN { exit !(got >= wanted) }' ||
  die "$trained: test accuracy $accuracy %, less than $wanted_percent %"
[ -s fashion_mnist.png ] || die "$trained, but left no fashion_mnist.png"
say "$trained: test accuracy $accuracy %, at least $wanted_percent % as it should be; curves in fashion_mnist.png"
