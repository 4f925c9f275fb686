# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces, joined by a switch in one of its own. All of it goes with the object."""

import os
import subprocess
import tempfile


class Unavailable(Exception):
    pass


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """hosts 0..n-1 have 10.77.0.1.. and fd77::1.. on eth0; nothing outside is touched."""

    serial = 0

    def __init__(self, hosts):
        Network.serial += 1
        self.prefix = f"dt{os.getpid()}x{Network.serial}"
        self.hosts = hosts
        self.namespaces = []
        self.names = {}

    def __enter__(self):
        try:
            self.switch = self.add_namespace("sw")
            ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            ip("-n", self.switch, "link", "set", "br0", "up")
            for host in range(self.hosts):
                name = self.add_namespace(str(host))
                ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}",
                   "netns", self.switch)
                ip("-n", self.switch, "link", "set", f"port{host}", "master", "br0", "up")
                ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
                ip("-n", name, "addr", "add", f"{self.address(host, 6)}/64", "dev", "eth0", "nodad")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except Unavailable:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.namespaces = []

    def add_namespace(self, suffix):
        name = f"{self.prefix}-{suffix}"
        ip("netns", "add", name)
        self.namespaces.append(name)
        return name

    def namespace(self, host):
        return f"{self.prefix}-{host}"

    def address(self, host, family=4):
        return f"10.77.0.{host + 1}" if family == 4 else f"fd77::{host + 1}"

    def ip(self, host, *arguments):
        return ip("-n", self.namespace(host), *arguments)

    def unplug(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "down")

    def plug(self, host):
        ip("-n", self.switch, "link", "set", f"port{host}", "up")

    def command(self, host, program):
        """`program` in the host's namespace, under a name of its own."""
        script = f'hostname host{host} && exec "$@"'
        if host in self.names:
            script = f"mount --bind {self.names[host].name} /etc/hosts && {script}"
        return ["ip", "netns", "exec", self.namespace(host), "unshare", "--uts", "--mount", "sh", "-c", script,
                "sh", *program]

    def write_names(self, host, text):
        """What the host has for /etc/hosts."""
        self.names[host] = tempfile.NamedTemporaryFile(mode="w")
        self.names[host].write(text)
        self.names[host].flush()

    def inside(self, host, *program):
        return subprocess.run(["ip", "netns", "exec", self.namespace(host), *program],
                              capture_output=True, text=True, check=True).stdout

    def sent_bytes(self, host):
        return int(self.inside(host, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def unacknowledged(self, host):
        """Whether a connection of the host has sent what was not acknowledged yet."""
        return "unacked:" in self.inside(host, "ss", "-Htin")

    def listening(self, host):
        """Local addresses, as hexadecimal text, of the sockets that listen."""
        found = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in self.inside(host, "cat", table).splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    found.add(fields[1].split(":")[0])
        return found
