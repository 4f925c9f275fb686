# SPDX-License-Identifier: Apache-2.0
"""Ranks over GPU memory that hold their data in PyTorch's tensors: each collective, the reducer, and
DistributedDataParallel and ShardedDataParallel beside one process that has the samples of all ranks.

    dt run -n N -- python3 torch_ranks.py

The wheel's folder must be in PYTHONPATH. Ends with 77 where there is no PyTorch or no GPU."""

import contextlib
import copy
import time

from torch_gpu import close, same, take_gpu, torch, values
import dt
import dt.torch
from dt.torch import DistributedDataParallel, ShardedDataParallel

DTYPES = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64]
COUNT = 5003
STEPS = 6
BATCH = 12  # samples of a rank
RATE = 0.01  # of training in shards


def check_reductions(job, comm):
    rank, size = comm.rank, comm.size
    for dtype in DTYPES:
        mine = values(rank, dtype)
        total = sum(values(each, torch.int64) for each in range(size)).to(dtype)
        result = torch.empty_like(mine)
        comm.allreduce(mine, result)
        same(f"allreduce of {dtype}", result, total)
        comm.allreduce(mine, result, "max")
        same(f"maximum of {dtype}", result, torch.stack([values(each, dtype) for each in range(size)]).amax(0))
        comm.reduce(mine, result if rank == size - 1 else None, root=size - 1)
        if rank == size - 1:
            same(f"reduce of {dtype}", result, total)
        parts = torch.cat([values(rank, dtype, COUNT, each) for each in range(size)])
        comm.reduce_scatter(parts, result)
        same(f"reduce_scatter of {dtype}", result,
             sum(values(each, torch.int64, COUNT, rank) for each in range(size)).to(dtype))


def check_blocks(job, comm):
    rank, size = comm.rank, comm.size
    mine = values(rank, torch.float32)
    everything = [values(each, torch.float32) for each in range(size)]
    all_of_them = torch.empty(size * COUNT, device="cuda")
    comm.allgather(mine, all_of_them)
    same("allgather", all_of_them, torch.cat(everything))
    one = mine.clone()
    comm.broadcast(one, size - 1)
    same("broadcast", one, everything[-1])
    comm.gather(mine, all_of_them.zero_() if rank == 0 else None)
    if rank == 0:
        same("gather", all_of_them, torch.cat(everything))
    comm.scatter(torch.cat(everything) if rank == 0 else None, one)
    same("scatter", one, mine)
    comm.alltoall(torch.cat([values(rank, torch.float32, COUNT, each) for each in range(size)]), all_of_them)
    same("alltoall", all_of_them, torch.cat([values(each, torch.float32, COUNT, rank) for each in range(size)]))
    counts = [10 + 7 * each for each in range(size)]
    ragged = torch.empty(sum(counts), device="cuda")
    comm.allgatherv(values(rank, torch.float32, counts[rank]), ragged, counts)
    same("allgatherv", ragged, torch.cat([values(each, torch.float32, counts[each]) for each in range(size)]))
    summed = torch.empty(counts[rank], device="cuda")
    comm.reduce_scatterv(torch.ones(sum(counts), device="cuda"), counts, summed)
    same("reduce_scatterv", summed, torch.full((counts[rank],), float(size), device="cuda"))
    comm.alltoallv(torch.cat([values(rank, torch.float32, each) for each in counts]), counts,
                   all_of_them[:counts[rank] * size].zero_(), [counts[rank]] * size)
    same("alltoallv", all_of_them[:counts[rank] * size],
         torch.cat([values(each, torch.float32, counts[rank]) for each in range(size)]))
    if size > 1:
        with comm.group():
            comm.send(mine, (rank + 1) % size)
            comm.recv(one, (rank - 1) % size)
        same("a ring of messages", one, everything[(rank - 1) % size])
    comm.barrier()
    assert comm.host().allreduce(rank) == sum(range(size))


def check_streams(job, comm):
    """What dt reads must be complete, and what it writes be read after it, by streams alone."""
    stream = torch.cuda.Stream()
    # From another stream's work this one could take memory that is still in use.
    given, twice = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    for step in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            given.fill_(comm.rank + step)
            comm.allreduce(given, stream=stream)
            torch.mul(given, 2, out=twice)
        stream.synchronize()
        wanted = 2.0 * sum(each + step for each in range(comm.size))
        same(f"behind other work, step {step}", twice, torch.full_like(twice, wanted))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        given.fill_(1)
        work = comm.allreduce_async(given, stream=stream)
    work.wait()
    same("after wait", given, torch.full_like(given, float(comm.size)))


def check_memory(job, comm):
    with comm.alloc(1000) as memory:
        view = torch.as_tensor(memory, device="cuda")
        assert view.data_ptr() == memory.address, "as_tensor() has copied"
        view.fill_(comm.rank + 1)
        comm.allreduce(memory)
        torch.cuda.synchronize()
        same("memory of dt", view, torch.full((1000,), float(sum(range(1, comm.size + 1))), device="cuda"))
        del view
    try:
        comm.allreduce(torch.zeros(3))
        raise AssertionError("host memory was taken")
    except dt.InvalidArgumentError as error:
        assert "GPU" in str(error), error
    strided = torch.zeros(4, 4, device="cuda").t()
    try:
        comm.allreduce(strided)
        raise AssertionError("a transposed tensor was taken")
    except dt.InvalidArgumentError as error:
        assert "contiguous" in str(error), error
    assert comm.host().size == comm.size


def network(dtype):
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.SyncBatchNorm(64), torch.nn.ReLU(), torch.nn.Linear(64, 33),
        torch.nn.ReLU(), torch.nn.Linear(33, 3)).to("cuda", dtype)


def samples(rank, step, dtype):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(BATCH, 20, generator=generator, dtype=torch.float64).to("cuda", dtype),
            torch.randn(BATCH, 3, generator=generator, dtype=torch.float64).to("cuda", dtype))


def reference(size, dtype, clip=0.0):
    """The parameters after STEPS steps of one process with the samples of all ranks, and the norms."""
    model = network(dtype)
    for index, each in enumerate(model):
        if isinstance(each, torch.nn.SyncBatchNorm):
            model[index] = torch.nn.BatchNorm1d(64, device="cuda", dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    norms = []
    for step in range(STEPS):
        inputs, targets = (torch.cat(each) for each in
                           zip(*(samples(rank, step, dtype) for rank in range(size))))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()], norms


def train(comm, dtype, clip=0.0, prepare=None, **options):
    model = network(dtype)
    with contextlib.closing(DistributedDataParallel(model, comm, **options)) as wrapped:
        if prepare is not None:
            prepare(wrapped)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        norms, norm = [], torch.zeros(1, device="cuda")
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, targets = samples(comm.rank, step, dtype)
            torch.nn.functional.mse_loss(wrapped(inputs), targets).backward()
            if clip:
                wrapped.clip_norm(clip, out=norm)
                norms.append(norm.item())
            optimizer.step()
        dt.torch.check_equal(model, comm)
        return [each.detach().clone() for each in model.parameters()], norms


def check_training(job, comm):
    wanted, _ = reference(comm.size, torch.float64)
    clipped, norms = reference(comm.size, torch.float64, clip=0.5)

    def own_hook(wrapped):
        def hook(bucket, stage):
            return comm.allreduce_async(bucket.data, op="avg", stream=bucket.stream) if stage == 0 else None
        wrapped.set_hook(hook)

    for what, options, most in [
            ("as it is", {}, 1e-12),
            ("small buckets", {"bucket_cap_bytes": 4096, "first_bucket_bytes": 1024}, 1e-12),
            ("find_unused_parameters", {"find_unused_parameters": True}, 1e-12),
            ("static_graph", {"static_graph": True}, 1e-12),
            ("a hook", {"prepare": own_hook}, 1e-12)]:
        given, _ = train(comm, torch.float64, **options)
        for index, (one, other) in enumerate(zip(given, wanted)):
            close(f"training, {what}, parameter {index}", one, other, most)
    given, own_norms = train(comm, torch.float64, clip=0.5)
    for index, (one, other) in enumerate(zip(given, clipped)):
        close(f"training, clipped, parameter {index}", one, other, 1e-6)
    close("norms", torch.tensor(own_norms), torch.tensor(norms), 1e-5)
    for what, dtype, options, most in [
            ("float32", torch.float32, {}, 1e-5),
            ("bfloat16 on the wire", torch.float32, {"wire": dt.Wire.BF16}, 2e-2),
            ("float16 on the wire", torch.float32, {"wire": dt.Wire.F16}, 2e-3)]:
        given, _ = train(comm, dtype, **options)
        for index, (one, other) in enumerate(zip(given, wanted)):
            close(f"training, {what}, parameter {index}", one, other, most)
    given, _ = train(comm, torch.bfloat16)
    assert all(torch.isfinite(each).all() for each in given)


def check_unused(job, comm):
    """Each rank uses another branch, and a branch that none uses keeps its gradient."""
    branches = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(comm.size + 1)).cuda()
    wrapped = DistributedDataParallel(branches, comm, find_unused_parameters=True)
    for step in range(3):
        for each in branches.parameters():
            each.grad = None
        wrapped._begin()
        branches[comm.rank](torch.ones(2, 5, device="cuda")).sum().backward()
        for index in range(comm.size):
            same(f"branch {index} of step {step}", branches[index].bias.grad,
                 torch.full((5,), 2 / comm.size, device="cuda"))
        assert branches[comm.size].bias.grad is None
    wrapped.close()


def check_accumulation(job, comm):
    model = torch.nn.Linear(8, 4).cuda()
    wrapped = DistributedDataParallel(model, comm)
    inputs = torch.full((2, 8), float(comm.rank + 1), device="cuda")
    with wrapped.no_sync():
        wrapped(inputs).sum().backward()
        wrapped(inputs).sum().backward()
    wrapped(inputs).sum().backward()
    mean = sum(range(1, comm.size + 1)) / comm.size
    close("three passes", model.weight.grad, torch.full((4, 8), 6 * mean), 1e-4)
    wrapped.close()


class Blocks(torch.nn.Module):
    """Some units, and parameters before and behind them; the last layer has the weights of the first."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(11)
        self.first = torch.nn.Linear(20, 40)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(
            torch.nn.LayerNorm(40), torch.nn.Linear(40, 97), torch.nn.GELU(), torch.nn.Linear(97, 40))
            for _ in range(3))
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.to("cuda", dtype)

    def forward(self, values):
        values = self.first(values)
        for block in self.blocks:
            values = values + block(values)
        return (values @ self.first.weight)[:, :3] * self.scale


def plain_blocks(size, dtype, make, clip):
    """What one process without dt ends with: its parameters, and the norms of its gradients."""
    model = Blocks(dtype)
    optimizer = make(model.parameters())
    norms = []
    for step in range(STEPS):
        inputs, targets = (torch.cat(each) for each in
                           zip(*(samples(rank, step, dtype) for rank in range(size))))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()], norms


def train_sharded(comm, dtype, make, clip, passes=1, slow=False, **options):
    """The same in shards. make: of an optimizer for pieces, or of dt's for a shard."""
    model = Blocks(dtype)
    with contextlib.closing(ShardedDataParallel(model, comm, units=list(model.blocks), **options)) as wrapped:
        assert all(each.is_cuda for each in wrapped.pieces())
        optimizer = make(wrapped)
        norms, norm = [], torch.zeros(1, device="cuda")
        for step in range(STEPS):
            parts = [each.chunk(passes) for each in samples(comm.rank, step, dtype)]
            for index, (inputs, targets) in enumerate(zip(*parts)):
                with wrapped.no_sync() if index + 1 < passes else contextlib.nullcontext():
                    if slow:
                        torch.cuda._sleep(5_000_000)
                    ((wrapped(inputs) - targets).square().mean() / passes).backward()
            assert all(each.grad is None for each in model.parameters())
            wrapped.clip_norm(clip, out=norm)
            norms.append(norm.item())
            if isinstance(optimizer, dt.Optimizer):
                if step % 2 == 0:
                    wrapped.step(optimizer, RATE)
                else:
                    optimizer.step(RATE, stream=torch.cuda.current_stream())
            else:
                optimizer.step()
                wrapped.updated()
        with wrapped.gathered() as whole:
            dt.torch.check_equal(whole, comm)
            return [each.detach().clone() for each in whole.parameters()], norms


def check_sharded(job, comm):
    """Each stage of ZeRO ends with the same bits, which are nearly those of one process."""
    def their_sgd(wrapped):
        return torch.optim.SGD(wrapped.pieces(), lr=RATE, momentum=0.9)

    def our_sgd(wrapped):
        return dt.Optimizer.sgd(wrapped.shard, momentum=0.9)

    def our_adamw(wrapped):
        return dt.Optimizer.adamw(wrapped.shard, weight_decay=0.1)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)

    clip = 0.5
    for what, dtype, make, alone, most, most_norm in [
            ("SGD of PyTorch's", torch.float64, their_sgd, sgd, 1e-6, 1e-5),
            ("SGD", torch.float32, our_sgd, sgd, 1e-5, 1e-4),
            ("AdamW", torch.float32, our_adamw, adamw, 1e-3, 1e-3),
            ("AdamW of bfloat16", torch.bfloat16, our_adamw, adamw, 5e-2, 1e-1)]:
        wanted, wanted_norms = plain_blocks(comm.size, torch.float64, alone, clip)
        for passes in (1, 2):
            first = None
            for stage in (1, 2, 3):
                where = f"{what}, {passes} passes, stage {stage}"
                for how, options in (("", {}), (", small buckets and another stream", {"bucket_cap_bytes": 4096})):
                    stream = torch.cuda.Stream() if options else torch.cuda.current_stream()
                    stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):
                        found, norms = train_sharded(comm, dtype, make, clip, passes, slow=bool(options), stage=stage,
                                                     **options)
                    torch.cuda.current_stream().wait_stream(stream)
                    for index, (one, other) in enumerate(zip(found, wanted)):
                        close(f"{where}{how}, parameter {index}", one, other, most)
                    close(f"{where}{how}, norms", torch.tensor(norms), torch.tensor(wanted_norms), most_norm)
                    if first is None:
                        first = found, norms
                    assert norms == first[1], (where + how, norms, first[1])
                    for index, (one, other) in enumerate(zip(found, first[0])):
                        same(f"{where}{how}, parameter {index} beside stage 1", one, other)


def check_sharded_unused(job, comm):
    """Each rank may use another branch with stage 2; stage 3 refuses that."""
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(comm.size + 1)).cuda()

        def forward(self, values, used):
            return self.layers[used](values)

    try:
        ShardedDataParallel(Branches(), comm, stage=3, find_unused_parameters=True)
    except dt.UnsupportedError as error:
        assert "use stage=2" in str(error), error
    else:
        raise AssertionError("stage 3 with find_unused_parameters was taken")
    with contextlib.closing(ShardedDataParallel(Branches(), comm, stage=2, find_unused_parameters=True)) as wrapped:
        for step in range(3):
            wrapped(torch.ones(2, 5, device="cuda"), comm.rank).sum().backward()
            for (index, piece), unit in zip(wrapped._pieces, wrapped._unit_of):
                if unit == comm.size + 1:
                    assert piece.grad is None, index
                else:
                    same(f"piece {index} of step {step}", piece.grad, torch.full_like(piece, 2 / comm.size))
            wrapped.updated()


def check_sharded_writing(job, comm):
    """What is written to gathered parameters stays, and between the passes stage 3 has none."""
    for stage in (1, 2, 3):
        model = Blocks(torch.float32)
        with contextlib.closing(ShardedDataParallel(model, comm, stage=stage)) as wrapped:
            with wrapped.gathered(write=True) as whole:
                for each in whole.parameters():
                    each.data.fill_(0.25)
            if stage == 3:
                assert all(torch.isnan(each).all() for each in model.parameters())
            with wrapped.gathered() as whole:
                for each in whole.parameters():
                    same(f"written, stage {stage}", each.detach(), torch.full_like(each, 0.25))
            with torch.no_grad():
                assert torch.isfinite(wrapped(samples(comm.rank, 0, torch.float32)[0])).all()


def check_copied(job, comm):
    """Inputs come from pinned memory, as a data loader's, by a copy on another stream."""
    model = torch.nn.Linear(64, 64).cuda()
    other = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model, comm)
    copies = torch.cuda.Stream()
    for step in range(3):
        host = torch.full((16, 64), float(comm.rank + step), pin_memory=True)
        with torch.cuda.stream(copies):
            inputs = host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        model.zero_grad()
        wrapped(inputs).square().mean().backward()
    other.load_state_dict(model.state_dict())
    everything = torch.zeros(64, 64, device="cuda")
    for rank in range(comm.size):
        other.zero_grad()
        other(torch.full((16, 64), float(rank + 2), device="cuda")).square().mean().backward()
        everything += other.weight.grad
    close("a copy on another stream", model.weight.grad, everything / comm.size, 1e-3)
    wrapped.close()


def main():
    with dt.Job(dt.Config(settings={"backend.name": "nccl"})) as job:
        with job.world() as comm:
            take_gpu()
            for check in (check_reductions, check_blocks, check_streams, check_memory, check_accumulation,
                          check_unused, check_training, check_sharded, check_sharded_unused, check_sharded_writing,
                          check_copied):
                begin = time.monotonic()
                check(job, comm)
                torch.cuda.synchronize()
                if comm.rank == 0:
                    print(f"{check.__name__[6:]}: right, {time.monotonic() - begin:.1f} s", flush=True)
            print(f"rank {comm.rank}: right", flush=True)


if __name__ == "__main__":
    main()
