#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# newest.sh JAVA ARGUMENT...: the tests on the newest other virtual machine beside JAVA, with native access enabled and
# denied; from Java 24 on it is restricted.
set -euo pipefail

folder=$(dirname "$(realpath "$1")")
shift
newest=0 java=
for each in "$folder"/../../*/bin/java; do
  version=$("$each" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = //p')
  if [ "${version%%.*}" -gt "$newest" ]; then newest=${version%%.*} java=$each; fi
done
if [ "$newest" -lt 24 ]; then
  echo "skipped: the newest Java beside $folder is $newest"
  exit 77
fi
# Fewer carriers than ranks that are virtual threads.
"$java" --enable-native-access=ALL-UNNAMED -Djdk.virtualThreadScheduler.parallelism=2 \
  -Djdk.virtualThreadScheduler.maxPoolSize=2 "$@"
said=$("$java" --illegal-native-access=deny "$@" version) && { echo "$said"; exit 1; }
grep -q "the virtual machine forbids native libraries .*--enable-native-access=ALL-UNNAMED" <<<"$said" || {
  echo "$said"
  exit 1
}
