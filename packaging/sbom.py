#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py COMPONENTS NAME FOLDER PLACE [LEFT_OUT...]: writes FOLDER/PLACE, an SPDX 2.3 document for a package whose
content is FOLDER.

The document lists the files with their checksums, and the components in them and behind them with version and
licence. COMPONENTS is the build's components.json. LEFT_OUT names files that are made or changed after the document.
The same input gives the same bytes."""

import hashlib
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path

FIRST_ZIP_DATE_S = 315532800  # 1980-01-01, the date of each file in our packages
BINARY = re.compile(r"(\.so(\.\d+)*|/dt|/dt-bench-worker|\.dll|\.class)$")


def created():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH",
                                                                              FIRST_ZIP_DATE_S))))


def identifier(name):
    return "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.]+", "-", name.replace("+", "plus"))


def describe_file(number, name, data):
    return {
        "SPDXID": f"SPDXRef-File-{number}",
        "fileName": f"./{name}",
        "fileTypes": ["BINARY" if BINARY.search("/" + name) else "OTHER"],
        "checksums": [{"algorithm": algorithm, "checksumValue": hashlib.new(algorithm.lower(), data).hexdigest()}
                      for algorithm in ("SHA1", "SHA256")],
        "licenseConcluded": "NOASSERTION",
        "licenseInfoInFiles": ["NOASSERTION"],
        "copyrightText": "NOASSERTION",
    }


def describe_component(component):
    references = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                   "referenceLocator": component["purl"] + component["version"]}]
    if "cpe" in component:
        references.append({"referenceCategory": "SECURITY", "referenceType": "cpe23Type",
                           "referenceLocator": component["cpe"]})
    package = {
        "SPDXID": identifier(component["name"]),
        "name": component["name"],
        "versionInfo": component["version"],
        "downloadLocation": component.get("home", "NOASSERTION"),
        "filesAnalyzed": False,
        "licenseConcluded": component["licence"],
        "licenseDeclared": component["licence"],
        "copyrightText": component["copyright"],
        "externalRefs": references,
    }
    if component.get("built_from"):
        package["sourceInfo"] = f"built from the package {component['built_from']}"
    return package


def verification_code(files):
    """What SPDX 2.3 calls so: the SHA-1 of the files' SHA-1 values, sorted and joined."""
    digests = sorted(each["checksums"][0]["checksumValue"] for each in files)
    return hashlib.sha1("".join(digests).encode()).hexdigest()


def relationship(element, kind, related):
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


def document(product, name, files, left_out):
    """`product` is the content of components.json, `files` the bytes of each file by its path in the package."""
    # A component that this build does not contain has no version.
    components = [each for each in product["components"] if each["version"]]
    described = [describe_file(number, path, files[path]) for number, path in enumerate(sorted(files), 1)]
    main = describe_component(product)
    carried = set()
    relationships = [relationship("SPDXRef-DOCUMENT", "DESCRIBES", main["SPDXID"])]
    relationships += [relationship(main["SPDXID"], "CONTAINS", each["SPDXID"]) for each in described]
    for component in components:
        relationships.append(relationship(main["SPDXID"], component["link"], identifier(component["name"])))
        if component["link"] == "STATIC_LINK":
            carried.add(component["name"])
    licences = {product["licence"]} | {licence for each in components if each["name"] in carried
                                       for licence in each["licence"].split(" AND ")}
    main |= {
        "packageFileName": name,
        "filesAnalyzed": True,
        "packageVerificationCode": {
            "packageVerificationCodeValue": verification_code(described),
            "packageVerificationCodeExcludedFiles": [f"./{path}" for path in left_out],
        },
        "licenseInfoFromFiles": ["NOASSERTION"],
        "licenseConcluded": " AND ".join(sorted(licences)),
    }
    result = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "creationInfo": {"created": created(), "creators": [f"Tool: dt-sbom-{product['version']}"]},
        "packages": [main, *map(describe_component, components)],
        "files": described,
        "hasExtractedLicensingInfos": [{"licenseId": each["licence"], "name": each["name"],
                                        "extractedText": each["licence_text"]}
                                       for each in components if "licence_text" in each],
        "relationships": relationships,
    }
    # A name of its own for each content.
    digest = hashlib.sha256(json.dumps(result).encode()).hexdigest()
    result["documentNamespace"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"
    return json.dumps(result, indent=1).encode() + b"\n"


def add(entries, place, components, name, *left_out):
    """Adds the document under the path `place` to `entries`, the content of the package `name`."""
    product = json.loads(Path(components).read_text(encoding="utf-8"))
    described = {path: data for path, data in entries.items() if path not in left_out}
    entries[place] = document(product, name, described, (place, *left_out))


def main():
    components, name, folder, place, *left_out = sys.argv[1:]
    root = Path(folder)
    entries = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    add(entries, place, components, name, *left_out)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_bytes(entries[place])


if __name__ == "__main__":
    main()
