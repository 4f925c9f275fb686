#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_headers.sh INCLUDE_DIR: the public headers alone, in each language that may include them.
set -u
include=$1
here=$(cd "$(dirname "$0")" && pwd)
warnings="-Wall -Wextra -pedantic -Werror -Wconversion -Wsign-conversion -Wshadow"
failed=0
tried=0

compile() { # compiler language standard header
  command -v "$1" >/dev/null 2>&1 || return 0
  tried=$((tried + 1))
  extra=
  [ "$2" = c ] && extra="-Wstrict-prototypes -Wmissing-prototypes"
  # Twice: the include guard is part of the promise.
  # shellcheck disable=SC2086
  printf '#include <dt/%s>\n#include <dt/%s>\n' "$4" "$4" |
    "$1" -x "$2" -std="$3" $warnings $extra -I"$include" -fsyntax-only - || {
      echo "$4 does not compile with $1 -std=$3"
      failed=1
    }
}

for standard in c99 c11 c17; do
  for compiler in gcc clang; do compile "$compiler" c "$standard" dt.h; done
done
for standard in c++17 c++20; do
  for compiler in g++ clang++; do
    compile "$compiler" c++ "$standard" dt.h
    compile "$compiler" c++ "$standard" dt.hpp
    command -v "$compiler" >/dev/null 2>&1 || continue
    # shellcheck disable=SC2086
    "$compiler" -std="$standard" $warnings -I"$include" -fsyntax-only "$here/views.cpp" || {
      echo "views.cpp does not compile with $compiler -std=$standard"
      failed=1
    }
  done
done
[ "$tried" -gt 0 ] || { echo "neither gcc nor clang is here"; exit 77; }
exit "$failed"
