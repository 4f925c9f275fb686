# SPDX-License-Identifier: Apache-2.0
"""A rank of process_group_test.py, for which no program need import dt: process_group_ranks.py CASE RANK SIZE FOLDER"""

import array
import datetime
import functools
import os
import signal
import sys
import time
import warnings
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import process_group_messages


def release(torch):
    return tuple(map(int, torch.__version__.split(".")[:2]))


def later_types(torch):
    """Those that releases before 2.3 lack in part."""
    names = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


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
    for dtype in (torch.bool, torch.int16, torch.complex128, *later_types(torch)):
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


def case_wrong_sizes(dist, torch, rank, size):
    """Of this rank's own part, which is copied and not sent."""
    for wrong in (8, 2):
        for call in (lambda: dist.all_gather([torch.empty(wrong)] * size, torch.ones(4)),
                     lambda: dist.reduce_scatter(torch.empty(4), [torch.ones(wrong)] * size)):
            try:
                call()
            except ValueError as error:
                assert f"has {wrong} elements" in str(error) and "has 4;" in str(error), error
            else:
                raise AssertionError("the sizes differ, and nothing was raised")
    dist.barrier()


def case_types(dist, torch, rank, size):
    ranks = range(size)
    every = [*later_types(torch), torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
             torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
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
    for _ in range(50):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.is_completed()  # one in Python has a future from here on
        assert work.wait() and work.is_completed() and work.is_success()
    dist.all_reduce(torch.ones(1 << 20), async_op=True)  # nobody waits, and the tensor goes
    dist.barrier()


def case_memory(dist, torch, rank, size):
    """Nobody but the program keeps the tensors of a work that it has waited for."""
    peer = (rank + 1) % size
    for count in (3, 1 << 16):  # a message in its header, and behind it
        sent, came, total = (torch.full((count,), 1.0 + rank) for _ in range(3))
        works = [dist.isend(sent, peer), dist.irecv(came, (rank - 1) % size), dist.all_reduce(total, async_op=True)]
        for work in works:
            work.wait()
        known = [weakref.ref(each) for each in (sent, came, total)]
        del sent, came, total, works, work
        limit = time.monotonic() + 5  # a thread may be about to let go of them
        while any(each() is not None for each in known):
            assert time.monotonic() < limit, ([each() is None for each in known], count)
    dist.barrier()


def case_groups(dist, torch, rank, size):
    from dt import _process_group
    pair = dist.new_group([0, size - 1])
    mine = dist.new_group([rank], use_local_synchronization=True)
    halves = [dist.new_group([each for each in range(size) if each % 2 == part]) for part in range(2)]
    beside = dist.new_group(backend="gloo")
    # Made by its members alone; torch counts it in the names of what they make later.
    # From 2.6 to 2.13 its members may give it different names, and wait for each other, as with gloo.
    named_alike = not (2, 6) <= release(torch) < (2, 14)
    both = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 and named_alike else None
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


def case_reductions(dist, torch, rank, size):
    ranks = range(size)
    # Sparse: rank r has r elements, in a matrix whose rows are dense.
    def sparse(each):
        return torch.sparse_coo_tensor([[0] * each], torch.full((each, 2), each + 1.0), (3, 2))
    expected = sum((sparse(each).to_dense() for each in ranks), torch.zeros(3, 2))
    for work in (False, True):
        given = sparse(rank)
        waiting = dist.all_reduce(given, async_op=work)
        if work:
            assert torch.equal(waiting.get_future().wait()[0].to_dense(), expected)
        assert given.is_coalesced() and torch.equal(given.to_dense(), expected), given
    mean = sparse(rank)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert torch.allclose(mean.to_dense(), expected / size)
    whole = torch.sparse_coo_tensor([[0, 1]], [5, -5 - rank], (3,))
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    assert whole.to_dense().tolist() == [5, -int((5 * size + sum(ranks)) / size), 0], whole  # truncated
    try:
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [True], (3,)), op=dist.ReduceOp.AVG)
    except NotImplementedError as error:
        assert "dt has no average of" in str(error), error
    else:
        raise AssertionError("not refused")
    nothing = torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.int64), [], (4, 4))
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    try:
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (3 + rank,)))
    except dist.DistBackendError as error:
        assert "ranks disagree: rank 0 has" in str(error) and "of [3]" in str(error) and "of [4]" in str(error), error
    else:
        raise AssertionError("the sizes differ, and nothing was raised")
    # Each rank has a factor of its own.
    for factor in (0.5 + rank, torch.tensor([0.5 + rank])):
        scaled = torch._C._distributed_c10d._make_nccl_premul_sum(factor)
        weighted = sum((0.5 + each) * (each + 1) for each in ranks)
        value = torch.full((3, 2), rank + 1.0).t()
        dist.all_reduce(value, op=scaled)
        assert torch.equal(value, torch.full((2, 3), weighted)), value
        value = torch.full((4,), rank + 1.0)
        dist.reduce(value, 1, op=scaled)
        assert value.tolist() == [weighted if rank == 1 else rank + 1.0] * 4, value
        piece = torch.empty(2)
        given = torch.full((2 * size,), rank + 1.0)
        dist.reduce_scatter_tensor(piece, given, op=scaled)
        assert piece.tolist() == [weighted] * 2 and given[0].item() == rank + 1
        dist.reduce_scatter(piece, list(given.chunk(size)), op=scaled)
        assert piece.tolist() == [weighted] * 2
    try:
        dist.all_reduce(torch.ones(1, dtype=torch.int64), op=scaled)
    except NotImplementedError as error:
        assert "dt has no premultiplied sum of" in str(error), error
    else:
        raise AssertionError("not refused")


def case_splits(dist, torch, rank, size):
    from dt import _process_group
    part = dist.split_group(split_ranks=[[size - 1, 0]])
    if rank in (0, size - 1):
        assert part.rank() == (1 if rank == 0 else 0)
        value = torch.tensor([1.0 + rank])
        dist.all_reduce(value, group=part)
        assert value.item() == size + 1
        if rank == 0:
            dist.send(value, group=part, group_dst=0)
        else:
            dist.recv(value, group=part, group_src=1)
        alone = dist.split_group(part, [[part.rank()]])  # each rank another group
        dist.all_reduce(value, group=alone)
        assert value.item() == size + 1
    else:
        assert part == dist.GroupMember.NON_GROUP_MEMBER
    assert len(_process_group._memberships) == 1, "one job for all groups"
    dist.barrier()


def case_aborted(dist, torch, rank, size):
    """A rank aborts, while the others wait in a collective, for a message and in a barrier."""
    dist.all_reduce(torch.ones(1))
    pair = dist.new_group([0, size - 1])
    begun = time.monotonic()
    store = dist.distributed_c10d._get_default_store()
    if rank == size - 1:
        store.wait([f"waiting{each}" for each in range(size - 1)])
        pair.abort()
        return
    store.set(f"waiting{rank}", "")
    try:
        if rank == 0:
            dist.recv(torch.ones(1), size - 1)
        else:
            dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        text = f"process group {pair.group_name} was aborted" if rank == 0 else "was aborted"
        assert text in str(error) and f"rank {size - 1}" in str(error), error
    else:
        raise AssertionError("a rank aborted, and nothing was raised")
    assert time.monotonic() - begun < 10


def case_again(dist, torch, rank, size):
    """A group ends by shutdown, another is made, and ends by abort of all ranks."""
    for each in range(2):
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        dist.init_process_group("dt", init_method=f"file://{sys.argv[4]}/again{each}", rank=rank, world_size=size)
    dist.barrier()
    if hasattr(dist.group.WORLD, "abort"):
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("dt", init_method=f"file://{sys.argv[4]}/last", rank=rank, world_size=size)
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == size


def case_names(dist, torch, rank, size):
    group = dist.new_group(list(range(size)), group_desc="pipeline")
    dist.all_reduce(torch.ones(1), group=group)
    try:
        dist.all_reduce(torch.ones(1 + rank), group=group)
    except torch.distributed.DistBackendError as error:
        assert f'comm "{group.group_name}#' in str(error), error
    else:
        raise AssertionError("the counts differ, and nothing was raised")


def case_without_compiler(dist, torch, rank, size):
    """All ranks use the backend in Python where one of them cannot build the other."""
    from dt import _extension, _python_backend
    if rank == 1:
        def fail():
            raise RuntimeError("there is no C++ compiler")
        _extension.load = fail
    version, torch.__version__ = torch.__version__, "2.3.1"
    try:
        dist.new_group(backend="dt")
    except RuntimeError as error:
        assert "rank 1 cannot use the C++ backend" in str(error) and "2.3.1" in str(error), error
        assert "there is no C++ compiler" in str(error), error
    else:
        raise AssertionError("this PyTorch has no such backend, and nothing was raised")
    torch.__version__ = version
    with warnings.catch_warnings(record=True) as caught:
        group = dist.new_group(backend="dt")
    said = [str(each.message) for each in caught if "backend dt: rank 1 cannot" in str(each.message)]
    assert len(said) == (rank < 2) and all("there is no C++ compiler" in each for each in said), caught
    assert isinstance(group._get_backend(torch.device("cpu")), _python_backend.Backend)
    value = torch.tensor([1.0 + rank])
    dist.all_reduce(value, group=group)
    assert value.item() == size * (size + 1) / 2


def case_not_default(dist, torch, rank, size):
    group = dist.new_group([0, size - 1], backend="dt")  # the default group is gloo's
    if rank in (0, size - 1):
        value = torch.tensor([1.0 + rank])
        dist.all_reduce(value, group=group)
        assert value.item() == size + 1


def case_rank_0_fails(dist, torch, rank, size):
    """The other ranks hear why, and do not wait for the time-out. The default group is gloo's."""
    from dt import TimeoutError as DtTimeoutError
    from dt import _process_group
    for name, wrong, text in (("DT_NETWORK_INTERFACE", "nowhere0", "network.interface is 'nowhere0'"),
                              ("DT_SECURITY_MODE", "nowhere0", "security.mode")):
        if rank == 0:
            os.environ[name] = wrong
        try:
            dist.new_group(backend="dt")
        except (ValueError, dist.DistBackendError) as error:
            assert text in str(error) and "nowhere0" in str(error), error
            assert rank == 0 or "rank 0 could not make the process group" in str(error), error
        else:
            raise AssertionError("rank 0 has a wrong setting, and nothing was raised")
        if rank == 0:
            del os.environ[name]

    def late():
        raise DtTimeoutError("a barrier")

    # Programs look for these words.
    alone, limit = dist.HashStore(), datetime.timedelta(milliseconds=50)
    for call, text in ((lambda: _process_group._find(alone, limit, "pair"),
                        "the process group pair: its rank 0 has not come within 0.05 s"),
                       (_process_group._as_torch_raises()(late), "a barrier")):
        try:
            call()
        except dist.DistBackendError as error:
            assert f"backend dt: Timed out on {text}" in str(error), error
        else:
            raise AssertionError("a limit has passed, and nothing was raised")
    dist.barrier()


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


def fsdp2_losses(torch, shares):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in [fully_shard(each, mesh=mesh) for each in (model[0], model[2], model)]:
        if shares:
            part.set_allocate_memory_from_process_group_for_comm(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 64)), torch.randint(0, 10, (16,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def shared_parts():
    """Where memory of dt's lies that the ranks of a host share."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return [tuple(int(each, 16) for each in line.split(" ", 1)[0].split("-")) for line in maps
                if "dt-arena" in line]


def is_shared(tensor):
    return any(begin <= tensor.data_ptr() < end for begin, end in shared_parts())


def allocator(dist, torch):
    """A function that takes bytes from the backend; None before PyTorch 2.7."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if not hasattr(backend, "supports_tensor_alloc"):
        return None
    return lambda count: backend.allocate_tensor(count, dtype=torch.uint8, device=torch.device("cpu"))


def case_shared_memory(dist, torch, rank, size):
    """What tensors give back is used again, but not for much smaller ones, nor beyond a limit."""
    allocate = allocator(dist, torch)
    if allocate is None:
        return
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert not backend.supports_tensor_alloc(torch.device("cuda", 0))
    assert backend.allocate_tensor(9, dtype=torch.float32, device=torch.device("meta")).device.type == "meta"
    none = allocate(0)
    assert none.numel() == 0 and not is_shared(none)
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        tensor = backend.allocate_tensor(10000, dtype=dtype, device=torch.device("cpu"))
        assert is_shared(tensor) and tensor.dtype == dtype and tensor.shape == (10000,)
        tensor.fill_(1 + rank)
        dist.all_reduce(tensor)
        assert (tensor == size * (size + 1) / 2).all(), tensor
    first = tensor.data_ptr()  # of 80000 bytes
    del tensor
    held = [allocate(20000), allocate(40000)]  # of the others that were given back
    small = allocate(39999)
    assert small.data_ptr() != first, "more than half of it would be unused"
    large = allocate(40001)
    assert large.data_ptr() == first
    del held, small, large
    # Each time 32 MiB, of which none fits into a former part: no more stays than twice that.
    before = sum(end - begin for begin, end in shared_parts())
    for count in (4, 8, 16, 32):
        parts = [allocate((32 << 20) // count - 8192 * count) for _ in range(count)]
        del parts
    grown = sum(end - begin for begin, end in shared_parts()) - before
    assert 33 << 20 <= grown <= 64 << 20, grown


def case_buckets(dist, torch, rank, size):
    """Buckets lie in memory that the ranks share, and there as long as tensors over them, also after the group."""
    from torch.nn.parallel import DistributedDataParallel
    if allocator(dist, torch) is None:
        return
    if [int(each) for each in torch.__version__.split(".")[:2]] >= [2, 15]:  # FSDP2 asks for memory
        plain, parts = fsdp2_losses(torch, False), len(shared_parts())
        assert fsdp2_losses(torch, True) == plain and len(shared_parts()) > parts, plain
    model = DistributedDataParallel(torch.nn.Linear(100, 300, bias=False), gradient_as_bucket_view=True)
    for _ in range(3):  # the buckets are made anew after the first
        model.zero_grad()
        (model(torch.ones(1, 100)).sum() * (1 + rank)).backward()
    gradient = model.module.weight.grad
    assert is_shared(gradient) and (gradient == (size + 1) / 2).all(), gradient
    del model
    dist.destroy_process_group()
    assert (gradient == (size + 1) / 2).all(), gradient
    dist.init_process_group("dt", init_method=f"file://{sys.argv[4]}/again", rank=rank, world_size=size)
    dist.all_reduce(gradient)  # of the former job
    assert (gradient == size * (size + 1) / 2).all(), gradient


def case_memory_after_failure(dist, torch, rank, size):
    """What others may still write is not used again, and new tensors are not shared."""
    allocate = allocator(dist, torch)
    if allocate is None:
        return
    held, idle = allocate(5000), allocate(5000)
    assert is_shared(held) and is_shared(idle)
    del idle
    try:
        dist.all_reduce(held[:1000 + rank])
    except torch.distributed.DistBackendError as error:
        assert "ranks disagree" in str(error), error
    else:
        raise AssertionError("the counts differ, and nothing was raised")
    del held
    assert not any(is_shared(each) for each in [allocate(5000) for _ in range(3)])


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
    # What cannot begin leaves its outputs as they are, also when later calls look after earlier ones.
    gathered = [torch.full((3,), 7.0) for _ in range(size)]
    for _ in range(3):
        try:
            dist.all_gather(gathered, torch.ones(3), async_op=True)
        except torch.distributed.DistBackendError:
            pass
        else:
            raise AssertionError("the group is broken, and nothing was raised")
    assert all(each.tolist() == [7.0] * 3 for each in gathered), gathered
    future = dist.all_reduce(torch.ones(1), async_op=True)
    raise SystemExit(f"unexpected: {future}")


def case_store_killed(dist, torch, rank, size):
    """Rank 0 serves the store of the job. A group can be aborted without it."""
    from dt import _process_group
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError:
        pass
    else:
        raise AssertionError("a rank is gone, and nothing was raised")
    _process_group._default_group().membership.job.abort("a test")
    dist.distributed_c10d._abort_process_group()
    assert not dist.is_initialized()
    sys.exit()


def case_no_new_group(dist, torch, rank, size):
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.new_group(list(range(size)))
    except dist.DistBackendError as error:
        assert f"rank {size - 1}" in str(error), error
    else:
        raise AssertionError("a rank is gone, and nothing was raised")
    sys.exit()


def case_shrunk_with_gpus(dist, torch, rank, size):
    """After the loss of a rank the group makes its job over GPUs anew. Here that, too, is over host memory."""
    import dt.torch
    from dt import _process_group
    meet = _process_group._meet
    _process_group._meet = lambda *where: meet(*where[:5])

    def sum_over_gpus():
        group = _process_group._default_group()
        group.open_gpu(0)
        ones = array.array("i", [1])
        group._on_gpu.allreduce(ones)
        return ones[0], group.membership.gpu

    found, job = sum_over_gpus()
    assert found == size
    dist.barrier()
    for lost in (size - 1, size - 2):
        dist.barrier()
        if rank == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            assert dt.torch.shrink_group() == [lost]
        else:
            raise AssertionError("a rank is gone, and nothing was raised")
        former = job
        found, job = sum_over_gpus()
        assert found == lost and former.ended and not job.ended


def case_shrunk_whole(dist, torch, rank, size):
    """After a time-out nobody is lost. What was in the store of the former group is not in that of the next."""
    from dt.torch import shrink_group
    for attempt in range(3):
        store = dist.distributed_c10d._get_default_store()
        assert not store.check(["mark"]), attempt
        dist.barrier()
        store.set("mark", str(rank))
        assert shrink_group() == []
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size


def case_lost_in_shrink(dist, torch, rank, size):
    """Another rank is lost while the group is made anew: the next shrink goes on without it."""
    from dt.torch import shrink_group
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == size - 2:
        dist.destroy_process_group = lambda: os.kill(os.getpid(), signal.SIGKILL)
    for lost in (size - 1, size - 2):
        try:
            while True:
                dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            assert shrink_group() == [lost]
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size - 2


def case_left_by_exception(dist, torch, rank, size):
    """The other ranks read which exception a rank destroyed the group after."""
    dist.barrier()
    try:
        try:
            if rank == 1:
                raise OSError("no such file \udcff" + 40 * "\u00fc")
            # A vote like that of ranks which leave.
            if "WITHOUT_COMPILER" in os.environ:
                dist.all_reduce(torch.zeros(1, dtype=torch.uint8), op=dist.ReduceOp.MAX)
            else:
                dist.all_reduce(torch.zeros(1, dtype=torch.bool), op=dist.ReduceOp.BOR)
        finally:
            dist.destroy_process_group()
    except OSError:
        assert rank == 1
    except dist.DistBackendError as error:
        assert "left after OSError: no such file ?\u00fc" in str(error), error
        assert "go on with dt.torch.shrink_group()" in str(error), error
    else:
        raise AssertionError("a rank has left, and nothing was raised")
    sys.exit()


def case_overlapping(dist, torch, rank, size):
    """A tensor that is its own output, or lies upon itself."""
    whole = torch.arange(2.0 * size) + 100 * rank
    expected = torch.cat([torch.tensor([2.0 * rank, 2.0 * rank + 1]) + 100 * each for each in range(size)])
    dist.all_to_all_single(whole, whole)
    assert torch.equal(whole, expected), whole
    try:
        dist.all_reduce(torch.ones(1).expand(4))
    except ValueError as error:
        assert "several elements at one place" in str(error), error
    else:
        raise AssertionError("the tensor lies upon itself, and nothing was raised")


def case_differing(dist, torch, rank, size):
    try:
        dist.all_reduce(torch.ones(1 + rank))
    except torch.distributed.DistBackendError as error:
        assert "f32 sum x 2" in str(error) and "ranks disagree" in str(error), error
    else:
        raise AssertionError("the counts differ, and nothing was raised")


def run_rank(name, rank, size, folder):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    if release(torch) < (2, 14):
        import dt.torch  # which later releases find by themselves
    if "WITHOUT_COMPILER" in os.environ:
        from dt import _extension
        def fail():
            raise RuntimeError("there is no C++ compiler")
        _extension.load = fail
    backend = "gloo" if name in ("not_default", "rank_0_fails", "without_compiler") else "dt"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    case = globals().get("case_" + name) or getattr(process_group_messages, "case_" + name)
    case(dist, torch, rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
