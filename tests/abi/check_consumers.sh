#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_consumers.sh BUILD_DIR: installs into a scratch DESTDIR and builds the programs in consumer/
# against it by pkg-config and by CMake, in the tree as installed and after it was moved. The programs find
# libdt by themselves.
set -eu
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dt-consumers.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
: "${CC:=cc}" "${CXX:=c++}"
export CC CXX

say() { printf '%s\n' "$*"; }
die() { say "$*"; exit 1; }
need() { command -v "$1" >/dev/null 2>&1 || { say "$1 is not here"; exit 77; }; }
need pkg-config
need make
need meson

DESTDIR="$scratch/staged" meson install -C "$build" --no-rebuild --quiet --tags devel,runtime
for name in dt.pc dtConfig.cmake dtConfigVersion.cmake dt.h dt.hpp version.h; do
  [ -n "$(find "$scratch/staged" -name "$name")" ] || die "$name was not installed"
done

# A public header or dt.pc that needs libuv would burden every consumer.
includes=$(dirname "$(find "$scratch/staged" -path '*/dt/dt.h')")
! grep -n '#include.*uv' "$includes"/* || die "a public header includes libuv"
! grep -niE 'uv' "$(find "$scratch/staged" -name dt.pc)" || die "dt.pc names libuv"

run() { # folder of the programs
  for program in consumer_c consumer_cpp; do
    (cd "$1" && env -u DT_CONFIG -u LD_LIBRARY_PATH "./$program") || die "$1/$program failed"
  done
}

# $1: root of the tree, $2: a name for it
by_pkg_config() {
  pc_dir=$(dirname "$(find "$1" -name dt.pc)")
  mkdir "$scratch/make-$2"
  env PKG_CONFIG_LIBDIR="$pc_dir" \
    make -s -C "$here/consumer" OUT="$scratch/make-$2"
  run "$scratch/make-$2"
  say "pkg-config, $2 tree: good"
}

by_cmake() {
  command -v cmake >/dev/null 2>&1 || { say "cmake is not here: find_package(dt) was not tried"; return 0; }
  config_dir=$(dirname "$(find "$1" -name dtConfig.cmake)")
  env -u CC -u CXX cmake -S "$here/consumer" -B "$scratch/cmake-$2" -Ddt_DIR="$config_dir" \
    -DCMAKE_C_COMPILER="${CC##* }" -DCMAKE_CXX_COMPILER="${CXX##* }" >"$scratch/cmake.log" 2>&1 ||
    { cat "$scratch/cmake.log"; die "cmake could not configure against the $2 tree"; }
  cmake --build "$scratch/cmake-$2" >"$scratch/cmake.log" 2>&1 ||
    { cat "$scratch/cmake.log"; die "cmake could not build against the $2 tree"; }
  run "$scratch/cmake-$2"
  cmake --install "$scratch/cmake-$2" --prefix "$scratch/installed-$2" >"$scratch/cmake.log" 2>&1 ||
    { cat "$scratch/cmake.log"; die "cmake could not install what it built against the $2 tree"; }
  run "$scratch/installed-$2/bin"
  say "CMake, $2 tree: good"
}

# find_package must refuse what this release does not promise to be.
cmake_refuses() { # version
  command -v cmake >/dev/null 2>&1 || return 0
  mkdir -p "$scratch/refuse-$1"
  printf 'cmake_minimum_required(VERSION 3.16)\nproject(refuse C)\nfind_package(dt %s REQUIRED CONFIG)\n' "$1" \
    >"$scratch/refuse-$1/CMakeLists.txt"
  if cmake -S "$scratch/refuse-$1" -B "$scratch/refuse-$1/build" \
    -Ddt_DIR="$(dirname "$(find "$scratch" -name dtConfig.cmake | head -n 1)")" >"$scratch/cmake.log" 2>&1; then
    die "find_package(dt $1) was accepted"
  fi
  grep -q 'dt' "$scratch/cmake.log" || { cat "$scratch/cmake.log"; die "cmake failed for another reason"; }
}

by_pkg_config "$scratch/staged" staged
by_cmake "$scratch/staged" staged
cmake_refuses 0.999
cmake_refuses 1.0
mv "$scratch/staged" "$scratch/moved"
by_pkg_config "$scratch/moved" moved
by_cmake "$scratch/moved" moved
