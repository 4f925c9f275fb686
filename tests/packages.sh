#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# packages.sh PACKAGE...: installs those Debian packages that are missing; says nothing when none is.
set -euo pipefail

missing=()
for package in "$@"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=none
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || {
  echo "missing: ${missing[*]}; there is no apt-get here: install what corresponds to these Debian packages" >&2
  exit 1
}
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "missing: ${missing[*]}; neither root nor sudo: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
  [ -t 0 ] || as_root=(sudo -n)
fi

echo "installing ${missing[*]}"
log=$(mktemp "${TMPDIR:-/tmp}/dt-packages.XXXXXX")
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "${missing[@]}" >"$log" 2>&1 </dev/null
}
# The lists may be there and good, or be missing or old: then they are fetched and it is tried again.
install || {
  "${as_root[@]}" apt-get update -o DPkg::Lock::Timeout=300 >"$log" 2>&1 && install
} || {
  tail -n 30 "$log" >&2
  echo "apt-get could not install: ${missing[*]} (its last lines are above)" >&2
  exit 1
}
