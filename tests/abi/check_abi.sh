#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_abi.sh [BASELINE_FILE]   does this tree keep the ABI of the commit named in BASELINE_FILE?
# check_abi.sh --self-test       does the check see planted breaks, and let pass what may change?
# check_abi.sh --all             both
# Exit 77: the question cannot be asked here. Compares ELF with ELF, both built now, of the sources of the C
# ABI alone: all of its functions and types are there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dt-abi.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap "exit 1" INT TERM

say() { printf '%s\n' "$*"; }
die() { say "$*"; exit 1; }
skip() { say "skipped: $*"; exit 77; }
for tool in abidiff readelf git meson ninja; do
  command -v "$tool" >/dev/null 2>&1 || skip "$tool is not here"
done

configure() { # source folder, build folder
  meson setup "$2" "$1" --unity on --unity-size 40 -Doptimization=0 -Dcpp_args=-g -Dcuda=disabled \
    -Dtests=disabled -Dpython=disabled -Djava=disabled -Dcsharp=disabled -Ddocs=disabled >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; die "meson setup of $1 failed"; }
}
# A library of the C ABI that leaves the core's functions undefined: it is never loaded.
build() { # source folder, build folder, library
  objects=$(ninja -C "$2" -t targets all | sed -n 's/^\(runtime\/capi\/libdt\.so[^:]*\.o\): .*/\1/p')
  [ -n "$objects" ] || die "$2 compiles no source of libdt"
  version=$(sed -n "s/^abi_version = '\(.*\)'/\1/p" "$1/meson.build")
  # shellcheck disable=SC2086
  (ninja -C "$2" $objects && cd "$2" && ${CXX:-c++} -shared -Wl,--version-script="$1/runtime/capi/libdt.map" \
    -Wl,-soname,"libdt.so.$version" -o "$3" $objects) >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; die "the C ABI of $1 does not build"; }
}

# Status of abidiff, or 100 where it could see nothing. Its report goes to $scratch/report.
compare() { # old include folder, old library, new include folder, new library
  for library in "$2" "$4"; do
    # Without debug information abidiff finds no difference at all.
    readelf -SW "$library" | grep -q '\.debug_info' || { say "$library has no .debug_info" >"$scratch/report"; return 100; }
  done
  abidiff --headers-dir1 "$1" --headers-dir2 "$3" --drop-private-types --no-added-syms \
    --suppr "$here/libdt.abignore" "$2" "$4" >"$scratch/report" 2>&1
}

# A copy of this tree, for planting, and its library.
build_this() {
  [ ! -d "$scratch/src" ] || return 0
  mkdir "$scratch/src"
  git -C "$root" ls-files -z | (cd "$root" && xargs -0 tar -cf - --) | tar -x -C "$scratch/src"
  cp -r "$scratch/src/include" "$scratch/include"
  configure "$scratch/src" "$scratch/build"
  build "$scratch/src" "$scratch/build" "$scratch/this.so"
}

check() { # baseline file
  commit=$(sed -n '/^[0-9a-f]\{7,\}$/p' "$1" | head -n 1)
  [ -n "$commit" ] || die "$1 names no commit"
  git -C "$root" rev-parse --git-dir >/dev/null 2>&1 || skip "this is no git checkout, commit $commit cannot be built"
  git -C "$root" cat-file -e "$commit^{commit}" 2>/dev/null ||
    die "commit $commit of $1 is not in this clone: fetch the whole history"
  git -C "$root" show "$commit:runtime/capi/meson.build" 2>/dev/null | grep -q "library('dt'" ||
    skip "baseline commit $commit has no libdt yet; put the first one that has into $1"
  mkdir "$scratch/old"
  git -C "$root" archive "$commit" | tar -x -C "$scratch/old"
  configure "$scratch/old" "$scratch/build-old"
  build "$scratch/old" "$scratch/build-old" "$scratch/old.so"
  build_this
  status=0
  compare "$scratch/old/include" "$scratch/old.so" "$scratch/include" "$scratch/this.so" || status=$?
  cat "$scratch/report"
  [ "$status" -eq 0 ] || die "the ABI of $commit is broken (abidiff $status); if that is wanted, see docs/abi.md"
  say "the ABI of $commit is kept"
}

# One planted change: sed script, files. The copy is restored afterwards.
try() { # what, expected (kept|broken), sed script, files...
  what=$1 expected=$2 script=$3
  shift 3
  for file in "$@"; do
    sed "$script" "$root/$file" >"$scratch/src/$file"
    ! cmp -s "$root/$file" "$scratch/src/$file" || die "self-test: nothing to change in $file for: $what"
  done
  build "$scratch/src" "$scratch/build" "$scratch/new.so"
  status=0
  compare "$scratch/include" "$scratch/this.so" "$scratch/src/include" "$scratch/new.so" || status=$?
  verdict=broken
  [ "$status" -ne 0 ] || verdict=kept
  [ "$verdict" = "$expected" ] ||
    { cat "$scratch/report"; die "self-test: $what: $verdict (abidiff $status), expected $expected"; }
  say "self-test: $what: $verdict (abidiff $status), as it should be"
  for file in "$@"; do cp "$root/$file" "$scratch/src/$file"; done
}

self_test() {
  build_this
  status=0
  compare "$scratch/include" "$scratch/this.so" "$scratch/include" "$scratch/this.so" || status=$?
  [ "$status" -eq 0 ] || { cat "$scratch/report"; die "self-test: no change is reported as one ($status)"; }
  strip -g -o "$scratch/stripped.so" "$scratch/this.so"
  status=0
  compare "$scratch/include" "$scratch/this.so" "$scratch/include" "$scratch/stripped.so" || status=$?
  [ "$status" -eq 100 ] || die "self-test: a library without debug information went through"
  say "self-test: no change: kept; stripped library: refused"

  h=include/dt/dt.h
  try "a parameter's type changed" broken \
    's/\(dt_comm_set_timeout(dt_comm\* comm, \)int64_t timeout_ms/\1int32_t timeout_ms/' \
    $h runtime/capi/comm_api.cc
  try "a member inserted in the middle of a frozen struct" broken \
    's/^  const char\* name; .*for messages.*/  int64_t planted;\n&/' $h
  try "a member inserted in the middle of an options struct" broken \
    's/^  int64_t first_bucket_bytes;.*/  int64_t planted;\n&/' $h
  try "a member appended to an options struct" kept \
    's/^} dt_sampler_options;/  int64_t planted;\n&/' $h
}

case "${1:-}" in
  --self-test) self_test ;;
  --all)
    check "$here/baseline"
    self_test
    ;;
  *) check "${1:-$here/baseline}" ;;
esac
