# SPDX-License-Identifier: Apache-2.0
"""Uses what the package offers, for type checkers, which must find nothing here; `dt run` runs it, too.

Lines that assert_type() names must have exactly that type."""

import array
import asyncio
import os
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import numpy
import numpy.typing

import dt
import dt.testing

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:
    def assert_type(value: Any, _: Any) -> Any:
        return value

F32 = numpy.typing.NDArray[numpy.float32]


def larger(given: "memoryview[float]", inout: "memoryview[float]") -> None:
    """A reduction of this program's."""
    numpy.maximum(numpy.asarray(given), numpy.asarray(inout), out=numpy.asarray(inout))


def collectives(comm: dt.Comm) -> None:
    """Each of them."""
    size, values = comm.size, numpy.full(4, float(comm.rank), numpy.float32)
    comm.allreduce(values)
    comm.allreduce(values, op="max", name="values", timeout=30, stream=None)
    comm.allreduce(values, op=larger)
    comm.allreduce(values, op=dt.Combine(larger, items=2))
    comm.allreduce(array.array("d", [1.0]), op=dt.ReduceOp.MIN)
    comm.allreduce(bytearray(4), op=dt.ReduceOp("bor"))
    assert_type(comm.allreduce(3), int)
    assert_type(comm.allreduce(3.5), float)
    work = assert_type(comm.allreduce_async(values, op=dt.ReduceOp.AVG), dt.Work)
    assert_type(work.wait(20), bool)
    assert_type(dt.wait_any([comm.barrier_async(), work]), Optional[int])
    comm.reduce(values, root=0)
    comm.broadcast(values, 0)
    comm.broadcast(b"read-only" if comm.rank == 0 else bytearray(9))
    parts = numpy.zeros(4 * size, numpy.float32)
    comm.allgather(values, parts)
    comm.reduce_scatter(parts, values)
    comm.alltoall(parts, numpy.zeros_like(parts))
    comm.alltoallv(parts, [4] * size, numpy.zeros_like(parts), [4] * size)
    comm.gather(values, parts if comm.rank == 0 else None)
    comm.scatter(parts if comm.rank == 0 else None, values, 0)
    comm.allgatherv(values, parts, [4] * size)
    comm.check_equal(dt.Buffer(numpy.ones(2, numpy.uint16), dtype=dt.Dtype.BF16), "ones")
    with comm.group() as group:
        group.send(values, (comm.rank + 1) % size)
        group.recv(numpy.zeros(4, numpy.float32), (comm.rank - 1) % size)
    assert_type(comm.split(0), Optional[dt.Comm])
    assert_type(comm.gather_objects({"rank": comm.rank}), Optional[List[Any]])
    moments = comm.batch_moments(values, 2)
    assert_type(moments, dt.BatchMoments)
    assert_type(comm.batch_gradient_sums(values, values, moments), dt.BatchGradientSums)
    out = dt.BatchMoments(numpy.zeros(2), numpy.zeros(2), numpy.zeros(1, numpy.int64))
    assert_type(comm.batch_moments(values, 2, out=out, stream=0), dt.BatchMoments)
    sums = dt.BatchGradientSums(numpy.zeros(2), numpy.zeros(2))
    assert_type(comm.batch_gradient_sums(values, values, out, out=sums, stream=None), dt.BatchGradientSums)
    with comm.alloc(8, numpy.float64) as memory:
        assert_type(memory, dt.Memory)
        assert_type(memory.dtype, dt.Dtype)
        print(memoryview(memory).nbytes, numpy.asarray(memory).sum())
    comm.alloc(2, "bfloat16").close()
    with dt.Named(comm, dt.NamedOptions(fuse_bytes=0)) as named:
        named.under("values").allreduce(values)
        assert_type(named.join(), Optional[int])


async def waiting(comm: dt.Comm) -> None:
    """In asyncio."""
    work = comm.barrier_async()
    await work
    assert_type(work.error(), Optional[Exception])


def training(comm: dt.Comm) -> None:
    """Gradients, pieces of parameters and samples."""
    params = [dt.Param(4), dt.Param(6, "float32", name="weights"), dt.Param(2, numpy.dtype("float64"))]
    with dt.Reducer(comm, params, dt.ReducerOptions(wire=dt.Wire.SAME)) as reducer:
        for index, param in enumerate(params[:2]):
            gradient: F32 = numpy.asarray(reducer.grad(index))
            gradient[:] = param.count
            reducer.ready(index)
        reducer.ready(2, numpy.zeros(2))
        reducer.finish()
        assert_type(reducer.clip_norm(1.0), float)
        assert_type(reducer.statistics().hidden_share, float)

        def hook(bucket: dt.Bucket, stage: int) -> Optional[dt.Work]:
            return comm.allreduce_async(bucket.data) if stage == 0 else None

        reducer.set_hook(hook)
    with dt.Shard(comm, [dt.Param(8)], dt.ShardOptions(stage=1)) as shard:
        shard.set(0, numpy.ones(8, numpy.float32))
        optimizer = assert_type(dt.Optimizer.adamw(shard, weight_decay=[0.1]), dt.Optimizer)
        shard.updated()
        shard.gather()
        shard.reducer.ready(0, numpy.ones(8, numpy.float32))
        shard.reducer.finish()
        assert_type(shard.piece(0).param, Optional[dt.Parameter])
        optimizer.step(0.1)
    weights = {"weights": numpy.zeros(4, numpy.float32)}
    with dt.Outer(comm, weights, dt.OuterOptions(format=dt.OuterFormat.BF16)) as outer:
        assert_type(outer.step(), bool)
    sampler = dt.Sampler(10, comm.size, comm.rank, weights=[1.0] * 10)
    assert_type([index for index in sampler], List[int])
    assert_type(sampler.state_dict(), Dict[str, int])
    sampler.check(comm)


def servers(worker: dt.Ps) -> Tuple[F32, "memoryview[float]"]:
    """For type checkers alone."""
    variable = worker.variable("weights", 10, 4, optimizer=dt.PsOptimizer.ADAM, initial="normal")
    variable.push(numpy.ones((2, 4), numpy.float32), rows=[1, 7])
    assert_type(variable.push_async(numpy.ones((10, 4), numpy.float32)), dt.Work)
    return variable.pull(numpy.zeros((10, 4), numpy.float32)), variable.pull(rows=range(3))


def failing(comm: dt.Comm) -> None:
    """An error and what it says."""
    try:
        comm.broadcast(bytes(3), root=1 + comm.size)
    except dt.InvalidArgumentError as error:
        assert_type(error.rank, int)
        assert_type(error.host, str)
    except (dt.PeerLostError, dt.TimeoutError) as lost:
        print(lost.operation, lost.sequence, lost.pid)


def on_threads() -> List[int]:
    """Likewise."""
    def body(_: dt.Job, comm: dt.Comm) -> int:
        return comm.allreduce(1)

    return assert_type(dt.testing.run_ranks(2, body), List[int])


def main() -> None:
    """One rank."""
    config = dt.Config(settings={"collective.timeout_ms": 20000})
    config.set_log_sink(lambda level, text: print(level.name, text))
    with dt.Job(config) as job:
        assert_type(job.place, dt.Place)
        comm = job.world()
        collectives(comm)
        asyncio.run(waiting(comm))
        training(comm)
        failing(comm)
        job.store.set("key", "value" if job.rank == 0 else b"value")
        assert_type(job.store.get("key", timeout=20), bytes)
        assert_type(job.store.multi_get(["key"]), List[Optional[bytes]])
        with job.busy("a checkpoint", 60), tempfile.TemporaryDirectory() as folder:
            job.trace_dump(folder)
        assert_type(job.statistics().operations["allreduce"].bytes, int)
        assert_type(job.agree(True), bool)
    print(dt.version(), dt.abi_version(), dt.__version__, os.path.basename(dt.__file__))


if __name__ == "__main__":
    main()
