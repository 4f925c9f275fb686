# SPDX-License-Identifier: Apache-2.0
"""What `conan create` does with the package: builds a program by pkg-config and runs it on two ranks."""

import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.layout import basic_layout


class TestDt(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "PkgConfigDeps", "VirtualRunEnv"

    def layout(self):
        basic_layout(self)

    def requirements(self):
        self.requires(self.tested_reference_str)

    def build(self):
        source = os.path.join(self.source_folder, "..", "..", "..", "examples", "hello_allreduce", "hello_allreduce.c")
        self.run(f'PKG_CONFIG_PATH="{self.generators_folder}" sh -c \'cc "{source}" -o hello '
                 "$(pkg-config --cflags --libs dt)'")

    def test(self):
        if can_run(self):
            self.run("dt run -n 2 ./hello", env="conanrun")
