#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# assemblies.sh OUT MCS MONO CECIL SYMBOLS REFERENCE SOURCE...: compiles the two assemblies of the package,
# OUT/net472/Dt.dll, for Mono and the .NET Framework, and OUT/netstandard2.1/Dt.dll, with spans. The latter is compiled
# against Mono's own class library (OUT/mono), since no compiler of Debian has .NET Standard's reference assemblies.
# REFERENCE: what tells MCS those of .NET 4.7.2, or nothing. CECIL, SYMBOLS: libraries that assembly.cs uses.
set -euo pipefail

out=$1 mcs=$2 mono=$3 cecil=$4 symbols=$5 reference=$6
shift 6
rm -rf "$out"
mkdir -p "$out"/{plain,mono,net472,netstandard2.1}
compile=("$mcs" -warn:4 -warnaserror)
"${compile[@]}" "-r:$cecil" "-r:$symbols" "-out:$out/assembly.exe" "$(dirname "$0")/assembly.cs"
cp "$symbols" "$out" # it is in no place that Mono searches
compile+=(-langversion:7.2 -unsafe -target:library -optimize+ -debug)
"${compile[@]}" ${reference:+"$reference"} "-doc:$out/net472/Dt.xml" "-out:$out/plain/Dt.dll" "$@"
"${compile[@]}" -define:DT_SPAN "-doc:$out/netstandard2.1/Dt.xml" "-out:$out/mono/Dt.dll" "$@"
"$mono" "$out/assembly.exe" "$out/plain/Dt.dll" "$out/net472/Dt.dll"
"$mono" "$out/assembly.exe" "$out/mono/Dt.dll" "$out/netstandard2.1/Dt.dll" standard
touch "$out.stamp"
