#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""relative_unity.py BUILD: lets clones in different folders share ccache's results of a unity build.

Meson includes the sources of a unity file by their absolute paths. ccache compares the text of the files, so it would
run the preprocessor for each of them in another folder, a third of a build's time. This makes the paths relative. A
file that Meson wrote anew without a change keeps its time, so that nothing is compiled again.
"""
import os
import re
import sys
from pathlib import Path

build = Path(sys.argv[1]).resolve()
for unity in build.rglob("*-unity[0-9]*"):
    if unity.suffix not in (".c", ".cc", ".cpp"):
        continue
    kept = unity.with_name(unity.name + ".relative")
    written = unity.read_text()
    text = re.sub(r"^#include<(/.*)>$", lambda include: f'#include "{os.path.relpath(include[1], unity.parent)}"',
                  written, flags=re.MULTILINE)
    if text == written:
        continue
    if not kept.exists() or kept.read_text() != text:
        kept.write_text(text)
    unity.write_text(text)
    time = kept.stat().st_mtime_ns
    os.utime(unity, ns=(time, time))
