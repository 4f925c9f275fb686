#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads include/dt/dt.h far enough for the checks: functions with their comments, structs, enums."""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/dt/dt.h"


@dataclass
class Function:
    name: str
    returns: str
    parameters: list = field(default_factory=list)
    comment: str = ""
    line: int = 0


def without_comments(text):
    """The text with comments blanked out; lines and offsets stay."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)


def comment_before(text, at):
    """The doc comment that ends right before `at`, or an empty string."""
    head = text[:at].rstrip()
    start = head.rfind("/*")
    if not head.endswith("*/") or not head[start:].startswith("/**"):
        return ""
    return head[start:]


def functions(path=HEADER):
    text = Path(path).read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"\bDT_API\s+([^;{()]*?)(\w+)\s*\(([^;{]*)\)\s*;", without_comments(text)):
        inside = " ".join(match.group(3).split())
        parameters = [] if inside in ("", "void") else [
            re.sub(r"\[\w*\]$", "", part.strip()).split()[-1].lstrip("*") for part in inside.split(",")]
        found.append(Function(match.group(2), " ".join(match.group(1).split()), parameters,
                              comment_before(text, match.start()), text.count("\n", 0, match.start()) + 1))
    return found


def structs(path=HEADER):
    """{struct: [field, ...]}"""
    text = without_comments(Path(path).read_text(encoding="utf-8"))
    return {name: re.findall(r"(\w+)\s*(?:\[\w+\])?\s*;", body) for name, body in
            re.findall(r"typedef\s+struct\s+(\w+)\s*\{([^}]*)\}\s*\w+\s*;", text)}


def enums(path=HEADER):
    """{enum: [value name, ...]}"""
    text = without_comments(Path(path).read_text(encoding="utf-8"))
    return {name: [part.split("=")[0].strip() for part in body.split(",") if part.strip()] for name, body in
            re.findall(r"typedef\s+enum\s+(\w+)\s*\{([^}]*)\}\s*\w+\s*;", text)}
