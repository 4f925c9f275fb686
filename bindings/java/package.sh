#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# package.sh OUT SOURCES_OUT VERSION POM LIBDT LIBDTJAVA DT WORKER LICENCE OTHER_LICENCES SOURCE_ROOT GENERATED...
# Makes the jar and the jar of its sources, the same bytes each time. JAVAC, JAR, PATCHELF and SBOM name the tools,
# COMPONENTS the list of what dt is made of.
set -euo pipefail

out=$(realpath -m "$1") sources_out=$(realpath -m "$2") version=$3 pom=$4
libdt=$5 libdtjava=$6 dt=$7 worker=$8 licence=$9 others=${10} root=${11}
shift 11
date=1980-01-02T00:00:00Z  # the first day that a zip file can hold in each time zone

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/source" "$work/classes/io/dt/native/linux-x64" "$work/classes/META-INF/maven/io.dt/dt"
cp -R "$root/." "$work/source/"
for generated; do
  package=$(sed -n 's/^package \(.*\);.*/\1/p' "$generated")
  cp "$generated" "$work/source/${package//.//}/"
done
find "$work/source" -name '*.java' | LC_ALL=C sort >"$work/list"
"$JAVAC" -g -Xlint:all -Werror --release 17 -encoding UTF-8 --module-version "$version" -d "$work/classes" @"$work/list"

# They find each other in their own folder, before any that LD_LIBRARY_PATH names.
for pair in "$libdt=libdt.so.0" "$libdtjava=libdtjava.so" "$dt=dt" "$worker=dt-bench-worker"; do
  to="$work/classes/io/dt/native/linux-x64/${pair##*=}"
  cp -L "${pair%=*}" "$to"
  chmod 755 "$to"
  strip --strip-unneeded "$to"
  "$PATCHELF" --force-rpath --set-rpath "\$ORIGIN" "$to"
done

mkdir -p "$work/classes/META-INF/licenses/io.dt"
cp "$licence" "$others" "$work/classes/META-INF/licenses/io.dt/"
cp "$pom" "$work/classes/META-INF/maven/io.dt/dt/pom.xml"
printf 'groupId=io.dt\nartifactId=dt\nversion=%s\n' "$version" >"$work/classes/META-INF/maven/io.dt/dt/pom.properties"
# Main-Class makes the jar the command dt: java -jar dt.jar run ...
# The virtual machine reads Enable-Native-Access only in the jar that it is started with: a fat jar that keeps this line.
printf '%s\n' "Main-Class: io.dt.raw.Command" "Implementation-Title: dt" "Implementation-Version: $version" \
  "Enable-Native-Access: ALL-UNNAMED" >"$work/manifest"
# jar writes the manifest and the module descriptor itself.
"$SBOM" "$COMPONENTS" "${out##*/}" "$work/classes" META-INF/maven/io.dt/dt/dt.spdx.json META-INF/MANIFEST.MF module-info.class
pack() { # pack FOLDER JAR [MANIFEST]
  local files
  mapfile -t files < <(cd "$1" && find . -type f | sed 's|^\./||' | LC_ALL=C sort)
  (cd "$1" && "$JAR" --create --file "$work/new.jar" "--date=$date" ${3:+--manifest "$3"} "${files[@]}")
  mv "$work/new.jar" "$2"
}
pack "$work/classes" "$out" "$work/manifest"
pack "$work/source" "$sources_out"
