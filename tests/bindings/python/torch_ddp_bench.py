# SPDX-License-Identifier: Apache-2.0
"""torch_ddp_bench.py [--models NAME...] [--ways NAME...] [--rounds N] [--losses STEPS] [--rate R] [--ranks N]

Compares dt.torch.DistributedDataParallel with PyTorch's own over gloo: the same model, data and first values. Starts
its ranks itself, unless `dt run` did. Prints a Markdown table with one line per model and way: the time of a step in
ms, median [least .. most], the two libraries by turns, and the ratio of the two within a round.

Over --losses steps it prints the largest difference of a loss on any rank, in float32 and then in float64. The program
fails if it is above 1e-9 in float64, or above 1e-5 in float32. Sums of three and more numbers round differently in
another order. In float32 one such rounding can change which inputs a ReLU or a pool lets through, and then a gradient
jumps; the larger the learning rate, the more that changes the next losses. With three ranks and 0.01 they differ by up
to 1e-3. Behind the difference, in parentheses, stands how much PyTorch's own differs in float32 when each rank has the
batches of the next one: the same means, summed in another order. bf16, f16 and PowerSGD round in each library's own
way: the program prints the means of the last 20 losses, gloo first, and their difference, and limits nothing."""

import argparse
import functools
import math
import os
import statistics
import subprocess
import sys
import time
from unittest import mock

sys.path.insert(0, os.path.dirname(__file__))

import dt  # noqa: E402
import dt.torch  # noqa: E402
import torch  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: E402
from torch_ranks import main as with_both  # noqa: E402
from torch_ranks import make_model  # noqa: E402

CLASSES = 10
WARM_UP = 5  # PowerSGD begins in the third step
LAST = 20
ONE_BUCKET_MB = 1024
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-9}
DDP = torch.nn.parallel.DistributedDataParallel


def layers(*sizes):
    """Fully connected, with ReLU between."""
    parts = []
    for wide, narrow in zip(sizes, sizes[1:]):
        parts += [torch.nn.Linear(wide, narrow), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def fashion():
    """The network of examples/fashion_mnist."""
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, CLASSES))


# By name: the model, the shape of a sample, and how many a rank has in a step.
MODELS = {
    "7 k": (lambda: make_model(0, 64), (32,), 48),
    "0.3 M": (lambda: make_model(0, 512), (32,), 48),
    "1.1 M": (lambda: make_model(0, 1024), (32,), 48),
    "fashion": (fashion, (1, 28, 28), 32),
    "20 M": (lambda: layers(1536, 2048, 4096, 2048, CLASSES), (1536,), 16)}


class Branches(torch.nn.Module):
    """A model with two last layers, of which each step uses another one; so do neighbouring ranks."""

    def __init__(self, model, rank):
        super().__init__()
        self.model = model
        self.ends = torch.nn.ModuleList(torch.nn.Linear(CLASSES, CLASSES) for _ in range(2))
        self.turn = rank

    def forward(self, inputs):
        self.turn += 1
        return self.ends[self.turn % 2](self.model(inputs))


class Way:
    """Wraps a model for both libraries. batches: before each step of the optimizer."""

    def __init__(self, learning_rate, name, batches=1, equal=True, unused=False, wire=dt.Wire.SAME, hook=None, rank=0):
        self.learning_rate = learning_rate
        self.name, self.batches, self.equal = name, batches, equal
        self.unused, self.wire, self.hook, self.rank = unused, wire, hook, rank

    def both(self, make, comm):
        """Theirs and ours."""
        return [self.theirs(make, comm.rank), self.ours(make, comm)]

    def _model(self, make, rank):
        torch.manual_seed(7)
        made = make()
        return Branches(made, rank) if self.unused else made

    def theirs(self, make, rank):
        """rank: whose branches it takes."""
        # PyTorch's PowerSGD over gloo hangs or aborts with several buckets. PyTorch 1 limits the first one separately.
        cap = {"bucket_cap_mb": ONE_BUCKET_MB} if self.rank > 0 else {}
        first = ONE_BUCKET_MB << 20 if self.rank > 0 else torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
        with mock.patch.object(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", first):
            model = DDP(self._model(make, rank), find_unused_parameters=self.unused, **cap)
        if self.rank > 0:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=self.rank, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.hook is not None:
            model.register_comm_hook(None, self.hook)
        return Trained(model, self.batches, self.learning_rate)

    def ours(self, make, comm):
        model = dt.torch.DistributedDataParallel(
            self._model(make, comm.rank), comm, find_unused_parameters=self.unused, wire=self.wire)
        if self.rank > 0:
            model.power_sgd(rank=self.rank, start_step=2)
        return Trained(model, self.batches, self.learning_rate)


class Trained:
    """A wrapped model with its optimizer."""

    def __init__(self, model, batches, learning_rate):
        self.model, self.batches = model, batches
        self.optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def step(self, batches):
        """The mean loss of the batches."""
        self.optimizer.zero_grad(set_to_none=False)
        with self.model.no_sync():
            loss = sum(self._backward(*batch) for batch in batches[:-1])
        loss += self._backward(*batches[-1])
        self.optimizer.step()
        return loss

    def _backward(self, inputs, labels):
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels) / self.batches
        loss.backward()
        return loss.item()


def ways(learning_rate):
    way = functools.partial(Way, learning_rate)
    try:
        torch.distributed.all_reduce(torch.zeros(1, dtype=torch.bfloat16))
        narrow = way("bf16", equal=False, wire=dt.Wire.BF16, hook=default_hooks.bf16_compress_hook)
    except RuntimeError:  # gloo of PyTorch 1.13 has none
        narrow = way("f16", equal=False, wire=dt.Wire.F16, hook=default_hooks.fp16_compress_hook)
    return [way("plain"), way("4 batches a step", batches=4), way("unused parameters", unused=True), narrow,
            way("PowerSGD, rank 4", equal=False, rank=4)]


def batches_of(generator, way, shape, count):
    """Different ones, so that one that is left out or taken twice shows."""
    return [(torch.randn(count, *shape, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator))
            for _ in range(way.batches)]


def curve(trained, way, shape, count, rank, steps):
    """The losses with the batches of that rank; each rank has others."""
    generator = torch.Generator().manual_seed(100 + rank)
    return [trained.step(batches_of(generator, way, shape, count)) for _ in range(steps)]


def curves(way, make, shape, count, comm, steps, dtype):
    """The losses of both, and their largest difference on any rank."""
    torch.set_default_dtype(dtype)
    try:
        both = way.both(make, comm)
        found = [curve(each, way, shape, count, comm.rank, steps) for each in both]
        both[1].model.close()
    finally:
        torch.set_default_dtype(torch.float32)
    return found, largest_difference(comm, *found)


def largest_difference(comm, these, those):
    """On any rank."""
    differences = [abs(a - b) for a, b in zip(these, those)]
    largest = max(differences) if all(map(math.isfinite, differences)) else math.inf
    return max(comm.allgather_objects(largest))


def in_another_order(way, make, shape, count, comm, steps, theirs):
    """How much the losses of PyTorch's own differ when each rank has the batches of the next one, in float32."""
    following = (comm.rank + 1) % comm.size
    found = curve(way.theirs(make, following), way, shape, count, following, steps)
    return largest_difference(comm, found, comm.allgather_objects(theirs)[following])


def losses(name, way, make, shape, count, comm, steps):
    """Of the model of that name: what both had, as text; an AssertionError where they must be equal and are not."""
    (theirs, ours), single = curves(way, make, shape, count, comm, steps, torch.float32)
    if not way.equal:
        means = [statistics.mean(curve[-LAST:]) for curve in (theirs, ours)]
        return f"{means[0]:.4f} and {means[1]:.4f}: {abs(means[0] - means[1]):.0e}"
    _, double = curves(way, make, shape, count, comm, steps, torch.float64)
    for dtype, found in ((torch.float64, double), (torch.float32, single)):
        assert found <= LIMITS[dtype], (
            f"{name}, {way.name}: the losses differ by {found:.1e} in {dtype}, more than {LIMITS[dtype]:.0e}")
    if comm.size <= 2:
        return f"{single:.0e}, {double:.0e}"
    control = in_another_order(way, make, shape, count, comm, steps, theirs)
    return f"{single:.0e} ({control:.0e}), {double:.0e}"


def times(way, make, shape, count, comm, rounds):
    """Of both, in ms, one of each in a round."""
    both = way.both(make, comm)
    batches = batches_of(torch.Generator().manual_seed(comm.rank), way, shape, count)
    for each in both:
        for _ in range(WARM_UP):
            each.step(batches)
    taken = [], []
    for turn in range(rounds):
        for which in ((0, 1), (1, 0))[turn % 2]:
            comm.barrier()
            begin = time.perf_counter()
            both[which].step(batches)
            taken[which].append((time.perf_counter() - begin) * 1e3)
    both[1].model.close()
    return taken


def spread(values):
    if not values:
        return ""
    return f"{statistics.median(values):.2f} [{min(values):.2f} .. {max(values):.2f}]"


def bench(comm, options):
    say = print if comm.rank == 0 else lambda *_, **__: None
    say(f"PyTorch {torch.__version__}, {comm.size} ranks, {options.rounds} rounds, losses of {options.losses} steps, "
        f"learning rate {options.rate}\n")
    say("| parameters | way | gloo, ms | dt, ms | dt / gloo | losses |\n| --- | --- | --- | --- | --- | --- |")
    for name in options.models:
        make, shape, count = MODELS[name]
        parameters = f"{sum(each.numel() for each in make().parameters()):,}"
        for way in ways(options.rate):
            if options.ways and way.name not in options.ways:
                continue
            loss = losses(name, way, make, shape, count, comm, options.losses) if options.losses else ""
            taken = times(way, make, shape, count, comm, options.rounds)
            ratios = [ours / theirs for theirs, ours in zip(*taken)]
            cells = [parameters, way.name, *(spread(each) for each in (*taken, ratios)), loss]
            say(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--losses", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.001, help="learning rate")
    parser.add_argument("--ranks", default="2")
    arguments = parser.parse_args()
    if "DT_RANK" not in os.environ:
        sys.exit(subprocess.run([os.environ.get("DT_COMMAND", "dt"), "run", "-n", arguments.ranks, sys.executable, "-I",
                                 *sys.argv], timeout=3600, check=False).returncode)
    with_both(lambda comm: bench(comm, arguments))
