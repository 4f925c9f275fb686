# SPDX-License-Identifier: Apache-2.0
"""describe_python.py MODULES: what the build must know of this Python, a line each: its path, its version, the folder of
its headers, the end of a module's name. Fails where no wheel can be made for it, or it lacks one of MODULES."""

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
