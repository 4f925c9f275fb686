#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lightgbm.sh [BUILD_DIR]: examples/lightgbm with the LightGBM that pip finds, installed into
# build-nightly/launchers/lightgbm, which is kept. Skipped where pip finds none.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build-tests}
environment=$root/build-nightly/launchers/lightgbm
[ -f "$build/build.ninja" ] || { echo "lightgbm.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build"
skip() { # reason
  echo "skipped: $1"
  exit 77
}
compgen -G "$build/bindings/python/dt_runtime-*.whl" >/dev/null || skip 'the build has no wheel of dt: it was configured without Python'

mkdir -p "${environment%/*}"
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
pip=("$environment/bin/pip" --disable-pip-version-check install --quiet)
"${pip[@]}" --upgrade lightgbm numpy >"$environment.log" 2>&1 || skip "$(tail -n 1 "$environment.log")"
"${pip[@]}" --no-deps --force-reinstall --no-index --find-links "$build/bindings/python" dt-runtime
exec "$root/tests/hermetic.sh" "$build/tests/home" "$root/tests/launchers/lightgbm_test.py" "$environment"
