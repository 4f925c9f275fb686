# SPDX-License-Identifier: Apache-2.0
"""Conan 2 recipe of dt, for the tree that it lies in: conan create packaging/conan"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load, rmdir
from conan.tools.gnu import PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain

HEADERS_ONLY = ("tomlplusplus", "nlohmann_json", "cli11")


class Dt(ConanFile):
    name = "dt"
    license = "Apache-2.0"
    description = "Distributed-training runtime for programs that are linked"
    topics = ("distributed-training", "collectives", "allreduce")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    # libdt holds a copy of libuv with hidden symbols, as other libraries export functions of the same names.
    default_options = {"libuv/*:shared": False, "libuv/*:fPIC": True}

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "meson.build"))
        self.version = re.search(r"^  version: '([^']+)'", text, re.M)[1]

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for folder in ("bindings", "docs", "examples", "include", "packaging", "runtime"):
            copy(self, f"{folder}/*", root, self.export_sources_folder)
        for file in ("meson.build", "meson_options.txt", "LICENSE", "THIRD_PARTY_LICENSES.txt"):
            copy(self, file, root, self.export_sources_folder)

    def requirements(self):
        self.requires("libuv/[>=1.44 <2]", visible=False)
        self.requires("openssl/[>=3.0 <4]")
        self.requires("tomlplusplus/[>=3.3 <4]", visible=False)
        self.requires("nlohmann_json/[>=3.11 <4]", visible=False)
        self.requires("cli11/[>=2.1 <3]", visible=False)

    def build_requirements(self):
        self.tool_requires("meson/[>=1.0 <2]")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("dt runs on Linux only")
        if self.settings.get_safe("compiler.cppstd"):
            check_min_cppstd(self, 17)  # of dt.hpp; dt itself sets what it needs

    def layout(self):
        basic_layout(self)

    def generate(self):
        tools = MesonToolchain(self)
        for name in ("tests", "docs", "cuda", "python", "java", "csharp"):
            tools.project_options[name] = "disabled"
        tools.project_options["libexecdir"] = "libexec"  # not bin, where `dt` is a file
        tools.cpp_std = "c++20"  # of dt's sources, whatever the profile's programs use
        tools.project_options["unity"] = "on"
        tools.project_options["unity_size"] = "12"
        found = {dependency.ref.name: dependency for dependency in self.dependencies.host.values()}
        # dt's build includes these without asking pkg-config. The platform's own lie where the compiler looks.
        for name in HEADERS_ONLY:
            if name in found:
                tools.extra_cxxflags += [f"-I{folder}" for folder in found[name].cpp_info.aggregated_components()
                                         .includedirs]
        tools.generate()
        packages = PkgConfigDeps(self)
        if "libuv" in found:
            packages.set_property("libuv", "pkg_config_name", "libuv")  # ConanCenter's is libuv-static
        packages.generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build(target="installed-files")

    def package(self):
        # Not Meson.install(), which would build the examples.
        self.run(f'meson install -C "{self.build_folder}" --no-rebuild --destdir "{self.package_folder}"')
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "THIRD_PARTY_LICENSES.txt", self.source_folder, os.path.join(self.package_folder, "licenses"))
        # Conan writes its own.
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))

    def package_info(self):
        self.cpp_info.libs = ["dt"]
        self.cpp_info.set_property("pkg_config_name", "dt")
        self.cpp_info.set_property("cmake_file_name", "dt")
        self.cpp_info.set_property("cmake_target_name", "dt::dt")
