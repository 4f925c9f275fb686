#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, new ones included, without what git ignores.

As a program: prints those with the given endings, one per line."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
C_LIKE = (".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh")


def source_files(root=ROOT):
    """Paths relative to root."""
    try:
        output = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
                                check=True, capture_output=True).stdout.decode()
        names = [name for name in output.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # a source archive
        names = [str(path.relative_to(root)) for path in root.rglob("*")
                 if not any(part.startswith((".", "build")) for part in path.relative_to(root).parts[:-1])]
    return sorted(Path(name) for name in names if (root / name).is_file())


if __name__ == "__main__":
    for found in source_files():
        if found.suffix in sys.argv[1:]:
            print(found)
