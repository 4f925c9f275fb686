#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# aarch64.sh BUILD_DIR: builds dt for aarch64 and runs the unit tests under qemu. The libraries for arm64
# are fetched into BUILD_DIR/sysroot: neither root nor a change of this machine is needed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
build=$(cd "$1" && pwd)
for tool in aarch64-linux-gnu-g++ qemu-aarch64 apt-get; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not here"; exit 77; }
done

sysroot=$build/sysroot
if [ ! -f "$sysroot/complete" ]; then
  # A private state of apt, for the sources of this machine and the other architecture.
  apt=$build/apt
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$sysroot"
  : >"$apt/status"
  options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::lists="$apt/lists"
    -o Dir::State::status="$apt/status" -o Dir::Cache::archives="$apt/archives"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=1)
  # Root's apt would change to a user that may not enter this folder.
  [ "$(id -u)" -ne 0 ] || options+=(-o APT::Sandbox::User=root)
  packages=(libuv1-dev libuv1 libssl-dev libssl3)
  { apt-get "${options[@]}" update && cd "$apt" && apt-get "${options[@]}" download "${packages[@]}"; } \
    >"$apt/log" 2>&1 || {
    tail -n 10 "$apt/log"
    echo "skipped: the arm64 packages ${packages[*]} cannot be had here"
    exit 77
  }
  for package in "$apt"/*.deb; do dpkg -x "$package" "$sysroot"; done
  touch "$sysroot/complete"
fi

libraries=$sysroot/usr/lib/aarch64-linux-gnu
cat >"$build/sysroot.new" <<FILE
[binaries]
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu', '-E', 'LD_LIBRARY_PATH=$libraries']
[properties]
pkg_config_libdir = '$libraries/pkgconfig'
sys_root = '$sysroot'
[built-in options]
# doctest, toml++, CLI11 and JSON are headers alone, the same for every machine.
cpp_args = ['-isystem', '$sysroot/usr/include/aarch64-linux-gnu', '-idirafter', '/usr/include']
c_link_args = ['-L$libraries', '-Wl,-rpath-link,$libraries']
cpp_link_args = ['-L$libraries', '-Wl,-rpath-link,$libraries']
FILE
if ! cmp -s "$build/sysroot.new" "$build/sysroot.txt"; then
  rm -rf "$build/meson"
  mv "$build/sysroot.new" "$build/sysroot.txt"
fi
# -O1, no debug information and several sources at once build in a third of the time.
# Plans of collectives are plain arithmetic, the same on any processor, and take minutes under qemu.
env -u CC -u CXX "$root/tests/build_and_test.sh" "$build/meson" --cross-file "$root/tests/cross/aarch64.txt" \
  --cross-file "$build/sysroot.txt" -Dcuda=disabled -Ddocs=disabled \
  -Doptimization=1 -Ddebug=false --unity on --unity-size 40 \
  -- --suite unit --no-suite slow_emulated --timeout-multiplier 10
