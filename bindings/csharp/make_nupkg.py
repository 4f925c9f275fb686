#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs Dt.VERSION.nupkg: an assembly for Mono and the .NET Framework and one for modern .NET (.NET Standard 2.1),
and libdtcs, libdt and the command `dt`, which find each other by $ORIGIN. The same inputs give the same bytes."""

import argparse
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))
import sbom  # noqa: E402

NATIVE = "runtimes/linux-x64/native/"
FRAMEWORKS = ("net472", "netstandard2.1")
COMMANDS = ("dt", "dt-bench-worker")
LONE_FILES = (*COMMANDS, "libdt.so.0")  # their endings have no content type
TYPES = {"rels": "application/vnd.openxmlformats-package.relationships+xml",
         "psmdcp": "application/vnd.openxmlformats-package.core-properties+xml"}


def native(path, name, options):
    copy = options.scratch / name
    shutil.copyfile(Path(path).resolve(), copy)
    subprocess.run([options.strip, "--strip-unneeded", str(copy)], check=True)
    subprocess.run([options.patchelf, "--set-rpath", "$ORIGIN", str(copy)], check=True)
    return copy.read_bytes()


def content_types(names):
    endings = sorted({name.rsplit(".", 1)[-1] for name in names
                      if name.rsplit("/", 1)[-1] not in ("LICENSE", *LONE_FILES)})
    lines = [f'  <Default Extension="{ending}" ContentType="{TYPES.get(ending, "application/octet")}" />'
             for ending in endings]
    lines += [f'  <Override PartName="/{name}" ContentType="application/octet" />'
              for name in ("LICENSE", *(NATIVE + name for name in LONE_FILES))]
    return ('<?xml version="1.0" encoding="utf-8"?>\n'
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">\n'
            + "\n".join(lines) + "\n</Types>\n").encode()


RELS = """<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/Dt.nuspec" Id="R1" />
  <Relationship Type="http://schemas.openxmlformats.org/package/2006/relationships/metadata/core-properties"
    Target="/package/services/metadata/core-properties/dt.psmdcp" Id="R2" />
</Relationships>
"""
CORE = """<?xml version="1.0" encoding="utf-8"?>
<coreProperties xmlns:dc="http://purl.org/dc/elements/1.1/"
  xmlns="http://schemas.openxmlformats.org/package/2006/metadata/core-properties">
  <dc:creator>dt</dc:creator>
  <dc:description>Distributed training for .NET programs.</dc:description>
  <dc:identifier>Dt</dc:identifier>
  <version>{version}</version>
</coreProperties>
"""


def main():
    parser = argparse.ArgumentParser()
    for name in ("version", "strip", "patchelf", "out", "scratch", "components", "assemblies", "url"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    options.scratch = Path(options.scratch)
    options.scratch.mkdir(parents=True, exist_ok=True)

    entries = {"_rels/.rels": RELS.encode(),
               "package/services/metadata/core-properties/dt.psmdcp":
                   CORE.format(version=options.version).encode()}
    # NuGet takes build/ for a project that refers to the package, buildTransitive/ for one behind it.
    targets = [f"{folder}/{framework}/" for folder in ("build", "buildTransitive") for framework in FRAMEWORKS]
    repository = f'<repository type="git" url={quoteattr(options.url)} />' if options.url else ""
    if options.url:
        repository = f"<projectUrl>{escape(options.url)}</projectUrl>\n    " + repository
    for framework in FRAMEWORKS:
        for name in ("Dt.dll", "Dt.xml"):
            entries[f"lib/{framework}/{name}"] = (Path(options.assemblies) / framework / name).read_bytes()
    for file in map(Path, options.files):
        if file.name.startswith("libdtcs.so"):
            entries[NATIVE + "libdtcs.so"] = native(file, "libdtcs.so", options)
        elif file.name.startswith("libdt.so"):
            entries[NATIVE + "libdt.so.0"] = native(file, "libdt.so.0", options)
        elif file.name in COMMANDS:
            entries[NATIVE + file.name] = native(file, file.name, options)
        elif file.name == "Dt.targets":
            entries.update((folder + file.name, file.read_bytes()) for folder in targets)
        elif file.name == "Dt.nuspec":
            text = file.read_text().replace("@VERSION@", options.version)
            entries[file.name] = re.sub(r"\n *@REPOSITORY@", f"\n    {repository}" if repository else "", text).encode()
        else:
            entries[file.name] = file.read_bytes()  # the README and licence texts
    sbom.add(entries, "sbom/dt.spdx.json", options.components, Path(options.out).name, "[Content_Types].xml")
    entries["[Content_Types].xml"] = content_types(entries)

    with zipfile.ZipFile(options.out, "w") as package:
        for name in sorted(entries):
            item = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            mode = 0o755 if name.rsplit("/", 1)[-1] in COMMANDS else 0o644
            item.external_attr = (stat.S_IFREG | mode) << 16
            item.compress_type = zipfile.ZIP_DEFLATED
            package.writestr(item, entries[name])


if __name__ == "__main__":
    main()
