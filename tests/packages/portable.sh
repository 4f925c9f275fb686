#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# portable.sh [MESON_SETUP_OPTIONS]: makes the packages of a release in build-portable and runs their tests: the tarball, the jar, the NuGet
# package, and a wheel for each CPython from 3.9 on that is in PATH or one of pyenv's, tested with each. NumPy comes
# from pip; what needs PyTorch is skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$root/tests/run.sh" --packages >/dev/null
environments=$root/build-nightly/pythons
mkdir -p "$environments"
shopt -s nullglob
mapfile -t candidates < <(for minor in {9..19}; do type -aP "python3.$minor" || true; done)
candidates+=("${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3)

base_of='import sys; print(sys.base_prefix, sys.version)'
pythons=() versions=' '
for candidate in "${candidates[@]}"; do
  described=$("$candidate" -I "$root/bindings/python/describe_python.py" "venv, ensurepip" 2>/dev/null) || continue
  mapfile -t lines <<<"$described"
  version=${lines[1]}
  [[ $versions != *" $version "* ]] || continue
  environment=$environments/$version
  # An environment of an earlier run may be of a Python that has been replaced since.
  base=$("$environment/bin/python" -c "$base_of" 2>/dev/null) || base=''
  [ "$base" = "$("$candidate" -c "$base_of")" ] || "$candidate" -m venv --clear "$environment"
  "$environment/bin/python" -m pip --disable-pip-version-check install --quiet --upgrade pip numpy \
    >"$environment.log" 2>&1 ||
    { echo "skipped: CPython $version: pip finds no NumPy: $(tail -n 1 "$environment.log")"; continue; }
  versions+="$version "
  pythons+=("$environment/bin/python")
done
[ ${#pythons[@]} -gt 0 ] || { echo 'skipped: there is no CPython from 3.9 on with headers, venv and pip'; exit 77; }
echo "CPython${versions% }"
cd "$root"
rm -rf build-portable # nothing links again when the stand-ins of glibc change
exec tests/build_and_test.sh build-portable --unity on --unity-size 40 -Dbuildtype=release -Dportable=true \
  -Ddocs=disabled -Dpython_bin="$(IFS=,; echo "${pythons[*]}")" "$@" -- --suite pythons --suite bindings \
  --suite packages --suite abi --no-suite variants
