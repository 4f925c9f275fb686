#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# netstandard.sh OUT MCS MONO CECIL SOURCE...: compiles Dt.dll with spans into OUT/mono, for Mono's own class library, and
# makes of it OUT/netstandard2.1/Dt.dll. No compiler of Debian has .NET Standard's reference assemblies.
set -euo pipefail

out=$1 mcs=$2 mono=$3 cecil=$4
shift 4
rm -rf "$out"
mkdir -p "$out/mono" "$out/netstandard2.1"
"$mcs" -langversion:7.2 -unsafe -target:library -optimize+ -warn:4 -warnaserror -define:DT_SPAN \
  "-doc:$out/netstandard2.1/Dt.xml" "-out:$out/mono/Dt.dll" "$@"
"$mcs" -warn:4 -warnaserror "-r:$cecil" "-out:$out/netstandard.exe" "$(dirname "$0")/netstandard.cs"
"$mono" "$out/netstandard.exe" "$out/mono/Dt.dll" "$out/netstandard2.1/Dt.dll"
touch "$out.stamp"
