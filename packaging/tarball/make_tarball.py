#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_tarball.py --out dt-VERSION-linux-MACHINE.tar.gz --libdt FILE --version V --worker-dir DIR --data-dir DIR
    --command FILE --worker FILE --data FILES... --headers FILES... --cmake FILES... --pc FILE --readme FILE
    --licences FILES... --components FILE

Packs what C and C++ programs need: libdt, the command `dt`, headers and files for build systems. The binaries
find each other by $ORIGIN. The same input gives the same bytes."""

import argparse
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sbom  # noqa: E402

DATE_S = sbom.FIRST_ZIP_DATE_S


def portable(binary, place, scratch):
    """A copy without debug information that looks for libraries in `lib`."""
    copy = Path(scratch) / os.path.basename(place)
    shutil.copyfile(os.path.realpath(binary), copy)
    subprocess.run(["strip", "--strip-unneeded", copy], check=True)
    to_lib = os.path.relpath("lib", os.path.dirname(place))
    origin = "$ORIGIN" if to_lib == "." else f"$ORIGIN/{to_lib}"
    subprocess.run(["patchelf", "--set-rpath", origin, copy], check=True)
    return copy.read_bytes()


def collect(options):
    """The bytes of each file by its path in the tree."""
    binaries = {f"lib/libdt.so.{options.version}": options.libdt, "bin/dt": options.command,
                f"{options.worker_dir}/dt-bench-worker": options.worker}
    folders = {options.data_dir: options.data, "include/dt": options.headers, "lib/cmake/dt": options.cmake,
               "lib/pkgconfig": [options.pc], "share/doc/dt": options.licences, ".": [options.readme]}
    with tempfile.TemporaryDirectory() as scratch:
        entries = {place: portable(binary, place, scratch) for place, binary in binaries.items()}
    programs = {place for place in entries if not place.startswith("lib/")}
    for folder, files in folders.items():
        for file in files:
            entries[os.path.normpath(f"{folder}/{os.path.basename(file)}")] = Path(file).read_bytes()
    sbom.add(entries, "share/doc/dt/dt.spdx.json", options.components, os.path.basename(options.out))
    return entries, programs


def pack(out, top, entries, programs, links):
    def member(name, **facts):
        item = tarfile.TarInfo(f"{top}/{name}")
        item.mtime = DATE_S
        for key, value in facts.items():
            setattr(item, key, value)
        return item

    with open(out, "wb") as file, gzip.GzipFile("", "wb", mtime=DATE_S, fileobj=file) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted({*entries, *links}):
            if name in links:
                tar.addfile(member(name, type=tarfile.SYMTYPE, linkname=links[name], mode=0o777))
            else:
                tar.addfile(member(name, size=len(entries[name]), mode=0o755 if name in programs else 0o644),
                            io.BytesIO(entries[name]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("out", "version", "libdt", "command", "worker", "worker-dir", "data-dir", "pc", "readme",
                   "components"):
        parser.add_argument("--" + option, required=True)
    for option in ("data", "headers", "cmake", "licences"):
        parser.add_argument("--" + option, nargs="+", required=True)
    options = parser.parse_args()
    entries, programs = collect(options)
    links = {"lib/libdt.so": "libdt.so.0", "lib/libdt.so.0": f"libdt.so.{options.version}"}
    pack(options.out, os.path.basename(options.out)[:-len(".tar.gz")], entries, programs, links)


if __name__ == "__main__":
    main()
