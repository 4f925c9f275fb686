# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed whose tensors lie in GPU memory, over the backend "dt": every collective,
streams, batches, groups, DistributedDataParallel and fully_shard beside one process.

    dt run -n N -- python3 torch_backend.py
    dt run -n 3 --on-failure continue -- python3 torch_backend.py shrink

In the second the last rank kills itself, and the others go on without it.
The wheel's folder must be in PYTHONPATH. Ends with 77 where there is no PyTorch or no GPU."""

import datetime
import os
import signal
import sys
import time

from torch_gpu import close, same, take_gpu, torch, values
import torch.distributed as dist
import dt.torch  # noqa: F401 (makes the backend known)

COUNT = 5003
STEPS = 4
BATCH = 8


def check_collectives(rank, size):
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        total = sum(values(each, torch.int64) for each in range(size)).to(dtype)
        one = values(rank, dtype)
        dist.all_reduce(one)
        same(f"all_reduce of {dtype}", one, total)
        one = values(rank, dtype)
        dist.all_reduce(one, dist.ReduceOp.MAX)
        same(f"maximum of {dtype}", one, torch.stack([values(each, dtype) for each in range(size)]).amax(0))
    mean = values(rank)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    close("mean", mean, sum(values(each) for each in range(size)) / size, 1e-5)
    one = values(rank)
    dist.broadcast(one, size - 1)
    same("broadcast", one, values(size - 1))
    one = values(rank)
    dist.reduce(one, 0)
    if rank == 0:
        same("reduce", one, sum(values(each) for each in range(size)))
    parts = [torch.empty(COUNT, device="cuda") for _ in range(size)]
    dist.all_gather(parts, values(rank))
    same("all_gather", torch.stack(parts), torch.stack([values(each) for each in range(size)]))
    whole = torch.empty(size * COUNT, device="cuda")
    dist.all_gather_into_tensor(whole, values(rank))
    same("all_gather_into_tensor", whole, torch.cat([values(each) for each in range(size)]))
    part = torch.empty(COUNT, device="cuda")
    wanted = sum(values(each, step=rank) for each in range(size))
    dist.reduce_scatter(part, [values(rank, step=each) for each in range(size)])
    same("reduce_scatter", part, wanted)
    dist.reduce_scatter_tensor(part.zero_(), torch.cat([values(rank, step=each) for each in range(size)]))
    same("reduce_scatter_tensor", part, wanted)
    dist.all_to_all_single(whole, torch.cat([values(rank, step=each) for each in range(size)]))
    same("all_to_all_single", whole, torch.cat([values(each, step=rank) for each in range(size)]))
    counts = [10 + each for each in range(size)]
    ragged = torch.empty(size * counts[rank], device="cuda")
    dist.all_to_all_single(ragged, torch.cat([values(rank, count=each) for each in counts]),
                           [counts[rank]] * size, counts)
    same("all_to_all_single of rows", ragged, torch.cat([values(each, count=counts[rank]) for each in range(size)]))
    dist.gather(values(rank), parts if rank == 0 else None, dst=0)
    if rank == 0:
        same("gather", torch.stack(parts), torch.stack([values(each) for each in range(size)]))
    dist.scatter(part, [values(each) for each in range(size)] if rank == 0 else None, src=0)
    same("scatter", part, values(rank))
    strided = values(rank, count=24).view(4, 6).t()
    dist.all_reduce(strided)
    same("a transposed tensor", strided, sum(values(each, count=24).view(4, 6).t() for each in range(size)))
    boolean = torch.tensor([rank == 0, False], device="cuda")
    dist.broadcast(boolean, 0)
    same("booleans", boolean, torch.tensor([True, False], device="cuda"))
    dist.barrier()
    on_host = torch.full((5,), float(rank))
    dist.all_reduce(on_host)
    same("a tensor in host memory", on_host, torch.full((5,), float(sum(range(size)))))
    names = [None] * size
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {each}" for each in range(size)], names


def check_streams(rank, size):
    """Results must be right by streams alone, for the current stream and another one."""
    side = torch.cuda.Stream()
    given = torch.zeros(1 << 18, device="cuda")
    twice = torch.zeros_like(given)
    for step in range(4):
        torch.cuda._sleep(20_000_000)
        given.fill_(rank + step)
        work = dist.all_reduce(given, async_op=True)
        with torch.cuda.stream(side):
            work.wait()
            torch.mul(given, 2, out=twice)
        torch.cuda.current_stream().wait_stream(side)
        wanted = float(2 * sum(each + step for each in range(size)))
        same(f"another stream, step {step}", twice, torch.full_like(twice, wanted))
    torch.cuda._sleep(20_000_000)
    given.fill_(1)
    future = dist.all_reduce(given, async_op=True).get_future().then(lambda done: done.value()[0] * 3)
    same("a future", future.wait(), torch.full_like(given, 3.0 * size))
    strided = torch.zeros(64, 64, device="cuda").t()
    torch.cuda._sleep(20_000_000)
    strided.fill_(2)
    work = dist.all_reduce(strided, async_op=True)
    assert work.wait(datetime.timedelta(seconds=60))
    same("a transposed tensor", strided, torch.full_like(strided, 2.0 * size))
    assert work.is_completed()
    # Memory that is let go of while dt uses it.
    kept = [dist.all_reduce(torch.full((1 << 20,), 1.0, device="cuda"), async_op=True) for _ in range(5)]
    other = torch.zeros(1 << 20, device="cuda")
    for work in kept:
        work.wait()
    same("other memory", other, torch.zeros_like(other))


def check_messages(rank, size):
    if size == 1:
        return
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(COUNT, device="cuda")
    if rank % 2 == 0:
        dist.send(values(rank), after)
    if (rank % 2 == 1) or (size % 2 == 1 and rank == 0):
        dist.recv(got, before)
        same("recv", got, values(before))
    back = torch.empty(COUNT, device="cuda")
    batch = [dist.P2POp(dist.isend, values(rank, step=1), after), dist.P2POp(dist.irecv, got, before),
             dist.P2POp(dist.isend, values(rank, step=2), before), dist.P2POp(dist.irecv, back, after)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same("a batch", got, values(before, step=1))
    same("a batch, back", back, values(after, step=2))


def check_groups(rank, size):
    group = dist.new_group([0])
    if rank == 0:
        one = values(0)
        dist.all_reduce(one, group=group)
        same("a group of one rank", one, values(0))
    everyone = dist.new_group(list(range(size)))
    one = values(rank)
    dist.all_reduce(one, group=everyone)
    same("a second group", one, sum(values(each) for each in range(size)))
    with dist._coalescing_manager(group=everyone, device=torch.device("cuda"), async_ops=True) as manager:
        several = [values(rank, step=each) for each in range(3)]
        for each in several:
            dist.all_reduce(each, group=everyone)
    manager.wait()
    for step, each in enumerate(several):
        same("several at once", each, sum(values(other, step=step) for other in range(size)))


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 3)).to("cuda", torch.float64)


def samples(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(BATCH, width, generator=generator, dtype=torch.float64).to("cuda") for width in (20, 3)]


def train(model, ranks, clip=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs, targets = (torch.cat(each) for each in zip(*(samples(rank, step) for rank in ranks)))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def check_ddp(rank, size):
    reference = network()
    train(reference, range(size))
    for options in ({}, {"bucket_cap_mb": 0.01}, {"static_graph": True}, {"gradient_as_bucket_view": True},
                    {"find_unused_parameters": True}):
        model = network()
        train(torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], **options),
              [rank])
        for one, other in zip(model.parameters(), reference.parameters()):
            close(f"DistributedDataParallel with {options}", one, other, 1e-12)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = network()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(wrapped, [rank])
    for one, other in zip(model.parameters(), reference.parameters()):
        close("fp16_compress_hook", one, other, 0.05)


def check_fsdp(rank, size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    reference = network()
    train(reference, range(size), clip=0.1)
    mesh = init_device_mesh("cuda", (size,))
    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, [rank], clip=0.1)
    for one, other in zip(model.parameters(), reference.parameters()):
        close("fully_shard", one.full_tensor(), other, 1e-12)


def check_shrink(rank, size):
    one = values(rank)
    dist.all_reduce(one)
    same("before", one, sum(values(each) for each in range(size)))
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(1000):
            dist.all_reduce(one)
            dist.barrier()
    except dist.DistBackendError as error:
        assert f"rank {size - 1}" in str(error), error
    assert dt.torch.shrink_group() == [size - 1]
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size - 1)
    one = values(rank)
    dist.all_reduce(one)
    same("afterwards", one, sum(values(each) for each in range(size - 1)))


def main():
    take_gpu()
    dist.init_process_group("dt", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    every = check_collectives, check_streams, check_messages, check_groups, check_ddp, check_fsdp
    for check in [check_shrink] if "shrink" in sys.argv else every:
        begin = time.monotonic()
        check(rank, size)
        torch.cuda.synchronize()
        if rank == 0:
            print(f"{check.__name__[6:]}: right, {time.monotonic() - begin:.1f} s", flush=True)
    dist.destroy_process_group()
    print(f"rank {rank}: right", flush=True)


if __name__ == "__main__":
    main()
