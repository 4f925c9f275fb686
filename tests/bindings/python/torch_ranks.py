# SPDX-License-Identifier: Apache-2.0
"""A rank that trains one model under PyTorch's own DistributedDataParallel (gloo) and under dt's.

As a program: checks that on 2 ranks, started by `dt run`."""

import contextlib
import copy
import gc
import os
import pickle
import weakref

import dt
import dt.torch
import torch
import torch.distributed

STEPS = 20


def make_model(seed, width=64):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(32, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(),
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))


class Trained:
    """A wrapped model with its optimizer."""

    def __init__(self, wrapped):
        self.model = wrapped
        self.optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)

    def loss(self, inputs, labels):
        return torch.nn.functional.cross_entropy(self.model(inputs), labels)

    def step(self, inputs, labels):
        self.optimizer.zero_grad()
        loss = self.loss(inputs, labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def batch_of(generator, count=48):
    return (torch.randn(count, 32, generator=generator),
            torch.randint(0, 10, (count,), generator=generator))


def two_ways(comm, width=64):
    """Other first parameters on each rank: both must make them rank 0's."""
    seed = 7 + comm.rank
    theirs = torch.nn.parallel.DistributedDataParallel(make_model(seed, width))
    ours = dt.torch.DistributedDataParallel(make_model(seed, width), comm)
    return Trained(theirs), Trained(ours)


def check(comm):
    theirs, ours = two_ways(comm)
    generator = torch.Generator().manual_seed(100 + comm.rank)
    worst = 0.0
    for _ in range(STEPS):
        inputs, labels = batch_of(generator)
        worst = max(worst, abs(theirs.step(inputs, labels) - ours.step(inputs, labels)))
    assert worst < 1e-5, f"the losses differ by {worst}"
    names = [list(each.model.state_dict()) for each in (theirs, ours)]
    assert names[0] == names[1], names

    inputs, labels = batch_of(generator)
    more, last = batch_of(generator)
    for trained in (theirs, ours):  # two batches added up before they are averaged
        trained.optimizer.zero_grad()
        with trained.model.no_sync():
            trained.loss(inputs, labels).backward()
        trained.loss(more, last).backward()
    for a, b in zip(theirs.model.parameters(), ours.model.parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-6), (a.grad - b.grad).abs().max()
    assert ours.model.statistics().steps == STEPS + 1

    # A parameter without a gradient is named, and the next step works.
    ours.optimizer.zero_grad()
    part = ours.model.module[:4]
    try:
        part(inputs).sum().backward()
    except dt.InvalidStateError as error:
        assert "5.weight" in str(error), error
    else:
        raise AssertionError("nobody missed a gradient")
    ours.step(inputs, labels)

    check_broken_step(comm, ours, inputs, labels)
    check_wrapped_again(comm)
    check_unused(comm)
    check_unused_last(comm)
    check_static_graph(comm)
    check_sparse(comm)
    check_reductions(comm)
    check_equality(comm)
    check_sync_batch_norm(comm)
    check_tuned(comm)
    check_compiled(comm)

    frozen = make_model(1)
    for parameter in frozen[0].parameters():
        parameter.requires_grad_(False)
    wrapped = dt.torch.DistributedDataParallel(frozen, comm)
    wrapped(inputs).sum().backward()
    for dtype in (torch.float64, torch.bfloat16):
        module = torch.nn.Linear(32, 3).to(dtype)
        wrapped = dt.torch.DistributedDataParallel(module, comm)
        wrapped(torch.full((2, 32), float(comm.rank), dtype=dtype)).sum().backward()
        assert torch.all(module.weight.grad == 1), module.weight.grad  # the mean of 0 and 2
    try:
        dt.torch.DistributedDataParallel(torch.nn.ReLU(), comm)
    except dt.InvalidArgumentError:
        pass
    else:
        raise AssertionError("a module without parameters was taken")
    print(f"rank {comm.rank}: largest difference of the loss over {STEPS} steps {worst:.1e}")


class Branches(torch.nn.Module):
    """Uses the layers it is told to; nobody ever the last one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))

    def forward(self, values, used):
        for index in used:
            values = torch.tanh(self.layers[index](values))
        return values


def check_unused(comm):
    """Layers that some ranks use, some none: as PyTorch's own."""
    theirs = torch.nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    ours = dt.torch.DistributedDataParallel(Branches(), comm, find_unused_parameters=True)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (theirs, ours)]
    torch.manual_seed(comm.rank)
    for step in range(6):
        values = torch.randn(5, 6)
        used = ([0, 1], [0, 2], [2], [0, 1, 2])[(step + comm.rank) % 4]
        for each, optimizer in zip((theirs, ours), optimizers):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            each(values, used).square().sum().backward()
        for (name, expected), found in zip(theirs.module.named_parameters(), ours.module.parameters()):
            if expected.grad is None:
                assert found.grad is None or not found.grad.any(), (step, name)
            else:
                assert torch.allclose(expected.grad, found.grad, atol=1e-6), (step, name)
        for optimizer in optimizers:
            optimizer.step()
    ours.close()


def check_unused_last(comm):
    """Layers that some ranks use in passes without averaging alone: all get the mean of the sums. So does PyTorch 2
    with find_unused_parameters. With static_graph the first step is such a one."""
    plain = Branches()
    wrapped = [dt.torch.DistributedDataParallel(Branches(), comm, **{option: True})
               for option in ("find_unused_parameters", "static_graph")]
    if int(torch.__version__.partition(".")[0]) >= 2:
        wrapped.append(torch.nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True))
    torch.manual_seed(comm.rank)
    for step in range(4):
        earlier, last = (torch.randn(5, 6) for _ in range(2))
        # Layer 1: one rank earlier, the other at last. Layer 2: one rank or both, earlier alone.
        passes = ([0, 1], [0]) if (step + comm.rank) % 2 == 0 else ([0, 2], [0, 1])
        if step == 3:
            passes = ([0, 2], [0])
        for each in (plain, *wrapped):
            each.zero_grad(set_to_none=step % 3 == 0)
            with contextlib.nullcontext() if each is plain else each.no_sync():
                each(earlier, passes[0]).square().sum().backward()
            each(last, passes[1]).square().sum().backward()
        for index, (name, parameter) in enumerate(plain.named_parameters()):
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            comm.allreduce(expected, op="avg")
            for each in wrapped:
                found = list(each.module.parameters())[index].grad
                if expected.any():
                    assert torch.allclose(expected, found, atol=1e-6), (step, name, type(each))
                else:
                    assert found is None or not found.any(), (step, name, type(each))
        if step == 0:
            wrapped.pop(1).close()  # static: later steps use what the first one did
    wrapped[0].close()


def check_static_graph(comm):
    """Each rank uses the layers of its first step; one is used by rank 0 alone, one by nobody."""
    theirs = torch.nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    ours = dt.torch.DistributedDataParallel(Branches(), comm, static_graph=True)
    torch.manual_seed(comm.rank)
    for step in range(4):
        values = torch.randn(5, 6)
        for each in (theirs, ours):
            each.zero_grad(set_to_none=step % 2 == 0)
            each(values, [0, 1] if comm.rank == 0 else [2, 0]).square().sum().backward()
        for (name, expected), found in zip(theirs.module.named_parameters(), ours.module.parameters()):
            if expected.grad is None:
                assert found.grad is None or not found.grad.any(), (step, name)
            else:
                assert torch.allclose(expected.grad, found.grad, atol=1e-6), (step, name)
    try:
        ours(torch.randn(5, 6), [0] if comm.rank == 0 else [2, 0]).square().sum().backward()
        raise AssertionError("a step that differs from the first was taken")
    except dt.InvalidStateError as error:
        assert "layers.1.weight" in str(error) and "(ready 0 of 1 times, as in step 1)" in str(error), error
    ours(torch.randn(5, 6), [0, 1] if comm.rank == 0 else [2, 0]).square().sum().backward()
    ours.close()


def check_sparse(comm):
    """Rows of an embedding that each rank uses, beside a dense gradient of the same model."""
    def model(sparse):
        torch.manual_seed(4)
        return torch.nn.Sequential(torch.nn.Embedding(200, 6, sparse=sparse), torch.nn.Linear(6, 2))

    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        dense, sparse = dt.torch.DistributedDataParallel(model(False), comm), model(True)
        wrapped = dt.torch.DistributedDataParallel(sparse, comm, **options)
        torch.manual_seed(comm.rank)
        for step in range(3):
            words = torch.randint(0, 200, (300 if step == 2 else 7,))
            for each in (dense, wrapped):
                each.zero_grad()
                each(words).square().sum().backward()
            gradient = sparse[0].weight.grad
            assert gradient.is_sparse
            assert torch.allclose(gradient.to_dense(), dense.module[0].weight.grad, atol=1e-6), step
            assert torch.allclose(sparse[1].weight.grad, dense.module[1].weight.grad, atol=1e-6), step
            torch.optim.SGD(sparse.parameters(), 0.1).step()
            torch.optim.SGD(dense.parameters(), 0.1).step()
        for each in (dense, wrapped):
            each.close()


def check_reductions(comm):
    """16 bits on the way, PowerSGD, a hook, and clipping, each beside the plain mean."""
    def gradients(each):
        torch.manual_seed(comm.rank)
        each.module.zero_grad()
        each(torch.randn(40, 20)).square().sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in each.module.parameters()])

    def wrapped(**options):
        torch.manual_seed(5)
        return dt.torch.DistributedDataParallel(torch.nn.Linear(20, 30), comm, **options)

    plain, narrow, compressed, hooked = wrapped(), wrapped(wire=dt.Wire.BF16), wrapped(), wrapped()
    mean = gradients(plain).clone()
    limit = 0.02 * mean.abs().max()
    assert (gradients(narrow) - mean).abs().max() < limit
    compressed.power_sgd(rank=2, start_step=2)
    assert torch.allclose(gradients(compressed), mean, atol=1e-4)
    assert torch.allclose(gradients(compressed), mean, atol=1e-4)
    assert not torch.allclose(gradients(compressed), mean, atol=1e-2)
    hooked.set_hook(lambda bucket, stage: comm.allreduce_async(bucket.data) if stage == 0 else None)
    assert torch.allclose(gradients(hooked), comm.size * mean, atol=1e-3)
    norm = plain.clip_norm(1)
    assert abs(norm - float(mean.norm())) < 1e-3 * norm
    found = torch.cat([parameter.grad.flatten() for parameter in plain.module.parameters()])
    assert torch.allclose(found, mean / norm, atol=1e-5)
    for each in (plain, narrow, compressed, hooked):
        each.close()


def check_tuned(comm):
    """Sizes of buckets are tried while the model trains, and no result depends on them."""
    plain, tuned = (dt.torch.DistributedDataParallel(make_model(2), comm, bucket_cap_bytes=4096, **options)
                    for options in ({}, {"tune_steps": 3}))
    models = Trained(plain), Trained(tuned)
    generator = torch.Generator().manual_seed(comm.rank)
    for _ in range(14):
        batch = batch_of(generator)
        a, b = (each.step(*batch) for each in models)
        assert a == b, (a, b)
    assert tuned.statistics().tuned and not plain.statistics().tuned
    for each in (plain, tuned):
        each.close()


def check_broken_step(comm, ours, inputs, labels):
    """An exception in backward() of one rank: all hear of it, and the next step works."""
    def fail(_):
        raise ValueError("broken")

    ours.optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(hidden(ours.model, inputs, fail if comm.rank == 0 else None),
                                             labels)
    try:
        loss.backward()
    except ValueError:
        assert comm.rank == 0
        try:
            ours.model(inputs)
        except dt.InvalidStateError as error:
            assert "ended with an exception" in str(error), error
        else:
            raise AssertionError("a broken step was taken for a whole one")
    except dt.InvalidStateError as error:
        assert comm.rank == 1 and "0.weight" in str(error), error
    else:
        raise AssertionError("the other rank's failure went unnoticed")
    ours.step(inputs, labels)
    check_broken_unheard(comm)


def check_broken_unheard(comm):
    """An exception in backward() of one rank that the others do not hear of: this rank does."""
    def fail(_):
        raise ValueError("broken")

    for options, early in (({"find_unused_parameters": True}, True), ({"static_graph": True}, True), ({}, False)):
        ours = Trained(dt.torch.DistributedDataParallel(make_model(3), comm, **options))
        inputs, labels = batch_of(torch.Generator().manual_seed(comm.rank))
        given = inputs.clone().requires_grad_() * 1  # its gradient comes behind those of all parameters
        if comm.rank == 0 and not early:
            given.register_hook(fail)
        output = hidden(ours.model, given, fail if comm.rank == 0 and early else None)
        try:
            torch.nn.functional.cross_entropy(output, labels).backward()
        except ValueError:
            assert comm.rank == 0
            try:
                ours.model(inputs)
            except dt.InvalidStateError as error:
                assert "its step was completed without the gradients" in str(error), error
                assert ("make this wrapper anew" in str(error)) == ("static_graph" in options), error
            else:
                raise AssertionError("a step that the others have alone was taken for a whole one")
        else:
            assert comm.rank == 1
        if "static_graph" in options:
            ours.model.close()
            ours = Trained(dt.torch.DistributedDataParallel(ours.model.module, comm, **options))
        ours.step(inputs, labels)
        ours.model.close()
    alone = comm.split(comm.rank)
    ours = Trained(dt.torch.DistributedDataParallel(make_model(3), alone, find_unused_parameters=True))
    try:
        torch.nn.functional.cross_entropy(hidden(ours.model, inputs, fail), labels).backward()
    except ValueError:
        ours.step(inputs, labels)  # there is no other rank
    else:
        raise AssertionError("the exception was lost")
    ours.model.close()
    alone.close()


def hidden(wrapped, inputs, hook):
    """The output of a forward pass, with a hook where the gradient passes the first layer's output."""
    def on_output(_, __, output):
        if hook is not None:
            output.register_hook(hook)

    handle = wrapped.module[0].register_forward_hook(on_output)
    try:
        return wrapped(inputs)
    finally:
        handle.remove()


def check_wrapped_again(comm):
    """One module under several wrappers, one after the other: closed, forgotten and in use."""
    module = torch.nn.Linear(32, 3)
    inputs = torch.full((2, 32), float(comm.rank))
    wrapped = dt.torch.DistributedDataParallel(module, comm)
    wrapped(inputs).sum().backward()
    wrapped.close()
    wrapped.close()
    try:
        wrapped(inputs)
    except dt.InvalidArgumentError:
        pass
    else:
        raise AssertionError("a closed wrapper was used")
    for _ in range(2):
        module.weight.grad = None
        module(inputs).sum().backward()  # nobody averages it
        assert torch.all(module.weight.grad == 2 * comm.rank), module.weight.grad
        module.weight.grad = None
        wrapped = dt.torch.DistributedDataParallel(module, comm)
        wrapped(inputs).sum().backward()
        assert torch.all(module.weight.grad == 1), module.weight.grad
        gone = weakref.ref(wrapped)
        del wrapped
        gc.collect()
        assert gone() is None, "the module keeps its wrapper"


def check_equality(comm):
    # Modules that are the same, one that is not, and one of another shape.
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    dt.torch.check_equal(module, comm)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    for state in (optimizer.state_dict(), optimizer.state):
        dt.torch.check_equal(state, comm)
    if comm.rank == 1:
        with torch.no_grad():
            module[1].bias[2] += 1
            optimizer.state[module[0].bias]["momentum_buffer"][1] += 1
    other = torch.nn.Linear(8, 4 + comm.rank, bias=comm.rank == 0)
    for wrong, part in ((module, "1.bias"), (other, "names and shapes"),
                        (optimizer.state_dict(), "state.1.momentum_buffer"),
                        (optimizer.state, "1.momentum_buffer")):
        try:
            dt.torch.check_equal(wrong, comm)
        except dt.MismatchError as error:
            assert part in str(error) and "rank 1 (" in str(error), error
        else:
            raise AssertionError("modules that differ were taken for equal")


def check_sync_batch_norm(comm):
    """Two ranks with parts of a batch train as one rank does with the whole of it."""
    for shape, dtype, momentum in (((8, 6), torch.float32, 0.1), ((8, 6, 4), torch.float64, None),
                                   ((8, 6, 3, 2), torch.bfloat16, 0.3)):
        def layers(kind):
            torch.manual_seed(5)
            norm = kind(6, momentum=momentum)
            torch.nn.init.uniform_(norm.weight)
            return torch.nn.Sequential(norm).to(dtype if dtype != torch.bfloat16 else torch.float32)

        alone = layers({2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)])
        inner = layers(torch.nn.SyncBatchNorm)
        seen = []
        hook = inner[0].register_forward_hook(lambda *_: seen.append(1))
        wrapped = dt.torch.DistributedDataParallel(inner, comm)
        assert type(inner[0]) is dt.torch.SyncBatchNorm
        close = 2e-2 if dtype == torch.bfloat16 else 1e-5
        for cut in (3, 8):  # rank 1 has the rest: 5 samples, then none
            whole = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(cut)) + 10).to(dtype)
            mine = (whole[:cut] if comm.rank == 0 else whole[cut:]).detach().requires_grad_()
            whole = whole.to(next(alone.parameters()).dtype).requires_grad_()
            for model, given in ((alone, whole), (wrapped, mine)):
                model.zero_grad()
                output = model(given)
                (output.to(torch.float64) * torch.linspace(-1, 1, 6).view([1, 6] + [1] * (len(shape) - 2))
                 * output).sum().backward()
            part = slice(0, cut) if comm.rank == 0 else slice(cut, None)
            for a, b in ((mine.grad, whole.grad[part]), (inner[0].weight.grad * 2, alone[0].weight.grad),
                         (inner[0].bias.grad * 2, alone[0].bias.grad),
                         (inner[0].running_mean, alone[0].running_mean),
                         (inner[0].running_var, alone[0].running_var)):
                assert torch.allclose(a.to(b.dtype), b, atol=close * 10, rtol=close), (dtype, cut, a, b)
            assert inner[0].num_batches_tracked == alone[0].num_batches_tracked
        assert len(seen) == 2, "a hook of the layer is gone"
        hook.remove()
        inner.eval()
        inner(mine)  # alone: the other rank does not call
        inner.train()
        for twin in (copy.deepcopy(inner[0]), pickle.loads(pickle.dumps(inner[0]))):
            assert type(twin) is torch.nn.SyncBatchNorm
            assert torch.equal(twin.running_var, inner[0].running_var)
        wrapped = dt.torch.DistributedDataParallel(inner, comm)  # before the other one is forgotten
        assert type(inner[0]) is dt.torch.SyncBatchNorm
        wrapped.close()
        assert type(inner[0]) is torch.nn.SyncBatchNorm

    check_sync_batch_norm_without(comm)

    class Derived(torch.nn.SyncBatchNorm):
        pass

    grouped = torch.nn.SyncBatchNorm(6)
    grouped.process_group = "a group"
    for layer, part in ((Derived(6), "0 is a Derived"), (grouped, "0 is a torch.nn.SyncBatchNorm with a")):
        try:
            dt.torch.DistributedDataParallel(torch.nn.Sequential(layer), comm)
        except dt.InvalidArgumentError as error:
            assert part in str(error), error
        else:
            raise AssertionError("a layer over other ranks was taken")


def check_sync_batch_norm_without(comm):
    """Weight or bias: their gradients, and no second derivative."""
    whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(3)) + 1
    for missing in ("weight", "bias"):
        models = []
        for kind in (torch.nn.BatchNorm1d, torch.nn.SyncBatchNorm):
            torch.manual_seed(2)
            layer = kind(6)
            setattr(layer, missing, None)
            models.append(torch.nn.Sequential(torch.nn.Linear(6, 6), layer))
        alone, inner = models
        wrapped = dt.torch.DistributedDataParallel(inner, comm)
        for model, given, share in ((alone, whole, 1), (wrapped, whole[4 * comm.rank:][:4], 2)):
            (model(given).square() * torch.linspace(-1, 1, 6) * share).sum().backward()
        for (name, expected), found in zip(alone.named_parameters(), inner.parameters()):
            assert torch.allclose(expected.grad, found.grad, atol=1e-4), (missing, name, expected.grad, found.grad)
        given = torch.randn(4, 6, requires_grad=True)
        gradient, = torch.autograd.grad((inner[1](given).square() * torch.linspace(-1, 1, 6)).sum(), given,
                                        create_graph=True)
        try:
            gradient.sum().backward()
        except RuntimeError as error:
            assert "once_differentiable" in str(error), error
        else:
            raise AssertionError("a second derivative was taken")
        wrapped.close()


def check_compiled(comm):
    """torch.compile() of a wrapped module computes and averages the same, with PyTorch's own hooks or ours."""
    if not hasattr(torch, "compile"):
        print(f"skipped: torch.compile, which PyTorch {torch.__version__} does not have")
        return
    for make in (make_model, lambda seed: torch.nn.SyncBatchNorm.convert_sync_batchnorm(make_model(seed))):
        plain, compiled = (dt.torch.DistributedDataParallel(make(2), comm) for _ in range(2))
        models = Trained(plain), Trained(torch.compile(compiled, backend="aot_eager"))
        generator = torch.Generator().manual_seed(comm.rank)
        for _ in range(3):
            inputs, labels = batch_of(generator)
            a, b = (each.step(inputs, labels) for each in models)
            assert abs(a - b) < 1e-5, (a, b)
        assert compiled.statistics().steps == 3
        assert any(torch._dynamo.utils.counters["stats"].values()), "nothing was compiled"


def main(run):
    torch.set_num_threads(1)
    with dt.Job() as job:
        port = "torch port"
        if job.rank == 0:  # PyTorch's ranks meet in a store of their own, on a port that is free
            store = torch.distributed.TCPStore("127.0.0.1", 0, job.world_size, True,
                                               wait_for_workers=False)
            job.store.set(port, str(store.port))
        else:
            store = torch.distributed.TCPStore("127.0.0.1", int(job.store.get(port)), job.world_size,
                                               False)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", store=store, rank=job.rank,
                                             world_size=job.world_size)
        run(job.world())
        job.world().barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(check)
