#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_ranks.sh DT JAVA CLASS_PATH: two Java ranks under dt run, with what they say.
set -euo pipefail

said=$("$1" run -n 2 "$2" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$3" dttest.RankProgram 2)
[ "$(grep -c "rank ended well" <<<"$said")" = 2 ] || { echo "$said"; exit 1; }
