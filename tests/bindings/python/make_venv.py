#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_venv.py FOLDER WHEEL STAMP: a new environment with the wheel in it, and nothing else of dt.

NumPy and PyTorch come from the system, or from the environment that this runs in. Nothing is fetched."""

import os
import shutil
import subprocess
import sys
import sysconfig


def main():
    folder, wheel, stamp = sys.argv[1:]
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", folder],
                   check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "pip", "--python", os.path.join(folder, "bin", "python"),
                    "--disable-pip-version-check", "--no-cache-dir", "--quiet",
                    "install", "--no-index", "--no-deps", "--force-reinstall", wheel],
                   check=True, env=environment)
    # --system-site-packages shows the packages of the base Python, not of the environment that this runs in.
    if sys.prefix != sys.base_prefix:
        scheme = {"base": folder, "platbase": folder}
        with open(os.path.join(sysconfig.get_path("purelib", vars=scheme), "parent_environment.pth"), "w", encoding="utf-8") as file:
            file.write(sysconfig.get_path("purelib") + "\n")
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wheel + "\n")


if __name__ == "__main__":
    main()
