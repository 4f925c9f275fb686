# SPDX-License-Identifier: Apache-2.0
"""What must fit before dt is used, and what must stop before Python ends."""

import atexit
import os

from . import _raw, _interruptible
from ._work import keep_all


def _check_abi() -> None:
    found, built = _raw.abi_version(), _raw.built_abi_version()
    if found != built:
        raise ImportError(f"libdt implements ABI {found}, but these bindings were built for ABI {built}; "
                          "install a wheel whose libdt.so is its own")


def _end(pid: int) -> None:
    if os.getpid() != pid:  # a forked child has none of dt's threads, and their locks may be held
        return
    # Handlers that were registered before the import of dt run after this one. They may call dt, but
    # must not wait for a daemon thread that is inside a call of dt: it does not come back.
    _interruptible.stop()
    _raw.stop_upcalls()
    keep_all()
    _raw.end_of_python()


def register() -> None:
    """Once, at import."""
    _check_abi()
    atexit.register(_end, os.getpid())
