#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# debian.sh OUT_DIR: builds the Debian packages libdt0, libdt-dev and dt of this tree with dpkg-buildpackage, and has
# lintian look at them. Needs the packages that packaging/debian/control.in names as Build-Depends, and lintian.
# DEBFULLNAME and DEBEMAIL say who publishes them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -eq 1 ] || { echo "usage: debian.sh OUT_DIR" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
for tool in dpkg-buildpackage dh help2man lintian; do
  command -v "$tool" >/dev/null || {
    echo "debian.sh: $tool is not here: apt-get install dpkg-dev debhelper help2man lintian" >&2
    exit 1
  }
done
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" "$root/meson.build")
maintainer="${DEBFULLNAME:-dt maintainers} <${DEBEMAIL:-maintainers@dt.invalid}>"
# The date of the packages and of their manual pages.
date=$(git -C "$root" log -1 --format=%cD 2>/dev/null) || date=$(date -R -r "$root/meson.build")

work=$(mktemp -d "${TMPDIR:-/tmp}/dt-debian.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/dt-$version
mkdir "$tree"
tar -C "$root" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$tree" -xf -
cp -R "$root/packaging/debian" "$tree/debian"
for name in control changelog; do
  sed -e "s/@MAINTAINER@/$maintainer/" -e "s/@VERSION@/$version/" -e "s/@DATE@/$date/" \
    "$tree/debian/$name.in" >"$tree/debian/$name"
  rm "$tree/debian/$name.in"
done

# What a container sets for other software would change the build.
(cd "$tree" && env -u LIBRARY_PATH -u MAKEFLAGS DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-noautodbgsym}" \
  dpkg-buildpackage -us -uc -b) >"$work/log" 2>&1 ||
  { tail -n 60 "$work/log" >&2; echo "debian.sh: dpkg-buildpackage failed; the end of its log is above" >&2; exit 1; }
cp "$work"/*.deb "$out/"
# Only a package for Debian itself has a bug that asks for it.
lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$work"/*.deb
ls "$out"
