# SPDX-License-Identifier: Apache-2.0
"""The command `dt` of this package: `dt run -n 4 python train.py`, or `python -m dt run -n 4 python train.py`."""

import os
import signal
import sys


def main() -> None:
    """Becomes the command, which takes over the process with its arguments, environment and files."""
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dt")
    # Python ignores these, and a program that is executed keeps what is ignored.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execv(command, ["dt", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"dt: cannot run {command}: {error.strerror}; install the package dt-runtime again, on a "
                 "file system that allows execution")


if __name__ == "__main__":
    main()
