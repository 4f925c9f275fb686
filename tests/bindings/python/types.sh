#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# types.sh [BUILD_DIR]: mypy --strict and pyright of PyPI find nothing in the package nor in a program that uses it,
# refuse wrong types, and pyright calls all public types complete. Uses the environment build-nightly/types, or makes
# it. Skipped where pip does not find both, or no PyTorch, of which only the annotations are used.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=$(realpath "${1:-$root/build-tests}")
here=$root/tests/bindings/python
environment=$root/build-nightly/types
[ -f "$build/build.ninja" ] || { echo "types.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build"
skip() { # reason
  echo "skipped: $1"
  exit 77
}
compgen -G "$build/bindings/python/dt_runtime-*.whl" >/dev/null ||
  skip 'the build has no wheel of dt: it was configured without Python'

mkdir -p "${environment%/*}"
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
export PATH=$environment/bin:$PATH VIRTUAL_ENV=$environment
# pyright comes from npm when it is used first.
export PYRIGHT_PYTHON_CACHE_DIR=$environment/pyright PYRIGHT_PYTHON_IGNORE_WARNINGS=1
pip=(pip --disable-pip-version-check install --quiet)
{
  "${pip[@]}" --upgrade mypy 'pyright[nodejs]' numpy && "${pip[@]}" --upgrade --no-deps torch && pyright --version
} >"$environment.log" 2>&1 || skip "$(tail -n 1 "$environment.log")"
"${pip[@]}" --no-deps --force-reinstall --no-index --find-links "$build/bindings/python" dt-runtime

# A folder in which nothing but the environment's package is called dt.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dt-types.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
mkdir package programs
# pyright leaves out what is installed, unless somebody imports it.
cp -R "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dt" package
# raw.py is made by SWIG; raw.pyi describes it.
echo '{"include": ["dt"], "exclude": ["dt/raw.py"], "typeCheckingMode": "standard"}' >package/pyrightconfig.json
cp "$here"/{typed_program,wrong_types}.py programs
echo '{"typeCheckingMode": "strict"}' >programs/pyrightconfig.json

passed=0 failed=0
check() { # name, command...
  if "${@:2}" >log 2>&1; then
    passed=$((passed + 1))
    echo "passed: $1"
  else
    failed=$((failed + 1))
    echo "failed: $1"
    cat log
  fi
}
mypy=(mypy --strict --cache-dir "$environment/mypy")
complete() { # the public types
  pyright --verifytypes dt --ignoreexternal | tee completeness
  grep -q '^Type completeness score: 100%$' completeness
}
refused() { # type checker...: its errors are at the lines that are marked, and only there
  "$@" | tee found || true
  diff <(grep -n '# refused$' programs/wrong_types.py | cut -d : -f 1) \
    <(sed -nE 's/^.*wrong_types\.py:([0-9]+):([0-9]+ -)? error: .*/\1/p' found | sort -nu)
}
check 'mypy, the package' "${mypy[@]}" -p dt
check 'pyright, the package' pyright -p package
check 'pyright, all public types are complete' complete
check 'mypy, a program' "${mypy[@]}" programs/typed_program.py
check 'pyright, a program' pyright -p programs programs/typed_program.py
check 'mypy, wrong types' refused "${mypy[@]}" programs/wrong_types.py
check 'pyright, wrong types' refused pyright -p programs
check 'the program runs' "$root/tests/hermetic.sh" "$build/tests/home" "$environment/bin/dt" run -n 2 \
  "$environment/bin/python" -I "$here/typed_program.py"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
