#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stages.sh: read by .ci/run and .ci/nightly. `stage` runs one command as a stage, `finish` prints the
# table of all stages and the line "N passed, N failed, N skipped". `only` names the stages to run, none: all;
# "fuzz" is fuzz_1 and the others, too. The reader may define wanted_stage NAME and stage_ended NAME WALL CPU MIB
# RESULT.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
export CI=true
# These let clones in different folders share the cache of ccache.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
# A container may set these two for other software; they would change what is compiled and linked.
unset LIBRARY_PATH MAKEFLAGS
exec </dev/null
logs=${logs:-$root/build-ci}
only=${only:-}
mkdir -p "$logs"

passed=0 failed=0 skipped=0
failures=() table=()
known=' ' # stages
session=0
trap 'end_session' EXIT
trap 'exit 1' INT TERM HUP

# Each stage has its own session, so that none of its processes outlives it.
processes_of_session() {
  local file line fields
  for file in /proc/[0-9]*/stat; do
    line=$(cat "$file" 2>/dev/null) || continue
    read -ra fields <<<"${line##*) }" # state, parent, group, session
    [ "${fields[3]}" != "$session" ] || [ "${fields[0]}" = Z ] || echo "${line%% *}"
  done
}
end_session() {
  [ "$session" -ne 0 ] || return 0
  local process
  for process in $(processes_of_session); do kill -KILL "$process" 2>/dev/null || true; done
  session=0
}

add_row() { # name, wall seconds, processor seconds, MiB, result
  table+=("$(printf '%-14s %7s %7s %7s  %s' "$@")")
}

chosen_stage() { [ -z "$only" ] || [[ " $only " == *" $1 "* || " $only " == *" ${1%_[0-9]} "* ]]; }
wanted_stage() { chosen_stage "$1"; }
stage_ended() { :; }

# A stage counts as its last line says ("N passed, ..."), otherwise as one. If GNU time is installed, the
# table also has the stage's processor seconds and the memory of its largest process.
stage() { # name, limit in minutes, command...
  local name=$1 minutes=$2 log=$logs/$1.log used=$logs/$1.used begin=$SECONDS status=0 last left process
  local timed=() user system kib seconds memory
  shift 2
  known+="$name ${name%_[0-9]} "
  wanted_stage "$name" || return 0
  rm -f "$used"
  [ ! -x /usr/bin/time ] || timed=(/usr/bin/time --quiet -f '%U %S %M' -o "$used")
  setsid "${timed[@]}" timeout -k 10 $((minutes * 60)) "$@" >"$log" 2>&1 &
  session=$!
  wait "$session" || status=$?
  # One that was killed a moment ago may still be ending.
  for ((process = 0; process < 50; ++process)); do
    left=$(processes_of_session)
    [ -n "$left" ] || break
    sleep 0.2
  done
  if [ -n "$left" ]; then
    echo "processes were left running:" >>"$log"
    for process in $left; do tr '\0' ' ' <"/proc/$process/cmdline" >>"$log" 2>/dev/null && echo >>"$log"; done
    [ "$status" -ne 0 ] || status=1
  fi
  end_session
  last=$(tail -n 1 "$log")
  if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + BASH_REMATCH[3]))
    [ "$status" -ne 77 ] || status=0 # everything that can run here has passed
    # If the counts do not explain the status, that is one more failure.
    [ "$status" -eq 0 ] || [ "${BASH_REMATCH[2]}" -gt 0 ] || failed=$((failed + 1))
    grep '^skipped: ' "$log" | sed "s/^/$name: /" || true
  elif [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    last=passed
  elif [ "$status" -eq 77 ]; then
    skipped=$((skipped + 1)) status=0
    last="skipped: ${last#skipped: }"
  else
    failed=$((failed + 1))
    last=failed
  fi
  if [ "$status" -ne 0 ]; then
    failures+=("$name")
    tail -n 80 "$log"
    [ "$status" -ne 124 ] || echo "$name was ended after $minutes minutes"
    last="FAILED ($status): $last"
  fi
  seconds=- memory=-
  if [ -s "$used" ]; then
    read -r user system kib < <(tail -n 1 "$used")
    seconds=$(awk -v a="$user" -v b="$system" 'BEGIN { printf "%.0f", a + b }')
    memory=$((kib / 1024))
  fi
  add_row "$name" $((SECONDS - begin)) "$seconds" "$memory" "$last"
  stage_ended "$name" $((SECONDS - begin)) "$seconds" "$memory" "$last"
  printf '%-14s %4d s  %s\n' "$name" $((SECONDS - begin)) "$last"
}

# Prints the table and the sums; the status of the whole run.
finish() {
  local name
  for name in $only; do
    [[ $known == *" $name "* ]] ||
      { echo "there is no stage $name" >&2; failures+=("$name"); failed=$((failed + 1)); }
  done
  add_row all "$SECONDS" - - "$passed passed, $failed failed, $skipped skipped"
  printf '\n%-14s %7s %7s %7s  %s\n' stage 'wall s' 'cpu s' 'MiB' 'result (MiB: the largest process)'
  printf '%s\n' "${table[@]}"
  [ ${#failures[@]} -eq 0 ] || echo "failed stages: ${failures[*]}; whole logs in ${logs#"$root/"}/"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ] && [ ${#failures[@]} -eq 0 ]
}

build_and_test=tests/build_and_test.sh
# -O1, line numbers only, many sources per compilation and the gold linker: a quarter of the time of a
# plain build. Clang's runtime libraries leave the sanitizer's functions to the program (b_lundef).
sanitizer_options=(-Dcuda=disabled -Ddocs=disabled -Doptimization=1 -Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1
  -Dc_link_args=-fuse-ld=gold -Dcpp_link_args=-fuse-ld=gold --unity on --unity-size 40)
# The tests are the same with a sanitizer, except that trainers take fewer steps (CURVE_STEPS). The fuzz
# targets share the build with the address sanitizer. `address_args`: of the compiler.
address_stage() { # limit in minutes, meson test options...
  local minutes=$1
  shift
  stage address "$minutes" env CC=clang CXX=clang++ CURVE_STEPS=10 \
    LSAN_OPTIONS="suppressions=$root/tests/lsan.supp:print_suppressions=0" \
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    "$build_and_test" build-address "${sanitizer_options[@]}" -Dwerror=true -Dfuzzers=true \
    -Db_lundef=false -Db_sanitize=address,undefined \
    -Dcpp_args="${address_args:--g1}" -- "$@" --timeout-multiplier 4
}
thread_stage() { # limit in minutes, meson test options...
  local minutes=$1
  shift
  stage thread "$minutes" env CC=gcc CXX=g++ CURVE_STEPS=10 TSAN_OPTIONS="suppressions=$root/tests/tsan.supp" \
    "$build_and_test" build-thread "${sanitizer_options[@]}" -Db_sanitize=thread \
    -- "$@" --no-suite threadless --timeout-multiplier 4
}
