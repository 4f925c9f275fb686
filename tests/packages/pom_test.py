#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pom_test.py MAKE_POM TEMPLATE VERSION URL JAR: the jar's POM has what Maven Central wants. It names an address of the
project only if the option project_url does."""

import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zipfile
from pathlib import Path

MAKE_POM, TEMPLATE, VERSION, URL, JAR = sys.argv[1:]
SPACE = "{http://maven.apache.org/POM/4.0.0}"
# https://central.sonatype.org/publish/requirements
REQUIRED = {
    "modelVersion": "4.0.0", "groupId": "io.dt", "artifactId": "dt", "version": VERSION, "packaging": "jar",
    "licenses/license/name": "Apache-2.0", "licenses/license/url": "https://www.apache.org/licenses/LICENSE-2.0",
    "developers/developer/name": "The dt authors",
}


def parsed(text):
    """Paths of elements and their text, except for `name` and `description`, which have any."""
    found = {}

    def visit(element, path):
        for child in element:
            name = path + child.tag.removeprefix(SPACE)
            found[name] = (child.text or "").strip()
            visit(child, name + "/")

    visit(xml.etree.ElementTree.fromstring(text), "")
    return found


def made(url):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pom.xml"
        subprocess.run([MAKE_POM, TEMPLATE, VERSION, url, out], check=True)
        return out.read_text(encoding="utf-8")


class Pom(unittest.TestCase):
    def check(self, elements, url):
        self.assertLessEqual(REQUIRED.items(), elements.items())
        self.assertTrue(elements["name"] and elements["description"])
        scm = {"connection": f"scm:git:{url}", "developerConnection": f"scm:git:{url}", "url": url}
        named = {"url": url, "scm": "", **{f"scm/{name}": text for name, text in scm.items()}} if url else {}
        self.assertEqual({name: text for name, text in elements.items() if name.split("/")[0] in ("url", "scm")}, named)

    def test_address_is_named(self):
        url = "https://example.org/dt?a=1&b=<2>"
        self.check(parsed(made(url)), url)

    def test_no_address_is_invented(self):
        self.check(parsed(made("")), "")

    def test_jar(self):
        with zipfile.ZipFile(JAR) as jar:
            text = jar.read("META-INF/maven/io.dt/dt/pom.xml").decode()
        self.check(parsed(text), URL)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
