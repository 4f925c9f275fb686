#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh [BUILD_DIR]: everything that needs a GPU: the tests in tests/gpu and the kernels' bandwidth.
# Without BUILD_DIR it builds into build-gpu/; with it, it runs what was built there, for example on
# another machine. Ends with 77 where there is no GPU. Whole logs: BUILD_DIR/gpu-logs, or $OUT.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -le 1 ] || { echo "gpu.sh [BUILD_DIR]" >&2; exit 2; }
build=${1:-$root/build-gpu}
programs=(tests/unit/unit_cuda tests/gpu/gpu_runtime tests/gpu/gpu_kernels
  tests/gpu/gpu_reducer tests/bench/kernel_bandwidth)
example=tests/gpu/gpu_gpt # only where OpenBLAS, CLI11 and cuBLAS are

if [ $# -eq 0 ]; then
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "skipped: there is no nvcc"; exit 77; }
  [ -f "$build/build.ninja" ] ||
    meson setup "$build" "$root" -Dcuda=enabled -Ddocs=disabled -Dbuildtype=release
  ninja --quiet -C "$build" build.ninja
  if ninja -C "$build" -t query "$example" >/dev/null 2>&1; then programs+=("$example"); fi
  ninja --quiet -C "$build" "${programs[@]}"
  # What runs elsewhere has no repository beside it.
  commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
  [ -z "$(git -C "$root" status --porcelain 2>/dev/null)" ] || commit="$commit with changes"
  echo "$commit" >"$build/tests/gpu/commit"
fi
if [ $# -eq 1 ] && [ -x "$build/$example" ]; then programs+=("$example"); fi
for program in "${programs[@]}"; do
  [ -x "$build/$program" ] || { echo "gpu.sh: $build/$program is not built" >&2; exit 2; }
done
logs=${OUT:-$build/gpu-logs}
mkdir -p "$logs"

table=()
failed=0 skipped=''
[[ " ${programs[*]} " == *" $example "* ]] || table+=("gpu_gpt            not built: needs OpenBLAS, CLI11 and cuBLAS")
for program in "${programs[@]}"; do
  name=${program##*/}
  arguments=()
  [ "$name" != kernel_bandwidth ] || arguments=(--least 0.85)
  begin=$SECONDS status=0
  timeout 600 "$build/$program" "${arguments[@]}" >"$logs/$name.log" 2>&1 || status=$?
  case $status in
    0) result=passed ;;
    77) result=$(tail -n 1 "$logs/$name.log") skipped=$result ;;
    124) result="FAILED: not done after 10 minutes" failed=$((failed + 1)) ;;
    *) result="FAILED ($status)" failed=$((failed + 1)) ;;
  esac
  [[ $result != FAILED* ]] || tail -n 40 "$logs/$name.log"
  table+=("$(printf '%-18s %4d s  %s' "$name" $((SECONDS - begin)) "$result")")
done

echo "commit $(cat "$build/tests/gpu/commit" 2>/dev/null || echo unknown)"
[ -n "$skipped" ] || cat "$logs/kernel_bandwidth.log"
printf '%s\n' "${table[@]}"
[ $failed -eq 0 ] || exit 1
[ -z "$skipped" ] || { echo "$skipped"; exit 77; }
