# SPDX-License-Identifier: Apache-2.0
"""The backend "dt" of torch.distributed on 2 and 3 ranks, which are processes that do not import dt.

process_group_test.py; as a rank: process_group_test.py CASE RANK SIZE FOLDER"""

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LIMIT_S = 120
FOLDER = ""


def case_collectives(dist, torch, rank, size):
    ranks = range(size)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.complex64):
        sums = (torch.arange(6).reshape(2, 3) + rank).to(dtype).t()  # not contiguous
        dist.all_reduce(sums)
        expected = (torch.arange(6).reshape(2, 3) * size + sum(ranks)).to(dtype).t()
        assert torch.equal(sums, expected), (dtype, sums)
    anywhere = torch.tensor([rank == 0, False])
    dist.all_reduce(anywhere)
    assert anywhere.tolist() == [True, False]
    for dtype in (torch.bool, torch.int16, torch.complex128, torch.float8_e4m3fn, torch.uint16):
        moved = torch.tensor([rank == 0] * 5).to(torch.float32).to(dtype)
        dist.broadcast(moved, 0)
        assert moved.to(torch.float32).tolist() == [1.0] * 5, dtype
    parts = [torch.empty(2, dtype=torch.int64) for _ in ranks]
    dist.all_gather(parts, torch.tensor([rank, 7]))
    assert [part.tolist() for part in parts] == [[each, 7] for each in ranks]
    flat = torch.empty(size * 2)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
    assert flat.tolist() == [each for each in ranks for _ in range(2)]
    piece = torch.empty(3)
    dist.reduce_scatter_tensor(piece, torch.arange(3.0 * size), op=dist.ReduceOp.AVG)
    assert torch.allclose(piece, torch.arange(3.0) + 3 * rank), piece
    uneven = torch.empty(rank + 1)
    dist.reduce_scatter(uneven, [torch.full((each + 1,), 1.0 * each) for each in ranks])
    assert uneven.tolist() == [rank * size] * (rank + 1)
    # To rank r go r + 1 rows.
    rows = sum(ranks) + size
    received = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(received, torch.full((rows, 2), float(rank)), [rank + 1] * size,
                           [each + 1 for each in ranks])
    assert received[:, 1].tolist() == [each for each in ranks for _ in range(rank + 1)]
    outputs = [torch.empty(rank + 1) for _ in ranks]
    dist.all_to_all(outputs, [torch.full((each + 1,), 10.0 * rank) for each in ranks])
    assert [each.tolist() for each in outputs] == [[10.0 * each] * (rank + 1) for each in ranks]
    gathered = [torch.empty(1) for _ in ranks] if rank == 1 else None
    dist.gather(torch.tensor([float(rank)]), gathered, dst=1)
    assert gathered is None or torch.cat(gathered).tolist() == list(ranks)
    own = torch.empty(2)
    dist.scatter(own, [torch.full((2,), 5.0 + each) for each in ranks] if rank == 1 else None, src=1)
    assert own.tolist() == [5.0 + rank] * 2
    total = torch.tensor([1.0 + rank])
    dist.reduce(total, 1)
    assert total.item() == (sum(ranks) + size if rank == 1 else 1.0 + rank)
    passed = torch.tensor([rank])
    request = dist.isend(passed, (rank + 1) % size)
    came = torch.tensor([-1])
    dist.recv(came, (rank - 1) % size)
    request.wait()
    assert came.item() == (rank - 1) % size
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in ranks]
    dist.barrier()


def case_types(dist, torch, rank, size):
    ranks = range(size)
    every = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
             torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
             torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
    for dtype in every:
        sums = torch.tensor([1 + rank] * 5).to(dtype)
        dist.all_reduce(sums)
        assert sums.to(torch.complex64).real.tolist() == [sum(ranks) + size] * 5, (dtype, sums)
    whole = [dtype for dtype in every if not dtype.is_floating_point and not dtype.is_complex]
    for dtype in whole:
        for op, combine in (("BAND", int.__and__), ("BOR", int.__or__), ("BXOR", int.__xor__)):
            bits = torch.tensor([4 + rank, 7]).to(dtype)
            dist.all_reduce(bits, op=getattr(dist.ReduceOp, op))
            expected = [functools.reduce(combine, each) for each in ([4 + r for r in ranks], [7] * size)]
            assert bits.to(torch.int64).tolist() == expected, (dtype, op, bits)
    # Of bool the sum is "or", so that nothing but 0 and 1 lies in memory.
    for op, expected in (("SUM", [1, 1, 0]), ("MAX", [1, 1, 0]), ("BOR", [1, 1, 0]), ("PRODUCT", [1, 0, 0]),
                         ("MIN", [1, 0, 0]), ("BAND", [1, 0, 0]), ("BXOR", [size % 2, 1, 0])):
        flags = torch.tensor([True, rank == 0, False])
        dist.all_reduce(flags, op=getattr(dist.ReduceOp, op))
        assert flags.view(torch.uint8).tolist() == expected, (op, flags)
    for dtype in every + [torch.bool]:
        parts = torch.empty(size * 3, dtype=dtype)
        dist.all_gather_into_tensor(parts, torch.tensor([rank % 2] * 3).to(dtype))
        assert parts.to(torch.complex64).real.tolist() == [each % 2 for each in ranks for _ in range(3)], dtype
    for tensor, op in ((torch.ones(1), dist.ReduceOp.BXOR), (torch.tensor([True]), dist.ReduceOp.AVG)):
        try:
            dist.all_reduce(tensor, op=op)
        except NotImplementedError as error:
            assert "dt has no" in str(error), error
        else:
            raise AssertionError("not refused")


def case_futures(dist, torch, rank, size):
    one = torch.ones(4)
    # A callback that waits for a later call must not hold up the completion of that call.
    def again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]
    assert dist.all_reduce(one, async_op=True).get_future().then(again).wait().tolist() == [size**2] * 4
    work = dist.all_reduce(one, async_op=True)
    while not work.is_completed():
        pass
    assert work.wait() and one[0].item() == size**3
    dist.all_reduce(torch.ones(1 << 20), async_op=True)  # nobody waits, and the tensor goes
    dist.barrier()


def case_groups(dist, torch, rank, size):
    from dt import _process_group
    pair = dist.new_group([0, size - 1])
    mine = dist.new_group([rank], use_local_synchronization=True)
    halves = [dist.new_group([each for each in range(size) if each % 2 == part]) for part in range(2)]
    beside = dist.new_group(backend="gloo")
    # Made by its members alone; torch counts it in the names of what they make later.
    both = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 else None
    value = torch.tensor([1.0 + rank])
    if rank in (0, size - 1):
        dist.all_reduce(value, group=pair)
        assert value.item() == size + 1
    dist.all_reduce(value, group=mine)
    if both is not None:
        flag = torch.tensor([rank])
        dist.broadcast(flag, 1, group=both)
        assert flag.item() == 1
    last = torch.tensor([rank])
    dist.all_reduce(last, op=dist.ReduceOp.MAX, group=halves[rank % 2])
    assert last.item() == max(each for each in range(size) if each % 2 == rank % 2)
    assert len(_process_group._memberships) == 1, "one job for all groups"
    dist.destroy_process_group(pair)
    dist.barrier(group=beside)


def case_messages(dist, torch, rank, size):
    ranks = range(size)
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 3, 1000, 1 << 20):  # in the header, and behind it
        # A ring, the receives first; and both sides send first.
        came = torch.empty(count)
        receiving = dist.irecv(came, before)
        dist.send(torch.full((count,), float(rank)), after)
        receiving.wait()
        assert bool((came == before).all())
        # Tags in another order than they were sent, and from all ranks in any order.
        sending = [dist.isend(torch.full((count,), 10.0 * rank + tag), peer, tag=tag)
                   for tag in range(3) for peer in ranks if peer != rank]
        for tag in (2, 0, 1):
            for peer in reversed(ranks):
                if peer != rank:
                    dist.recv(came, peer, tag=tag)
                    assert bool((came == 10.0 * peer + tag).all()), (peer, tag)
        for each in sending:
            each.wait()
    # A receive that is satisfied last does not hold up collectives, nor other messages.
    late = torch.empty(5)
    receiving = dist.irecv(late, before, tag=7)
    dist.barrier()
    future = receiving.get_future()
    assert not receiving.is_completed()
    dist.send(torch.full((5,), 7.0), after, tag=7)
    assert future.wait()[0].tolist() == [7.0] * 5 and receiving.is_completed()
    # From any source, and what else these sent before and behind it.
    if rank == 0:
        kinds = torch.zeros(2, dtype=torch.int64)
        seen = []
        for _ in range(2 * (size - 1)):
            source = dist.recv(kinds, tag=5)
            assert kinds[0].item() == source
            seen.append(tuple(kinds.tolist()))
        assert sorted(seen) == [(peer, each) for peer in ranks[1:] for each in range(2)], seen
        for peer in ranks[1:]:
            dist.recv(kinds, peer, tag=6)
            assert kinds.tolist() == [peer, 9]
    else:
        for each in range(2):
            dist.send(torch.tensor([rank, each]), 0, tag=5)
            if each == 0:
                dist.send(torch.tensor([rank, 9]), 0, tag=6)
    # Groups do not mix.
    group = dist.new_group(list(ranks))
    mine = torch.tensor([rank])
    sending = [dist.isend(mine + 50, after), dist.isend(mine, after, group=group)]
    came = torch.empty(1, dtype=torch.int64)
    dist.recv(came, before, group=group)
    assert came.item() == before
    dist.recv(came, before)
    assert came.item() == before + 50
    for each in sending:
        each.wait()
    sending = dist.isend(torch.ones(3), after)
    try:
        dist.recv(torch.empty(4), before)
    except torch.distributed.DistBackendError as error:
        assert f"recv from rank {before}, tag 0" in str(error) and "16 bytes" in str(error), error
    else:
        raise AssertionError("the sizes differ, and nothing was raised")
    sending.wait()
    begun = time.monotonic()
    dist.destroy_process_group(group)
    dist.destroy_process_group()  # at once, although some ranks were listened to to the end
    assert time.monotonic() - begun < 4
    dist.init_process_group("dt", init_method=f"file://{FOLDER}/again", rank=rank, world_size=size)


def case_names(dist, torch, rank, size):
    group = dist.new_group(list(range(size)), group_desc="pipeline")
    dist.all_reduce(torch.ones(1), group=group)
    try:
        dist.all_reduce(torch.ones(1 + rank), group=group)
    except torch.distributed.DistBackendError as error:
        assert f'comm "{group.group_name}#' in str(error), error
    else:
        raise AssertionError("the counts differ, and nothing was raised")


def case_not_default(dist, torch, rank, size):
    group = dist.new_group([0, size - 1], backend="dt")  # the default group is gloo's
    if rank in (0, size - 1):
        value = torch.tensor([1.0 + rank])
        dist.all_reduce(value, group=group)
        assert value.item() == size + 1


def case_ddp(dist, torch, rank, size):
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler
    losses = {}
    for group in (None, dist.new_group(backend="gloo")):
        torch.manual_seed(5)
        data = TensorDataset(torch.randn(96, 32), torch.randint(0, 10, (96,)))
        sampler = DistributedSampler(data)
        model = torch.nn.Sequential(torch.nn.Linear(32, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(),
                                    torch.nn.Linear(300, 10))
        wrapped = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.02)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for inputs, labels in DataLoader(data, batch_size=16, sampler=sampler):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(wrapped(inputs), labels)
                loss.backward()
                optimizer.step()
                losses.setdefault(group is None, []).append(loss.item())
    difference = max(abs(ours - theirs) for ours, theirs in zip(losses[True], losses[False]))
    assert difference < (1e-9 if size == 2 else 1e-5), losses


def case_killed(dist, torch, rank, size):
    dist.all_reduce(torch.ones(1))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1))
    except torch.distributed.DistBackendError as error:
        assert f"rank {size - 1}" in str(error), error
    else:
        raise AssertionError("a rank is gone, and nothing was raised")
    assert time.monotonic() - begun < 10
    future = dist.all_reduce(torch.ones(1), async_op=True)
    raise SystemExit(f"unexpected: {future}")


def case_differing(dist, torch, rank, size):
    try:
        dist.all_reduce(torch.ones(1 + rank))
    except torch.distributed.DistBackendError as error:
        assert "f32 sum x 2" in str(error) and "ranks disagree" in str(error), error
    else:
        raise AssertionError("the counts differ, and nothing was raised")


class ProcessGroupTest(unittest.TestCase):
    def run_case(self, name, size):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, "-I", os.path.abspath(__file__), name, str(rank),
                                       str(size), folder], stderr=subprocess.PIPE, text=True)
                     for rank in range(size)]
            return [(rank.communicate(timeout=LIMIT_S)[1], rank.returncode) for rank in ranks]

    def all_pass(self, name, size):
        for rank, (text, status) in enumerate(self.run_case(name, size)):
            self.assertEqual(status, 0, f"{name}, rank {rank} of {size}: {text}")

    def test_collectives(self):
        for size in (2, 3):
            self.all_pass("collectives", size)

    def test_element_types(self):
        self.all_pass("types", 3)

    def test_works_and_futures(self):
        self.all_pass("futures", 2)

    def test_groups_of_some_ranks(self):
        self.all_pass("groups", 3)

    def test_messages(self):
        for size in (2, 3):
            self.all_pass("messages", size)

    def test_a_group_has_its_name_in_errors(self):
        self.all_pass("names", 2)

    def test_a_group_beside_a_default_group_of_gloo(self):
        self.all_pass("not_default", 3)

    def test_ddp_learns_as_with_gloo(self):
        for size in (2, 3):
            self.all_pass("ddp", size)

    def test_ranks_that_disagree(self):
        self.all_pass("differing", 2)

    def test_a_killed_rank_is_named(self):
        *others, killed = self.run_case("killed", 3)
        self.assertEqual(killed[1], -signal.SIGKILL)
        for text, status in others:  # the call after the failed one raises too, in its turn
            self.assertEqual(status, 1, text)
            self.assertIn("DistBackendError", text)
            self.assertNotIn("AssertionError", text)


def run_rank(name, rank, size, folder):
    import torch
    import torch.distributed as dist
    global FOLDER  # pylint: disable=global-statement
    FOLDER = folder
    torch.set_num_threads(1)
    backend = "gloo" if name == "not_default" else "dt"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    globals()["case_" + name](dist, torch, rank, size)
    dist.destroy_process_group()


def why_not():
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not here"
    from torch import __version__ as version  # pylint: disable=import-outside-toplevel
    return f"PyTorch is {version}, older than 2" if int(version.partition(".")[0]) < 2 else ""


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    elif why_not():
        print(f"skipped: {why_not()}")
        sys.exit(77)
    else:
        unittest.main()
