#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_venv.sh PYTHON PROGRAM [ARGUMENTS]: runs a program isolated from this folder and the environment.
python=$1
shift
unset LD_LIBRARY_PATH # with it the build's libdt would come before the package's
exec "$python" -I "$@"
