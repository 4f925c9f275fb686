#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backend dt of torch.distributed beside gloo, on the ranks of one host:

    process_group_bench.py [--ranks 2] [--rounds 11] [--in-python]

Both are groups of the same processes, and take turns. A round is the mean of as many calls as take
about --seconds; the table has the median of the rounds, and their range. "dt, shared" has the memory
of buckets from dt. "nothing sent" is what no backend can be faster than: DDP with a hook that sends
nothing, and in place of FSDP2 the bare model."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--in-python", action="store_true", help="dt's backend for hosts without a compiler")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def all_reduce(dist, torch, group, rank, size, count):
    tensor = torch.ones(max(1, count // 4))
    dist.all_reduce(tensor, group=group)
    assert tensor[0].item() == size, tensor
    tensor.zero_()
    return lambda: dist.all_reduce(tensor, group=group)


def ping_pong(dist, torch, group, rank, size, count):
    tensor = torch.full((max(1, count // 4),), 1.0 + rank)

    def once():
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)
        elif rank == 1:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)
    once()
    assert rank > 1 or tensor[-1].item() == 1
    return once


def layers(torch, parameters):
    torch.manual_seed(1)
    width = round((parameters / 4) ** 0.5)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))), width


def steps(torch, model, width, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    values = torch.randn(16, width, generator=torch.Generator().manual_seed(rank))

    def step():
        optimizer.zero_grad()
        model(values).square().mean().backward()
        optimizer.step()
    return step


def ddp(dist, torch, group, rank, size, parameters, shares):
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
    model, width = layers(torch, parameters)
    os.environ["DDP_DISABLE_COMM_MEM"] = "0" if shares else "1"  # looked at here and after the first step
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    if group is None:
        model.register_comm_hook(None, noop_hook)
    return steps(torch, model, width, rank)


def fsdp2(dist, torch, group, rank, size, parameters, shares):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    model, width = layers(torch, parameters)
    if group is None:
        return steps(torch, model, width, rank)
    mesh = DeviceMesh.from_group(group, "cpu")
    parts = [fully_shard(each, mesh=mesh) for each in (*model, model)]
    for part in parts if shares else ():
        part.set_allocate_memory_from_process_group_for_comm(True)
    return steps(torch, model, width, rank)


def text_of(seconds):
    low, middle, high = (1e6 * each for each in (min(seconds), statistics.median(seconds), max(seconds)))
    digits = 1 if middle < 100 else 0
    return f"{middle:.{digits}f} us [{low:.{digits}f}-{high:.{digits}f}]", middle


def measure(options, dist, torch):
    both = {"dt": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    rank, size = options.rank, options.ranks
    if rank == 0:
        print(f"| {size} ranks | dt | gloo | gloo / dt | dt, shared | nothing sent |\n|---|---|---|---|---|---|")
    for name, make, counts in (("all_reduce", all_reduce, (("1 KiB", 1 << 10), ("1 MiB", 1 << 20),
                                                          ("25 MiB", 25 << 20))),
                               ("send and back", ping_pong, (("8 bytes", 8), ("1 MiB", 1 << 20))),
                               ("step of DDP", ddp, (("1 M parameters", 10**6), ("20 M", 2 * 10**7))),
                               ("step of FSDP2", fsdp2, (("1 M parameters", 10**6), ("20 M", 2 * 10**7)))):
        trains = make in (ddp, fsdp2)
        groups = {**both, "nothing": None} if trains else both
        if trains and not options.in_python:
            groups["shared"] = dist.group.WORLD
        for label, count in counts:
            calls, repeats, rounds = {}, {}, {each: [] for each in groups}
            for each, group in groups.items():
                more = {"shares": each == "shared"} if trains else {}
                calls[each] = make(dist, torch, group, rank, size, count, **more)
                begun = time.perf_counter()
                for _ in range(5):
                    calls[each]()
                took = torch.tensor([(time.perf_counter() - begun) / 5])
                dist.broadcast(took, 0)
                repeats[each] = max(3, min(20000, int(options.seconds / took.item())))
            for _ in range(options.rounds):
                for each in groups:
                    dist.barrier()
                    begun = time.perf_counter()
                    for _ in range(repeats[each]):
                        calls[each]()
                    rounds[each].append((time.perf_counter() - begun) / repeats[each])
            if rank == 0:
                (ours, our_us), (theirs, their_us) = text_of(rounds["dt"]), text_of(rounds["gloo"])
                shared, floor = (text_of(rounds[each])[0] if each in rounds else "" for each in ("shared", "nothing"))
                print(f"| {name}, {label} | {ours} | {theirs} | {their_us / our_us:.3g} | {shared} | {floor} |",
                      flush=True)


def main():
    options = parse()
    if options.rank is None:
        print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, "-I", os.path.abspath(__file__), "--ranks",
                                       str(options.ranks), "--rounds", str(options.rounds), "--seconds",
                                       str(options.seconds), "--rank", str(rank), "--folder", folder,
                                       *(["--in-python"] if options.in_python else [])])
                     for rank in range(options.ranks)]
            failed = any([rank.wait() for rank in ranks])
        print(f"load {os.getloadavg()[0]:.1f} afterwards")
        return int(failed)
    import torch
    import torch.distributed as dist
    if options.in_python:
        from dt import _extension
        _extension.load = lambda: (_ for _ in ()).throw(RuntimeError("--in-python"))
    torch.set_num_threads(1)
    dist.init_process_group("dt", init_method=f"file://{options.folder}/meeting", rank=options.rank,
                            world_size=options.ranks)
    measure(options, dist, torch)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
