#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# planted.sh: does .ci/run still find a bug of each kind? Plants one after another in a clone of the last
# commit (build-nightly/planted, kept for the next time), and runs the stage of .ci/run that must find it, with
# the one test that must. The same stage passes without the bug.
# planted.sh --check: only whether each bug can still be planted.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
clone=$root/build-nightly/planted
passed=0 failed=0
sound='' # stages and tests that pass without a bug

only_check=0
if [ "${1:-}" = --check ]; then
  only_check=1 clone=$root/build-nightly/planted-check
  rm -rf "$clone"
  mkdir -p "$clone"
  trap 'rm -rf "$clone"' EXIT
else
  [ -d "$clone/.git" ] || git clone -q --no-checkout "$root" "$clone"
  git -C "$clone" fetch -q "$root" HEAD
  git -C "$clone" checkout -qf --detach FETCH_HEAD
fi

run_stage() { # stage, tests
  env DT_CI_STAGES="$1" DT_CI_TESTS="$2" "$clone/.ci/run" >"$clone/../planted.$1.log" 2>&1
}
fail() { # kind, why, log
  failed=$((failed + 1))
  [ ! -f "$3" ] || tail -n 60 "$3"
  echo "$1: NOT FOUND: $2"
}
# The edit must change one place of one file.
plant() { # kind, stage, its test or '', file, sed script, what the stage must say (extended regular expression)
  local kind=$1 stage=$2 tests=$3 file=$clone/$4 begin=$SECONDS status=0
  local log=$clone/build-ci/$stage.log changed=$clone/../planted.changed
  [ "$only_check" -eq 0 ] || file=$root/$4
  sed "$5" "$file" >"$changed"
  if [ "$(diff "$file" "$changed" | grep -c '^[0-9]')" -ne 1 ]; then
    fail "$kind" "$5 does not change one place of $4" ''
    return 0
  fi
  if [ "$only_check" -eq 1 ]; then
    passed=$((passed + 1))
    return 0
  fi
  if [[ $sound != *"($stage $tests)"* ]]; then
    run_stage "$stage" "$tests" || status=$?
    if [ "$status" -ne 0 ] ||
      ! tail -n 1 "$clone/../planted.$stage.log" | grep -q '^[1-9][0-9]* passed, 0 failed, 0 skipped$'; then
      fail "$kind" "stage $stage ($tests) does not pass without the bug" "$clone/../planted.$stage.log"
      return 0
    fi
    sound+="($stage $tests)"
    echo "stage $stage${tests:+, $tests}: passes without a bug, $((SECONDS - begin)) s"
  fi
  begin=$SECONDS
  cat "$changed" >"$file"
  if run_stage "$stage" "$tests"; then
    fail "$kind" "stage $stage ($tests) passes" "$log"
  elif ! grep -qE "$6" "$log"; then
    fail "$kind" "stage $stage ($tests) fails without saying \"$6\"" "$log"
  else
    passed=$((passed + 1))
    echo "$kind: found by stage $stage${tests:+, $tests}, $((SECONDS - begin)) s"
  fi
  git -C "$clone" checkout -q -- "$4"
}

plant 'wrong sum in one kernel' tests kernels runtime/kernels/host/isa_portable.cc \
  's/sources, source_count, begin/sources, source_count - (source_count == 3), begin/' 'reduce_test\.cc:[0-9]+: ERROR'
plant 'README command that no longer works' readme '' runtime/capi/pkg/meson.build \
  "s/filebase: 'dt'/filebase: 'libdt'/" 'not as shown: cc hello_allreduce\.c'
plant 'ABI break: a member in the middle of a struct' abi '' include/dt/dt.h \
  's/^  const char\* name; .*may be NULL.*/  int64_t planted;\n&/' 'the ABI of [0-9a-f]+ is broken'
plant 'leak' address net runtime/net/loop.cc \
  's/^      uv_loop_close(&state->loop);$//' 'LeakSanitizer: detected memory leaks'
plant 'parser that reads past its end' fuzz hostlist runtime/launch/hostlist.cc \
  "s/if (at_ < text_\.size() && text_\[at_\] == '-')/if (text_.data()[at_] == '-')/" 'heap-buffer-overflow'
plant 'data race between two threads' thread capi runtime/capi/handles.cc \
  '/~SlotLock()/s/memory_order_release/memory_order_relaxed/' 'ThreadSanitizer: data race'
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
