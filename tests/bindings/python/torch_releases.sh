#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch_releases.sh BUILD_DIR RELEASE...: the tests of the backend dt of torch.distributed with these releases of
# PyTorch, each in an environment of its own (5 GB), which is removed afterwards. One that pip does not find is
# skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || { echo "usage: torch_releases.sh BUILD_DIR RELEASE..." >&2; exit 2; }
ninja --quiet -C "$build"
compgen -G "$build/bindings/python/dt_runtime-*.whl" >/dev/null || {
  echo 'skipped: the build has no wheel of dt: it was configured without Python'
  exit 77
}
mkdir -p "$root/build-nightly"
folder=$(mktemp -d "$root/build-nightly/torch_releases.XXXXXX")
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0 skipped=0
for release in "$@"; do
  environment=$folder/$release
  python3 -m venv "$environment"
  pip=("$environment/bin/pip" --disable-pip-version-check install --quiet --no-compile)
  if ! "${pip[@]}" "torch==$release" 'numpy<2' >"$folder/pip.log" 2>&1; then
    echo "skipped: PyTorch $release: $(tail -n 1 "$folder/pip.log")"
    skipped=$((skipped + 1))
    continue
  fi
  "${pip[@]}" --no-deps --no-index --find-links "$build/bindings/python" dt-runtime
  # Each release compiles the backend anew, into a cache that goes with it.
  if env TEST_DT_COMMAND="$build/runtime/cli/dt" XDG_CACHE_HOME="$environment/cache" \
    "$root/tests/hermetic.sh" "$build/tests/home" \
    "$environment/bin/python" -I "$root/tests/bindings/python/process_group_test.py" 2>&1; then
    echo "PyTorch $release: passed"
    passed=$((passed + 1))
  else
    echo "PyTorch $release: failed"
    failed=$((failed + 1))
  fi
  rm -rf "$environment"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77
