#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_and_test.sh BUILD_DIR [MESON_SETUP_OPTIONS] [-- MESON_TEST_OPTIONS]
# Configures only when there is no such build, or another one (compiler or options). The last line
# counts the tests: "N passed, N failed, N skipped"; the exit status says the same.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$1
shift
setup=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  setup+=("$1")
  shift
done
[ $# -eq 0 ] || shift

key="CC=${CC:-} CXX=${CXX:-} ${setup[*]}"
if [ ! -f "$build/build.ninja" ] || [ "$(cat "$build/setup_options" 2>/dev/null)" != "$key" ]; then
  rm -rf "$build"
  meson setup "$build" "$root" "${setup[@]}"
  printf '%s\n' "$key" >"$build/setup_options"
fi
rm -f "$build/meson-logs/testlog.json"
# A test of the whole project installs everything. A choice of suites needs only what its tests name.
[[ " $* " == *" --suite "* ]] || ninja --quiet -C "$build"
meson test -C "$build" --print-errorlogs "$@" || true
"$root/tests/results.py" "$build"
