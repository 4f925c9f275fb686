#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_ranks.sh DT JAVA CLASS_PATH: Java ranks under dt run, with what they say: two, then four with other local ranks.
set -euo pipefail

program=("$2" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$3" dttest.RankProgram)
# shellcheck disable=SC2016 # each rank's shell expands it
renumbered='case $DT_RANK in 1) DT_LOCAL_RANK=2 ;; 2) DT_LOCAL_RANK=1 ;; esac; exec "$@"'
said=$("$1" run -n 2 "${program[@]}" 2)
[ "$(grep -c "rank ended well" <<<"$said")" = 2 ] || { echo "$said"; exit 1; }
said=$("$1" run -n 4 sh -c "$renumbered" sh "${program[@]}" 4)
[ "$(grep -c "rank ended well" <<<"$said")" = 4 ] || { echo "$said"; exit 1; }
