# SPDX-License-Identifier: Apache-2.0
"""Never run: type checkers must refuse each line marked so, and no other."""

import numpy

import dt


def wrong(job: dt.Job, comm: dt.Comm, shard: dt.Shard, worker: dt.Ps) -> None:
    """Calls of each kind."""
    values = numpy.zeros(4)
    comm.allreduce(values)
    comm.allreduce("text")  # refused
    comm.allreduce([1.0, 2.0])  # refused
    comm.allreduce(values, op=3.5)  # refused
    comm.allreduce(values, stream="default")  # refused
    comm.broadcast(None)  # refused
    comm.allgather(values)  # refused
    comm.gather(values, recv=3)  # refused
    text: str = comm.allreduce(3)  # refused
    comm.rank = 2  # refused
    comm.split("red")  # refused
    comm.alloc(4, 2.5)  # refused
    comm.allreduce_async(values).wait("soon")  # refused
    dt.Buffer({"a": 1})  # refused
    dt.Param("4")  # refused
    dt.Sampler(10, weights=["heavy"])  # refused
    dt.Reducer(job, [dt.Param(4)])  # refused
    shard.set(0, [1.0])  # refused
    job.store.set("key", 3)  # refused
    variable = worker.variable("weights", optimizer=1.5)  # refused
    variable.push(numpy.zeros((1, 4)), rows=["one"])  # refused
    dt.Config(settings=["a"])  # refused
    job.no_such_method()  # refused
    print(text)
