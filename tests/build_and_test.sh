#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_and_test.sh BUILD_DIR [MESON_SETUP_OPTIONS] [-- MESON_TEST_OPTIONS]
# Configures BUILD_DIR if it is missing, or was configured with another compiler or other options. Without
# MESON_SETUP_OPTIONS an existing build is used unchanged. The last line counts the tests: "N passed, N failed,
# N skipped"; the exit status says the same.
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

# Meson uses ccache only for compilers that it chooses itself, so it is added to CC and CXX here. The two
# settings let clones in different folders share the cache.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
if command -v ccache >/dev/null; then
  for name in CC CXX; do
    [[ ${!name:-ccache} == *ccache* ]] || export "$name=ccache ${!name}"
  done
fi
key="CC=${CC:-} CXX=${CXX:-} ${setup[*]}"
# Meson takes the project's defaults only into a new folder.
defaults=$(sed -n '/default_options/,/]/p' "$root/meson.build")
if [ ! -f "$build/build.ninja" ] || [ "$(cat "$build/default_options" 2>/dev/null)" != "$defaults" ] ||
  { [ ${#setup[@]} -gt 0 ] && [ "$(cat "$build/setup_options" 2>/dev/null)" != "$key" ]; }; then
  rm -rf "$build"
  meson setup "$build" "$root" "${setup[@]}"
  printf '%s\n' "$key" >"$build/setup_options"
  printf '%s\n' "$defaults" >"$build/default_options"
fi
# Only with ccache, since Meson writes the files anew when it configures again.
if command -v ccache >/dev/null; then
  ninja --quiet -C "$build" build.ninja
  "$root/tests/relative_unity.py" "$build"
fi
rm -f "$build/meson-logs/testlog.json"
# A run of all tests also tests the installation, so everything is built. For selected tests or suites meson
# builds what they need.
case "${1:-}" in
  --suite | --list) ;;
  '' | -*) ninja --quiet -C "$build" ;;
esac
# Many tests wait more than they compute, so three run for each processor.
status=0
meson test -C "$build" --print-errorlogs --num-processes $((3 * $(nproc))) "$@" || status=$?
"$root/tests/results.py" "$build" "$status"
