# SPDX-License-Identifier: Apache-2.0
"""Keys and values that the ranks of a job share."""

from typing import TYPE_CHECKING, Iterable, List, Mapping, Optional, Union

from . import _raw
from ._config import Config
from ._errors import invalid
from ._interruptible import interruptible
from ._types import Handle, Owner, Unpacker, milliseconds, pack, pack_keys

if TYPE_CHECKING:
    from ._job import Job

Value = Union[str, bytes, bytearray, memoryview]


def _bytes(value: Value) -> Union[bytes, memoryview]:
    if isinstance(value, str):
        return value.encode()
    try:
        view = memoryview(value)  # bytes() would take an int for a number of zeros
        if view.ndim > 0 or view.format.startswith("T{"):  # neither an array nor a record: one number of NumPy's
            return view
    except TypeError:
        pass
    raise TypeError(f"store: a value is of type {type(value).__name__}; give str, bytes or what has the buffer "
                    "protocol and is no number")


class Store:
    """The store of a job: what Job.store gives. Values are bytes; text is stored as UTF-8, numbers are refused.

    Every timeout is in seconds; None: rendezvous.timeout_ms. Ctrl-C ends get(), wait() and barrier();
    the request itself goes on until its timeout, and a barrier() counts this caller all the same.
    """

    __slots__ = ("_job",)

    def __init__(self, job: "Job") -> None:
        self._job = job

    def set(self, key: str, value: Value, timeout: Optional[float] = None) -> None:
        """Sets a key, replacing its value."""
        _raw.store_set(self._job._handle, key, _bytes(value), milliseconds(timeout))

    def get(self, key: str, timeout: Optional[float] = None) -> bytes:
        """Waits until the key exists and gives its value."""
        return bytes(interruptible(None, _raw.store_get, self._job._handle, key,
                                   milliseconds(timeout)))

    def add(self, key: str, delta: int = 1, timeout: Optional[float] = None) -> int:
        """Adds to a number kept as text, 0 where the key is absent, and gives the sum."""
        return int(_raw.store_add(self._job._handle, key, delta, milliseconds(timeout)))

    def wait(self, keys: Iterable[str], timeout: Optional[float] = None) -> None:
        """Waits until all keys exist."""
        if isinstance(keys, str):
            raise invalid("store.wait: a str, where a list of keys is needed; give [key]")
        interruptible(None, _raw.store_wait, self._job._handle, pack_keys(keys),
                      milliseconds(timeout))

    def compare_set(self, key: str, expected: Optional[Value], desired: Value,
                    timeout: Optional[float] = None) -> bool:
        """Sets a key if its value is the expected one (None: if it is absent); whether it was set."""
        items = [None if expected is None else bytes(_bytes(expected)), bytes(_bytes(desired))]
        return bool(_raw.store_compare_set(self._job._handle, key, pack(items),
                                           milliseconds(timeout)))

    def delete(self, key: str, timeout: Optional[float] = None) -> bool:
        """Removes a key; whether it was there."""
        return bool(_raw.store_delete(self._job._handle, key, milliseconds(timeout)))

    def list(self, prefix: str = "", timeout: Optional[float] = None) -> List[str]:
        """The keys that begin with a prefix, in byte order."""
        packed = _raw.store_list(self._job._handle, prefix, milliseconds(timeout))
        return [key.decode("utf-8", "surrogateescape") for key in packed.split(b"\0")[:-1]]

    def multi_set(self, values: Mapping[str, Value], timeout: Optional[float] = None) -> None:
        """Sets several keys at once: others see all of them or none."""
        pack_keys(values)  # refuses what is no key
        items = [part for key, value in values.items() for part in (key, bytes(_bytes(value)))]
        _raw.store_multi_set(self._job._handle, pack(items), milliseconds(timeout))

    def multi_get(self, keys: Iterable[str],
                  timeout: Optional[float] = None) -> List[Optional[bytes]]:
        """The values of several keys in one round trip, None for each absent one."""
        if isinstance(keys, str):
            raise invalid("store.multi_get: a str, where a list of keys is needed; give [key]")
        names = list(keys)
        packed = Unpacker(_raw.store_multi_get(self._job._handle, pack_keys(names),
                                               milliseconds(timeout)))
        return [packed.item() for _ in names]

    def barrier(self, name: str, count: int = 0, timeout: Optional[float] = None) -> None:
        """Returns when `count` callers (0: the world size) have reached the barrier of this name."""
        interruptible(None, _raw.store_barrier, self._job._handle, name, count,
                      milliseconds(timeout))


class StoreServer(Owner):
    """A store served by this process, for ranks that are its threads or that it starts.

    config: job.id, job.world_size, store.bind, job.master_port (0: the kernel chooses)
    The ranks get job.master_addr 127.0.0.1, job.master_port = port, job.store_served = true.
    """

    def __init__(self, config: Optional[Config] = None) -> None:
        number = _raw.store_serve(0 if config is None else _handle_of(config))
        super().__init__(Handle(number, _raw.store_server_destroy))

    @property
    def port(self) -> int:
        """Where it is served."""
        return int(_raw.store_server_port(self._handle))

    def close(self) -> None:
        """Stops serving; ranks still joined hear of a lost store."""
        super().close()


def _handle_of(config: Config) -> int:
    """Of a config that is open: 0 would mean none."""
    if config._handle == 0:
        raise invalid("the config is closed; make a new one")
    return config._handle
