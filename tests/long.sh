#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# long.sh [REPETITIONS [FUZZ_SECONDS [SCHEDULES]]]: what takes hours: sums compared bit for bit 1000
# times, the multiprocess tests 100 times on busy cores, as they are and with each sanitizer, 500 schedules
# of faults, a whole training with 20 killed ranks, and 10 minutes of fuzzing for each target.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
repetitions=${1:-100}
fuzz_seconds=${2:-600}
schedules=${3:-500}
cd "$root"

tests/run.sh -Dwerror=true
REPRODUCIBLE_RUNS=1000 meson test -C build-tests reproducible
tests/repeat.sh "$repetitions"
tests/packages.sh iproute2 nftables
tests/chaos.sh "$schedules"
tests/multiprocess/recovery.py build-tests/runtime/cli/dt build-tests/examples/fashion_mnist/fashion_mnist \
  --full --kills 20
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp"
for sanitizer in address,undefined thread; do
  build=build-long-${sanitizer%%,*}
  tests/build_and_test.sh "$build" -Dcuda=disabled -Ddocs=disabled "-Db_sanitize=$sanitizer" \
    -- --suite unit --suite conformance --suite multiprocess --timeout-multiplier 4
  tests/repeat.sh "$((repetitions < 10 ? repetitions : repetitions / 10))" "$build"
done
tests/packages.sh clang
tests/fuzz/run.sh "$fuzz_seconds"
echo "long.sh: everything held for $((SECONDS / 60)) minutes"
