#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one of the programs of tests.exe in processes of its own and checks what it says."""

import argparse
import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from xml.etree import ElementTree

LIMIT_S = 120


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    sys.stdout.write(done.stdout + done.stderr)
    return done


def collectives(options):
    for ranks in ("2", "3"):
        assert run([options.dt, "run", "-n", ranks] + options.command + ["collectives"]).returncode == 0
    renumbered = 'case $DT_RANK in 1) DT_LOCAL_RANK=2 ;; 2) DT_LOCAL_RANK=1 ;; esac; exec "$@"'
    command = [options.dt, "run", "-n", "4", "sh", "-c", renumbered, "sh"] + options.command + ["collectives"]
    assert run(command).returncode == 0


def peer_death(options):
    done = run([options.dt, "run", "-n", "2", "--no-prefix", "--on-failure", "continue"] + options.command + ["peer-death"])
    assert done.returncode == 0, done.returncode
    lines = done.stdout.split("\n")
    pid = next(line.split()[1] for line in lines if line.startswith("pid "))
    lost = next(line.split() for line in lines if line.startswith("lost "))
    assert lost[1] == "1" and lost[2] == pid and lost[4] == "True" and lost[5] == "PeerLost", lost
    assert f"again 1 {pid}" in lines, lines
    assert "left 0 1 7" in lines, lines


def readme(options):
    """The program that README.md prints."""
    program = str(Path(options.tests).parent / "readme.exe")
    assert run([options.dt, "run", "-n", "2"] + options.runtime + [program]).returncode == 0


def command(options):
    """The package's own command, of what NuGet unpacked, of what unzip did, and as its targets name it."""
    folder = Path(options.tests).parent
    package = folder.parent / "package"
    for dt in (folder / "dt", package / "runtimes/linux-x64/native/dt"):
        assert run([str(dt), "run", "-n", "2"] + options.runtime + [str(folder / "readme.exe")]).returncode == 0
        assert run([str(dt), "run", "-n", "2", "sh", "-c", "exit 7"]).returncode == 7
    assert run([str(folder / "dt"), "bench", "allreduce", "-n", "2", "-b", "8", "-e", "8"]).returncode == 0
    with zipfile.ZipFile(options.package) as packed:
        for entry in packed.infolist():
            mode = entry.external_attr >> 16
            assert stat.S_ISREG(mode), entry
            assert bool(mode & 0o111) == (Path(entry.filename).name in ("dt", "dt-bench-worker")), entry
    assert "Apache License" in (package / "LICENSE").read_text()
    assert "OpenSSL" in (package / "THIRD_PARTY_LICENSES.txt").read_text()
    found = sorted(package.glob("build*/*/Dt.targets"))
    assert {targets.parts[-3] + "/" + targets.parts[-2] for targets in found} == {
        "build/net472", "build/netstandard2.1", "buildTransitive/net472", "buildTransitive/netstandard2.1"}, found
    for targets in found:
        names = {element.tag.rpartition("}")[2]: element.text for element in ElementTree.parse(targets).iter()}
        native = re.fullmatch(r"\$\(\[System.IO.Path\]::GetFullPath\('\$\(MSBuildThisFileDirectory\)(.*)'\)\)",
                              names["DtNativeFolder"]).group(1)
        assert (targets.parent / names["DtCommand"].replace("$(DtNativeFolder)", native)).resolve() == \
            (package / "runtimes/linux-x64/native/dt").resolve()


def restored(options):
    """A program as `dotnet build` leaves it: its deps.json names what NuGet has put into its folder of packages. The
    runtime is `dotnet` alone."""
    made = Path(options.tests).parent
    name, version = re.search(r"^(Microsoft\.NETCore\.App) (\S+)", subprocess.run(
        options.runtime + ["--list-runtimes"], check=True, capture_output=True, text=True).stdout, re.MULTILINE).groups()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with zipfile.ZipFile(options.package) as packed:
            release = re.search(r"<version>(.*)</version>", packed.read("Dt.nuspec").decode()).group(1)
            package = root / "packages/dt" / release
            packed.extractall(package)
        for file in package.glob("runtimes/linux-x64/native/*"):
            file.chmod(0o755)  # by the package's targets
        natives = {f"runtimes/linux-x64/native/{file.name}": {"rid": "linux-x64", "assetType": "native"}
                   for file in package.glob("runtimes/linux-x64/native/*")}
        app = root / "app"
        app.mkdir()
        shutil.copy(made / "readme.exe", app / "readme.dll")
        framework = f".NETCoreApp,Version=v{version.rpartition('.')[0]}"
        (app / "readme.deps.json").write_text(json.dumps({
            "runtimeTarget": {"name": framework, "signature": ""},
            "targets": {framework: {
                "readme/1.0.0": {"dependencies": {"Dt": release}, "runtime": {"readme.dll": {}}},
                f"Dt/{release}": {"runtime": {"lib/netstandard2.1/Dt.dll": {"assemblyVersion": f"{release}.0"}},
                                  "runtimeTargets": natives}}},
            "libraries": {
                "readme/1.0.0": {"type": "project", "serviceable": False, "sha512": ""},
                f"Dt/{release}": {"type": "package", "serviceable": True, "sha512": "", "path": f"dt/{release}"}}}))
        (app / "readme.runtimeconfig.json").write_text(json.dumps(
            {"runtimeOptions": {"framework": {"name": name, "version": version}}}))
        (app / "readme.runtimeconfig.dev.json").write_text(json.dumps(
            {"runtimeOptions": {"additionalProbingPaths": [str(root / "packages")]}}))
        dt = package / "runtimes/linux-x64/native/dt"
        assert run([str(dt), "run", "-n", "2"] + options.runtime + [str(app / "readme.dll")]).returncode == 0


def leave_open(options):
    for _ in range(5):
        done = run(options.command + ["leave-open"])
        assert done.returncode == 0, done.returncode
        assert done.stdout == "" and done.stderr == ""


def domains(options):
    done = run(options.command + ["domains"])
    assert done.returncode == 0 and done.stderr == "", done.returncode


def loading(options):
    """A libdt of another ABI, and none at all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in Path(options.tests).parent.iterdir():
            shutil.copy(file, folder)
        stub = folder / "stub.c"
        stub.write_text("int dt_abi_version(void) { return 7; }\n")
        subprocess.run(options.cc.split() + ["-shared", "-fPIC", "-Wl,-soname,libdt.so.0", f"-Wl,--version-script={options.map}",
                                             str(stub), "-o", str(folder / "libdt.so.0")], check=True)
        command = options.runtime + [str(folder / "tests.exe"), "program", "version"]
        said = run(command).stdout
        assert said.startswith("DtVersionException: ") and "ABI 0" in said and "ABI 7" in said
        (folder / "libdtcs.so").unlink()
        said = run(command).stdout
        assert said.startswith("DtSystemException: ") and "libdtcs.so cannot be loaded" in said


def main():
    programs = {"collectives": collectives, "peer-death": peer_death, "leave-open": leave_open, "loading": loading,
                "domains": domains, "readme": readme, "command": command, "restored": restored}
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", type=shlex.split, required=True, help="the words before a program")
    parser.add_argument("--dt", required=True)
    parser.add_argument("--tests", required=True, help="tests.exe")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--map", default="", help="libdt's version script")
    parser.add_argument("--package", default="", help="the NuGet package")
    parser.add_argument("program", choices=programs)
    options = parser.parse_args()
    options.command = options.runtime + [options.tests, "program"]
    programs[options.program](options)


if __name__ == "__main__":
    main()
