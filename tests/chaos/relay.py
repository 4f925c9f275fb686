# SPDX-License-Identifier: Apache-2.0
"""relay.py LISTEN_ADDRESS PORT TO_ADDRESS TO_PORT: passes TCP connections on, and does harm to them when told to.

Commands on stdin: "delay MS" keeps every byte that long; "hold to_store" and "hold from_store" pass nothing more in
that direction; "reset" resets both sides. Says "listening" when it does, and the command's name when that is done.
PORT 0 lets the kernel choose; it is said behind "listening".
"""

import asyncio
import socket
import struct
import sys


class Way:
    """One direction of one connection."""

    def __init__(self, relay, name, reader, writer):
        self.relay, self.name, self.reader, self.writer = relay, name, reader, writer
        self.queue = asyncio.Queue()

    async def take(self):
        try:
            while data := await self.reader.read(65536):
                await self.queue.put((asyncio.get_running_loop().time() + self.relay.delay_s, data))
        except OSError:
            pass
        await self.queue.put((asyncio.get_running_loop().time() + self.relay.delay_s, b""))

    async def give(self):
        while True:
            due, data = await self.queue.get()
            is_due = asyncio.Event()
            asyncio.get_running_loop().call_at(due, is_due.set)
            await is_due.wait()
            if self.name in self.relay.held:  # for good: as a network that loses every packet
                await asyncio.Event().wait()
            try:
                if not data:
                    self.writer.close()
                    return
                self.writer.write(data)
                await self.writer.drain()
            except OSError:
                return


class Relay:
    def __init__(self, target):
        self.target = target
        self.delay_s = 0.0
        self.held = set()
        self.writers = []
        self.tasks = set()

    async def accept(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:  # the store is not up yet: whoever calls tries again
            self.reset_one(writer)
            return
        self.writers += [writer, far_writer]
        for way in (Way(self, "to_store", reader, far_writer), Way(self, "from_store", far_reader, writer)):
            for work in (way.take(), way.give()):
                task = asyncio.create_task(work)
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    def reset_one(self, writer):
        handle = writer.get_extra_info("socket")
        if handle is not None and handle.fileno() >= 0:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    def obey(self, words):
        if words[0] == "delay":
            self.delay_s = int(words[1]) / 1000
        elif words[0] == "hold":
            self.held.add(words[1])
        elif words[0] == "reset":
            for writer in self.writers:
                self.reset_one(writer)


async def main():
    listen_address, listen_port, to_address, to_port = sys.argv[1:]
    relay = Relay((to_address, int(to_port)))
    server = await asyncio.start_server(relay.accept, listen_address, int(listen_port))
    print("listening", server.sockets[0].getsockname()[1], flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        relay.obey(line.decode().split())
        print(line.decode().split()[0], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
