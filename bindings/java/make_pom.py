#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_pom.py TEMPLATE VERSION URL OUT: writes the jar's POM. If the project has no public address, URL is empty and
the POM has no element that names one."""

import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape


def pom(template, version, url):
    if not url:
        template = re.sub(r"^  <(url|scm)>.*?</\1>\n", "", template, flags=re.MULTILINE | re.DOTALL)
    return template.replace("@version@", version).replace("@url@", escape(url))


if __name__ == "__main__":
    source, number, address, out = sys.argv[1:]
    Path(out).write_text(pom(Path(source).read_text(encoding="utf-8"), number, address), encoding="utf-8")
