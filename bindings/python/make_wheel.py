#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the wheel, with nothing but the standard library, patchelf and strip.

make_wheel.py --out dt_runtime-VERSION-TAG.whl --readme FILE --libdt FILE --commands FILES... --licences FILES...
    --components FILE --url URL --sources FILES... [--module FILE --headers FILES... --torch FILES...]
    [--fallback FILE --pythons VERSIONS...]

Beside the package's sources and its module it has libdt and the command `dt`, which find each other
by $ORIGIN. The one for all other Pythons, py3-none, has the command and says what is missing when it is imported.
The same input gives the same bytes."""

import argparse
import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))
import sbom  # noqa: E402

# `dt` on PyPI is another program's; the module and the command are called so all the same.
NAME = "dt-runtime"
LICENCE = "Apache-2.0"
KEYWORDS = ("distributed training", "data parallel", "allreduce", "collectives", "elastic training", "parameter server")
CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: System :: Distributed Computing",
)
MODULE_CLASSIFIERS = (
    "Programming Language :: Python :: {python}",
    "Programming Language :: Python :: Implementation :: CPython",
    "Typing :: Typed",
)
# Each extra installs the package of its name.
EXTRAS = ("jax", "numpy", "torch")
# What the tags promise beside glibc: the newest names of versions in libstdc++.
NEWEST = {"28": {"GLIBCXX_3.4": 24, "CXXABI_1.3": 11}, "34": {"GLIBCXX_3.4": 29, "CXXABI_1.3": 13}}
DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can have


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def portable(binary, folder, name):
    """A copy without debug information that looks for its neighbours beside itself."""
    copy = os.path.join(folder, name)
    shutil.copyfile(binary, copy)
    subprocess.run(["strip", "--strip-unneeded", copy], check=True)
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", copy], check=True)
    with open(copy, "rb") as file:
        return file.read()


def check_tag(tag, folder):
    """A wheel that says manylinux_2_28 or manylinux_2_34 may use no symbol of a newer glibc or libstdc++."""
    claimed = re.search(r"manylinux_2_(\d+)_", tag)
    if not claimed:
        return
    limits = {"GLIBC_2": int(claimed.group(1)), **NEWEST.get(claimed.group(1), {})}
    for name in os.listdir(folder):
        symbols = output_of("objdump", "-T", os.path.join(folder, name))
        for prefix, limit in limits.items():
            found = re.findall(rf"\b{re.escape(prefix)}\.(\d+)", symbols)
            newest = max((int(minor) for minor in found), default=0)
            if newest > limit:
                sys.exit(f"make_wheel.py: {name} needs {prefix}.{newest}, newer than the tag {tag} says")


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def metadata(version, readme, python, licences, url):
    """https://packaging.python.org/en/latest/specifications/core-metadata, version 2.4 for License-Expression, beside
    which PyPI takes no classifier of a licence."""
    needed, classifiers = ">=3.6", CLASSIFIERS
    if python != "py3":
        version_of_python = f"{python[2]}.{python[3:]}"
        needed = f">={version_of_python},<{python[2]}.{int(python[3:]) + 1}"
        classifiers += tuple(each.format(python=version_of_python) for each in MODULE_CLASSIFIERS)
    fields = [("Metadata-Version", "2.4"), ("Name", NAME), ("Version", version),
              ("Summary", "Distributed training for programs that are linked, not scripted"),
              ("Author", "The dt authors"), ("Keywords", ",".join(KEYWORDS)),
              *(("Classifier", each) for each in sorted(classifiers)),
              ("License-Expression", LICENCE),
              *(("License-File", os.path.basename(licence)) for licence in licences),
              ("Requires-Python", needed)]
    if url:
        fields.append(("Project-URL", f"Source, {url}"))
    for extra in EXTRAS:
        fields += [("Provides-Extra", extra), ("Requires-Dist", f'{extra}; extra == "{extra}"')]
    fields.append(("Description-Content-Type", "text/markdown"))
    return ("".join(f"{name}: {value}\n" for name, value in fields) + f"\n{readme}").encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--out", "--libdt", "--readme", "--components", "--url"):
        parser.add_argument(option, required=True)
    for option in ("--commands", "--licences", "--sources"):
        parser.add_argument(option, nargs="+", required=True)
    for option in ("--headers", "--torch", "--pythons"):
        parser.add_argument(option, nargs="+", default=[])
    for option in ("--module", "--fallback"):
        parser.add_argument(option)
    options = parser.parse_args()

    _, version, python, abi, platform = os.path.basename(options.out)[:-len(".whl")].split("-")
    tag = f"{python}-{abi}-{platform}"
    # The one without a module leaves the name `dt` to a file that says so.
    package = "dt" if options.module else "dt_runtime"
    folders = {"headers": "dt/include/dt/", "torch": "dt/torch_source/", "sources": f"{package}/"}
    entries = {}
    if options.fallback:
        with open(options.fallback, encoding="utf-8") as file:
            text = file.read()
        for word, value in (("VERSION", version), ("PYTHONS", ", ".join(options.pythons))):
            text = text.replace(f"@{word}@", value)
        entries["dt.py"] = text.encode()
    for option, folder in folders.items():
        for source in getattr(options, option):
            with open(source, "rb") as file:
                entries[folder + os.path.basename(source)] = file.read()
    with tempfile.TemporaryDirectory() as folder:
        for binary, name in ((options.libdt, "libdt.so.0"),
                             *((path, os.path.basename(path)) for path in (options.module, *options.commands) if path)):
            entries[f"{package}/{name}"] = portable(binary, folder, name)
        executable = {f"{package}/{name}" for name in os.listdir(folder)}
        check_tag(tag, folder)

    info = f"{NAME.replace('-', '_')}-{version}.dist-info"
    with open(options.readme, encoding="utf-8") as file:
        entries[f"{info}/METADATA"] = metadata(version, file.read(), python, options.licences, options.url)
    for licence in options.licences:
        with open(licence, "rb") as file:
            entries[f"{info}/licenses/{os.path.basename(licence)}"] = file.read()
    points = f"[console_scripts]\ndt = {package}.__main__:main\n"
    if options.module:
        points += "\n[torch.distributed.backends]\ndt = dt._process_group:register\n"
    entries[f"{info}/entry_points.txt"] = points.encode()
    entries[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: dt\nRoot-Is-Purelib: false\n"
                                f"Tag: {tag}\n").encode()
    sbom.add(entries, f"{info}/sboms/dt.spdx.json", options.components, os.path.basename(options.out), f"{info}/RECORD")
    record = "".join(record_line(name, data) for name, data in sorted(entries.items()))
    entries[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(options.out, "w", zipfile.ZIP_DEFLATED) as wheel:
        # What describes a wheel comes last.
        for name in sorted(entries, key=lambda each: (each.startswith(info), each)):
            item = zipfile.ZipInfo(name, DATE)
            item.compress_type = zipfile.ZIP_DEFLATED
            # pip looks at the bits of regular files only.
            item.external_attr = (stat.S_IFREG | (0o755 if name in executable else 0o644)) << 16
            wheel.writestr(item, entries[name])


if __name__ == "__main__":
    main()
