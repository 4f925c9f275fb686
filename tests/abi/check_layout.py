#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing of dt.h may be missing from layout_test.c (fields, values) or c_api_*.c (functions)."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tidy"))
import dt_header  # noqa: E402


def main():
    layout = re.sub(r"\s+", "", (HERE / "layout_test.c").read_text(encoding="utf-8"))
    called = "".join(path.read_text(encoding="utf-8") for path in sorted(HERE.glob("c_api_*.c")))
    missing = []
    for struct, fields in dt_header.structs().items():
        if f"DT_SIZE({struct}," not in layout:
            missing.append(f"layout_test.c: DT_SIZE({struct}, ...)")
        missing += [f"layout_test.c: DT_FIELD({struct}, {name}, ...)" for name in fields
                    if f"DT_FIELD({struct},{name}," not in layout]
    for enum, values in dt_header.enums().items():
        if f"DT_SIZE({enum}," not in layout:
            missing.append(f"layout_test.c: DT_SIZE({enum}, ...)")
        missing += [f"layout_test.c: DT_VALUE({name}, ...)" for name in values
                    if f"DT_VALUE({name}," not in layout]
    for header in ("dt.h", "version.h"):
        text = (dt_header.ROOT / "include/dt" / header).read_text(encoding="utf-8")
        missing += [f"layout_test.c: {name}" for name in re.findall(r"#define (DT_\w+)[ (]\S", text)
                    if name != "DT_API" and name not in layout]
    missing += [f"c_api_*.c: a call of {function.name}()" for function in dt_header.functions()
                if not re.search(rf"\b{function.name}\(", called)]
    for line in missing:
        print(f"tests/abi/{line} is missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
