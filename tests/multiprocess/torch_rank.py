# SPDX-License-Identifier: Apache-2.0
"""torch_rank.py HOST:PORT RANK PYTHON_RANKS CPP_RANKS: the counterpart of programs/torch_rank.cc.

torch_rank.py gloo [HOST:PORT RANK SIZE]: a rank of a gloo group, from the environment or over a store.

torch_rank.py serve: serves a store until its input ends, and prints where.
"""
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.run

LIMIT = timedelta(seconds=60)


def connect(address):
    host, port = address.rsplit(":", 1)
    return dist.TCPStore(host, int(port), None, False, LIMIT)


def expect(value, wanted):
    if value != wanted:
        sys.exit(f"{value!r} instead of {wanted!r}")


def exchange(address, rank, python_ranks, cpp_ranks):
    store = connect(address)
    store.set(f"from_python/{rank}", f"python {rank}")
    for other in range(python_ranks):
        expect(store.get(f"from_python/{other}"), f"python {other}".encode())
    for other in range(cpp_ranks):
        expect(store.get(f"from_cpp/{other}"), f"cpp {other}".encode())
    if store.add("arrived", 1) == python_ranks + cpp_ranks:
        store.set("all_arrived", "yes")
    expect(store.get("all_arrived"), b"yes")
    expect(store.delete_key("own/0"), False)
    print(f"python rank {rank} of {python_ranks}: exchanged", flush=True)


def gloo(store=None, rank=-1, size=-1):
    if store is None:
        dist.init_process_group("gloo", timeout=LIMIT)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(5):
        numbers = torch.arange(1000, dtype=torch.float32) * (rank + 1) + step
        dist.all_reduce(numbers)
        wanted = torch.arange(1000, dtype=torch.float32) * (size * (size + 1) / 2) + step * size
        if not torch.equal(numbers, wanted):
            sys.exit("the sum is wrong")
        dist.barrier()
    print(f"gloo rank {rank} of {size}: right", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def serve(address, until):
    """Tells where it serves a store, and does so until the function returns."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, LIMIT)
    address(f"127.0.0.1:{store.port}")
    until()


def torchrun(args):
    torch.distributed.run.main(args)


def main(args):
    if args[0] == "serve":
        serve(lambda address: print(address, flush=True), sys.stdin.read)
    elif args[0] == "gloo":
        if len(args) > 1:
            gloo(connect(args[1]), int(args[2]), int(args[3]))
        else:
            gloo()
    else:
        exchange(args[0], *map(int, args[1:4]))


if __name__ == "__main__":
    main(sys.argv[1:])
