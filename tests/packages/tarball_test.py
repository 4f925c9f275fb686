#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tarball_test.py TARBALL OPENSSL_VERSION FLOOR: the tree of the tarball works where it was moved to, without
LD_LIBRARY_PATH: the command, and README's program, built by pkg-config and by CMake."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import check_readme  # noqa: E402

LIMIT_S = 100
TARBALL, OPENSSL, FLOOR = sys.argv[1:4]
CMAKE = """cmake_minimum_required(VERSION 3.16)
project(hello C)
find_package(dt 0.1 REQUIRED CONFIG)
add_executable(hello hello_allreduce.c)
target_link_libraries(hello PRIVATE dt::dt)
"""


def hello_program():
    readme = (TESTS.parent / "README.md").read_text(encoding="utf-8")
    return next(body for mark, _, body in check_readme.blocks(readme) if mark == "file hello_allreduce.c")


class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = Path(tempfile.mkdtemp(prefix="dt-tarball."))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        with tarfile.open(TARBALL) as tar:
            tar.extractall(cls.scratch / "unpacked")
            cls.members = {member.name: member for member in tar.getmembers()}
        cls.top = Path(TARBALL).name[:-len(".tar.gz")]
        cls.tree = cls.scratch / "moved" / "here"
        cls.tree.parent.mkdir()
        (cls.scratch / "unpacked" / cls.top).rename(cls.tree)
        cls.environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        cls.environment |= {"PATH": f"{cls.tree}/bin:{os.environ['PATH']}", "CMAKE_PREFIX_PATH": str(cls.tree),
                            "PKG_CONFIG_LIBDIR": f"{cls.tree}/lib/pkgconfig"}

    def shell(self, command, folder):
        result = subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=self.environment, text=True,
                                capture_output=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def program_folder(self, name):
        folder = self.scratch / name
        folder.mkdir()
        (folder / "hello_allreduce.c").write_text(hello_program(), encoding="utf-8")
        return folder

    def check_program(self, folder):
        self.assertEqual(self.shell("dt run -n 2 ./hello", folder), "[0] the ranks of 2 add up to 1\n")
        libraries = self.shell("ldd ./hello", folder)
        path = re.search(r"libdt\.so\.0 => (\S+)", libraries)
        self.assertTrue(path, libraries)
        self.assertEqual(Path(path[1]).resolve().parent, (self.tree / "lib").resolve())
        self.assertNotRegex(libraries, "libssl|libcrypto|libuv")

    def test_members_lie_in_one_folder_and_belong_to_root(self):
        for name, member in self.members.items():
            self.assertTrue(name.startswith(self.top + "/"), name)
            self.assertEqual((member.uid, member.gid, member.mode & 0o022 if member.isfile() else 0), (0, 0, 0), name)

    def test_command_runs_ranks(self):
        lines = self.shell("dt run -n 2 sh -c 'echo rank $DT_RANK'", self.scratch).splitlines()
        self.assertEqual(sorted(lines), ["[0] rank 0", "[1] rank 1"])

    def test_bench_finds_its_worker(self):
        self.assertIn("allreduce", self.shell("dt bench allreduce -n 2 -b 8 -e 8 --iters 10", self.scratch))

    def test_program_by_pkg_config(self):
        folder = self.program_folder("by_pkg_config")
        self.shell("cc hello_allreduce.c $(pkg-config --cflags --libs dt) -o hello", folder)
        self.check_program(folder)
        self.assertIn(self.shell("pkg-config --modversion dt", folder).strip(), self.shell("dt --version", folder))

    @unittest.skipUnless(shutil.which("cmake"), "cmake is not here")
    def test_program_by_cmake(self):
        folder = self.program_folder("by_cmake")
        (folder / "CMakeLists.txt").write_text(CMAKE, encoding="utf-8")
        self.shell("cmake -S . -B build >log && cmake --build build >>log && mv build/hello hello", folder)
        self.check_program(folder)

    def test_binaries_look_only_in_the_tree(self):
        binaries = [path for path in self.tree.rglob("*") if path.is_file() and not path.is_symlink()
                    and path.read_bytes()[:4] == b"\x7fELF"]
        self.assertEqual(len(binaries), 3, binaries)
        for path in binaries:
            headers = self.shell(f"objdump -p '{path}'", self.scratch)
            places = re.findall(r"(?:RPATH|RUNPATH)\s+(\S+)", headers)
            self.assertEqual([(path.parent / place.replace("$ORIGIN", ".")).resolve() for place in places],
                             [(self.tree / "lib").resolve()], path)
        self.shell(" ".join([str(TESTS / "abi" / "check_floor.py"), FLOOR, *map(str, binaries)]), self.scratch)

    def test_its_openssl_reads_no_configuration(self):
        """With the default provider left out, as this file does, the system's OpenSSL could not greet."""
        folder = self.program_folder("openssl")
        (folder / "openssl.cnf").write_text("openssl_conf = init\n[init]\nproviders = all\n[all]\nbase = base\n"
                                            "[base]\nactivate = 1\n", encoding="utf-8")
        self.shell("cc hello_allreduce.c $(pkg-config --cflags --libs dt) -o hello", folder)
        secured = f"OPENSSL_CONF=$PWD/openssl.cnf DT_SECURITY_MODE=encrypt DT_TOKEN={'5a' * 32}"
        self.assertEqual(self.shell(f"{secured} dt run -n 2 ./hello", folder), "[0] the ranks of 2 add up to 1\n")

    def test_texts_are_there(self):
        for name in ("README.md", "share/doc/dt/LICENSE", "share/doc/dt/THIRD_PARTY_LICENSES.txt"):
            text = (self.tree / name).read_text(encoding="utf-8")
            self.assertNotRegex(text, r"@[A-Z]+@")
        self.assertIn(f"OpenSSL {OPENSSL}", (self.tree / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
