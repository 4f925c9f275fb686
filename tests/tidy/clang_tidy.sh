#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang_tidy.sh [BUILD_DIR]: runtime/ passes the checks of .clang-tidy. Many sources at once, as they are
# compiled: their headers are read once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build-tidy}
command -v clang-tidy-14 >/dev/null || { echo "skipped: clang-tidy-14 is not here"; exit 77; }
[ -f "$build/build.ninja" ] ||
  CC=clang CXX=clang++ meson setup "$build" "$root" -Dcuda=disabled -Dpython=disabled -Djava=disabled \
    -Dcsharp=disabled -Ddocs=disabled -Dtests=disabled --unity on --unity-size 40
ninja --quiet -C "$build" build.ninja # the list of sources, where a meson.build has changed
mapfile -t units < <(sed -n 's/^ *"file": "\(.*runtime\/.*\)",*$/\1/p' "$build/compile_commands.json" | sort -u)
[ ${#units[@]} -gt 0 ] || { echo "nothing of runtime/ in $build/compile_commands.json"; exit 1; }
cd "$build"
# A unit of many sources includes them.
printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy-14 -p . --config-file="$root/.clang-tidy" --quiet --checks=-bugprone-suspicious-include
