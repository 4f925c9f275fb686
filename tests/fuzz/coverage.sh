#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# coverage.sh [BUILD_DIR [LEARNT_DIR]]: which share of each parser's lines the kept inputs of the fuzz
# targets run, as a table in Markdown; with LEARNT_DIR (the folder learnt/ of run.sh) also with what the
# fuzzers have found. Builds with clang's coverage, without sanitizers.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build-coverage}
learnt=${2:-}
for tool in clang++ llvm-profdata llvm-cov; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not here"; exit 77; }
done

# Of the programs that meson runs while it looks at the compiler.
export LLVM_PROFILE_FILE=/dev/null

# What each target is there for.
declare -A parsers=(
  [agents]="cli/run/fleet_words cli/run/outcome cli/run/roster cli/doctor/report"
  [checkpoint]="checkpoint"
  [discover]="launch/cluster launch/discover launch/facts launch/family_* launch/json launch/variables"
  [frames]="store/messages store/protocol"
  [guard]="net/guard net/tls"
  [hostlist]="launch/hostlist"
  [hosts]="transport/tcp/handshake transport/tcp/link"
  [join]="store/join store/placement store/reach"
  [metrics]="metrics/exposition metrics/request"
  [middle]="net/guard net/tls"
  [pmi]="launch/exchange launch/pmi"
  [shard_file]="training/shard_file"
  [toml]="config/toml_file config/toml_scan"
  [torch]="store/torch_protocol store/torch_service"
  [trace]="record/trace_file cli/trace/merge cli/trace/report cli/trace/timeline cli/trace/verdict"
  [values]="config/value net/host_port net/security"
)

if [ ! -f "$build/build.ninja" ]; then
  profile="-fprofile-instr-generate -fcoverage-mapping"
  CC=clang CXX=clang++ meson setup "$build" "$root" -Dcuda=disabled -Dfuzzers=true -Ddocs=disabled \
    -Doptimization=1 -Ddebug=false "-Dc_args=$profile" "-Dcpp_args=$profile" \
    "-Dc_link_args=$profile" "-Dcpp_link_args=$profile" >/dev/null
fi
mapfile -t targets < <(cd "$root/tests/fuzz" && printf '%s\n' fuzz_*.cc | sed 's/^fuzz_\(.*\)\.cc$/\1/')
ninja --quiet -C "$build" "${targets[@]/#/tests/fuzz/fuzz_}" >&2

rows() { # target: reads llvm-cov's JSON
  python3 -c '
import fnmatch, json, os, sys
target, root, patterns = sys.argv[1], sys.argv[2], sys.argv[3].split()
lines = covered = 0
parts = []
for entry in json.load(sys.stdin)["data"][0]["files"]:
    path = os.path.relpath(os.path.realpath(entry["filename"]), root)
    for pattern in patterns:
        if fnmatch.fnmatch(path, "*" + "/" + pattern + ".cc"):
            some = entry["summary"]["lines"]
            lines += some["count"]
            covered += some["covered"]
            parts.append("%s %d of %d" % (os.path.basename(path), some["covered"], some["count"]))
if not lines:
    sys.exit("no line of %s was found in fuzz_%s" % (patterns, target))
print("| %s | %d | %.0f%% | %s |" % (target, lines, 100.0 * covered / lines, ", ".join(parts)))
' "$1" "$root" "$2"
}

echo "| target | lines | run | of which |"
echo "|---|---|---|---|"
for name in "${targets[@]}"; do
  [ -n "${parsers[$name]:-}" ] || { echo "coverage.sh does not know what fuzz_$name is for" >&2; exit 1; }
  program=$build/tests/fuzz/fuzz_$name
  inputs=("$root/tests/fuzz/corpus/$name")
  [ -z "$learnt" ] || inputs+=("$learnt/$name")
  LLVM_PROFILE_FILE=$build/$name.profraw "$program" -runs=0 -timeout=60 "${inputs[@]}" >"$build/$name.log" 2>&1 ||
    { tail -n 30 "$build/$name.log" >&2; exit 1; }
  llvm-profdata merge -o "$build/$name.profdata" "$build/$name.profraw"
  llvm-cov export -summary-only "-instr-profile=$build/$name.profdata" "$program" | rows "$name" "${parsers[$name]}"
done
