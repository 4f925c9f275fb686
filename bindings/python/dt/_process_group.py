# SPDX-License-Identifier: Apache-2.0
"""The backend "dt" of torch.distributed: how its process groups meet, and end.

The default group is a job of dt, and later groups of its ranks are communicators of that job. A group
whose ranks are not all in such a job is a job of its own. A job's rank 0 serves a store, and publishes
its address in the store that the group already has.
"""

import array
import atexit
import contextlib
import datetime
import functools
import ipaddress
import os
import secrets
import socket
import struct
import sys
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore

from ._comm import Comm
from ._config import Config
from ._errors import Error, PeerLostError, invalid
from ._job import Job
from ._python_messages import as_torch_raises as _as_torch_raises
from ._python_messages import timed_out
from ._store import StoreServer

_KEY = "dt"
_FAILED = "! "  # instead of an address under the key: why rank 0 serves none
_FAREWELL_S = 30.0  # for the others, when the default group is destroyed
_GOODBYE_S = 1.0  # for their goodbyes, where they have taken that time
_NAME_BYTES = 47  # of an operation, of which other ranks read no more
_LEAVING_S = 5.0  # for the others, when Python ends


def _text_of(error: BaseException) -> str:
    """For dt, which takes UTF-8 without zeros."""
    name = type(error).__name__
    try:
        return f"{name}: {error}".replace("\0", " ").encode(errors="replace").decode()
    except Exception:  # pylint: disable=broad-exception-caught
        return name  # its __str__() raises


class Membership:
    """This process in a job of dt, which may carry several process groups."""

    def __init__(self, job: Job, server: Optional[StoreServer], world: Optional[Comm] = None,
                 job_ranks: Optional[List[int]] = None) -> None:
        """world: those of the job's ranks that are left, and which they are; None: all."""
        self.job = job
        self.server = server
        self.ended = False
        self.messages: Any = None  # None: there is only this rank
        self.implementation: Any = None  # of the backend, the same on all ranks: the extension, or _python_backend
        self.gpu: Optional[Membership] = None  # the same ranks' job over their GPUs
        self.warning = ""  # for the user, when the group is there
        self._world = job.world() if world is None else world
        self.job_ranks = list(range(self._world.size)) if job_ranks is None else job_ranks
        self._for_messages: Optional[Comm] = None
        self._creating = threading.Lock()  # a job makes one communicator at a time

    def create_comm(self, ranks: List[int], name: str) -> Comm:
        """The ranks alone call it, all of them; it returns when they are there."""
        with self._creating:
            return self.job.create_comm([self.job_ranks[each] for each in ranks],
                                        name.encode()[:64].decode(errors="ignore"))

    def shrunk(self, left: List[int], world: Comm) -> "Membership":
        """The same job with only these ranks of it. This object is not used any more."""
        self.ended = True
        _memberships.discard(self)
        if self.messages is not None:
            self.messages.close()
        return Membership(self.job, self.server, world, left)

    def open_messages(self, implementation: Any, name: str, timeout_s: float) -> None:
        """A communicator for the sends and receives of all groups, so that they do not stand in order
        with collectives. All ranks call it."""
        self.implementation = implementation
        size = self._world.size
        if size > 1:
            self._for_messages = self.create_comm(list(range(size)), f"{name[:60]} p2p")
            self._for_messages.set_timeout(timeout_s)
            self.messages = implementation.Messages(self._for_messages)

    def agree(self, extension: Any, why_none: str) -> Any:
        """The implementation that all ranks have. Without an extension on one of them it is the one in Python."""
        reasons = [why_none] if self._world.size == 1 else self._world.allgather_objects(why_none)
        lacking = [rank for rank, why in enumerate(reasons) if why]
        if not lacking:
            return extension
        missing = f"backend dt: rank {lacking[0]} cannot use the C++ backend"
        if _release() < (2, 15):
            raise RuntimeError(f"{missing}, and the one in Python needs PyTorch 2.15, which this is not "
                               f"({torch.__version__}): {reasons[lacking[0]]}")
        from . import _python_backend
        if self._world.rank in (0, *lacking):
            self.warning = (f"{missing}, so all ranks use the one in Python, which is slower and takes no tensors on "
                            f"GPUs (docs/torch.md): {reasons[lacking[0]]}")
        return _python_backend

    def end(self, timeout: float) -> None:
        """Leaves together with the other ranks."""
        self.ended = True
        why, error = "destroy_process_group", sys.exc_info()[1]
        if error is not None:  # as in a `finally`: the other ranks read it where they wait for this one
            why = f"left after {_text_of(error)}".encode()[:_NAME_BYTES].decode(errors="ignore")
        end = time.monotonic() + timeout
        with contextlib.ExitStack() as steps:  # in the reverse order, also where one raises
            if self.messages is not None:
                steps.callback(self.messages.close)
            steps.callback(lambda: self.job.finalize(max(_GOODBYE_S, end - time.monotonic())))
            if self.messages is not None:
                steps.callback(lambda: self.messages.leave(self._world, max(_GOODBYE_S, end - time.monotonic()), why))
            if self.gpu is not None:
                steps.callback(self.gpu.end, timeout)


class Group:
    """A process group."""

    def __init__(self, membership: Membership, comm: Comm, ranks: List[int], name: str,
                 owns_job: bool, store: Any, timeout: datetime.timedelta, first_store: Any = None) -> None:
        """first_store: of the group before any rank was lost; None: this one's"""
        self.membership = membership
        self.comm = comm
        self.ranks = ranks  # of the job, by rank of the group
        self.name = name
        self._owns_job = owns_job
        self.store = store
        self.first_store = store if first_store is None else first_store
        self.timeout = timeout
        self.number: Optional[int] = None  # of its messages, where all ranks have it already
        self._opening = threading.Lock()
        self._tries_of_gpu = 0  # the same number on all ranks
        self._on_gpu: Optional[Comm] = None
        self._gpu: Optional[Membership] = None  # of this group alone

    @_as_torch_raises()
    def split(self, store: Any, ranks: List[int], name: str, timeout_ms: int) -> Any:
        """The backend of a group of some ranks of this one, which all call it; it includes this rank."""
        chosen = [self.ranks[each] for each in ranks]
        comm = self.membership.create_comm(chosen, name)
        comm.set_timeout(timeout_ms / 1000)
        return _backend(Group(self.membership, comm, chosen, name, False, store,
                              datetime.timedelta(milliseconds=timeout_ms)), timeout_ms)

    def shrunk(self) -> "Group":
        """This group without the lost ranks, in the same job. Its job over GPUs ends; the next tensor there makes a
        new one. This object is not used any more. Collective over the ranks that are left."""
        comm, failed = self.comm, None
        mine = self.membership.job_ranks[self.comm.rank]
        for _ in self.ranks:
            try:
                comm = comm.shrink()
                comm.set_timeout(self.timeout.total_seconds())
                told = comm.allgather_objects((mine, _new_number()))
                left = [int(rank) for rank, _ in told]
                membership = self.membership.shrunk(left, comm)
                membership.open_messages(self.membership.implementation, self.name, self.timeout.total_seconds())
            except PeerLostError as error:  # one more; where rank 0 is, the next try fails alike
                failed = error
                continue
            self._owns_job = False
            gpu, self.membership.gpu = self.membership.gpu, None
            if gpu is not None:  # all that are left have come here, so no call in it begins any more
                with contextlib.suppress(Error):
                    gpu.job.abort("dt.torch.shrink_group() ends the job over GPUs of the former group")
                with contextlib.suppress(Error):
                    gpu.end(0)
            # A name of the last exchange that all of them were in: these may have lost another one meanwhile, and
            # some not know of it.
            number = told[0][1]
            group = Group(membership, comm, list(range(comm.size)), self.name, True,
                          PrefixStore(f"left/{number}", self.first_store), self.timeout, self.first_store)
            group.number = number
            return group
        assert failed is not None
        raise failed

    @_as_torch_raises()
    def open_gpu(self, device: int) -> int:
        """The communicator over GPUs. All ranks of the group call it for their first tensor there, and
        the job over GPUs is the default group's if that has one by then."""
        with self._opening:
            if self._on_gpu is None:
                self.comm.barrier()  # a rank that is gone is named at once
                shared = self.membership.gpu
                if shared is None:
                    self._tries_of_gpu += 1  # what a failed try has published stays in the store
                    shared = _meet(PrefixStore(f"gpu/{self._tries_of_gpu}", self.store), self.comm.rank,
                                   self.comm.size, self.timeout, self.name,
                                   {"backend.name": "nccl", "backend.device": device})
                    _memberships.add(shared)
                    if self._owns_job:
                        self.membership.gpu = shared
                    else:
                        self._gpu = shared
                    self._on_gpu = shared.job.world()
                else:
                    self._on_gpu = shared.create_comm(self.ranks, self.name)
                self._on_gpu.set_timeout(self.timeout.total_seconds())
            return self._on_gpu._handle

    def shutdown(self) -> None:
        """The job ends with the group that it was made for. Of others only their handles go."""
        for mine in (self._gpu, self.membership if self._owns_job else None):
            if mine is not None:
                try:
                    mine.end(min(_FAREWELL_S, self.timeout.total_seconds()))
                except Error as error:
                    warnings.warn(f"leaving the process group {self.name}: {error}", stacklevel=2)

    def abort(self) -> None:
        """Of the whole job: dt cannot end one communicator of it."""
        self.membership.ended = True
        text = f"the process group {self.name} was aborted"
        for on_gpu in (self._gpu, self.membership.gpu):
            if on_gpu is not None:
                with contextlib.suppress(Error):
                    on_gpu.job.abort(text)
        with contextlib.suppress(Error):  # torch has more to do, also where the job has ended already
            self.membership.job.abort(text)


_memberships: "weakref.WeakSet[Membership]" = weakref.WeakSet()
_default: "Optional[weakref.ref[Group]]" = None
_shrunk_group: Optional[Group] = None  # the next default group, while shrink_group() makes it


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


def _ipv6_address(name: str, table: str) -> str:
    """The first address of an interface in a text like /proc/net/if_inet6 that is not link-local; "" without any."""
    for line in table.splitlines():
        digits, _, _, scope, _, device = line.split()
        if device == name and scope != "20":
            return str(ipaddress.IPv6Address(bytes.fromhex(digits)))
    return ""


def _address_of_name(name: str) -> str:
    """The first IPv4 address of an interface, otherwise its first IPv6 address that is not link-local."""
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            return socket.inet_ntoa(found[20:24])
        except OSError as error:
            refused = error
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as table:
        address = _ipv6_address(name, table.read())
        if address:
            return address
    names = ", ".join(each for _, each in socket.if_nameindex())
    raise invalid(f"network.interface is {name!r}, which has no address here ({refused.strerror}); the interfaces of "
                  f"this host are {names}") from refused


def _interface_address(chosen: str) -> str:
    """What network.interface names: an address, a network or a name."""
    try:
        network = ipaddress.ip_network(chosen, strict=False)
    except ValueError:
        return _address_of_name(chosen)
    if network.num_addresses == 1:
        return str(network.network_address)
    address = _source_address(str(network.network_address + 1))
    if not address or ipaddress.ip_address(address) not in network:
        raise invalid(f"network.interface: this host has no address in {chosen}")
    return address


def _where_to_serve(store: Any, config: Config) -> Tuple[str, str]:
    """The address that dt's store binds, and the one that the other ranks are told."""
    while isinstance(store, PrefixStore):
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


@contextlib.contextmanager
def _telling(store: Any) -> Iterator[None]:
    """Publishes an exception of rank 0, so that the ranks that wait for its address raise it too."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # the other one is the cause
            store.set(_KEY, f"{_FAILED}{type(error).__name__}: {error}")
        raise


def _serve(store: Any, size: int, config: Config, token: str) -> Tuple[StoreServer, str, str]:
    """Serves a job's store on rank 0: the server, the name of the job, and the address for the other ranks."""
    bind, told = _where_to_serve(store, config)
    name = "torch-" + secrets.token_hex(8)
    settings = {"job.id": name, "job.world_size": size, "job.master_port": 0, "store.bind": bind}
    with _with_token(settings, token) as served:
        return StoreServer(Config(settings=served)), name, told


def _find(store: Any, timeout: datetime.timedelta, group: str) -> List[str]:
    """What rank 0 has published: name of the job, address, port, token."""
    try:
        store.wait([_KEY], timeout)
        text: str = store.get(_KEY).decode()
    except RuntimeError as error:
        if "timeout" not in str(error).lower():
            raise torch.distributed.DistBackendError(
                f"backend dt: the store of torch.distributed failed while the process group {group} waited for its "
                f"rank 0: {error}; see what ended the process that serves this store") from error
        raise timed_out(f"the process group {group}: its rank 0 has not come within {timeout.total_seconds():g} s; "
                         f"see whether that rank runs and makes the group, too ({error})") from error
    if text.startswith(_FAILED):
        raise torch.distributed.DistBackendError(
            f"backend dt: rank 0 could not make the process group {group}: {text[len(_FAILED):]}")
    return text.split(" ")


def _meet(store: Any, rank: int, size: int, timeout: datetime.timedelta, group: str,
          more: Optional[Dict[str, Any]] = None) -> Membership:
    """Joins the job of a group. All members call it with the store of the group alone.

    group: its name, for messages
    more: settings
    """
    limit_ms = _milliseconds(timeout)
    settings: Dict[str, Any] = {
        "job.rank": rank, "job.world_size": size, "job.local_rank": -1, "job.store_served": size > 1,
        "rendezvous.timeout_ms": limit_ms, "collective.timeout_ms": limit_ms, "backend.name": "host",
        **(more or {})}
    if size == 1:
        return Membership(Job(Config(settings=settings)), None)
    server = None
    if rank == 0:
        with _telling(store):
            config = Config()
            token = secrets.token_hex(32) if _takes_token(config) else ""
            server, name, told = _serve(store, size, config, token)
            port = str(server.port)
            store.set(_KEY, " ".join((name, told, port, token)))
    else:
        name, told, port, token = _find(store, timeout, group)
        if not _takes_token(Config()):
            token = ""
    settings.update({"job.id": name, "job.master_addr": told, "job.master_port": port})
    with _with_token(settings, token) as joining:
        job = Job(Config(settings=joining))
    if rank == 0:
        with contextlib.suppress(Exception):  # some stores cannot; it misleads only a later group here
            store.delete_key(_KEY)
    return Membership(job, server)


def _default_group() -> Optional[Group]:
    return _default() if _default is not None else None


def _common_job(ranks: List[int]) -> Optional[Membership]:
    """The job of the default group, if these global ranks are in it. They decide alike, because the
    default group is the same everywhere, and no process leaves it before it destroys all groups."""
    if not torch.distributed.is_initialized():
        return None
    found = _default_group()
    return found.membership if found is not None and not found.membership.ended and ranks else None


def _join(options: Any) -> Group:
    """The part of this process in a new group, of which it is a member."""
    if _shrunk_group is not None:
        return _open(_shrunk_group, None, "")
    ranks = list(options.global_ranks_in_group)
    membership = _common_job(ranks)
    if membership is not None:
        comm = membership.create_comm(ranks, options.group_id)
        comm.set_timeout(options.timeout.total_seconds())
        return Group(membership, comm, ranks, options.group_id, False, options.store, options.timeout)
    extension, why_none = _extension_or_why()  # before the meeting: it may take a minute the first time
    membership = _meet(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    return _open(Group(membership, membership.job.world(), list(range(options.group_size)), options.group_id, True,
                       options.store, options.timeout), extension, why_none)


def _open(group: Group, extension: Any, why_none: str) -> Group:
    """Of all ranks of a job that are left."""
    global _default  # pylint: disable=global-statement
    _memberships.add(group.membership)
    if group.membership.implementation is None:
        group.membership.open_messages(group.membership.agree(extension, why_none), group.name,
                                       group.timeout.total_seconds())
    if group.membership.warning:  # which may be raised here
        warnings.warn(group.membership.warning, stacklevel=2)
    if not torch.distributed.is_initialized():
        _default = weakref.ref(group)
    return group


def _new_number() -> int:
    """Of a group's messages, which no other group has: a later one may have the name of a destroyed one."""
    return 2 * secrets.randbits(61)


def _backend(group: Group, timeout_ms: int) -> Any:
    """All ranks of the group call it."""
    if group.number is None:
        number = array.array("q", [_new_number()])
        if group.comm.size > 1:
            group.comm.broadcast(number, 0)
        group.number = number[0]
    return group.membership.implementation.Backend(group.comm.rank, group.comm.size, group, group.membership.messages,
                                                   group.ranks, timeout_ms, group.name, group.number)


@_as_torch_raises()
def shrink_group() -> List[int]:
    """Makes the default process group anew without its lost ranks, and returns their old numbers. The others get new
    numbers in the old order. All other groups are destroyed.

    Every rank that is left calls it after a call of a group has failed; it returns when all have called. Rank 0 must
    be left, because it serves the stores."""
    global _shrunk_group  # pylint: disable=global-statement
    group = _default_group()
    if group is None:
        raise invalid("dt.torch.shrink_group: the default process group is not of backend dt; call "
                      'torch.distributed.init_process_group("dt")')
    config, before = torch.distributed.get_backend_config(), group.membership.job_ranks
    left = group.shrunk()
    torch.distributed.destroy_process_group()
    _shrunk_group = left
    try:
        torch.distributed.init_process_group(config, store=left.store, rank=left.comm.rank,
                                             world_size=left.comm.size, timeout=left.timeout)
    finally:
        _shrunk_group = None
    return [number for number, rank in enumerate(before) if rank not in left.membership.job_ranks]


def _extension_or_why() -> Tuple[Any, str]:
    """The backend in C++, or why there is none."""
    from ._extension import load
    try:
        return load(), ""
    except Exception as error:  # pylint: disable=broad-exception-caught
        return None, str(error) or type(error).__name__


@_as_torch_raises()
def _create(options: Any, _: Any) -> Any:
    return _backend(_join(options), _milliseconds(options.timeout))


def _leave(process: int) -> None:
    """At the end of Python: groups that were not destroyed. A forked child has none."""
    if os.getpid() != process:
        return
    failed = getattr(sys, "last_value", None)
    for membership in list(_memberships):
        with contextlib.suppress(Exception):
            if failed is not None:
                membership.job.abort(_text_of(failed))
            else:
                membership.end(_LEAVING_S)


def _release() -> Tuple[int, ...]:
    """Of PyTorch: (2, 15)."""
    return tuple(map(int, torch.__version__.split(".")[:2]))


def _shutting_down(destroy: Callable[..., None]) -> Callable[..., None]:
    """destroy_process_group() of releases before 2.7, which do not tell backends of it."""
    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        c10d = torch.distributed.distributed_c10d
        world = c10d._world
        groups = [group]
        if group in (None, c10d.GroupMember.WORLD):
            groups = sorted(world.pg_names, key=lambda each: str(world.pg_names[each]), reverse=True)
        for each in groups:
            for device in ("cpu", "cuda") if each in world.pg_map else ():
                try:
                    backend = each._get_backend(torch.device(device))
                except RuntimeError:
                    continue  # none for this device
                if hasattr(backend, "shutdown"):
                    backend.shutdown()
                    break
        destroy(group)
    return destroy_process_group


def register() -> None:
    """Makes the backend known: an entry point of torch.distributed, and what `import dt.torch` does."""
    backend = torch.distributed.Backend
    if _release() < (2, 0) or "DT" in backend._plugins:
        return
    more: Dict[str, Any] = {"devices": ["cpu", "cuda"]} if _release() >= (2, 1) else {}  # 2.0 takes both
    backend.register_backend("dt", _create, extended_api=True, **more)
    atexit.register(_leave, os.getpid())
    if _release() < (2, 7):
        ending = _shutting_down(torch.distributed.destroy_process_group)
        torch.distributed.destroy_process_group = torch.distributed.distributed_c10d.destroy_process_group = ending
