#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_scripts.sh: every shell script parses, and shellcheck has nothing to say against it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t scripts < <(tests/tidy/source_files.py .sh)
scripts+=(.ci/run .ci/nightly .ci/stages.sh)
for script in "${scripts[@]}"; do
  bash -n "$script"
  [ -x "$script" ] || { echo "$script may not be executed: chmod +x"; exit 1; }
done
command -v shellcheck >/dev/null || { echo "skipped: shellcheck is not here"; exit 77; }
shellcheck -x "${scripts[@]}"
