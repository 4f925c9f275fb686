# SPDX-License-Identifier: Apache-2.0
"""Ports for programs that are told where to listen."""

import contextlib
import random
import socket

RANGE = 12000


def free_ports(count):
    """Ports on which nothing listens. They are below the range from which the kernel assigns ports, so that no
    connection of another test takes one before the program listens on it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        lowest = int(file.read().split()[0])
    free = []
    for port in random.SystemRandom().sample(range(max(lowest - RANGE, 1024), lowest), RANGE // 100):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("0.0.0.0", port))
            free.append(port)
        if len(free) == count:
            return free
    raise OSError(f"no {count} free ports below {lowest}")
