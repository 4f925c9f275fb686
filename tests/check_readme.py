#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_readme.py [--install SOURCES] [--only F] SCRATCH_DIR PAGE...: runs what the README and other pages show, in
SCRATCH_DIR.

A comment on the line before a block says what to do with it:
  <!-- file NAME -->     the block is written into NAME
  <!-- run -->           the block is run by bash -e; <!-- run, exit N --> where it ends with N
  <!-- run, exact -->    numbers count
  <!-- run, needs F -->  the block is skipped where SCRATCH_DIR has no file F, a pattern; --only F runs only such blocks
  <!-- install -->       with --install the block is run first, in SOURCES; what it exports holds for the others
A ```text block behind a run block is its output, compared loosely: the order of lines, blanks, process
numbers and other numbers do not count, and a line "..." stands for any others."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
TIME_LIMIT_S = 240
INSTALL_LIMIT_S = 3600  # a whole build, also on a busy machine


def blocks(text):
    return [(match["mark"] or "", match["language"], match["body"]) for match in BLOCK.finditer(text)]


def shape(line, exact):
    """The line without what may differ from run to run."""
    line = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line)
    line = re.sub(r"\((host )?\S+ pid \d+", r"(\1HOST pid #", line)
    if not exact:
        line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "#", line)  # hashes
        line = re.sub(r"\d+(\.\d+)?", "#", line)
    return re.sub(r"\s+", " ", line).strip()


def compare(expected, output, exact):
    """Lines that the output lacks, and lines that it should not have."""
    wanted = [line for line in expected.splitlines() if line.strip()]
    have = [shape(line, exact) for line in re.split(r"[\r\n]+", output) if line.strip()]
    missing = []
    for line in wanted:
        if line.strip() == "...":
            continue
        if shape(line, exact) in have:
            have.remove(shape(line, exact))
        else:
            missing.append(line)
    surplus = [] if any(line.strip() == "..." for line in wanted) else have
    return missing, surplus


def run(body, folder, wanted_status, limit_s=TIME_LIMIT_S):
    """The output, and a complaint or None."""
    try:
        result = subprocess.run(["bash", "-e", "-c", body], cwd=folder, stdin=subprocess.DEVNULL, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "", f"did not end within {limit_s} s"
    output = result.stdout.decode(errors="replace")
    if result.returncode != wanted_status:
        return output, f"ended with {result.returncode}, not {wanted_status}"
    return output, None


def install(body, sources, folder):
    """Runs the block and takes over its environment; complains and ends if it fails."""
    exported = (folder / "environment").resolve()
    output, complaint = run(f"{body}\nenv -0 >'{exported}'", sources, 0, INSTALL_LIMIT_S)
    if complaint:
        sys.exit(f"not as shown: {body.strip()}\n  it {complaint}\n  its output:\n{output}")
    print(f"as shown: {body.strip()}")
    for line in exported.read_text().split("\0"):
        name, _, value = line.partition("=")
        if name:
            os.environ[name] = value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--install")
    parser.add_argument("--only")
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", type=Path, nargs="+")
    options = parser.parse_args()
    sources, only, folder, pages = options.install, options.only, options.folder, options.pages
    found = [block for page in pages for block in blocks(page.read_text(encoding="utf-8"))]
    failed = ran = skipped = 0
    for i, (mark, _, body) in enumerate(found):
        if mark == "install" and sources is not None:
            install(body, sources, folder)
            ran += 1
        if mark.startswith("file "):
            (folder / mark[5:]).write_text(body, encoding="utf-8")
        if not re.match(r"run\b", mark):
            continue
        needed = re.search(r"needs (\S+)", mark)
        if only is not None and (needed is None or needed[1] != only):
            continue
        if needed and not any(folder.glob(needed[1])):
            print(f"skipped, because there is no {needed[1]}: {body.strip()}")
            skipped += 1
            continue
        ran += 1
        status = re.search(r"exit (\d+)", mark)
        output, complaint = run(body, folder, int(status[1]) if status else 0)
        missing, surplus = [], []
        if complaint is None and i + 1 < len(found) and found[i + 1][1] == "text":
            missing, surplus = compare(found[i + 1][2], output, "exact" in mark)
        if complaint is None and not missing and not surplus:
            print(f"as shown: {body.strip()}")
            continue
        failed += 1
        print(f"not as shown: {body.strip()}")
        if complaint:
            print(f"  it {complaint}")
        for line in missing:
            print(f"  shown, but not printed: {line}")
        for line in surplus:
            print(f"  printed, but not shown: {line}")
        print("  its output:\n" + "\n".join("    " + line for line in output.splitlines()))
    if ran == 0:
        wanted = "run" if only is None else f"run, needs {only}"
        print(f"skipped: no block of {', '.join(page.name for page in pages)} is marked <!-- {wanted} -->, or all lack a file")
        return 77
    print(f"{ran - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
