#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_readme.sh [BUILD_DIR]: installs the build into a scratch folder, and runs there what the README,
# docs/trainer.md and docs/bench.md show, as a reader would who has installed dt, or has a package of it. See
# check_readme.py for the marks.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build-tests}
[ -f "$build/build.ninja" ] || { echo "check_readme.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dt-readme.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

ninja --quiet -C "$build"
DESTDIR=$scratch/installed meson install -C "$build" --no-rebuild --quiet
libraries=$(dirname "$(find "$scratch/installed" -name libdt.so)")
PATH=$(dirname "$(find "$scratch/installed" -path '*/bin/dt')"):$PATH
export PATH PKG_CONFIG_PATH=$libraries/pkgconfig
mkdir "$scratch/work"
cp "$root/examples/trainer/trainer.c" "$scratch/work"
find "$build" -path "$build/bindings/*" \( -name 'dt_runtime-*.whl' -o -name 'dt-*.jar' -o -name 'Dt.*.nupkg' \) \
  ! -name '*-sources.jar' ! -name '*-javadoc.jar' -exec cp -t "$scratch/work" {} +
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$root/tests/hermetic.sh" "$scratch/home" "$root/tests/check_readme.py" "$scratch/work" "$root/README.md" \
  "$root/docs/trainer.md" "$root/docs/bench.md"
