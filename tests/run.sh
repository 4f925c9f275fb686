#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [--all] [MESON_SETUP_OPTIONS] [-- MESON_TEST_OPTIONS]: installs what is missing, builds, and runs what a
# change must pass; with --all also the rivals of `dt bench` and the variants of tests, as .ci/nightly does. The last
# line counts the tests: "N passed, N failed, N skipped". A skipped test is named with its reason.
# run.sh --quick [COMMIT]: builds and runs only the tests that cover the files changed since COMMIT
# (default: where the branch left main; on main HEAD, or HEAD^ if nothing is changed); see quick.py.
# run.sh --packages: only installs what is missing.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '3,/^set/s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tests/packages.sh" g++ gcc meson ninja-build pkg-config make cmake python3 \
  libuv1-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev doctest-dev libssl-dev \
  zlib1g-dev libopenblas-dev libcairo2-dev dataset-fashion-mnist iproute2 \
  swig patchelf python3-dev python3-venv python3-pip python3-numpy default-jdk-headless mono-mcs mono-runtime \
  libmono-cecil-private-cil libmono-compilerservices-symbolwriter4.0-cil
build=$root/build-tests
# Many sources per compilation, and line numbers as the only debug information, take a third of the time.
setup=(--unity on --unity-size 40 -Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1)
case "${1:-}" in
  --packages) exit 0 ;;
  --all) shift ;;
  --quick)
    # A build that exists is taken as it was configured; listing the tests only configures.
    if [ ! -f "$build/build.ninja" ]; then
      log=$(mktemp "${TMPDIR:-/tmp}/dt-setup.XXXXXX")
      trap 'rm -f "$log"' EXIT
      "$root/tests/build_and_test.sh" "$build" "${setup[@]}" -- --list >"$log" 2>&1 </dev/null || true
      [ -f "$build/build.ninja" ] || { cat "$log" >&2; exit 1; }
    fi
    choice=$("$root/tests/quick.py" "$build" "${@:2}")
    [ -n "$choice" ] || { echo "0 passed, 0 failed, 0 skipped"; exit 0; }
    mapfile -t choice <<<"$choice"
    exec "$root/tests/build_and_test.sh" "$build" -- "${choice[@]}" </dev/null
    ;;
  *) [[ " $* " == *" -- "* ]] || set -- "$@" -- --no-suite rivals --no-suite variants ;;
esac
exec "$root/tests/build_and_test.sh" "$build" "${setup[@]}" "$@" </dev/null
