#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# soak.sh: a job that meets, exchanges, fails and ends for SOAK_SECONDS, in the build of tests/run.sh.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
ninja --quiet -C build-tests tests/multiprocess/multiprocess_jobs
exec tests/hermetic.sh build-tests/tests/home \
  build-tests/tests/multiprocess/multiprocess_jobs "--source-file=*/soak_test.cc"
