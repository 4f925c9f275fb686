# SPDX-License-Identifier: Apache-2.0
"""A rank that trains a small transformer in shards, beside PyTorch's own ways over gloo.

As a program: torch_shard_ranks.py check | bench, started by `dt run`."""

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import dt
import dt.torch
import torch
import torch.distributed
import torch.utils.checkpoint

sys.path.insert(0, os.path.dirname(__file__))
import torch_ranks

STEPS = 6
ROUNDS = 15  # of the benchmark, all ways by turns


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, bias=False, batch_first=True)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, values):
        inner = self.norm(values)
        values = values + self.attention(inner, inner, inner, need_weights=False)[0]
        return values + self.narrow(torch.nn.functional.gelu(self.wide(values)))


class Model(torch.nn.Module):
    """Reads tokens and guesses each one's successor; the embedding is the last layer, too."""

    def __init__(self, seed, tokens=50, width=32, depth=3):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(tokens, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, tokens):
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values)
        return values @ self.embedding.weight.t()


def loss_of(model, tokens):
    output = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten())


class Plain:
    """PyTorch's own wrapper, whatever it is, and optimizer."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, tokens):
        self.optimizer.zero_grad()
        loss = loss_of(self.model, tokens)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Sharded:
    """dt's, with an optimizer of dt's, or of PyTorch's on the pieces."""

    def __init__(self, model, comm, ours=True, by_wrapper=True, **options):
        self.model = dt.torch.ShardedDataParallel(model, comm, **options)
        self.ours = dt.Optimizer.adamw(self.model.shard) if ours else None
        self.by_wrapper = by_wrapper
        self.theirs = None if ours else torch.optim.AdamW(self.model.pieces())

    def step(self, tokens):
        loss = loss_of(self.model, tokens)
        loss.backward()
        if self.ours is not None and self.by_wrapper:
            self.model.step(self.ours, 1e-3)
        elif self.ours is not None:
            self.ours.step(1e-3)
        else:
            self.theirs.step()
            self.model.updated()
        return loss.item()


def batches(rank):
    generator = torch.Generator().manual_seed(10 + rank)
    while True:
        yield torch.randint(0, 50, (4, 9), generator=generator)


def ddp(comm):
    model = torch.nn.parallel.DistributedDataParallel(Model(comm.rank))
    return Plain(model, torch.optim.AdamW(model.parameters()))


def check(comm):
    theirs = ddp(comm)
    expected = [theirs.step(tokens) for tokens, _ in zip(batches(comm.rank), range(STEPS))]
    results = {}
    for stage in (1, 2, 3):
        for name, options in (("theirs", {"ours": False}), ("ours", {}),
                              ("by the optimizer's step", {"by_wrapper": False}),
                              ("small buckets", {"bucket_cap_bytes": 5000, "prefetch": 2}),
                              ("in files", {"offload": tempfile.gettempdir()}),
                              ("kept", {"reshard_after_forward": False}),
                              ("one unit", {"units": [], "prefetch": 0}), ("replicas", {"shard_ranks": 1})):
            trained = Sharded(Model(comm.rank), comm, stage=stage, **options)
            losses = [trained.step(tokens) for tokens, _ in zip(batches(comm.rank), range(STEPS))]
            assert all(abs(a - b) < 1e-4 for a, b in zip(expected, losses)), (stage, name, expected, losses)
            with trained.model.gathered() as module:
                state = {key: value.clone() for key, value in module.state_dict().items()}
                dt.torch.check_equal(module, comm)
            for key, value in theirs.model.module.state_dict().items():
                assert torch.allclose(state[key], value, atol=1e-4), (stage, name, key)
            results[stage, name] = losses, state
            trained.model.close()
    for (stage, name), (losses, state) in results.items():
        wanted = results[1, "theirs" if name == "theirs" else "ours"]
        assert losses == wanted[0], (stage, name, losses, wanted[0])
        assert all(torch.equal(value, wanted[1][key]) for key, value in state.items()), (stage, name)
    check_outside_the_passes(comm)
    check_accumulation(comm)
    check_unused(comm)
    for make in (Nested, Recomputed, Normed, Queries, Complex, Scaled, Adapted):
        check_as_ddp(comm, make)
    check_between_steps(comm)
    check_kept(comm)
    check_export(comm)
    check_refused_optimizers(comm)
    check_stream_of_step(comm)
    check_writing(comm)
    check_uneven_accumulation(comm)
    check_broken_step(comm)
    print(f"rank {comm.rank}: all stages end with the same bits")


def check_outside_the_passes(comm):
    """Without gradients, between the passes, and when it is closed."""
    trained = Sharded(Model(1), comm, stage=3)
    module = trained.model.module
    tokens = next(batches(0))
    with torch.no_grad():
        first = loss_of(trained.model, tokens)
        alone = loss_of(Model(1), tokens)
    assert torch.allclose(first, alone)
    assert all(torch.isnan(each).all() for each in module.parameters())
    assert trained.step(tokens) == first.item()
    assert all(each.grad is None for each in module.parameters())
    assert all(each.grad is not None for each in trained.model.pieces())
    assert sum(each.numel() for each in trained.model.pieces()) < sum(each.numel() for each in module.parameters())
    trained.model.close()
    try:
        trained.model(tokens)
    except dt.InvalidArgumentError as error:
        assert "closed" in str(error), error
    else:
        raise AssertionError("a closed wrapper was used")


def check_accumulation(comm):
    """Two backward passes for one step, as one over both batches."""
    gradients = {}
    for stage in (1, 3):
        for parts in (1, 2):
            model = dt.torch.ShardedDataParallel(Model(2), comm, stage=stage)
            tokens = next(batches(comm.rank))
            if parts == 1:
                (2 * loss_of(model, tokens)).backward()
            else:
                with model.no_sync():
                    loss_of(model, tokens).backward()
                loss_of(model, tokens).backward()
            gradients[stage, parts] = torch.cat([each.grad.clone() for each in model.pieces()])
            model.close()
    for each in gradients.values():
        assert torch.allclose(each, gradients[1, 1], atol=1e-5)


def check_unused(comm):
    """A block that one rank or no rank uses has the others' average, or nothing."""
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, values, used):
            return sum(self.layers[each](values) for each in used)

    model = dt.torch.ShardedDataParallel(Branches(), comm, stage=2, find_unused_parameters=True)
    model(torch.ones(2, 4), [0, 1] if comm.rank == 0 else [0]).sum().backward()
    units = [model._unit_of[index] for index, _ in model._pieces]
    for unit, piece in zip(units, model.pieces()):
        wanted = {1: 2.0, 2: 2.0 / comm.size, 3: None}[unit]
        assert (piece.grad is None) if wanted is None else bool((piece.grad == wanted).all()), (unit, piece.grad)
    model.close()


class Nested(torch.nn.Module):
    """Lists in a list, of which nobody calls the inner ones."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList([torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)]) for _ in range(3))

    def forward(self, values):
        for first, second in self.layers:
            values = second(torch.tanh(first(values)))
        return values


class Recomputed(torch.nn.Module):
    """The backward pass computes a part of each layer, or a whole layer, again."""

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))

        def forward(self, values):
            return values + torch.utils.checkpoint.checkpoint(self.inner, values, use_reentrant=False)

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(self.Part() for _ in range(3))
        self.last = torch.nn.Sequential(torch.nn.Linear(6, 6))

    def forward(self, values):
        for layer in self.layers:
            values = layer(values)
        return torch.utils.checkpoint.checkpoint(self.last[0], values, use_reentrant=False)


class Normed(torch.nn.Module):
    """A layer computes its weight from two parameters before its forward pass."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.utils.weight_norm(torch.nn.Linear(6, 6)) for _ in range(3)))

    def forward(self, values):
        return self.layers(values)


class Queries(torch.nn.Module):
    """A layer whose output is a part of its parameter."""

    class Learned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values = torch.nn.Parameter(torch.randn(8, 6))

        def forward(self, count):
            return self.values[:count]

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([self.Learned(), torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)])

    def forward(self, values):
        queries = self.layers[0](len(values))
        return self.layers[2](torch.tanh(self.layers[1](values))) * queries


class Complex(torch.nn.Module):
    """A parameter that is used as another dtype."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6, 2))

        def forward(self, values):
            return torch.view_as_real(values.to(torch.complex64) * torch.view_as_complex(self.weight)).sum(-1)

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, values):
        for layer in self.layers:
            values = layer(values)
        return values


class Scaled(torch.nn.Module):
    """A parameter without dimensions, and one without elements."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.none = torch.nn.Parameter(torch.empty(0, 6))
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6)])

    def forward(self, values):
        return self.layers[0](values) * self.scale + self.none.sum()


class Adapted(torch.nn.Module):
    """Frozen layers with trained ones between them, in one unit and in units of their own."""

    def __init__(self):
        super().__init__()
        frozen, other = torch.nn.Linear(6, 6).requires_grad_(False), torch.nn.Linear(6, 6).requires_grad_(False)
        self.layers = torch.nn.ModuleList([frozen, torch.nn.Sequential(other, torch.nn.Linear(6, 6)),
                                           torch.nn.Linear(6, 6)])

    def forward(self, values):
        for layer in self.layers:
            values = torch.tanh(layer(values))
        return values


def check_kept(comm):
    """Without reshard_after_forward the backward pass gathers nothing; a pass without gradients keeps nothing."""
    tokens = next(batches(0))
    for reshards in (True, False):
        model = dt.torch.ShardedDataParallel(Model(3), comm, stage=3, reshard_after_forward=reshards)
        gather, units = model.shard.gather, []
        model.shard.gather = lambda unit, stream=0: (units.append(unit), gather(unit, stream=stream))
        loss = loss_of(model, tokens)
        units.clear()
        loss.backward()
        assert units == ([3, 2, 1] if reshards else []), units
        model.updated()
        with torch.no_grad():
            model(tokens)
        assert all(torch.isnan(each).all() for each in model.module.parameters())
        model.close()


def check_as_ddp(comm, make):
    """Three steps end with the parameters that DistributedDataParallel has."""
    def made():
        torch.manual_seed(4)
        return make()

    def train(wrapped, optimizer, after=lambda: None):
        for step in range(3):
            optimizer.zero_grad()
            wrapped(torch.full((5, 6), 0.1 * (step + comm.rank))).square().mean().backward()
            optimizer.step()
            after()

    plain = dt.torch.DistributedDataParallel(made(), comm)
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    for stage in (1, 2, 3):
        model = dt.torch.ShardedDataParallel(made(), comm, stage=stage)
        train(model, torch.optim.SGD(model.pieces(), lr=0.1), model.updated)
        with model.gathered() as module:
            for (name, found), wanted in zip(module.named_parameters(), plain.module.parameters()):
                assert torch.allclose(found, wanted, atol=1e-5), (make.__name__, stage, name, found, wanted)
        model.close()
    plain.close()


def check_between_steps(comm):
    """Passes between backward() and the optimizer's step, and after a checkpoint was loaded, see what is there."""
    tokens = next(batches(0))
    for stage in (1, 2, 3):
        for with_gradients in (False, True):
            one, other = (Sharded(Model(3), comm, stage=stage) for _ in range(2))
            for _ in range(3):
                loss_of(one.model, tokens).backward()
                loss_of(other.model, tokens).backward()
                with torch.set_grad_enabled(with_gradients):
                    loss_of(other.model, tokens)
                one.ours.step(1e-2)
                other.model.step(other.ours, 1e-2)
                assert loss_of(one.model, tokens).item() == loss_of(other.model, tokens).item(), stage
            for each in (one, other):
                each.model.close()


def check_export(comm):
    """What Shard.save() writes is the state of an ordinary module, shapes and names included."""
    folder = comm.broadcast_object(tempfile.mkdtemp() if comm.rank == 0 else None)
    path = os.path.join(folder, "model.safetensors")
    trained = Sharded(Model(3), comm, stage=3)
    trained.model.shard.save(path)
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    del header["__metadata__"]
    plain = Model(9)
    plain.load_state_dict({name: torch.frombuffer(bytearray(data[slice(*each["data_offsets"])]), dtype=torch.float32)
                           .reshape(each["shape"]) for name, each in header.items()})
    tokens = next(batches(0))
    assert abs(loss_of(plain, tokens).item() - loss_of(Model(3), tokens).item()) < 1e-6
    trained.model.close()
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


def check_refused_optimizers(comm):
    one, other = (Sharded(Model(3), comm) for _ in range(2))
    for optimizer, wanted in ((other.ours, "is of another shard"),
                              (torch.optim.SGD(one.model.pieces(), lr=0.1), "call its own step(), then updated()")):
        try:
            one.model.step(optimizer, 1e-3)
        except dt.InvalidArgumentError as error:
            assert wanted in str(error), error
        else:
            raise AssertionError(f"an optimizer was taken that {wanted}")
    for each in (one, other):
        each.model.close()


def check_stream_of_step(comm):
    """The optimizer gets the current stream of the module's device."""
    class Recorder(dt.Optimizer):
        def step(self, rate, *, stream=0):
            self.given = rate, stream

    model = dt.torch.ShardedDataParallel(Model(3), comm)
    model._stream = lambda: 77  # over host memory streams are ignored
    optimizer = Recorder.adamw(model.shard)
    model.step(optimizer, 0.5)
    assert optimizer.given == (0.5, 77), optimizer.given
    model.close()


def check_writing(comm):
    """What is written to gathered parameters stays if that was asked for; a wrapped module is not wrapped again."""
    tokens = next(batches(0))
    wanted = loss_of(Model(9), tokens).item()
    for stage in (1, 3):
        trained = Sharded(Model(1), comm, stage=stage)
        with trained.model.gathered(write=True) as module:
            module.load_state_dict(Model(9).state_dict())
        found = loss_of(trained.model, tokens).item()
        assert abs(found - wanted) < 1e-5, (stage, found, wanted)
        trained.model.close()
        if stage == 3:
            try:
                dt.torch.ShardedDataParallel(module, comm)
            except dt.InvalidArgumentError as error:
                assert "has no values" in str(error), error
            else:
                raise AssertionError("a module without values was wrapped")


def check_uneven_accumulation(comm):
    """Ranks with different numbers of passes in no_sync(), and with buffers."""
    for stage in (1, 3):
        torch.manual_seed(2)
        module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
        model = dt.torch.ShardedDataParallel(module, comm, stage=stage, units=[])
        if stage == 1 and comm.rank == 0:
            with model.no_sync():
                model(torch.randn(4, 6)).sum().backward()
        model(torch.randn(4, 6)).sum().backward()
        assert all(each.grad is not None for each in model.pieces())
        model.close()


def check_broken_step(comm):
    """An exception in backward() of rank 0: in no_sync() it is nobody else's, and elsewhere the step goes on."""
    def fail(_):
        raise ValueError("broken")

    def broken_pass():
        values = torch.ones(4, 6) * torch.ones((), requires_grad=True)  # its gradient comes last
        if comm.rank == 0:
            values.register_hook(fail)
        try:
            model(values).sum().backward()
        except ValueError:
            return
        assert comm.rank != 0

    for accumulates in (True, False):  # in the next forward pass
        torch.manual_seed(2)
        model = dt.torch.ShardedDataParallel(torch.nn.Linear(6, 2), comm, stage=2)
        optimizer = dt.Optimizer.sgd(model.shard)
        with model.no_sync():
            broken_pass()
            if accumulates:
                model(torch.ones(4, 6))
        broken_pass()
        if comm.rank == 0:
            try:
                with model.no_sync() if accumulates else contextlib.nullcontext():
                    model(torch.ones(4, 6))
            except dt.InvalidStateError as error:
                assert "its step was completed" in str(error) and "update the pieces" in str(error), error
            else:
                raise AssertionError("a step that the others have alone was taken for a whole one")
        for each in model.pieces():
            assert bool((each.grad == 8).all()), each.grad  # of two passes
        model.step(optimizer, 0.1)
        model(torch.ones(4, 6)).sum().backward()
        with model.gathered() as module:
            dt.torch.check_equal(module, comm)
        model.close()


def memory_bytes():
    """What this process has, its part of what it shares with others included."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def fsdp2(comm, make, reshard):
    from torch.distributed.fsdp import fully_shard
    model = make()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (comm.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return Plain(model, torch.optim.AdamW(model.parameters()))


def zero_redundancy(make):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = torch.nn.parallel.DistributedDataParallel(make())
    return Plain(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3))


def bench(comm, only=None):
    """Times of a step, and with the name of one way its memory."""
    def make():
        return Model(1, tokens=1000, width=256, depth=6)

    def plain():
        model = torch.nn.parallel.DistributedDataParallel(make())
        return Plain(model, torch.optim.AdamW(model.parameters()))

    ways = {"gloo DDP": plain, "dt stage 0": lambda: Sharded(make(), comm, stage=0),
            "gloo ZeroRedundancyOptimizer": lambda: zero_redundancy(make),
            "dt stage 1": lambda: Sharded(make(), comm, stage=1),
            "gloo FSDP2, not resharded": lambda: fsdp2(comm, make, False),
            "dt stage 2": lambda: Sharded(make(), comm, stage=2),
            "gloo FSDP2": lambda: fsdp2(comm, make, True),
            "dt stage 3": lambda: Sharded(make(), comm, stage=3)}
    before = memory_bytes()
    trained = {name: way() for name, way in ways.items() if only in (None, name)}
    tokens = torch.randint(0, 1000, (2, 17), generator=torch.Generator().manual_seed(comm.rank))
    losses = {name: [each.step(tokens) for _ in range(3)] for name, each in trained.items()}
    times = {name: [] for name in trained}
    for turn in range(ROUNDS):
        for name in list(trained)[::1 if turn % 2 else -1]:
            comm.barrier()
            begin = time.perf_counter()
            losses[name].append(trained[name].step(tokens))
            comm.barrier()
            times[name].append((time.perf_counter() - begin) * 1e3)
    first = next(iter(losses.values()))
    assert all(abs(a - b) < 1e-3 for each in losses.values() for a, b in zip(first, each)), losses
    more = comm.allreduce(float(memory_bytes() - before), op="avg")
    for name, each in times.items() if comm.rank == 0 else ():
        text = f"{name:30} {statistics.median(each):7.1f} ms [{min(each):.1f} .. {max(each):.1f}]"
        if name.startswith("dt") and only is None:
            rival = list(times)[list(times).index(name) - 1]
            ratios = sorted(a / b for a, b in zip(times[rival], each))
            text += f"  {rival} / dt {statistics.median(ratios):.2f} [{ratios[0]:.2f} .. {ratios[-1]:.2f}]"
        print(text + (f"  {more / 1e6:.1f} MB" if only is not None else ""), flush=True)


if __name__ == "__main__":
    torch_ranks.main({"check": check, "bench": lambda comm: bench(comm, *sys.argv[2:3])}[sys.argv[1]])
