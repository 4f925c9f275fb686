#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# reference.sh JAVADOC JAR SOURCES_JAR OUT [JAVADOC_OPTIONS]: packs the reference pages of the public classes into a jar.
# The same input gives the same bytes.
set -euo pipefail

javadoc=$1 jar=$2 sources=$(realpath "$3") out=$(realpath -m "$4")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m zipfile -e "$sources" "$work/sources"
cd "$work/sources"
"$javadoc" -quiet "${@:5}" -notimestamp --release 17 -encoding UTF-8 \
  -charset UTF-8 --show-packages exported --show-module-contents api -d "$work/pages" \
  module-info.java io/dt/*.java io/dt/raw/*.java
cd "$work/pages"
mapfile -t files < <(find . -type f | sed 's|^\./||' | LC_ALL=C sort)
# The date is the first day that a zip file can hold in each time zone.
"$jar" --create --no-manifest --file "$work/new.jar" --date=1980-01-02T00:00:00Z "${files[@]}"
mv "$work/new.jar" "$out"
