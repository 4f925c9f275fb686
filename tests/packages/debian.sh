#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# debian.sh DIR README: on a system that may be thrown away, as root: installs the packages in DIR and tries them as a
# user would: README's program, linked by pkg-config and started on two ranks, the manual, and the removal.
set -euo pipefail

packages=$(cd "$1" && pwd) readme=$(realpath "$2")
die() { echo "debian.sh: $*" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
quietly() { "$@" >log 2>&1 </dev/null || { tail -n 30 log >&2; die "this failed: $*"; }; }
install() { quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }
expect() { # what, wanted, found
  [ "$2" = "$3" ] || die "$1: expected '$2', found '$3'"
}

quietly apt-get update
# First without a compiler, so that nothing but their own dependencies helps them.
install "$packages"/libdt0_*.deb "$packages"/dt_*.deb
# shellcheck disable=SC2016 # the variable is the rank's
expect 'dt run' '[0] rank 0 [1] rank 1' "$(dt run -n 2 sh -c 'echo rank $DT_RANK' | sort | xargs)"
quietly dt bench allreduce -n 2 -b 8 -e 8 --iters 10
ldd /usr/lib/*/libdt.so.0 >libraries
for name in libuv.so.1 libssl.so.3; do
  grep -q "$name => /lib" libraries || die "libdt.so.0 does not use Debian's $name: $(cat libraries)"
done
for page in dt dt-run dt-bench; do
  [ -s "/usr/share/man/man1/$page.1.gz" ] || die "there is no manual page $page.1"
done

install "$packages"/libdt-dev_*.deb gcc libc6-dev pkg-config
sed -n '/^<!-- file hello_allreduce.c -->/,/^```$/p' "$readme" | sed '1,2d;$d' >hello_allreduce.c
expect 'what dt.pc gives' -ldt "$(pkg-config --cflags --libs dt | xargs)"
cc -Wall -Werror hello_allreduce.c "$(pkg-config --cflags --libs dt | xargs)" -o hello
expect 'the program' '[0] the ranks of 2 add up to 1' "$(dt run -n 2 ./hello)"
! grep rpath /usr/lib/*/cmake/dt/dtConfig.cmake || die "the CMake package gives programs a search path"

quietly dpkg --verify libdt0 libdt-dev dt
dpkg -L libdt0 libdt-dev dt | sort -u | while read -r path; do [ -d "$path" ] || echo "$path"; done >installed
quietly dpkg --purge dt libdt-dev libdt0
while read -r path; do [ ! -e "$path" ] || die "the removal left $path"; done <installed
echo "debian.sh: libdt0, libdt-dev and dt work"
