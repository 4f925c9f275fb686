# SPDX-License-Identifier: Apache-2.0
"""Where ranks live: hosts that are network namespaces, or, where those cannot be made, this machine alone."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "multihost"))
from network import Network, Unavailable, ip  # noqa: E402

PREFIX = "dtchaos"
FOLDER = "dt-chaos-"
PORT = 29500  # in a namespace of our own: nobody else is there


def run(*command, text=None):
    return subprocess.run(command, capture_output=True, text=True, input=text)


def dying(program):
    """`program`, killed when the thread that started it ends. `ip` would forget that."""
    return ["setpriv", "--pdeathsig", "KILL", *program]


class Namespaces(Network):
    """Hosts in namespaces, with what is done to the network between them."""

    def __init__(self, hosts, serial):
        super().__init__(hosts)
        self.prefix = f"{PREFIX}{os.getpid()}x{serial}"
        self.port = PORT

    def command(self, host, program, disk=None):
        """In the host's namespace, under a name of its own; with `disk`, a file system of 64 KiB there."""
        script = f'hostname host{host} && exec {" ".join(dying([]))} "$@"'
        if disk is not None:
            script = f"mount -t tmpfs -o size=64k none {disk} && {script}"
        return ["ip", "netns", "exec", self.namespace(host), "unshare", "--uts", "--mount", "sh", "-c", script, "sh",
                *program]

    def relay_address(self, host):
        return self.address(host), 29400

    def plug(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "up")

    def lose(self, sender, receiver):
        """From now on nothing that the sender sends arrives at the receiver."""
        rules = ("table netdev chaos {\nchain lost {\ntype filter hook ingress device eth0 priority 0\n"
                 f"ip saddr {self.address(sender)} drop\n}}\n}}\n")
        done = run("ip", "netns", "exec", self.namespace(receiver), "nft", "-f", "-", text=rules)
        if done.returncode != 0:
            raise Unavailable(f"nft: {done.stderr.strip()}")

    def reset(self, one, other):
        """Resets the connections between two hosts that carry data; how many."""
        done = run("ip", "netns", "exec", self.namespace(one), "ss", "-4", "-Htn", "-K", "state", "established", "dst",
                   self.address(other), "and", "sport", "!=", f":{PORT}", "and", "dport", "!=", f":{PORT}")
        if done.returncode != 0:
            raise Unavailable(f"ss -K: {done.stderr.strip()}")
        return len(done.stdout.splitlines())

    def can_reset(self):
        """Whether the kernel resets connections when asked to: not every kernel does, and none says no."""
        done = run("ip", "netns", "exec", self.namespace(0), sys.executable, "-c", f"""
import socket, subprocess
server = socket.create_server(("{self.address(0)}", 0))
here = socket.create_connection(server.getsockname())
subprocess.run(["ss", "-4", "-K", "dst", "{self.address(0)}", "dport", "=", str(server.getsockname()[1])])
here.settimeout(5)
try:
    here.recv(1)
except TimeoutError:
    raise SystemExit("ss -K does not reset a connection")
except OSError:
    pass
""")
        return done.returncode == 0 or done.stderr.strip()

    def processes(self):
        """What still runs on the hosts."""
        found = []
        for name in self.namespaces:
            found += [int(pid) for pid in run("ip", "netns", "pids", name).stdout.split()]
        return found


class ThisMachine:
    """One host, without any rights; the port is held for the ranks as long as this lives."""

    def __init__(self, hosts, serial):
        del hosts, serial

    def __enter__(self):
        # Others can listen on it all the same, because this does not and both set SO_REUSEADDR.
        self.held = socket.socket()
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]
        return self

    def __exit__(self, *_):
        self.held.close()

    def command(self, host, program, disk=None):
        del host, disk
        return dying(program)

    def address(self, host):
        del host
        return "127.0.0.1"

    def relay_address(self, host):
        del host
        return "127.0.0.1", 0

    def processes(self):
        return []


def kill_all(pids):
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass


def folder_for(seed, keep=False):
    """Removed by the next run if this one cannot, unless it is to be kept."""
    return tempfile.mkdtemp(prefix=f"{'dt-kept-' if keep else FOLDER}{os.getpid()}-{seed}-")


def alive(pid):
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"chaos.py" in command or b"rivals.py" in command
    except OSError:
        return False


def remove_remains():
    """Namespaces of an earlier run that was killed, with what runs in them, and its files."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        if not alive(folder.name[len(FOLDER):].split("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
    for line in run("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        owner = re.match(rf"{PREFIX}(\d+)x", name)
        if owner is not None and not alive(owner[1]):
            kill_all(int(pid) for pid in run("ip", "netns", "pids", name).stdout.split())
            run("ip", "netns", "del", name)


def probe():
    """What can be done here: {ability: True, or why not}."""
    if shutil.which("setpriv") is None:
        return {ability: "there is no setpriv" for ability in ("ranks", "hosts", "disk", "filter", "reset")}
    able = {"ranks": True}
    if os.geteuid() != 0 or shutil.which("ip") is None:
        why = "there is no ip" if os.geteuid() == 0 else "making network namespaces needs root"
        return able | {"hosts": why, "disk": why, "filter": why, "reset": why}
    remove_remains()
    try:
        with Namespaces(2, "probe") as network:
            able["hosts"] = True
            mounted = run(*network.command(0, ["true"], disk="/mnt"))
            able["disk"] = mounted.returncode == 0 or f"no tmpfs here: {mounted.stderr.strip()}"
            able["reset"] = network.can_reset()
            try:
                network.lose(0, 1)
                able["filter"] = True
            except (Unavailable, OSError) as reason:
                able["filter"] = f"not here: {reason}"
    except Unavailable as reason:
        return able | {ability: f"no network namespaces here: {reason}" for ability in ("hosts", "disk", "filter", "reset")}
    return able
