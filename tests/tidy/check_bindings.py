#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each collective of dt.h is there in Python, Java and C#, blocking and with a work, and each counts all kinds."""

import re
import sys

import dt_header

BINDINGS = dt_header.ROOT / "bindings"


def pascal(name):
    return "".join(part.capitalize() for part in name.split("_"))


def camel(name):
    return name.split("_")[0] + pascal("_".join(name.split("_")[1:]))


# Words that dt.h writes as one. In Java and C# what has a v at its end takes Blocks, under the name without it.
PARTED = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


def has_tables(name):
    return name.endswith("v") and name != "recv"


def plain(name):
    """alltoallv: all_to_all"""
    name = name[:-1] if has_tables(name) else name
    return PARTED.get(name, name)


def java(name):
    return camel(plain(name)), r"[^)]*\bBlocks\b" if has_tables(name) else ""


def dotnet(name):
    return pascal(plain(name))


# {where its sources lie: the form that waits and the other one, of the collective `name`}
FORMS = {
    "python/dt": lambda name: (rf"\n    def {name}\(self", rf"\n    def {name}_async\(self"),
    "java/src/io/dt": lambda name: (
        rf"public void {java(name)[0]}\({java(name)[1]}", rf"public Work {java(name)[0]}Async\({java(name)[1]}"),
    "csharp/src": lambda name: (rf"public void {dotnet(name)}[<(]", rf"public Work {dotnet(name)}Async[<(]"),
}


def collectives(functions):
    """What takes an out_work, without the dt_. The bindings call dt_collective_launch() for each of them."""
    return [function.name[3:] for function in functions
            if {"comm", "out_work"} <= set(function.parameters)
            and function.name not in ("dt_collective_launch", "dt_group_end")]


def missing_forms(where, text, names):
    return [f"bindings/{where}: {name}: nothing matches {form!r}"
            for name in names for form in FORMS[where](name) if not re.search(form, text)]


def listed(where, text, kinds):
    """The kinds of operations in the order of a binding's list, as dt.h calls them."""
    if where == "python/dt":
        found = re.search(r"_KINDS = \(([^)]*)\)", text)
        return re.findall(r'"(\w+)"', found.group(1)) if found else []
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    found = re.search(r"public enum OperationKind\s*\{([^};]*)[};]", text)
    if not found:
        return []
    body = re.sub(r"\([^)]*\)", "", found.group(1))
    names = [part.split("=")[0].strip() for part in body.split(",")]
    if where == "csharp/src":
        known = {dotnet(name) + "V" * name.endswith("v") if name != "recv" else "Recv": name for name in kinds}
        return [known.get(name, name) for name in names]
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names]


def wrong_kinds(where, text, kinds):
    found = listed(where, text, kinds)
    return [] if found == kinds else [f"bindings/{where}: the kinds of operations are {found}, of dt.h {kinds}"]


def unfinished_loop(where, text, loop, last):
    """Each loop over all kinds ends with the last one."""
    ends = re.findall(loop, text)
    return [f"bindings/{where}: a loop over the kinds of operations ends with {end}, not with {last}"
            for end in ends if end != last] or ([] if ends else [f"bindings/{where}: no loop over the kinds"])


def text_of(path):
    files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.suffix in (".h", ".py", ".java", ".cs"))


def main():
    names = collectives(dt_header.functions())
    kinds = [value[len("DT_KIND_"):].lower() for value in dt_header.enums()["dt_kind"] if "FORCE32" not in value]
    complaints = [] if names and kinds else ["include/dt/dt.h: no collective or no kind was found"]
    for where in FORMS:
        text = text_of(BINDINGS / where)
        complaints += missing_forms(where, text, names) + wrong_kinds(where, text, kinds)
    complaints += unfinished_loop("raw.h", text_of(BINDINGS / "raw.h"), r"kind <= DT_KIND_(\w+);", kinds[-1].upper())
    complaints += unfinished_loop("csharp/src", text_of(BINDINGS / "csharp/src"),
                                  r"kind <= OperationKind\.(\w+);", dotnet(kinds[-1]) + "V" * kinds[-1].endswith("v"))
    for line in complaints:
        print(line)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
