#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder of runtime/ includes only layers below it, and other people's headers only where they belong."""

import re
import sys
from pathlib import Path

import source_files

# From the ground up; folders in one row do not see each other.
LAYERS = [
    ["base"],
    ["config", "net", "cuda"],
    ["record", "kernels"],
    ["launch"],
    ["store"],
    ["transport"],
    ["collective"],
    ["backend"],
    ["comm", "metrics"],
    ["job"],
    ["training"],
    ["ps"],
    ["capi", "cli"],
]
LEVEL = {folder: level for level, row in enumerate(LAYERS) for folder in row}

# (header, folders that may include it, whole paths below runtime/)
FOREIGN = [
    (r"(uv\.h|uv/.*)", ["net"]),
    (r"openssl/.*", ["net"]),
    (r"toml\+\+/.*|toml\.h.*", ["config"]),
    (r"nlohmann/.*", ["config", "launch", "training", "cli/bench", "cli/doctor", "cli/trace"]),
    (r"CLI/.*", ["cli"]),
    (r"(cuda|cublas|nvtx|cooperative_groups|cub/).*|device_launch_parameters\.h",
     ["cuda", "kernels/cuda", "backend/nccl", "backend/staged"]),
    (r"nccl.*\.h", ["backend/nccl"]),
    (r"doctest/.*", []),
    # The C ABI is a coat over the core: below it nothing knows it. version.h is only numbers.
    # The bench worker is an outside program that links libdt.
    (r"dt/dt\.h", ["capi", "cli/bench/worker"]),
    (r"dt/dt\.hpp", []),
]


def includes(text):
    """[(line, header), ...]"""
    found = re.finditer(r"^[ \t]*#[ \t]*include(?:_next)?[ \t]*[<\"]([^>\"\n]+)[>\"]", text, flags=re.M)
    return [(text.count("\n", 0, match.start()) + 1, match.group(1)) for match in found]


def inside(path, folders):
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def check_file(path, text):
    """Complaints about one file; path is relative to runtime/."""
    folder = path.parts[0]
    if len(path.parts) < 2:
        return [f"runtime/{path}: a source file lies in a folder of runtime/"]
    if folder not in LEVEL:
        return [f"runtime/{path}: {folder} is no layer; add it to LAYERS in tests/tidy/check_layers.py"]
    complaints = []
    for line, header in includes(text):
        where = f"runtime/{path}:{line}: "
        if ".." in Path(header).parts:
            complaints.append(where + f"{header}: includes are relative to runtime/, without ..")
            continue
        # Not a header of ours: cuda/runtime.h is, cuda/atomic is libcu++.
        ours = (source_files.ROOT / "runtime" / header).exists()
        for pattern, allowed in [] if ours else FOREIGN:
            if re.fullmatch(pattern, header) and not inside(str(path.parent), allowed):
                complaints.append(where + f"{header} belongs only into {', '.join(allowed) or 'nothing in runtime/'}")
        target = header.split("/")[0]
        if "/" not in header or target not in LEVEL or target == folder:
            continue
        if header.startswith("cuda/") and not ours:
            continue  # libcu++, judged above
        if LEVEL[target] >= LEVEL[folder]:
            complaints.append(where + f"{header}: {target} is not below {folder}")
    return complaints


def main():
    complaints, seen = [], 0
    for path in source_files.source_files():
        if path.parts[0] == "runtime" and path.suffix in source_files.C_LIKE:
            text = (source_files.ROOT / path).read_text(encoding="utf-8")
            complaints += check_file(path.relative_to("runtime"), text)
            seen += 1
    for line in complaints:
        print(line)
    if seen == 0:
        print("no source file found below runtime/")
    return 1 if complaints or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
