#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_floor.py FLOOR LIBRARY...: which glibc and libstdc++ they need, at most what the file says; and no
library of a GPU's driver or toolkit, since the same file must load on a machine that has none."""

import re
import subprocess
import sys
from pathlib import Path


def number(version):
    return tuple(int(part) for part in version.split("."))


def main():
    allowed = dict(line.split() for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
                   if line.strip() and not line.startswith("#"))
    failed = False
    for library in sys.argv[2:]:
        output = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
        for name in re.findall(r"NEEDED\s+(lib(?:cuda|nvidia|nccl)\S*)", output):
            print(f"{Path(library).name} needs {name}: open it at run time, or link it statically")
            failed = True
        output = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True).stdout
        needed = {}
        for line in output.splitlines():
            match = re.search(r"\*UND\*.*\b(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\)?\s+(\S+)$", line)
            if match:
                needed.setdefault(match.group(1), {}).setdefault(match.group(2), []).append(match.group(3))
        if "GLIBC" not in needed:
            print(f"{library}: no GLIBC symbol found: objdump's output was not understood")
            failed = True
        for family, versions in sorted(needed.items()):
            highest = max(versions, key=number)
            print(f"{Path(library).name}: {family}_{highest} ({', '.join(sorted(versions[highest])[:3])})")
            for version in sorted(versions, key=number):
                if family not in allowed or number(version) > number(allowed[family]):
                    print(f"  above the floor {family}_{allowed.get(family, '(none)')}: "
                          f"{', '.join(sorted(versions[version])[:8])} need {family}_{version}")
                    failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
