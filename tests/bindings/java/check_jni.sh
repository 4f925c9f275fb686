#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_jni.sh JAVA CLASS_PATH: the virtual machine's own check of native calls has nothing to say.
set -euo pipefail

status=0
said=$("$1" -Xcheck:jni -cp "$2" dttest.Main closed wrong text version arrays ARRAY OF_DT dtypes sink reducer shard store position 2>&1) || status=$?
# A warning of the virtual machine about itself is not about dt.
if [ "$status" != 0 ] || grep -A3 -E "^(WARNING|FATAL ERROR) in native method" <<<"$said"; then
  echo "$said"
  exit 1
fi
