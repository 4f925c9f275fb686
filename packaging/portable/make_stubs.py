#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_stubs.py GLIBC_VERSION FOLDER COMPILER...: what the linker takes for glibc.

A program that is linked with a new glibc asks for its newest version of each function, and does not start with an
older one. FOLDER gets stand-ins of glibc's libraries, without code, in which each name has the newest version up
to GLIBC_VERSION; what has none is taken from compat.c. glibc keeps the old versions, so the result runs with any
glibc from GLIBC_VERSION on."""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Until 2.34 these were libraries of their own. A newer one has what they had, and still has libraries of the names.
FORMER = (("libpthread.so.0", r"pthread_|sem_|__pthread_"), ("libdl.so.2", r"dl"),
          ("librt.so.1", r"shm_|mq_|aio_|timer_|lio_"), ("libutil.so.1", r"openpty|forkpty|login"))
SYMBOL = re.compile(r"^([0-9a-f]+) .{6}([FO ]) +(\S+)\s+([0-9a-f]+) +\(?(GLIBC_[0-9.]+)\)? +(\S+)$")


def number(version):
    return tuple(int(part) for part in version.split("_")[1].split("."))


def symbols_of(library, limit):
    """By name: version, whether it is data, size and address."""
    found = {}
    output = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        match = SYMBOL.match(line)
        if not match or match.group(3) in ("*UND*", "*ABS*"):
            continue
        address, kind, _, size, version, name = match.groups()
        if number(version) <= limit and (name not in found or number(version) > number(found[name][0])):
            found[name] = (version, kind == "O", int(size, 16), address)
    if not found:
        sys.exit(f"make_stubs.py: objdump -T {library} was not understood")
    return found


def former_library(name):
    return next((library for library, pattern in FORMER if re.match(pattern, name)), "libc.so.6")


def write_stub(folder, soname, symbols, compiler):
    """Data that has several names keeps them all at one place: a program copies it."""
    lines, by_address, versions = [], {}, {}
    for name, (version, is_data, size, address) in sorted(symbols.items()):
        versions.setdefault(version, []).append(name)
        by_address.setdefault((is_data, address if is_data else name), []).append((name, size))
    for (is_data, _), names in by_address.items():
        lines.append(".data" if is_data else ".text")
        for name, size in names:
            lines += [f".globl {name}", f".type {name}, {'@object' if is_data else '@function'}",
                      f".size {name}, {max(size, 1)}", f"{name}:"]
        lines.append(f".zero {max(size for _, size in names) or 1}")
    source, script = folder / f"{soname}.s", folder / f"{soname}.map"
    source.write_text("\n".join(lines + ['.section .note.GNU-stack,"",@progbits', ""]))
    script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n"
                              for version, names in sorted(versions.items(), key=lambda each: number(each[0]))))
    subprocess.run([*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}",
                    "-o", folder / soname, source], check=True)


def main():
    limit, folder, compiler = number("GLIBC_" + sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)

    def path_of(name):
        return subprocess.run([*compiler, f"-print-file-name={name}"], check=True, capture_output=True,
                              text=True).stdout.strip()

    libraries = {}
    for name, symbol in symbols_of(path_of("libc.so.6"), limit).items():
        libraries.setdefault(former_library(name), {})[name] = symbol
    libraries["libm.so.6"] = symbols_of(path_of("libm.so.6"), limit)
    for soname, symbols in libraries.items():
        write_stub(folder, soname, symbols, compiler)
    objects = [folder / "compat.o", folder / "start.o"]
    for each in objects:
        subprocess.run([*compiler, "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-c", "-o",
                        each, HERE / each.with_suffix(".c").name], check=True)
    compat = folder / "libdtcompat.a"
    compat.unlink(missing_ok=True)
    subprocess.run(["ar", "rc", compat, *objects], check=True)
    former = [folder / name for name, _ in FORMER]
    every = " ".join(map(str, [folder / "libc.so.6", path_of("libc_nonshared.a"), compat, *former]))
    (folder / "libc.so").write_text(f"GROUP ( {every} AS_NEEDED ( {path_of('ld-linux-x86-64.so.2')} ) )\n")
    (folder / "libm.so").write_text(f"INPUT ( {folder / 'libm.so.6'} )\n")


if __name__ == "__main__":
    main()
