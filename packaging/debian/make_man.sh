#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_man.sh DT OUT_DIR VERSION COMMAND...: writes the manual pages dt.1 and dt-COMMAND.1 from the helps of `dt`.
set -euo pipefail

dt=$(realpath "$1") out=$2 version=$3
shift 3
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

page() { # name, one line about it, words after dt
  local name=$1 about=$2
  shift 2
  # help2man looks for the capital letter, and puts the program's name into the page.
  printf '#!/bin/sh\nexec "%s" %s "$@" | sed "s/^usage:/Usage:/"\n' "$dt" "$*" >"$work/$name"
  chmod +x "$work/$name"
  {
    printf '[see also]\n'
    if [ "$name" = dt ]; then
      printf '.BR dt-%s (1),\n' "${commands[@]}" | sed '$s/,$//'
    else
      printf '.BR dt (1)\n'
    fi
  } >"$work/more"
  help2man --no-info --version-string "$version" --name "$about" --source "dt $version" \
    --include "$work/more" "$work/$name" |
    sed -e "1,/^\.TH/s/^\.TH [^ ]*/.TH ${name^^}/" -e '/\.SS "commands:"/s/commands/Commands/' >"$out/$name.1"
}

commands=("$@")
page dt 'start and inspect jobs of distributed training'
about=$("$dt" --help)
for command in "${commands[@]}"; do
  line=$(sed -n "s/^  $command  *//p" <<<"$about")
  [ -n "$line" ] || { echo "make_man.sh: dt --help does not name the command $command" >&2; exit 1; }
  page "dt-$command" "$line" "$command"
done
