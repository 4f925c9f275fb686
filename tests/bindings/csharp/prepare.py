#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what the tests run from the NuGet package alone.

DIR/net472: the package's Dt.dll and native files, and tests.exe built against it.
DIR/span: the same against what the package's Dt.dll for modern frameworks is made of, which Mono can load."""

import argparse
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path


def write_vectors(json_path, out_path):
    """A line per case, which needs no parser of JSON."""
    lines = []
    for case in json.loads(json_path.read_text())["sampler"]:
        line = [case["world"], case["rank"], case["n"], case["seed"], case["epoch"], int(case["shuffle"]),
                int(case["drop_last"]), case["num_samples"]]
        if "indices" in case:
            line += case["indices"]
        else:
            line += ["sha256", case["sha256"]]
        lines.append(" ".join(map(str, line)))
    out_path.write_text("\n".join(lines) + "\n")


def program_of(readme):
    """The first block of C#."""
    return re.search(r"```csharp\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL).group(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mcs", required=True)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--span", type=Path, required=True, help="Dt.dll with spans, for Mono")
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--collectives", type=Path, required=True)
    parser.add_argument("--map", type=Path, required=True, help="of libdt, with its functions")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--stamp", type=Path, required=True)
    parser.add_argument("--example", action="append", default=[], help="a source of fashion_mnist.exe")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()

    shutil.rmtree(options.dir, ignore_errors=True)
    unpacked = options.dir / "package"
    with zipfile.ZipFile(options.package) as package:
        package.extractall(unpacked)
    # As NuGet does, whatever the package says: the owner may execute any file, and no one else.
    mask = os.umask(0o022)
    os.umask(mask)
    for file in unpacked.rglob("*"):
        if file.is_file():
            file.chmod(0o766 & ~mask)
    natives = sorted((unpacked / "runtimes/linux-x64/native").iterdir())
    strict = [options.mcs, "-langversion:7.2", "-warn:4", "-warnaserror", "-optimize+"]
    for variant, defines in (("net472", []), ("span", ["-define:DT_SPAN"])):
        folder = options.dir / variant
        folder.mkdir()
        for native in natives:
            shutil.copy(native, folder)
        dll = folder / "Dt.dll"
        shutil.copy(unpacked / "lib/net472/Dt.dll" if variant == "net472" else options.span, dll)
        subprocess.run(strict + defines + ["-unsafe", "-target:exe", f"-r:{dll}", f"-out:{folder}/tests.exe"]
                       + options.sources, check=True)
        subprocess.run(strict + ["-unsafe", "-target:exe", f"-r:{dll}", "-r:System.dll", "-r:System.Core.dll",
                                 f"-out:{folder}/fashion_mnist.exe"] + options.example, check=True)
        (folder / "Readme.cs").write_text(program_of(unpacked / "README.md"))
        subprocess.run(strict + ["-target:exe", f"-r:{dll}", f"-out:{folder}/readme.exe", str(folder / "Readme.cs")],
                       check=True)
        write_vectors(options.vectors, folder / "sampler_vectors.txt")
        shutil.copy(options.collectives, folder)
        shutil.copy(options.map, folder / "libdt.map")
    options.stamp.write_text("")


if __name__ == "__main__":
    main()
