# SPDX-License-Identifier: Apache-2.0
"""describe_python.py MODULES: prints this Python's path, version, folder of headers and suffix of modules, a line each.
Fails if dt cannot make a wheel for it, or if it lacks one of MODULES ("numpy, venv")."""

import os
import sys
import sysconfig

if sys.implementation.name != "cpython" or sys.version_info < (3, 9):
    sys.exit("it is not CPython 3.9 or newer")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("it is built without the GIL, which dt's module needs")
headers = sysconfig.get_path("include")
if not os.path.exists(os.path.join(headers, "Python.h")):
    sys.exit(f"there is no {headers}/Python.h")
for module in sys.argv[1].split(", "):
    __import__(module)
print(sys.executable, "%d.%d" % sys.version_info[:2], headers, sysconfig.get_config_var("EXT_SUFFIX"), sep="\n")
