#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [MESON_SETUP_OPTIONS] [-- MESON_TEST_OPTIONS]: installs what is missing, builds, and runs all
# tests. The last line counts them: "N passed, N failed, N skipped". What was skipped is named, with the reason.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tests/packages.sh" g++ gcc meson ninja-build pkg-config make cmake python3 \
  libuv1-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev doctest-dev libssl-dev \
  zlib1g-dev libopenblas-dev libcairo2-dev dataset-fashion-mnist iproute2 \
  swig patchelf python3-dev python3-venv python3-pip python3-numpy default-jdk-headless mono-mcs mono-runtime
# Many sources at once build in half the time.
exec "$root/tests/build_and_test.sh" "$root/build-tests" --unity on --unity-size 40 "$@" </dev/null
