#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# chroot.sh [quickstart|install|tests|debian|python|java|csharp]...: on a bare Debian 12 (minbase, made here with
# debootstrap). Root only. quickstart, install, tests, debian: the two commands and README's Install section of the last
# commit need nothing else. python, java, csharp: installs only the language, without a compiler of C, and runs README's
# commands with the package that lies in DT_PACKAGES (build-tests); each on a system of its own.
# DT_CHROOT_RELEASE names another Debian (bullseye); DT_CHROOT_BASE=DIR keeps the bare system in DIR-RELEASE for the
# next time.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "chroot.sh: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || die "only root can make a chroot"
command -v debootstrap >/dev/null || die "debootstrap is not here: apt-get install debootstrap"
[ $# -gt 0 ] || set -- quickstart install tests
for part in "$@"; do
  [[ $part =~ ^(quickstart|install|tests|debian|python|java|csharp)$ ]] ||
    die "unknown part $part: quickstart, install, tests, debian, python, java or csharp"
done

scratch=$(mktemp -d "${TMPDIR:-/tmp}/dt-chroot.XXXXXX")
system=$scratch/system
# Those made here and those of the tests, which make network namespaces.
mounts() { awk -v at="$system" '$2 == at || index($2, at "/") == 1 { print $2 }' /proc/mounts | sort -r; }
clean_system() {
  local point
  for point in $(mounts); do umount -l "$point" || true; done
  # Nothing may be deleted below a mount that would not go.
  [ -z "$(mounts)" ] || { echo "chroot.sh: $system is still mounted" >&2; return 1; }
  rm -rf "$system"
}
clean_up() { clean_system && rm -rf "$scratch"; }
trap clean_up EXIT
trap 'exit 1' INT TERM

# The mirror that this machine uses.
mirror=$(find /etc/apt -path '/etc/apt/sources.list*' -type f \( -name '*.list' -o -name '*.sources' \) \
  -exec sed -nE 's/^(URIs:|deb( \[[^]]*\])?) +([^ ]+).*/\3/p' {} + | sed -n '/\/debian\/\?$/{p;q}')
[ -n "$mirror" ] || die "no Debian mirror in /etc/apt/sources.list*"

release=${DT_CHROOT_RELEASE:-bookworm}
base=${DT_CHROOT_BASE:-$scratch/base}-$release
if [ ! -e "$base/etc/debian_version" ]; then
  debootstrap --variant=minbase "$release" "$base" "$mirror" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log" >&2; die "debootstrap failed"; }
fi
bare_system() {
  clean_system
  cp -a "$base" "$system"
  mount --bind "$system" "$system" # tests make namespaces for mounts, which need a / that is one
  # Packages come from the mirror that debootstrap wrote into the system; its lists are not there yet.
  rm -rf "$system"/var/lib/apt/lists/*
  cp /etc/resolv.conf /etc/hosts "$system/etc/"
  mount -t proc proc "$system/proc"
  mount --bind /dev "$system/dev"
  mount --bind /dev/pts "$system/dev/pts" # for terminals
  git clone -q "$root" "$system/root/dt"
}
bare_system
echo "chroot.sh: bare Debian $(cat "$system/etc/debian_version"), commit $(git -C "$root" rev-parse --short HEAD), $(nproc) cores"

inside() { # what, command
  local begin=$SECONDS status=0
  echo "== $1"
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    chroot "$system" bash -c "cd /root/dt && $2" </dev/null || status=$?
  echo "== $1: exit $status after $((SECONDS - begin)) s"
  [ "$status" -eq 0 ] || failed+=("$1")
}
package() { # language, pattern of the package's name, Debian packages...
  local build=${DT_PACKAGES:-build-tests} files
  mapfile -t files < <(find "$root/$build/bindings" -name "$2" ! -name '*-sources.jar' ! -name '*-javadoc.jar')
  [ ${#files[@]} -gt 0 ] || die "there is no $2 in $build/bindings: run tests/run.sh, or tests/packages/portable.sh"
  bare_system
  mkdir -p "$system/root/$1"
  cp "${files[@]}" "$system/root/$1"
  inside "the language $1" "tests/packages.sh ${*:3} && ! command -v cc"
  inside "the package for $1" "tests/check_readme.py --only '$2' /root/$1 README.md"
}
failed=()
for part in "$@"; do
  if [ "$part" = quickstart ]; then
    inside "quickstart, bare system" examples/quickstart.sh
    inside "quickstart, again" examples/quickstart.sh
  elif [ "$part" = install ]; then
    # procps has the pgrep that README shows; the rest is for the check itself.
    inside "README" "tests/packages.sh procps python3 && mkdir /root/work &&
      tests/check_readme.py --install . /root/work README.md"
  elif [ "$part" = debian ]; then
    "$system/root/dt/packaging/debian.sh" "$system/root/debs"
    inside "Debian packages" "tests/packages/debian.sh /root/debs README.md"
  elif [ "$part" = python ]; then
    package python 'dt_runtime-*.whl' python3-venv
  elif [ "$part" = java ]; then
    package java 'dt-*.jar' openjdk-17-jdk-headless python3 # Python for the check itself
  elif [ "$part" = csharp ]; then
    package csharp 'Dt.*.nupkg' mono-mcs mono-runtime unzip python3
  else
    # The seconds of the two runs are without those of the packages.
    inside "packages of the tests" "tests/run.sh --packages"
    inside "tests, bare clone" tests/run.sh
    inside "tests, again" tests/run.sh
  fi
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
