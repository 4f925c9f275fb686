#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch_stage.sh [BUILD_DIR]: dt.torch and the backend dt of torch.distributed with the PyTorch that pip finds: tests of
# dt's own, and PyTorch's own on 2, 3, 4 and 8 ranks. Uses the environment build-nightly/launchers/torch of tests/launchers/wheels.sh, or
# makes it. Skipped where pip finds no PyTorch.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=${1:-$root/build-tests}
environment=$root/build-nightly/launchers/torch
[ -f "$build/build.ninja" ] || { echo "torch_stage.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build"
skip() { # reason
  echo "skipped: $1"
  exit 77
}
compgen -G "$build/bindings/python/dt_runtime-*.whl" >/dev/null || skip 'the build has no wheel of dt: it was configured without Python'

mkdir -p "${environment%/*}"
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
pip=("$environment/bin/pip" --disable-pip-version-check install --quiet)
"${pip[@]}" --upgrade torch numpy expecttest safetensors >"$environment.log" 2>&1 || skip "$(tail -n 1 "$environment.log")"
"${pip[@]}" --no-deps --force-reinstall --no-index --find-links "$build/bindings/python" dt-runtime

run() { # script, arguments...
  env TEST_DT_COMMAND="$build/runtime/cli/dt" "$root/tests/hermetic.sh" "$build/tests/home" \
    "$environment/bin/python" -I "$root/tests/bindings/python/$1" "${@:2}"
}
libtorch() { # the example in C++, with the library inside PyTorch's wheel
  local torch program=${environment%/*}/libtorch_ddp
  torch=$("$environment/bin/python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  c++ -std=c++20 -O1 -w "-I$root/include" "-isystem$torch/include" "-isystem$torch/include/torch/csrc/api/include" \
    "$root/examples/libtorch_ddp/libtorch_ddp.cc" -o "$program" "-L$build/runtime/capi" -ldt \
    "-L$torch/lib" -ltorch -ltorch_cpu -lc10 "-Wl,-rpath,$torch/lib:$build/runtime/capi" &&
    "$root/tests/hermetic.sh" "$build/tests/home" "$root/tests/multiprocess/libtorch_curves.py" \
      "$build/runtime/cli/dt" "$program"
}
failed=0
libtorch 2>&1 || failed=1
for test in process_group_test.py torch_test.py torch_shard_test.py shard_test.py; do
  run "$test" 2>&1 || failed=$((failed + 1))
done
run torch_own_tests.py --ranks 2 3 4 8 || failed=$((failed + 1))
echo "$((6 - failed)) passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
