#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wheel_test.py URL WHEEL...: checks what each wheel says of itself: its name, metadata, tag and list of files, and
what the one for Pythons without a module does.

Rules: https://packaging.python.org/en/latest/specifications, core-metadata, binary-distribution-format and
recording-installed-packages."""

import base64
import csv
import email
import functools
import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

URL, WHEELS = sys.argv[1], [Path(name) for name in sys.argv[2:]]
FIELDS = {
    "Metadata-Version": r"2\.4",
    "Name": "dt-runtime",
    "Version": r"\d+\.\d+\.\d+",
    "Summary": ".{1,512}",
    "Author": ".+",
    "Keywords": r"[\w ]+(,[\w ]+)*",
    "License-Expression": r"Apache-2\.0",
    "Requires-Python": r">=3\.\d+,<3\.\d+|>=3\.6",
    "Description-Content-Type": "text/markdown",
}
CLASSIFIER = re.compile(r"\w[\w +#./-]*( :: [\w +#./-]+)+")


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheels = []
        for path in WHEELS:
            with zipfile.ZipFile(path) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
            [info] = {name.split("/")[0] for name in files if ".dist-info/" in name}
            cls.wheels.append((path.name, files, info, email.message_from_bytes(files[f"{info}/METADATA"])))

    def test_fields(self):
        for name, files, info, metadata in self.wheels:
            with self.subTest(wheel=name):
                for field, pattern in FIELDS.items():
                    self.assertRegex(" ".join(metadata.get_all(field, [])), rf"\A(?:{pattern})\Z", field)
                self.assertTrue(metadata.get_payload().startswith("# dt for Python"))
                for licence in metadata.get_all("License-File"):
                    self.assertIn(f"{info}/licenses/{licence}", files)
                self.assertEqual(metadata.get_all("Project-URL"), [f"Source, {URL}"] if URL else None)

    def test_classifiers(self):
        for name, _, _, metadata in self.wheels:
            with self.subTest(wheel=name):
                classifiers = metadata.get_all("Classifier")
                self.assertEqual(len(classifiers), len(set(classifiers)))
                for each in classifiers:
                    self.assertRegex(each, rf"\A{CLASSIFIER.pattern}\Z")
                    self.assertFalse(each.startswith("License"), "PyPI takes none beside License-Expression")
                self.assertEqual("Typing :: Typed" in classifiers, "-none-" not in name)

    def test_extras(self):
        for name, _, _, metadata in self.wheels:
            with self.subTest(wheel=name):
                extras = metadata.get_all("Provides-Extra")
                self.assertIn("numpy", extras)
                self.assertEqual(metadata.get_all("Requires-Dist"), [f'{each}; extra == "{each}"' for each in extras])

    def test_the_names_agree(self):
        for name, files, info, metadata in self.wheels:
            with self.subTest(wheel=name):
                distribution, version, python, abi, platform = name[:-len(".whl")].split("-")
                self.assertEqual((distribution, version), (metadata["Name"].replace("-", "_"), metadata["Version"]))
                self.assertEqual(info, f"{distribution}-{version}.dist-info")
                self.assertEqual(email.message_from_bytes(files[f"{info}/WHEEL"])["Tag"], f"{python}-{abi}-{platform}")
                points = files[f"{info}/entry_points.txt"]
                if abi == "none":
                    self.assertIn(b"\ndt = dt_runtime.__main__:main\n", points)
                    continue
                minor = int(python[len("cp3"):])
                self.assertEqual(metadata["Requires-Python"], f">=3.{minor},<3.{minor + 1}")
                self.assertIn(f"Programming Language :: Python :: 3.{minor}", metadata.get_all("Classifier"))
                self.assertIn(b"\ndt = dt.__main__:main\n", points)

    def test_the_record_has_each_file(self):
        for name, files, info, _ in self.wheels:
            with self.subTest(wheel=name):
                record = list(csv.reader(io.StringIO(files[f"{info}/RECORD"].decode())))
                expected = []
                for path, data in files.items():
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    listed = path != f"{info}/RECORD"
                    expected.append([path, f"sha256={digest}" if listed else "", str(len(data)) if listed else ""])
                self.assertEqual(sorted(record), sorted(expected))

    def test_without_a_module_the_command_works_and_an_import_says_why(self):
        [wheel] = [path for path in WHEELS if "-py3-none-" in path.name]
        others = {path.name.split("-")[2] for path in WHEELS} - {"py3"}
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(wheel) as archive:
                for item in archive.infolist():
                    os.chmod(archive.extract(item, folder), (item.external_attr >> 16) & 0o777)
            python = functools.partial(subprocess.run, cwd=folder, capture_output=True, text=True, check=False)
            for name in ("dt", "dt.torch"):
                run = python([sys.executable, "-c", f"import {name}"])
                self.assertEqual(run.returncode, 1)
                error = run.stderr.splitlines()[-1]
                self.assertRegex(error, rf"ImportError: dt-runtime \d+\.\d+\.\d+ has no module for CPython "
                                        rf"{re.escape(platform.python_version())}: ")
                [named] = re.findall(r"Use CPython ([\d., ]+) \(", error)
                self.assertEqual({"cp" + each.replace(".", "") for each in named.split(", ")}, others)
            run = python([sys.executable, "-m", "dt", "run", "-n", "2", "sh", "-c", "echo $DT_RANK of $DT_WORLD_SIZE"])
            self.assertEqual((run.returncode, sorted(run.stdout.splitlines()), run.stderr),
                             (0, ["[0] 0 of 2", "[1] 1 of 2"], ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
