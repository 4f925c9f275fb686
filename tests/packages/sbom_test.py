#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom_test.py COMPONENTS PACKAGE...: checks the SPDX document in each package. It has the fields that SPDX 2.3
requires, lists each file with its checksums, and names the build's components with versions and licences.

Fields: https://github.com/spdx/spdx-spec, v2.3, schemas/spdx-schema.json and clauses 6 to 11."""

import hashlib
import json
import sys
import tarfile
import unittest
import zipfile
from pathlib import Path

COMPONENTS, PACKAGES = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
# For each kind of element: its required fields, with a pattern for their values.
REQUIRED = {
    "document": {"spdxVersion": r"SPDX-2\.3", "dataLicense": r"CC0-1\.0", "SPDXID": "SPDXRef-DOCUMENT", "name": ".+",
                 "documentNamespace": r"[a-z][a-z0-9+.-]*:[^#\s]+"},
    "creationInfo": {"created": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"},
    "package": {"SPDXID": r"SPDXRef-[A-Za-z0-9.-]+", "name": ".+", "downloadLocation": r"NOASSERTION|NONE|\w+://\S+"},
    "file": {"SPDXID": r"SPDXRef-[A-Za-z0-9.-]+", "fileName": r"\./.+"},
    "checksum": {"algorithm": r"SHA1|SHA256", "checksumValue": r"[0-9a-f]{40}|[0-9a-f]{64}"},
    "externalRef": {"referenceCategory": "PACKAGE-MANAGER|SECURITY", "referenceType": "purl|cpe23Type",
                    "referenceLocator": r"(pkg:[a-z]+/[^\s@]+@v?[\d.]+|cpe:2\.3:a(:[^:\s]+){10})"},
    "relationship": {"spdxElementId": "SPDXRef-.+", "relatedSpdxElement": "SPDXRef-.+",
                     "relationshipType": "DESCRIBES|CONTAINS|STATIC_LINK|DYNAMIC_LINK|GENERATED_FROM"},
    "licence": {"licenseId": r"LicenseRef-[A-Za-z0-9.-]+", "extractedText": ".+"},
}
# https://spdx.org/licenses: those that we use.
LICENCES = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "LGPL-2.1-or-later",
            "GPL-3.0-or-later WITH GCC-exception-3.1"}


def contents(package):
    if package.name.endswith(".tar.gz"):
        with tarfile.open(package) as tar:
            return {member.name.split("/", 1)[1]: tar.extractfile(member).read() for member in tar.getmembers()
                    if member.isfile()}
    with zipfile.ZipFile(package) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


class Sbom(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.product = json.loads(COMPONENTS.read_text(encoding="utf-8"))
        cls.components = {each["name"]: each for each in cls.product["components"] if each["version"]}
        cls.packages = []
        for package in PACKAGES:
            files = contents(package)
            # Exactly one document.
            [place] = [name for name in files if name.endswith("dt.spdx.json")]
            cls.packages.append((package.name, files, json.loads(files[place])))

    def require(self, kind, element):
        for field, pattern in REQUIRED[kind].items():
            self.assertIn(field, element, kind)
            self.assertRegex(element[field], rf"\A(?:{pattern})\Z", f"{kind}: {field}")

    def test_required_fields(self):
        for name, _, document in self.packages:
            with self.subTest(package=name):
                self.require("document", document)
                self.require("creationInfo", document["creationInfo"])
                self.assertRegex(document["creationInfo"]["creators"][0], "^Tool: .+")
                identifiers = [document["SPDXID"]]
                for package in document["packages"]:
                    self.require("package", package)
                    identifiers.append(package["SPDXID"])
                    # Clause 7.9: a code exactly if the files were looked at.
                    self.assertEqual("packageVerificationCode" in package, package["filesAnalyzed"])
                    for reference in package["externalRefs"]:
                        self.require("externalRef", reference)
                for file in document["files"]:
                    self.require("file", file)
                    identifiers.append(file["SPDXID"])
                    self.assertIn("SHA1", [each["algorithm"] for each in file["checksums"]])  # clause 8.4
                    for checksum in file["checksums"]:
                        self.require("checksum", checksum)
                for licence in document["hasExtractedLicensingInfos"]:
                    self.require("licence", licence)
                self.assertEqual(len(identifiers), len(set(identifiers)))
                for relationship in document["relationships"]:
                    self.require("relationship", relationship)
                    self.assertIn(relationship["spdxElementId"], identifiers)
                    self.assertIn(relationship["relatedSpdxElement"], identifiers)

    def test_each_file_has_its_checksums(self):
        for name, files, document in self.packages:
            with self.subTest(package=name):
                main = document["packages"][0]
                left_out = main["packageVerificationCode"]["packageVerificationCodeExcludedFiles"]
                self.assertEqual({each["fileName"] for each in document["files"]} | set(left_out),
                                 {f"./{name}" for name in files})
                digests = []
                for each in document["files"]:
                    data = files[each["fileName"][2:]]
                    digests.append(hashlib.sha1(data).hexdigest())
                    self.assertEqual([(one["algorithm"], one["checksumValue"]) for one in each["checksums"]],
                                     [("SHA1", digests[-1]), ("SHA256", hashlib.sha256(data).hexdigest())],
                                     each["fileName"])
                # Clause 7.9.4.
                self.assertEqual(main["packageVerificationCode"]["packageVerificationCodeValue"],
                                 hashlib.sha1("".join(sorted(digests)).encode()).hexdigest())

    def test_components_and_licences(self):
        for name, _, document in self.packages:
            with self.subTest(package=name):
                main, *others = document["packages"]
                self.assertEqual((main["name"], main["versionInfo"], main["packageFileName"]),
                                 ("dt", self.product["version"], name))
                self.assertEqual({each["name"]: each["versionInfo"] for each in others},
                                 {each["name"]: each["version"] for each in self.components.values()})
                for component in ("OpenSSL", "libuv", "toml++", "JSON for Modern C++", "CLI11", "GNU C library"):
                    self.assertRegex(self.components[component]["version"], r"^\d+\.\d+", component)
                known = LICENCES | {each["licenseId"] for each in document["hasExtractedLicensingInfos"]}
                for each in document["packages"]:
                    self.assertLessEqual(set(each["licenseConcluded"].split(" AND ")), known)
                self.assertIn("BSD-3-Clause", main["licenseConcluded"])
                # Not of what a package only uses: libstdc++ is inside those for glibc 2.28.
                inside = {each["licence"] for each in self.components.values() if each["link"] == "STATIC_LINK"}
                concluded = main["licenseConcluded"].split(" AND ")
                self.assertEqual({each for each in concluded if "GPL" in each},
                                 {each for each in inside if "GPL" in each})
                self.assertNotIn("LGPL-2.1-or-later", concluded)

    def test_openssl_and_libuv_are_inside(self):
        for name, _, document in self.packages:
            for component in ("OpenSSL", "libuv"):
                found = {each["relationshipType"] for each in document["relationships"]
                         if each["relatedSpdxElement"] == "SPDXRef-Package-" + component}
                self.assertEqual(found, {"STATIC_LINK"}, (name, component))

    def test_licence_texts_cover_the_components(self):
        texts = (Path(__file__).resolve().parents[2] / "THIRD_PARTY_LICENSES.txt").read_text(encoding="utf-8")
        for each in self.product["components"]:
            if "GCC-exception" in each["licence"]:  # which wants no text to come along
                self.assertIn("GCC Runtime Library Exception 3.1", texts)
            elif "GPL" not in each["licence"]:  # those are not in our packages
                self.assertIn(f"\n{each['copyright']}\n", texts, each["name"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
