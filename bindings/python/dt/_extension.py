# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ half of the backend for the PyTorch that is installed, once, and loads it."""

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sysconfig
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, List, Optional

import torch

from . import _raw

_NAME = "dt_c10d"
_HERE = os.path.dirname(os.path.abspath(__file__))
_COMPILING_S = 600.0  # of one rank, while others of the host wait
_STUCK_S = 900.0  # a compiler that has not ended by then does not end
_lock = threading.Lock()
_loaded: Optional[Any] = None


def _sources() -> List[str]:
    return sorted(glob.glob(os.path.join(_HERE, "torch_source", "*")))


def _pybind11_abi() -> Dict[str, str]:
    """pybind11 shares PyTorch's classes only with code that was compiled with the same three values."""
    return {name: getattr(torch._C, f"_PYBIND11_{name}", None) or ""
            for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")}


def _key() -> str:
    """All that the result depends on."""
    digest = hashlib.sha256()
    for text in (torch.__version__, str(torch._C._GLIBCXX_USE_CXX11_ABI), _raw.version(),
                 str(sysconfig.get_config_var("SOABI")), platform.machine(), os.environ.get("CXX", ""),
                 *_pybind11_abi().values()):
        digest.update(text.encode() + b"\0")
    for path in [__file__, *_sources(), *sorted(glob.glob(os.path.join(_HERE, "include", "dt", "*")))]:
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()[:32]


def _make_private(folder: str, repair: bool) -> None:
    """Makes a folder that this user alone can write, whatever the umask is; refuses one that others can write.

    repair: takes that right from the others instead
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        facts = os.fstat(handle)
        mode = stat.S_IMODE(facts.st_mode)
        if facts.st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to user {facts.st_uid}, not to {os.geteuid()}, who runs this")
        if mode & 0o022 and repair:
            os.fchmod(handle, mode & ~0o022)
        elif mode & 0o022:
            raise PermissionError(f"others can write to {folder} (mode {mode:o}), so its code may be theirs; remove it")
    finally:
        os.close(handle)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written")


def _folder() -> str:
    """Where built code lies. What others could write there would run in this process."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    refused = []
    for base in (os.path.join(home, "dt"), os.path.join(tempfile.gettempdir(), f"dt-{os.geteuid()}")):
        torch_folder = os.path.join(base, "torch")
        folder = os.path.join(torch_folder, _key())
        try:
            os.makedirs(os.path.dirname(base), mode=0o700, exist_ok=True)
            # Others may have put folders into the upper ones, but each of these belongs to this user.
            _make_private(base, repair=True)
            _make_private(torch_folder, repair=True)
            _make_private(folder, repair=False)
            return folder
        except OSError as error:
            refused.append(str(error))
    raise RuntimeError(f"dt.torch: there is no folder for the compiled backend: {'; '.join(refused)}; set "
                       "XDG_CACHE_HOME to a folder that belongs to you and that nobody else can write")


@contextlib.contextmanager
def _one_at_a_time(path: str) -> Iterator[None]:
    """Held by one process of the host; after a limit of time by several, which is only slower."""
    with open(path, "w", encoding="utf-8") as file:
        end = time.monotonic() + _COMPILING_S
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                break  # a file system without locks
        yield


def _libdt() -> str:
    """The library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if os.path.basename(path[2]).startswith("libdt.so"):
                return path[1] + path[2]
    raise RuntimeError("dt.torch: libdt.so is not loaded as a file of its own")


def _command(out: str) -> List[str]:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise RuntimeError("dt.torch: the backend dt of torch.distributed is compiled for the installed "
                           "PyTorch when it is used first, but there is no C++ compiler: install g++ "
                           "(Debian: apt install g++), or set CXX")
    headers = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(headers, "Python.h")):
        raise RuntimeError("dt.torch: the backend dt of torch.distributed is compiled when it is used first, "
                           f"but {headers} has no Python.h: install Python's headers (Debian: apt install "
                           "python3-dev)")
    root = os.path.dirname(os.path.abspath(torch.__file__))
    found = [os.path.join(root, "include"), os.path.join(root, "include", "torch", "csrc", "api", "include"),
             headers]
    return [*compiler.split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f'-DPYBIND11_{name}="{said}"' for name, said in _pybind11_abi().items() if said),
            f"-I{os.path.join(_HERE, 'include')}", *(f"-isystem{each}" for each in found),
            *(each for each in _sources() if each.endswith(".cc")), "-o", out,
            f"-L{os.path.join(root, 'lib')}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", _libdt()]


def _build(out: str) -> None:
    """With the lock held: what a killed process has left goes."""
    for left in glob.glob(os.path.join(os.path.dirname(out), "tmp*.so")):
        with contextlib.suppress(OSError):
            os.unlink(left)
    handle, beside = tempfile.mkstemp(dir=os.path.dirname(out), suffix=".so")
    os.close(handle)
    try:
        command = _command(beside)
        try:
            run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                 timeout=_STUCK_S)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"dt.torch: the compiler of the backend has not ended in {_STUCK_S:g} s; try the command "
                               f"by hand: {shlex.join(command)}") from error
        if run.returncode != 0:
            errors = [line for line in run.stderr.splitlines()
                      if re.search("error|cannot find|undefined reference", line)] or [run.stderr]
            raise RuntimeError(f"dt.torch: the backend does not compile for PyTorch {torch.__version__}: "
                               f"{' / '.join(errors[:3])}; set CXX to a compiler that knows C++20, or see what the "
                               f"command says by hand: {shlex.join(command)}")
        os.chmod(beside, 0o700)
        os.rename(beside, out)
    except BaseException:
        os.unlink(beside)
        raise


def load() -> Any:
    """The extension module; compiled the first time, which takes about a minute."""
    global _loaded  # pylint: disable=global-statement
    with _lock:
        if _loaded is None:
            folder = _folder()
            path = os.path.join(folder, _NAME + ".so")
            if not os.path.exists(path):
                with _one_at_a_time(os.path.join(folder, "lock")):
                    if not os.path.exists(path):
                        _build(path)
            spec = importlib.util.spec_from_file_location(_NAME, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _loaded = module
        return _loaded
