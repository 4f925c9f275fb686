#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# reference.sh JAVADOC SOURCES_JAR OUT: the reference pages of the public classes, without a warning.
set -euo pipefail

javadoc=$1 sources=$(realpath "$2") out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m zipfile -e "$sources" "$work"
cd "$work"
rm -rf "$out"
"$javadoc" -quiet -Xdoclint:all -Xdoclint/package:-io.dt.raw -Werror -notimestamp --release 17 -encoding UTF-8 -charset UTF-8 \
  --show-packages exported --show-module-contents api -d "$out" module-info.java io/dt/*.java io/dt/raw/*.java
