#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_jni.sh JAVA ARGUMENT...: the virtual machine's own check of native calls has nothing to say.
set -euo pipefail

java=$1 status=0
shift
said=$("$java" -Xcheck:jni "$@" dttest.Main closed wrong text version arrays ARRAY OF_DT dtype sink reducer shard store position 2>&1) ||
  status=$?
# A warning of the virtual machine about itself is not about dt.
if [ "$status" != 0 ] || grep -A3 -E "^(WARNING|FATAL ERROR) in native method" <<<"$said"; then
  echo "$said"
  exit 1
fi
