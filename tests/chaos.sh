#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# chaos.sh N [SEED [BUILD_DIR]]: N schedules of faults, from SEED (1) on; see tests/chaos/chaos.py. The last
# line counts them: "N passed, N failed, N skipped".
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { echo "chaos.sh N [SEED [BUILD_DIR]]: N is a number above 0" >&2; exit 2; }
build=${3:-$root/build-tests}
[ -f "$build/build.ninja" ] || { echo "chaos.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build" tests/chaos/chaos_rank
# Schedules wait more than they compute.
exec "$root/tests/hermetic.sh" "$build/tests/home" "$root/tests/chaos/chaos.py" "$build/tests/chaos/chaos_rank" --count "$1" --seed "${2:-1}" \
  --jobs $((1 + $(nproc)))
