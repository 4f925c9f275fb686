# SPDX-License-Identifier: Apache-2.0
"""What ranks of process_group_test.py do: messages, with tags, in batches and in monitored barriers."""

import datetime
import os
import signal
import sys
import threading
import time

LIMIT_S = 100


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
    assert not receiving.is_completed()
    dist.barrier()
    future = receiving.get_future()
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
    dist.init_process_group("dt", init_method=f"file://{sys.argv[4]}/again", rank=rank, world_size=size)


def case_batches(dist, torch, rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (5, 1 << 16):
        # Every rank sends first, and more than a mailbox holds.
        came = [torch.empty(count) for _ in range(2)]
        sent = [torch.full((count,), 10.0 * rank + each) for each in range(2)]
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, each, after) for each in sent]
                                       + [dist.P2POp(dist.irecv, each, before) for each in came])
        assert len(works) == (1 if hasattr(dist.group.WORLD, "abort") else 4)  # since 2.7
        for each in works:
            each.wait()
            assert each.is_completed() and each.is_success()
        assert [each[0].item() for each in came] == [10.0 * before, 10.0 * before + 1]
    # Messages in a batch are not waited for before its end; a blocking collective ends in its call.
    group = dist.group.WORLD
    value, mine = torch.tensor([1.0 + rank]), torch.full((1 << 16,), 3.0)
    with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True) as batch:
        dist.send(mine, after)
        dist.recv(came[0], before)
        dist.broadcast(value, 1)
        assert value.item() == 2
    future = batch.works[0].get_future()
    assert len(future.wait()) == 2 and value.item() == 2 and came[0][-1].item() == 3
    with dist.distributed_c10d._coalescing_manager(group):
        for each in sent:
            dist.all_reduce(each)
    assert sent[0][0].item() == sum(10.0 * each for each in range(size))
    with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True) as batch:
        pass
    assert batch.works[0].is_completed()


def case_refused_batches(dist, torch, rank, size):
    """Calls after a batch that an exception ended return when they are done."""
    after, before = (rank + 1) % size, (rank - 1) % size
    group, host = dist.group.WORLD, torch.device("cpu")
    count = 1 << 20  # takes longer than a call that does not wait
    mine, came, value = torch.full((count,), 3.0 + rank), torch.zeros(count), torch.empty(count)
    state = dist.distributed_c10d._world.pg_coalesce_state
    wrong_list = [torch.empty(count) for _ in range(size + 1)]
    for refused in (lambda: dist.isend(mine, rank), lambda: dist.all_gather(wrong_list, mine)):
        try:
            with dist.distributed_c10d._coalescing_manager(group, host, async_ops=True):
                sending = dist.isend(mine, after)
                refused()
        except ValueError:
            pass
        else:
            raise AssertionError("the call is wrong, and nothing was raised")
        assert state.pop(group, None) == []  # with it PyTorch would record all_reduce without a call
        value.fill_(rank)
        dist.all_reduce(value)
        assert value[0].item() == sum(range(size)), value
        value.fill_(rank)
        dist.broadcast(value, 0)
        assert bool((value == 0).all()), value
        came.fill_(0)
        dist.recv(came, before)
        assert bool((came == 3.0 + before).all()), came
        sending.wait()
    # A batch that catches the exception has no result.
    try:
        with dist.distributed_c10d._coalescing_manager(group, host, async_ops=True):
            dist.broadcast(value, 0)
            try:
                dist.isend(mine, rank)
            except ValueError:
                pass
    except ValueError as error:
        assert "no other rank" in str(error), error
    else:
        raise AssertionError("the batch is not whole, and nothing was raised")
    # The backend hears of an exception of the program's own only from the next batch.
    try:
        with dist.distributed_c10d._coalescing_manager(group, host, async_ops=True):
            sending = dist.isend(mine, after)
            dist.all_reduce(value)
            raise LookupError
    except LookupError:
        pass
    value.fill_(rank)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:  # it calls last, so that the others return too early if they do not wait
        for peer in range(1, size):
            store.get(f"broadcast by {peer}")
    else:
        store.set(f"broadcast by {rank}", "")
    dist.broadcast(value, 0)
    assert bool((value == 0).all()), value
    # As docs/torch.md says.
    assert len(state.pop(group, None)) == 1
    with dist.distributed_c10d._coalescing_manager(group, host):
        pass
    value.fill_(rank)
    dist.all_reduce(value)
    assert value[0].item() == sum(range(size)), value
    receiving = dist.batch_isend_irecv([dist.P2POp(dist.irecv, came, before)])
    assert len(receiving) == 1
    receiving[0].wait()
    sending.wait()
    assert bool((came == 3.0 + before).all()), came


def case_threads_and_batches(dist, torch, rank, size):
    """A receive of another thread than the one that has begun a batch waits for its message."""
    host, group = torch.device("cpu"), dist.group.WORLD
    if rank != 0:
        dist.recv(torch.empty(1), 0)
        dist.send(torch.tensor([5.0]), 0, tag=1)
        dist.send(torch.tensor([6.0]), 0, tag=2)
        dist.barrier()
        return
    came, begun, values = torch.zeros(1), threading.Event(), []

    def receive():
        begun.wait(LIMIT_S)
        with_value = torch.zeros(1)
        receiving = dist.irecv(with_value, 1, tag=1)
        dist.send(torch.ones(1), 1)  # rank 1 sends after this
        receiving.wait()
        values.append(with_value.item())
        try:
            dist.isend(came, rank)
        except ValueError:  # ends no batch of another thread
            values.append("refused")

    other = threading.Thread(target=receive, daemon=True)
    other.start()
    with dist.distributed_c10d._coalescing_manager(group, host, async_ops=True) as batch:
        receiving = dist.irecv(came, 1, tag=2)
        begun.set()
        other.join(LIMIT_S)
        assert values == [5.0, "refused"], values
        receiving.wait()  # at once, as in any batch
    batch.wait()
    assert came.item() == 6.0
    dist.barrier()


def case_destroyed_while_waiting(dist, torch, rank, size):
    """A receive without a send, in a thread and by a future, ends when the group is destroyed."""
    peer = 1 - rank
    dist.barrier()
    receiving = dist.irecv(torch.empty(1), peer, tag=1)
    future = dist.irecv(torch.empty(1), peer, tag=2).get_future()
    seen = {}

    def wait(name, call):
        try:
            call()
        except RuntimeError as error:
            seen[name] = error

    threads = [threading.Thread(target=wait, args=each, daemon=True)
               for each in (("recv", receiving.wait), ("future", future.wait))]
    for each in threads:
        each.start()
    dist.destroy_process_group()
    end = time.monotonic() + 20
    for each in threads:
        each.join(max(0, end - time.monotonic()))
    assert sorted(seen) == ["future", "recv"], seen
    assert isinstance(seen["recv"], dist.DistBackendError)
    for error in seen.values():
        assert "the process group was destroyed while this receive waited" in str(error), error
    sys.exit()


def case_no_farewell(dist, torch, rank, size):
    """A rank whose communicator for messages is broken leaves the job all the same."""
    from dt import InvalidStateError, _process_group
    _process_group._FAREWELL_S = 2.0
    receiving = dist.irecv(torch.empty(1), 0) if rank == 1 else None
    dist.barrier()
    membership = _process_group._default_group().membership
    if rank == 0:
        membership._for_messages.close()
    dist.destroy_process_group()
    assert not dist.is_initialized() and membership.ended
    try:
        membership.job.world()
    except InvalidStateError:
        pass
    else:
        raise AssertionError("the job was not left")
    if receiving is not None:
        try:
            receiving.wait()
        except dist.DistBackendError:
            pass
        else:
            raise AssertionError("nobody sent, and nothing was raised")
    sys.exit()


def case_monitored(dist, torch, rank, size):
    short = datetime.timedelta(seconds=1)
    for every in (False, True):
        dist.monitored_barrier(wait_all_ranks=every)
    for every, expected in ((False, "Rank 1 failed to pass"), (True, "Ranks 1 failed to pass")):
        if rank != 1:
            if rank != 0:
                expected = f"Rank {rank} successfully reached monitoredBarrier, but received errors"
            begun = time.monotonic()
            try:
                dist.monitored_barrier(timeout=short, wait_all_ranks=every)
            except dist.DistBackendError as error:
                assert expected in str(error), error
            else:
                raise AssertionError("a rank is missing, and nothing was raised")
            assert 0.9 < time.monotonic() - begun < 5
        dist.barrier()
        dist.monitored_barrier()  # the group, and its messages, are whole
    # Both give up a call that the other one was not in; what they said of it must not count later.
    if rank == 0:
        try:
            dist.monitored_barrier(timeout=short / 4)
        except dist.DistBackendError as error:
            assert "\nException raised from" not in str(error), error
        else:
            raise AssertionError("all others are missing, and nothing was raised")
    dist.barrier()
    if rank != 0:
        try:
            dist.monitored_barrier(timeout=short / 4)
        except dist.DistBackendError:
            pass
        else:
            raise AssertionError("rank 0 is missing, and nothing was raised")
    dist.barrier()
    dist.monitored_barrier()
    if rank == 0:
        expected = "Rank 0 timed out in monitoredBarrier after 0 ms"
        try:
            dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=0))
        except dist.DistBackendError as error:
            assert expected in str(error), error
        else:
            raise AssertionError("there was no time, and nothing was raised")
    elif rank == 1:
        try:
            dist.monitored_barrier(timeout=short)
        except dist.DistBackendError as error:
            assert "check rank 0 logs" in str(error), error
        else:
            raise AssertionError("rank 0 had no time, and nothing was raised")
    dist.barrier()


def case_given_up(dist, torch, rank, size):
    """Rank 1 is there, gives up, and comes again; only then rank 0 may pass."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        try:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
        except dist.DistBackendError as error:
            assert "check rank 0 logs" in str(error), error
        else:
            raise AssertionError("a rank is missing, and nothing was raised")
        store.set("given up", "")
    elif rank == 2:
        store.wait(["given up"])
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=LIMIT_S))
    dist.barrier()


def case_interrupted(dist, torch, rank, size):
    """A call that Ctrl-C ended takes nothing away from the next one."""
    store = dist.distributed_c10d._get_default_store()

    def interrupt_me(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt_me)
    for first in (0, 1):
        if rank == first:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                dist.monitored_barrier()
            except KeyboardInterrupt:
                store.set(f"interrupted {first}", "")
            else:
                raise AssertionError("a rank was missing, and nothing was raised")
        else:
            store.wait([f"interrupted {first}"])
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
        dist.barrier()


def case_same_name(dist, torch, rank, size):
    """A group gets nothing of a destroyed one that had its name, as PyTorch before 2.15 gives it."""
    world = dist.distributed_c10d._world
    count = world.group_count
    former = dist.new_group(list(range(size)), use_local_synchronization=True)
    unsent, untaken = torch.zeros(1), torch.full((1,), 5.0)
    if rank == 0:
        sending = dist.isend(untaken, 1, group=former, tag=3)
    else:
        receiving = dist.irecv(unsent, 0, group=former)
    name = former.group_name
    dist.destroy_process_group(former)
    world.group_count = count
    group = dist.new_group(list(range(size)), use_local_synchronization=True)
    assert group.group_name == name, (group.group_name, name)
    for tag in (0, 3):
        value = torch.full((1,), 7.0)
        if rank == 0:
            dist.send(value, 1, group=group, tag=tag)
        else:
            value.zero_()
            dist.recv(value, 0, group=group, tag=tag)
        assert value.item() == 7, value
    dist.barrier()
    assert unsent.item() == 0, unsent


def case_no_thread(dist, torch, rank, size):
    """What needs a thread that cannot be started says so, and leaves nothing behind."""
    import resource
    value, work = torch.full((2,), 1.0 + rank), dist.all_reduce(torch.ones(1), async_op=True)
    limit, start = resource.getrlimit(resource.RLIMIT_AS), threading.Thread.start

    def refuse(_):
        raise RuntimeError("can't start new thread")

    if "WITHOUT_COMPILER" in os.environ:
        threading.Thread.start = refuse
    else:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), limit[1]))  # less than the stack of a thread
    try:
        dist.irecv(torch.zeros(4)[::2], 1 - rank).wait(datetime.timedelta(seconds=LIMIT_S // 2))
    except dist.DistBackendError as error:
        said = str(error)
    else:
        said = "nothing"
    try:
        if "WITHOUT_COMPILER" in os.environ:
            dist.isend(torch.full((1,), 5.0), 1 - rank, tag=1)
        else:
            work.get_future()
    except dist.DistBackendError as error:
        assert "no thread" in str(error), error
    else:
        raise AssertionError("no thread can be started, and nothing was raised")
    finally:
        threading.Thread.start = start
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert said.startswith(f"recv from rank {1 - rank}, tag 0, on rank {rank} of group") and "no thread" in said, said
    assert work.get_future().wait()[0].item() == size
    sending = dist.isend(value, 1 - rank)
    came = torch.zeros(2)
    dist.recv(came, 1 - rank)
    sending.wait()
    assert came.tolist() == [2.0 - rank] * 2, came
    dist.barrier()


def case_untaken(dist, torch, rank, size):
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
    big = torch.full((1 << 16,), 4.0)
    if rank == 0:
        for tag, tensor in ((3, big[:2]), (4, big)):
            sending = dist.isend(tensor, 1, group=group, tag=tag)
            try:
                sending.wait()
            except dist.DistBackendError as error:
                assert f"send to rank 1, tag {tag}, on rank 0" in str(error), error
                assert "not received in time" in str(error), error
            else:
                raise AssertionError("nobody received, and nothing was raised")
            assert sending.is_completed() and not sending.is_success()
    dist.barrier()
    # Other messages go on, and this one still arrives.
    came = torch.empty(1 << 16)
    sending = dist.isend(big, (rank + 1) % size)
    dist.recv(came, (rank - 1) % size)
    sending.wait()
    if rank == 1:
        dist.recv(came, 0, group=group, tag=4)
        assert came[-1].item() == 4
    dist.barrier()


def case_peer_killed(dist, torch, rank, size):
    """Of receives and sends that wait for a killed rank, and of a receive that does not."""
    dist.barrier()
    if rank == size - 1:
        dist.recv(torch.ones(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        if rank == 0:
            dist.send(torch.ones(1), size - 1)
            dist.recv(torch.ones(1), size - 1)
        elif rank == 1:
            dist.send(torch.ones(1 << 20), size - 1)
        else:
            dist.recv(torch.ones(1), 0)
    except dist.DistBackendError as error:
        assert f"rank {size - 1}" in str(error), error
    else:
        raise AssertionError("a rank is gone, and nothing was raised")
    assert time.monotonic() - begun < 10
    sys.exit()


def case_barrier_killed(dist, torch, rank, size):
    """A rank that only comes later is not to blame for one that is gone."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        try:
            dist.monitored_barrier(wait_all_ranks=True)
        except dist.DistBackendError as error:
            assert "monitoredBarrier failed with the job" in str(error), error
            assert f"rank {size - 1}" in str(error) and "anks 1" not in str(error), error
        else:
            raise AssertionError("a rank is gone, and nothing was raised")
        store.set("failed", "")
    elif rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    store.wait(["failed"])
    sys.exit()
