#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compile.sh OUT CLASS_PATH SOURCE...: compiles with JAVAC and packs with JAR, as a user of the jar of dt would.
set -euo pipefail

out=$(realpath -m "$1") class_path=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$JAVAC" -Xlint:all -Werror --release 17 -encoding UTF-8 -cp "$class_path" -d "$work" "$@"
"$JAR" --create --file "$out" -C "$work" .
