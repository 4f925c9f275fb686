# SPDX-License-Identifier: Apache-2.0
"""The backend "dt" of torch.distributed: how its process groups meet, and end.

Each group is a job of its own. Its rank 0 serves a store, and says where in the store that the group
already has.
"""

import atexit
import contextlib
import datetime
import ipaddress
import os
import secrets
import socket
import struct
import sys
import weakref
from typing import Any, Dict, Iterator, Optional, Tuple

import torch.distributed

from ._comm import Comm
from ._config import Config
from ._errors import Error, invalid
from ._job import Job
from ._store import StoreServer

_KEY = "dt"
_LEAVING_S = 5.0  # for the others, when Python ends


class Group:
    """The handles of a process group."""

    def __init__(self, job: Job, server: Optional[StoreServer]) -> None:
        self.job = job
        self.server = server
        self.comm: Comm = job.world()


_groups: "weakref.WeakSet[Group]" = weakref.WeakSet()


def _source_address(host: str) -> str:
    """The address of this host from which it reaches another one; "" without a route."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _interface_address(chosen: str) -> str:
    """What network.interface names: an address, a network or a name."""
    try:
        network = ipaddress.ip_network(chosen, strict=False)
    except ValueError:
        import fcntl
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(probe, 0x8915, struct.pack("256s", chosen.encode()[:15]))  # SIOCGIFADDR
            except OSError as error:
                raise invalid(f"network.interface: {chosen!r}: {error.strerror}") from error
        return socket.inet_ntoa(found[20:24])
    if network.num_addresses == 1:
        return str(network.network_address)
    address = _source_address(str(network.network_address + 1))
    if not address or ipaddress.ip_address(address) not in network:
        raise invalid(f"network.interface: this host has no address in {chosen}")
    return address


def _where_to_serve(store: Any, config: Config) -> Tuple[str, str]:
    """The address that dt's store binds, and the one that the other ranks are told."""
    while isinstance(store, torch.distributed.PrefixStore):
        store = store.underlying_store
    master = str(getattr(store, "host", ""))  # of a TCPStore
    local = _source_address(master) if master else ""
    by_name = bool(local) and _is_loopback(local)
    if by_name and (master == "localhost" or master == local):
        told = bind = local  # all ranks are here
    elif config.get("network.interface"):
        told = bind = _interface_address(config.get("network.interface"))
    elif by_name:
        told, bind = master, "0.0.0.0"  # /etc/hosts leads the host's own name to loopback
    else:
        told = bind = local or _source_address("192.0.2.1") or "127.0.0.1"  # by the default route
    given = config.get("store.bind")
    if given:
        return given, told if given in ("0.0.0.0", "::") else given
    return bind, told


@contextlib.contextmanager
def _with_token(settings: Dict[str, Any], token: str) -> Iterator[Dict[str, Any]]:
    """Settings that hold a token, which no other process can read."""
    if not token:
        yield settings
        return
    file = os.memfd_create("dt-token")
    try:
        os.fchmod(file, 0o600)
        os.write(file, token.encode())
        yield {**settings, "security.token_file": f"/proc/self/fd/{file}"}
    finally:
        os.close(file)


def _takes_token(config: Config) -> bool:
    """Whether no token of the user's own applies, as where a launcher carries one."""
    return (config.get("security.mode") != "none" and not config.get("security.token_file")
            and not os.environ.get("DT_TOKEN"))


def _milliseconds(timeout: datetime.timedelta) -> int:
    return max(1, round(timeout.total_seconds() * 1000))


def _meet(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Group:
    """Joins the job of a group. All members call it with the store of the group alone."""
    limit_ms = _milliseconds(timeout)
    settings: Dict[str, Any] = {
        "job.rank": rank, "job.world_size": size, "job.local_rank": -1, "job.store_served": size > 1,
        "rendezvous.timeout_ms": limit_ms, "collective.timeout_ms": limit_ms}
    config = Config()
    if size == 1:
        return Group(Job(Config(settings=settings)), None)
    server = None
    token = secrets.token_hex(32) if rank == 0 and _takes_token(config) else ""
    if rank == 0:
        bind, told = _where_to_serve(store, config)
        name = "torch-" + secrets.token_hex(8)
        with _with_token({"job.id": name, "job.world_size": size, "store.bind": bind}, token) as served:
            server = StoreServer(Config(settings=served))
        store.set(_KEY, " ".join((name, told, str(server.port), token)))
        port = str(server.port)
    else:
        store.wait([_KEY], timeout)
        name, told, port, token = store.get(_KEY).decode().split(" ")
        if not _takes_token(config):
            token = ""
    settings.update({"job.id": name, "job.master_addr": told, "job.master_port": port})
    with _with_token(settings, token) as joining:
        job = Job(Config(settings=joining))
    if rank == 0:
        with contextlib.suppress(Exception):  # some stores cannot; it misleads only a later group here
            store.delete_key(_KEY)
    return Group(job, server)


def communicator(options: Any) -> Group:
    """The communicator of a new process group, of which this process is a member."""
    group = _meet(options.store, options.group_rank, options.group_size, options.timeout)
    _groups.add(group)
    return group


def _create(options: Any, _: Any) -> Any:
    from ._extension import load
    extension = load()  # before the meeting: it may take a minute the first time
    group = communicator(options)
    return extension.Backend(options.group_rank, options.group_size, group.comm._owner.number,
                             group.job._handle, _milliseconds(options.timeout), options.group_id, group)


def _leave() -> None:
    """At the end of Python: groups that were not destroyed."""
    failed = getattr(sys, "last_value", None)
    for group in list(_groups):
        with contextlib.suppress(Error):
            if failed is not None:
                group.job.abort(f"{type(failed).__name__}: {failed}".replace("\0", " "))
            else:
                group.job.finalize(_LEAVING_S)


def register() -> None:
    """Makes the backend known: an entry point of torch.distributed, and what `import dt.torch` does."""
    backend = torch.distributed.Backend
    if int(torch.__version__.partition(".")[0]) >= 2 and "DT" not in backend._plugins:
        backend.register_backend("dt", _create, extended_api=True, devices=["cpu"])
        atexit.register(_leave)
