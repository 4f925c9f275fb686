#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quick.py BUILD_DIR [COMMIT]: prints the tests that cover the files changed since COMMIT, one name per line,
for `tests/run.sh --quick`. Files that are not committed count. COMMIT is by default the point where the branch
left main; on main itself it is HEAD, or HEAD^ where nothing is changed.

A changed source of a test selects the tests built from it. A changed file of the runtime selects the tests of
its folder, and one short job of real ranks."""

import fnmatch
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOR_ALL_RUNTIME_FILES = ("check_layers", "check_words", "job")
# Patterns of paths, and the tests that they select; all that match count.
TESTS_BY_PATH = (
    ("runtime/base/*", ("base", "transport", "store", "backend")),
    ("runtime/config/*", ("config", "config_page", "launch")),
    ("runtime/net/*", ("net", "store")),
    ("runtime/launch/*", ("launch", "config_vectors")),
    ("runtime/store/*", ("store", "equality")),
    ("runtime/kernels/*", ("kernels", "backend", "backend_device")),
    ("runtime/cuda/*", ("cuda", "fake", "reducer", "backend_device")),
    ("runtime/transport/*", ("transport", "backend")),
    ("runtime/collective/*", ("collective", "schedule", "backend", "backend_device", "order")),
    ("runtime/backend/*", ("agreement", "backend", "backend_device", "order")),
    ("runtime/backend/nccl/*", ("nccl", "nccl_namesake")),
    ("runtime/comm/*", ("backend", "backend_device", "order")),
    ("runtime/metrics/*", ("metrics",)),
    ("runtime/record/*", ("record", "trace")),
    ("runtime/training/*", ("training", "reducer", "batch_norm")),
    ("runtime/ps/*", ("ps",)),
    ("runtime/job/*", ("job", "hosts", "death")),
    ("runtime/capi/*", ("capi", "c_api", "symbols", "layout_complete")),
    ("runtime/cli/*", ("cli", "command", "run_end")),
    ("runtime/cli/run/*", ("run_output", "run_nodes")),
    ("runtime/cli/trace/*", ("trace_command", "trace")),
    ("runtime/cli/doctor/*", ("doctor",)),
    ("runtime/cli/bench/*", ("bench_worker", "bench")),
    ("include/dt/*", ("headers", "layout", "layout_complete", "symbols", "c_api", "check_headers", "check_bindings",
                      "matrix")),
    ("bindings/python/*", ("python_*",)),
    ("bindings/java/*", ("java*",)),
    ("bindings/csharp/*", ("csharp_*",)),
    ("bindings/*.[hi]", ("python_*", "java", "csharp_span_*")),
    ("packaging/*", ("tarball", "sbom", "vcpkg", "configure")),
    ("tests/packages/*", ("tarball", "sbom", "vcpkg", "configure")),
    ("tests/bindings/python/*", ("python_*",)),
    ("tests/bindings/java/*", ("java*",)),
    ("tests/bindings/csharp/*", ("csharp_*",)),
    ("tests/fake/*", ("fake", "nccl", "reducer", "backend", "backend_device")),
    ("tests/multihost/*", ("multihost",)),
    ("tests/tidy/*", ("tidy_test",)),
    ("tests/vectors/*", ("launch", "training", "config_vectors")),
    ("tests/vectors/*collectives*", ("collectives_vectors", "matrix", "python_matrix_test", "java",
                                     "csharp_span_collective")),
    ("examples/quickstart.sh", ("configure",)),
    ("examples/fashion_mnist/*", ("example", "training_curves")),
    ("examples/gpt/*", ("gpt", "gpt_kernels", "gpt_curves", "gpt_shards")),
    ("docs/*", ("config_page",)),
    ("*.py", ("check_words",)),
    ("*.cc", ("check_format", "check_words", "check_layers")),
    ("*.h", ("check_format", "check_words", "check_layers")),
    ("*.md", ("check_words",)),
)


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def changed_files(commit):
    tracked = git("diff", "-z", "--name-only", commit, "--").split("\0")
    return sorted({*tracked, *git("ls-files", "-z", "--others", "--exclude-standard").split("\0")} - {""})


def exists(commit):
    found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
                           capture_output=True, check=False)
    return found.returncode == 0


def default_commit():
    if exists("main") and git("rev-parse", "main") != git("rev-parse", "HEAD"):
        return git("merge-base", "main", "HEAD").strip()
    return "HEAD" if changed_files("HEAD") else "HEAD^"


def introspect(build, what):
    done = subprocess.run(["meson", "introspect", str(build), f"--{what}"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def sources_of(target):
    """Of a target's files; one that meson made to compile many sources at once names them."""
    for group in target.get("target_sources", ()):
        yield from group.get("sources", ())
        for path in group.get("generated_sources", ()):
            if "-unity" in path:
                for line in Path(path).read_text(encoding="utf-8").splitlines():
                    if line.startswith("#include"):
                        yield str(Path(path).parent / line.split("<" if "<" in line else '"')[1].rstrip('>"'))


def runs_source(test, source):
    """False if the test runs other sources of its program only."""
    only = [word.split("=", 1)[1] for word in test["cmd"] if word.startswith("--source-file=")]
    return not only or not source.endswith("_test.cc") or any(fnmatch.fnmatchcase(source, each) for each in only)


def tests_of_sources(build, tests):
    """{path below the root: names of tests} for the sources of what tests depend on, below tests/ and examples/."""
    users = {}
    for test in tests:
        for target in test["depends"]:
            users.setdefault(target, []).append(test)
    found = {}
    for test in tests:  # those that are scripts
        for word in test["cmd"]:
            path = Path(word)
            if path.is_absolute() and path.is_file() and path.resolve().is_relative_to(ROOT):
                found.setdefault(path.resolve().relative_to(ROOT).as_posix(), set()).add(test["name"])
    for target in introspect(build, "targets"):
        for source in sources_of(target):
            path = Path(source).resolve()
            if path.is_relative_to(ROOT) and target["id"] in users:
                name = path.relative_to(ROOT).as_posix()
                found.setdefault(name, set()).update(
                    test["name"] for test in users[target["id"]] if runs_source(test, name))
    return {path: names for path, names in found.items() if path.startswith(("tests/", "examples/"))}


def patterns_for(path):
    chosen = set()
    for pattern, names in TESTS_BY_PATH:
        if fnmatch.fnmatchcase(path, pattern):
            chosen.update(names)
    if path.startswith("runtime/"):
        chosen.update(FOR_ALL_RUNTIME_FILES)
    return chosen


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("quick.py BUILD_DIR [COMMIT]")
    build = Path(sys.argv[1])
    commit = sys.argv[2] if len(sys.argv) == 3 else default_commit()
    if not exists(commit):
        sys.exit(f"quick.py: {commit} is not a commit of this clone")
    tests = introspect(build, "tests")
    by_source = tests_of_sources(build, tests)
    wanted = set()
    for path in changed_files(commit):
        covering = patterns_for(path) | by_source.get(path, set())
        # What the tests of a folder share counts for all of them.
        if path.startswith("tests/") and path not in by_source:
            for source, names in by_source.items():
                if Path(source).parent == Path(path).parent:
                    covering |= names
        if not covering:
            print(f"quick.py: no test covers {path}", file=sys.stderr)
        wanted |= covering
    chosen = [test for test in tests if any(fnmatch.fnmatchcase(test["name"], pattern) for pattern in wanted)]
    names = {test["name"] for test in chosen}
    if chosen and not any(test["depends"] for test in chosen):
        names.add("layout")  # meson builds everything where no test needs anything built; this needs one file
    print("\n".join(sorted(names)))


if __name__ == "__main__":
    main()
