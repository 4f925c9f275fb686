#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh [--report FILE] [--only REGEX] [--limit SECONDS] [BUILD_DIR]
# Everything that needs a GPU: tests, compute-sanitizer, several ranks on one GPU, PyTorch's
# tensors, benchmarks. One table tells all; the last line counts: "N passed, N failed, N skipped".
# Without BUILD_DIR it builds into build-gpu/; with it, it builds nothing and runs what is there, for
# example on another machine. Nothing is begun after --limit seconds. --report writes the table, the
# versions and what the benchmarks printed, in the form of docs/measured. NCCL: DT_NCCL_LIBRARY, or
# that of the loader, or of Python's package. Ends with 77 where there is no GPU. Whole logs:
# BUILD_DIR/gpu-logs, or $OUT.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() {
  echo "gpu.sh [--report FILE] [--only REGEX] [--limit SECONDS] [BUILD_DIR]" >&2
  exit 2
}
report='' only='' limit=0 build=''
while [ $# -gt 0 ]; do
  case $1 in
    --report | --only | --limit) [ $# -ge 2 ] || usage ;;&
    --report) report=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --limit) limit=$2 && shift 2 ;;
    -*) usage ;;
    *)
      [ -z "$build" ] || usage
      build=$1
      shift
      ;;
  esac
done
[[ $limit =~ ^[0-9]+$ ]] || usage

programs=(tests/unit/unit_cuda tests/gpu/gpu_runtime tests/gpu/gpu_kernels tests/gpu/gpu_peers
  tests/gpu/gpu_rank_program tests/bench/kernel_bandwidth tests/bench/nccl_overhead
  tests/bench/overlap runtime/cli/dt runtime/cli/dt-bench-worker)
if [ -z "$build" ]; then
  build=$root/build-gpu
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "skipped: there is no nvcc"; exit 77; }
  [ -f "$build/build.ninja" ] ||
    meson setup "$build" "$root" -Dcuda=enabled -Ddocs=disabled -Dbuildtype=release
  # Also what other folders have for a GPU.
  mapfile -t more < <(ninja -C "$build" -t targets all |
    sed -n 's/^\(\(tests\|examples\)\/.*\/gpu_[a-z0-9_]*\|examples\/gpt\/gpt\|bindings\/python\/.*\.whl\): .*/\1/p')
  ninja --quiet -C "$build" "${programs[@]}" "${more[@]}"
  # What runs elsewhere has no repository beside it.
  commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
  [ -z "$(git -C "$root" status --porcelain 2>/dev/null)" ] || commit="$commit with changes"
  echo "$commit" >"$build/tests/gpu/commit"
fi
build=$(cd "$build" && pwd) || exit 2
for program in "${programs[@]}"; do
  [ -x "$build/$program" ] || { echo "gpu.sh: $build/$program is not built" >&2; exit 2; }
  missing=$( (ldd "$build/$program" 2>/dev/null || true) | sed -n 's/^[[:space:]]*\(.*\) => not found/\1/p' | tr '\n' ' ')
  [ -z "$missing" ] || { echo "gpu.sh: $program cannot run here: no $missing" >&2; exit 2; }
done
logs=${OUT:-$build/gpu-logs}
mkdir -p "$logs"
commit=$(cat "$build/tests/gpu/commit" 2>/dev/null || echo unknown)

# ---- What is here ----

no_gpu=$("$build/tests/gpu/gpu_runtime" --list-test-cases 2>&1 || true)
no_gpu=$(sed -n 's/^skipped: //p' <<<"$no_gpu")
gpus=0 gpu_text='' driver=''
if [ -z "$no_gpu" ] && command -v nvidia-smi >/dev/null; then
  gpu_text=$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | sed 's/^ *//' | paste -sd, -)
  gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
fi
if [ -z "${DT_NCCL_LIBRARY:-}" ] && ! ldconfig -p 2>/dev/null | grep -q 'libnccl\.so\.2'; then
  of_python=$(python3 -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null || true)
  [ ! -f "$of_python/lib/libnccl.so.2" ] || export DT_NCCL_LIBRARY="$of_python/lib/libnccl.so.2"
fi
"$build/runtime/cli/dt" doctor >"$logs/doctor.log" 2>&1 || true
line_of_doctor() { sed -n "s/^[a-z]*  *$1  *//p" "$logs/doctor.log" | head -n 1; }
cuda=$(line_of_doctor CUDA) nccl=$(line_of_doctor NCCL)
nccl=${nccl%% (*}  # how it was found
no_nccl=''
[[ $nccl =~ ^[0-9]+\. ]] || no_nccl="no NCCL: $nccl"
no_sanitizer='' sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || no_sanitizer='compute-sanitizer is not here'
no_second=''
[ "$gpus" -ge 2 ] || no_second='fewer than two GPUs'

# ---- One row of the table ----

# Tests run beside each other, in a file each has its row; benchmarks run alone.
benchmarks=() rows=$logs/rows begun=0 side_by_side=$(($(nproc) / 4))
rm -rf "$rows"
mkdir -p "$rows"
add_row() {  # NUMBER NAME RESULT SECONDS TEXT
  printf '%-34s %-8s %5d  %s\n' "$2" "$3" "$4" "$5" >"$rows/$(printf %03d "$1")"
}

# figure NAME: what a log says in one line.
figure() {
  local log=$logs/$1.log
  case $1 in
    bandwidth) awk '/copy on the device/ { copy = $(NF - 2) }
      /gather f32 to f32|scatter f32 to f32/ { if (least == "" || $NF < least) least = $NF }
      END { printf "copy %s GB/s; gather and scatter of f32 at least %s of it\n", copy, least }' "$log" ;;
    bench*) awk '!/#/ && NF >= 13 { row = $1 " B: " $6 " us, busbw " $8 " GB/s" }
      /# Avg bus/ { print row "; on average " $NF }' "$log" ;;
    overhead*) awk '$2 == "dt" { text = text sep $1 " B: " $3 " us, p99 " $4 ", " $12 " allocations"
      if (NF >= 14) text = text ", " $13 " and " $14 " of NCCL"; sep = "; " } END { print text }' "$log" |
      cut -d';' -f1 ;;
    gpt_step*) awk '/ parameters, .* on / { ++runs } { for (i = 2; i <= NF; ++i) {
        if ($i == "tokens/s") speed[runs] = $(i - 1)
        if ($i == "waited") waited = $(i + 1) } }
      END { printf "%s tokens/s, %s without exchange; waited %s %%\n", speed[1], speed[2], waited }' "$log" ;;
    gpt_powersgd*) awk '/ parameters, .* on / { ++runs } { for (i = 2; i <= NF; ++i)
        if ($i == "tokens/s") speed[runs] = $(i - 1) }
      END { printf "%s tokens/s, %s with PowerSGD\n", speed[1], speed[2] }' "$log" ;;
    gpt_8bit*) awk '/ parameters equal on all / { equal = "; equal on all ranks" } { for (i = 2; i <= NF; ++i) {
        if ($i == "tokens/s") speed = $(i - 1)
        if ($i == "waited") waited = $(i + 1) } }
      END { printf "%s tokens/s; waited %s %%%s\n", speed, waited, equal }' "$log" ;;
    gpt_tune*) awk '/ bytes are the fastest: / { found = "buckets of " $(NF - 5) " bytes" } { for (i = 2; i <= NF; ++i)
        if ($i == "tokens/s") speed = $(i - 1) }
      END { printf "%s tokens/s, %s\n", speed, found == "" ? "no size was found" : found }' "$log" ;;
    gpt_zero*) awk '/ parameters, .* on / { ++runs } / of GPU memory/ { memory[runs] = $(NF - 6) }
      { for (i = 2; i <= NF; ++i) if ($i == "tokens/s") speed[runs] = $(i - 1) }
      END { for (i = 1; i <= runs; ++i) {
        printf "%sstage %s %s tokens/s, %s MiB", (i > 1 ? "; " : ""), \
          (i < 5 ? i - 1 : "2, state with the host,"), speed[i], memory[i] }
        print "" }' "$log" ;;
    torch_ddp*) sed -n 's/^ratio: //p' "$log" ;;
    overlap*) sed -n 's/^goal: //p' "$log" ;;
    peers) grep -c 'MESSAGE: .* saw DT_ERR_' "$log" | sed 's/$/ losses named;/' | tr '\n' ' '
      grep -m 1 '^not run: ' "$log" || echo ;;
  esac
}

# run NAME KIND REASON COMMAND...: skipped for the reason unless that is empty. KIND: test, bench.
run() {
  [[ $1 =~ $only ]] || return 0
  begun=$((begun + 1))
  if [ "$2" = bench ]; then
    wait
    row "$begun" "$@"
    return
  fi
  while [ "$(jobs -rp | wc -l)" -gt "$side_by_side" ]; do wait -n || true; done
  row "$begun" "$@" &
}

# row NUMBER NAME KIND REASON COMMAND...
row() {
  local number=$1 name=$2 kind=$3 reason=$4 begin=$SECONDS status=0 log=$logs/$2.log
  shift 4
  if [ -z "$reason" ] && [ "$limit" -gt 0 ] && [ $SECONDS -ge "$limit" ]; then
    reason="not begun: $limit seconds are over"
  fi
  if [ -z "$reason" ]; then
    timeout --kill-after=10 "${TIMEOUT_S:-600}" "$root/tests/hermetic.sh" "$logs/home" "$@" >"$log" 2>&1 </dev/null || status=$?
    [ $status -ne 77 ] || reason=$(sed -n 's/^skipped: //p' "$log" | tail -n 1)
  fi
  local seconds=$((SECONDS - begin))
  if [ -n "$reason" ]; then
    add_row "$number" "$name" skipped $seconds "$reason"
  elif [ $status -eq 0 ]; then
    add_row "$number" "$name" passed $seconds "$(figure "$name")"
    [ "$kind" = test ] || benchmarks+=("$name")
  else
    local why="exit code $status"
    [ $status -ne 124 ] && [ $status -ne 137 ] || why="not done in time"
    add_row "$number" "$name" FAILED $seconds "$why; $log"
    printf '== %s\n%s\n' "$name" "$(tail -n 40 "$log")"
  fi
}

# ---- Tests ----

export TEST_DT_COMMAND=$build/runtime/cli/dt RANK_PROGRAM=$build/tests/gpu/gpu_rank_program
dt=$TEST_DT_COMMAND
[ -z "${DT_NCCL_LIBRARY:-}" ] || export TEST_DT_NCCL_LIBRARY=$DT_NCCL_LIBRARY
run unit_cuda test '' "$build/tests/unit/unit_cuda"
run runtime test "$no_gpu" "$build/tests/gpu/gpu_runtime"
run kernels test "$no_gpu" "$build/tests/gpu/gpu_kernels"
run peers test "$no_gpu" "$build/tests/gpu/gpu_peers"
# What other folders have for a GPU, such as examples/gpt.
while read -r program; do
  case ${program##*/} in
    gpu_runtime | gpu_kernels | gpu_peers | gpu_rank_program) ;;
    *) run "${program##*/gpu_}" test "$no_gpu" "$program" ;;
  esac
done < <(find "$build/tests" "$build/examples" -type f -name 'gpu_*' -executable ! -name '*.*' 2>/dev/null | sort)
for tool in memcheck racecheck; do
  run "${tool}_kernels" test "${no_gpu:-$no_sanitizer}" \
    "$sanitizer" --tool "$tool" --error-exitcode 1 "$build/tests/gpu/gpu_kernels"
done
# Calls that fail on purpose are no errors, and a forked child does not come out of the sanitizer.
for program in runtime reducer; do
  run "memcheck_$program" test "${no_gpu:-$no_sanitizer}" "$sanitizer" --tool memcheck \
    --report-api-errors no --error-exitcode 1 "$build/tests/gpu/gpu_$program" \
    --test-case-exclude='*forked*'
done

# ---- Ranks ----

# Ranks that hold one GPU: staged through the host, or over NCCL, which takes each for a host of its
# own and goes over loopback. They take turns on the GPU: such times are no measure of NCCL.
first_gpu=${CUDA_VISIBLE_DEVICES:-0}
one_gpu=(env "CUDA_VISIBLE_DEVICES=${first_gpu%%,*}")
staged=("${one_gpu[@]}" DT_BACKEND_SHARED_GPU=host "$dt" run -n 2 --no-prefix --)
loopback=("${one_gpu[@]}" NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1
  NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=4)
# shellcheck disable=SC2016  # for the shell of the rank
as_hosts=(--no-prefix -- sh -c 'NCCL_HOSTID=dt-$RANK exec "$0" "$@"')
own_hosts=("${loopback[@]}" "$dt" run -n 2 "${as_hosts[@]}")
all_gpus=("$dt" run -n "$gpus" --no-prefix --)
run registered_2_nccl_one_gpu test "${no_gpu:-$no_nccl}" env DT_NCCL_REGISTER=on \
  "${own_hosts[@]}" "$RANK_PROGRAM" cuda check
# PyTorch's tensors, where there is a wheel for its Python.
no_torch=''
python3 -c 'import torch' 2>/dev/null || no_torch='python3 has no PyTorch'
python_tag=$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])' 2>/dev/null || true)
wheel=$(compgen -G "$build/bindings/python/dt_runtime-*-$python_tag-*.whl" | head -n 1 || true)
[ -n "$no_torch" ] || [ -n "$wheel" ] || no_torch="no wheel for this Python, ${python_tag:-none}"
if [ -z "${no_gpu:-$no_torch}" ]; then
  rm -rf "$logs/python"
  python3 -m zipfile -e "$wheel" "$logs/python"
  export PYTHONPATH=$logs/python
fi
# The first calls dt itself; the second is torch.distributed with the backend dt, compiled when used first.
for name in torch_ranks torch_backend; do
  program=(python3 "$root/tests/gpu/$name.py")
  run "${name}_1" test "${no_gpu:-$no_torch}" "${one_gpu[@]}" "$dt" run -n 1 -- "${program[@]}"
  run "${name}_2_staged" test "${no_gpu:-$no_torch}" "${staged[@]}" "${program[@]}"
  run "${name}_2_nccl_one_gpu" test "${no_gpu:-${no_nccl:-$no_torch}}" "${own_hosts[@]}" "${program[@]}"
  run "${name}_all_gpus" test "${no_gpu:-${no_nccl:-${no_second:-$no_torch}}}" \
    "${all_gpus[@]}" "${program[@]}"
done
run torch_shrink_3_staged test "${no_gpu:-$no_torch}" "${one_gpu[@]}" DT_BACKEND_SHARED_GPU=host \
  "$dt" run -n 3 --on-failure continue --no-prefix -- "${program[@]}" shrink
run torch_shrink_3_nccl_one_gpu test "${no_gpu:-${no_nccl:-$no_torch}}" "${loopback[@]}" \
  "$dt" run -n 3 --on-failure continue "${as_hosts[@]}" "${program[@]}" shrink

# ---- Benchmarks ----

sizes=(-b 8 -e 256M -f 8) few_sizes=(--sizes "8,64K,4M" --iters 10 --rounds 3)
run bandwidth bench "$no_gpu" "$build/tests/bench/kernel_bandwidth" --least 0.85
for collective in allreduce allgather reduce_scatter broadcast reduce; do
  run "bench_${collective}_1" bench "$no_gpu" \
    "$dt" bench "$collective" -n 1 --device cuda "${sizes[@]}"
  run "bench_${collective}_2_staged" bench "$no_gpu" \
    "${staged[@]}" "$dt" bench "$collective" --device cuda "${few_sizes[@]}"
  run "bench_${collective}_2_nccl_one_gpu" bench "${no_gpu:-$no_nccl}" \
    "${own_hosts[@]}" "$dt" bench "$collective" --device cuda "${few_sizes[@]}"
  run "bench_${collective}_all_gpus" bench "${no_gpu:-${no_nccl:-$no_second}}" \
    "${all_gpus[@]}" "$dt" bench "$collective" --device cuda "${sizes[@]}"
done
overhead=$build/tests/bench/nccl_overhead
without=()
[ -z "$no_nccl" ] || without=(--without-nccl)
run overhead_1 bench "$no_gpu" "$overhead" "${without[@]}"
run overhead_2_nccl_one_gpu bench "${no_gpu:-$no_nccl}" "${own_hosts[@]}" "$overhead" --samples 50
run overhead_all_gpus bench "${no_gpu:-${no_nccl:-$no_second}}" "${all_gpus[@]}" "$overhead"
overlap=$build/tests/bench/overlap
run overlap_1 bench "$no_gpu" "$overlap"
run overlap_2_staged bench "$no_gpu" "${staged[@]}" "$overlap" --rounds 9
run overlap_2_nccl_one_gpu bench "${no_gpu:-$no_nccl}" "${own_hosts[@]}" "$overlap" --rounds 9
run overlap_all_gpus bench "${no_gpu:-${no_nccl:-$no_second}}" "${all_gpus[@]}" "$overlap"
ddp=(python3 "$root/tests/gpu/torch_ddp.py")
run torch_ddp_2_nccl_one_gpu bench "${no_gpu:-${no_nccl:-$no_torch}}" "${own_hosts[@]}" "${ddp[@]}"
run torch_ddp_all_gpus bench "${no_gpu:-${no_nccl:-${no_second:-$no_torch}}}" "${all_gpus[@]}" "${ddp[@]}"
# The language model's step, and the same without its communication. It learns this file.
gpt=$build/examples/gpt/gpt
no_gpt=''
[ -x "$gpt" ] && [ -x "$build/tests/gpu/gpu_gpt" ] || no_gpt='the language model is not built for GPUs'
# shellcheck disable=SC2016  # for that shell
both=(sh -c '"$@" && "$@" --apart' sh)
model=("$gpt" --device cuda --layers 6 --channels 512 --heads 8 --length 256 --batch 48
  --steps 60 --interval 20 "$root/tests/gpu.sh")
run gpt_step_2_staged bench "${no_gpu:-$no_gpt}" "${both[@]}" "${staged[@]}" "${model[@]}"
run gpt_step_2_nccl_one_gpu bench "${no_gpu:-${no_nccl:-$no_gpt}}" \
  "${both[@]}" "${own_hosts[@]}" "${model[@]}"
run gpt_step_all_gpus bench "${no_gpu:-${no_nccl:-${no_second:-$no_gpt}}}" \
  "${both[@]}" "${all_gpus[@]}" "${model[@]}"
# Gradients as matrices of rank 4 in bf16, next to whole ones of f32.
# shellcheck disable=SC2016  # for that shell
thin=(sh -c '"$@" && "$@" --powersgd 4 --wire bf16' sh)
run gpt_powersgd_2_staged bench "${no_gpu:-$no_gpt}" "${thin[@]}" "${staged[@]}" "${model[@]}" --dtype f32
run gpt_powersgd_2_nccl_one_gpu bench "${no_gpu:-${no_nccl:-$no_gpt}}" \
  "${thin[@]}" "${own_hosts[@]}" "${model[@]}" --dtype f32
# Gradients that travel in 8 bits. It ends with equal parameters on all ranks.
in_8bit=("${model[@]}" --dtype f32 --wire 8bit)
run gpt_8bit_2_staged bench "${no_gpu:-$no_gpt}" "${staged[@]}" "${in_8bit[@]}"
run gpt_8bit_2_nccl_one_gpu bench "${no_gpu:-${no_nccl:-$no_gpt}}" "${own_hosts[@]}" "${in_8bit[@]}"
run gpt_8bit_all_gpus bench "${no_gpu:-${no_nccl:-${no_second:-$no_gpt}}}" "${all_gpus[@]}" "${in_8bit[@]}"
# With the size of buckets that is the fastest, found in the first 40 steps.
tuned=("${model[@]}" --tune-steps 10)
run gpt_tune_2_staged bench "${no_gpu:-$no_gpt}" "${staged[@]}" "${tuned[@]}"
run gpt_tune_2_nccl_one_gpu bench "${no_gpu:-${no_nccl:-$no_gpt}}" "${own_hosts[@]}" "${tuned[@]}"
run gpt_tune_all_gpus bench "${no_gpu:-${no_nccl:-${no_second:-$no_gpt}}}" "${all_gpus[@]}" "${tuned[@]}"
# In shards of each stage, which end with equal parameters on all ranks.
# shellcheck disable=SC2016  # for that shell
stages=(sh -c 'for stage in 0 1 2 3 "2 --offload /dev/shm" "3 --offload /dev/shm"; do
  "$@" --memory --zero $stage || exit; done' sh)
large=("$gpt" --device cuda --layers 12 --channels 768 --heads 12 --length 256 --batch 8
  --steps 30 --interval 15 "$root/tests/gpu.sh")
run gpt_zero_2_staged bench "${no_gpu:-$no_gpt}" "${stages[@]}" "${staged[@]}" "${large[@]}"
run gpt_zero_2_nccl_one_gpu bench "${no_gpu:-${no_nccl:-$no_gpt}}" \
  "${stages[@]}" "${own_hosts[@]}" "${large[@]}"
run gpt_zero_all_gpus bench "${no_gpu:-${no_nccl:-${no_second:-$no_gpt}}}" \
  "${stages[@]}" "${all_gpus[@]}" "${large[@]}"

# ---- What came of it ----

wait
written=$(find "$rows" -type f | wc -l)
[ "$written" -eq "$begun" ] || { echo "gpu.sh: $((begun - written)) rows are missing" >&2; exit 1; }
count() { { cat "$rows"/* 2>/dev/null || true; } | awk -v result="$1" '$2 == result { ++n } END { print n + 0 }'; }
passed=$(count passed) failed=$(count FAILED) skipped=$(count skipped)
print_table() {
  printf '%-34s %-8s %5s  %s\n' name result s ''
  cat "$rows"/* 2>/dev/null || true
}
write_report() {
  echo "# Measured on a GPU"
  echo
  echo "GPU: ${gpu_text:-none}; driver ${driver:-none}; CUDA: ${cuda:-none};"
  echo "NCCL: ${nccl:-none}; $(date -u +%F), commit $commit."
  echo
  echo "    tests/gpu.sh"
  echo
  echo '```text'
  print_table
  echo "$passed passed, $failed failed, $skipped skipped"
  echo '```'
  for name in "${benchmarks[@]}"; do
    printf '\n%s:\n\n```text\n' "$name"
    cat "$logs/$name.log"
    echo '```'
  done
}
echo "commit $commit; GPU: ${gpu_text:-none}; driver ${driver:-none}; CUDA: ${cuda:-none}; NCCL: ${nccl:-none}"
print_table
[ -z "$report" ] || write_report >"$report"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] || exit 1
[ -z "$no_gpu" ] || exit 77
