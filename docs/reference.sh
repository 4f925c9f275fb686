#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# reference.sh DOXYGEN OUTPUT_DIR: HTML pages of the public headers; any warning fails.
set -eu
doxygen=$1
mkdir -p "$2"
output=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
{ cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = \"$output\""; } | "$doxygen" -
