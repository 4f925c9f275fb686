#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No unfinished marks, a licence line in each source, no tabs, no sleeping tests, no constant that nothing uses,
none that two sources of a namespace both define."""

import re
import sys

import source_files

SOURCES = source_files.C_LIKE + (
    ".py", ".sh", ".java", ".kt", ".kts", ".cs", ".fs", ".i", ".map", ".cmake", ".js", ".ts")
# Languages in which a tab means something, and files that are copied from elsewhere byte for byte.
TABS_ALLOWED = re.compile(r"(^|/)Makefile$|\.mk$|\.tsv$|^\.git")
TEXT = SOURCES + (".md", ".toml", ".yml", ".yaml", ".txt", ".build", ".in", ".json")
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
# Not a member called sleep: base::Doorbell sleeps until it is rung.
SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep|(time|Thread|asyncio)\.[sS]leep)\s*\("
                   r"|(?<![\w.>])sleep\s*\(")
SHELL_SLEEP = re.compile(r"(^|[;&|]|\bdo\b|\bthen\b)\s*sleep\s+[\d.$\"]")
# At the start of a line: of a namespace, in a file that nothing includes. Compilers that see several
# sources as one say nothing of these.
CONSTANT = re.compile(r"^(?:inline |static )?(?:constexpr|const)\b[^=({;]*?\b(k[A-Z]\w*)(?=\s*[\[={(])", re.MULTILINE)
NAMESPACE = re.compile(r"^namespace (dt[\w:]*) \{", re.MULTILINE)
LICENCE = "SPDX-License-" + "Identifier: Apache-2.0"


def code_of(line):
    """The line without a trailing comment: words about sleeping are fine."""
    return re.sub(r"(//|#(?!include)|/?\*).*$", "", line)


def check_file(path, text):
    complaints = []
    lines = text.split("\n")
    if path.suffix in SOURCES and path.suffix != ".map" and LICENCE not in "\n".join(lines[:5]):
        complaints.append(f"{path}:1: no line {LICENCE} at the top")
    if path.suffix in (".cc", ".cu"):
        for match in CONSTANT.finditer(text):
            if len(re.findall(rf"\b{match[1]}\b", text)) == 1:
                number = text.count("\n", 0, match.start()) + 1
                complaints.append(f"{path}:{number}: nothing uses {match[1]}")
    for number, line in enumerate(lines, 1):
        if "\t" in line and not TABS_ALLOWED.search(str(path)):
            complaints.append(f"{path}:{number}: a tab")
        if UNFINISHED.search(line):
            complaints.append(f"{path}:{number}: {UNFINISHED.search(line).group(0)}: finish it, or leave it out")
        if path.parts[0] != "tests" or path.suffix not in SOURCES:
            continue
        code = code_of(line)
        if SLEEP.search(code) or (path.suffix == ".sh" and SHELL_SLEEP.search(code)):
            complaints.append(f"{path}:{number}: a test sleeps: wait for the event instead")
    return complaints


def shared_names(sources):
    """`sources`: (path, text). Some builds take several sources of runtime/ as one, whichever lie together."""
    complaints, known = [], {}
    for path, text in sources:
        space = NAMESPACE.search(text)
        for match in CONSTANT.finditer(text) if space else ():
            first = known.setdefault((space[1], match[1]), path)
            if first != path:
                number = text.count("\n", 0, match.start()) + 1
                complaints.append(f"{path}:{number}: {match[1]} is defined in {first}, too: give it a name of its own")
    return complaints


def main():
    complaints, seen, product = [], 0, []
    for path in source_files.source_files():
        if path.suffix not in TEXT and path.name not in ("meson_options.txt", "Makefile", "Doxyfile"):
            continue
        try:
            text = (source_files.ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            complaints.append(f"{path}: not UTF-8")
            continue
        complaints += check_file(path, text)
        if path.suffix == ".cc" and path.parts[0] == "runtime":
            product.append((path, text))
        seen += 1
    complaints += shared_names(product)
    for line in complaints:
        print(line)
    if seen == 0:
        print("no file found")
    return 1 if complaints or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
