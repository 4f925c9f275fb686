#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_symbols.py MAP LIBRARY: functions of dt.h = names in the map = symbols that libdt exports."""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tidy"))
import dt_header  # noqa: E402


def read_map(path):
    """({name: node}, [complaint, ...])"""
    text = dt_header.without_comments(Path(path).read_text(encoding="utf-8"))
    names, complaints = {}, []
    for node, body in re.findall(r"(\w[\w.]*)\s*\{([^}]*)\}[^;]*;", text):
        if not re.fullmatch(r"DT_\d+(\.\d+)*", node):
            complaints.append(f"{path}: the node is called {node}, not DT_<number>")
        exported = body.split("local:")[0]
        for name in re.findall(r"([^\s;:]+)\s*;", exported.replace("global:", "")):
            if "*" in name or "?" in name:
                complaints.append(f"{path}: {name}: no wildcards, list each name")
            elif name in names:
                complaints.append(f"{path}: {name} stands there twice")
            names[name] = node
    if not re.search(r"local:\s*\*\s*;", text):
        complaints.append(f"{path}: `local: *;` is missing, everything would be exported")
    return names, complaints


def read_library(path):
    """({name: version node}, [complaint, ...])"""
    output = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", path],
                            check=True, capture_output=True, text=True).stdout
    names, complaints = {}, []
    for line in output.splitlines():
        _, kind, symbol = line.split(maxsplit=2)
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if kind == "A" and re.fullmatch(r"DT_\d+(\.\d+)*", name):
            continue  # the version node itself
        if kind != "T":
            complaints.append(f"{path}: {name} is exported as {kind}, only functions may be")
        if not version:
            complaints.append(f"{path}: {name} has no symbol version")
        names[name] = version
    return names, complaints


def difference(left, left_name, right, right_name):
    return [f"{name} is in {left_name} but not in {right_name}" for name in sorted(set(left) - set(right))]


def main():
    map_path, library = sys.argv[1:]
    header = [function.name for function in dt_header.functions()]
    mapped, complaints = read_map(map_path)
    exported, more = read_library(library)
    complaints += more
    complaints += [f"{name}: not a dt_ name" for name in sorted(set(header) | set(mapped) | set(exported))
                   if not name.startswith("dt_")]
    complaints += difference(header, "dt.h", mapped, "the map") + difference(mapped, "the map", header, "dt.h")
    complaints += difference(mapped, "the map", exported, "the library")
    complaints += difference(exported, "the library", mapped, "the map")
    complaints += [f"{name}: version {exported[name]} in the library, {mapped[name]} in the map"
                   for name in sorted(set(mapped) & set(exported)) if mapped[name] != exported[name]]
    for line in complaints:
        print(line)
    if not header:
        print("no DT_API function found in dt.h: the parser is wrong")
        return 1
    if not complaints:
        print(f"{len(header)} functions: header = map = library")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
