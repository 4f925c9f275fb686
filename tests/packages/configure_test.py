#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""configure_test.py MESON: a Meson project with packaging/dt.wrap configures and finds dt in the subproject, this tree
refuses to be installed into itself, and what examples/quickstart.sh says to Meson configures.

The subproject's folder is this tree, so nothing is fetched and nothing is built: that would compile dt again."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """project('hello', 'c', 'cpp', default_options: ['c_std=c99', 'cpp_std=c++20'])
executable('hello', 'hello.c', dependencies: dependency('dt', version: '>=0.1'))
"""
OFF = [f"-Ddt:{name}=disabled" for name in ("tests", "cuda", "python", "java", "csharp", "docs")]


def setup(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    # No installed dt is taken instead.
    environment["PKG_CONFIG_PATH"] = ""
    return subprocess.run([sys.argv[1], "setup", "build", *arguments], cwd=folder, env=environment, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)


class Configure(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dt-configure."))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_dependency_is_found_in_the_subproject(self):
        folder = self.folder
        (folder / "subprojects").mkdir()
        (folder / "meson.build").write_text(PROJECT, encoding="utf-8")
        shutil.copy(ROOT / "examples" / "hello_allreduce" / "hello_allreduce.c", folder / "hello.c")
        shutil.copy(ROOT / "packaging" / "dt.wrap", folder / "subprojects")
        (folder / "subprojects" / "dt").symlink_to(ROOT)
        result = setup(folder, "--force-fallback-for=dt", *OFF)
        self.assertEqual(result.returncode, 0, result.stdout)
        targets = json.loads((folder / "build" / "meson-info" / "intro-targets.json").read_text(encoding="utf-8"))
        names = {target["name"] for target in targets}
        self.assertLessEqual({"hello", "dt", "dtcore"}, names)

    def test_quickstart(self):
        script = (ROOT / "examples" / "quickstart.sh").read_text(encoding="utf-8").replace("\\\n", "")
        options = re.search(r"^ *meson setup \S+ \S+ (-D.*) >", script, re.MULTILINE)[1].split()
        self.assertIn("-Dtests=disabled", options)
        result = setup(self.folder, ROOT, *options)
        self.assertEqual(result.returncode, 0, result.stdout)
        targets = json.loads((self.folder / "build/meson-info/intro-targets.json").read_text(encoding="utf-8"))
        names = {target["name"] for target in targets}
        self.assertLessEqual({"fashion_mnist", "dt"}, names)
        self.assertNotIn("test_main", names)

    def test_own_folder_is_no_prefix(self):
        result = setup(self.folder, ROOT, "--prefix", ROOT)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"the prefix {ROOT} is the folder of dt's sources, whose headers an installation would "
                      "overwrite; choose another one, such as --prefix $HOME/.local", result.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
