# SPDX-License-Identifier: Apache-2.0
"""What the public classes need of the generated module; its flat functions are those of raw.h."""

from typing import Any, Optional, Tuple

class Buffer:
    address: int
    count: int
    dtype: int
    on_gpu: bool
    readonly: bool
    def __init__(self, array: Any, dtype: Any = None) -> None: ...
    @classmethod
    def from_address(cls, address: int, count: int, dtype: Any, owner: Any = None,
                     on_gpu: bool = False, readonly: bool = False) -> "Buffer": ...

class Region:
    address: int
    count: int
    exports: int
    itemsize: int
    on_gpu: bool
    _dtype: int
    def __init__(self, address: int, count: int, dtype: int, on_gpu: bool = False) -> None: ...
    def _take(self) -> int: ...
    def _give(self, address: int) -> None: ...

def buffer(array: Any, writable: bool, what: str) -> Tuple[int, int, int, bool, Any]: ...
def view(address: int, count: int, format: str, itemsize: int) -> memoryview: ...
def __getattr__(name: str) -> Any: ...
