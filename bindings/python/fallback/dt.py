# SPDX-License-Identifier: Apache-2.0
"""The command `dt`, as `python -m dt run -n 4 ./program`, for a Python that the package has no module for."""

import platform

if __name__ != "__main__":
    raise ImportError(
        f"dt-runtime @VERSION@ has no module for {platform.python_implementation()} {platform.python_version()}: its "
        "wheel for all other Pythons, which pip chose, holds the command dt alone. Use CPython @PYTHONS@ (not a build "
        "without the GIL), for which there are wheels with the module")

from dt_runtime.__main__ import main

main()
