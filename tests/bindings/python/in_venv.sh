#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_venv.sh PYTHON PROGRAM [ARGUMENTS]: runs a program isolated from this folder and the environment.
python=$1
shift
exec "$python" -I "$@"
