# SPDX-License-Identifier: Apache-2.0
"""Every collective of 1 to 3 ranks, which are threads, against collectives.json, whose fields
make_collectives.py explains: blocking, not, and in a group; in arrays and in memory of dt."""

import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt
from ranks import run_ranks

CASES = json.loads(pathlib.Path(os.environ["DT_COLLECTIVES"]).read_text())["cases"]
FORMS = ("blocking", "asynchronous", "group", "memory of dt")


class Call:
    """What one rank does in one case."""

    def __init__(self, case, comm, form):
        self.kind, self.op, self.root = case["kind"], case["op"], case["peer"]
        self.comm, self.form, self.dtype = comm, form, dt.Dtype[case["dtype"].upper()]
        self.given = case["calls"][comm.rank]
        self.send, self.recv = self.memory("send"), self.memory("recv")
        self.result = self.recv
        if "own" in self.given:
            first, count = (each * self.dtype.itemsize for each in self.numbers("own"))
            if self.recv is None:
                self.recv = self.result = self.send[first:first + count]
            else:
                self.send = self.recv[first:first + count]

    def memory(self, name):
        if name not in self.given:
            return None
        before = bytes.fromhex(self.given[name])
        if self.form != "memory of dt":
            return memoryview(bytearray(before))
        memory = memoryview(self.comm.alloc(len(before) + 1, dt.Dtype.U8))[:len(before)]
        memory[:] = before
        return memory

    def numbers(self, name):
        return [int(each) for each in self.given[name].split()] if name in self.given else None

    def array(self, memory):
        if memory is None:
            return None
        return dt.Buffer(memory.cast("BHIQ"[self.dtype.itemsize.bit_length() - 1]), dtype=self.dtype)

    def arguments(self):
        """Positional ones, and others."""
        send, recv, in_place = self.array(self.send), self.array(self.recv), "own" in self.given
        send_table, recv_table = ([self.numbers(side + what) for what in ("_counts", "_offsets")]
                                  for side in ("send", "recv"))
        if self.kind in ("allreduce", "reduce"):
            root = {"root": self.root} if self.kind == "reduce" else {}
            return [send] + ([] if in_place else [recv]), {"op": self.op, **root}
        if self.kind == "broadcast":
            return [recv, self.root], {}
        if self.kind == "reduce_scatter":
            return [send, recv, self.op], {}
        if self.kind in ("gather", "scatter"):
            return [send, recv, self.root], {}
        if self.kind == "gatherv":
            return [send, recv, recv_table[0], self.root], {"offsets": recv_table[1]}
        if self.kind == "allgatherv":
            return [send, recv, recv_table[0]], {"offsets": recv_table[1]}
        if self.kind == "scatterv":
            return [send, send_table[0], recv, self.root], {"offsets": send_table[1]}
        if self.kind == "reduce_scatterv":
            return [send, send_table[0], recv, self.op], {"offsets": send_table[1]}
        if self.kind == "alltoallv":
            return ([send, send_table[0], recv, recv_table[0]],
                    {"send_offsets": send_table[1], "recv_offsets": recv_table[1]})
        return ([] if self.kind == "barrier" else [send, recv]), {}

    def transfer(self):
        """A send and its recv."""
        send, recv = self.array(self.send), self.array(self.recv)
        if self.form == "asynchronous":
            work = self.comm.send_async(send, self.given["to"])
            self.comm.recv_async(recv, self.given["from"]).wait()
            work.wait()
        elif self.form == "group":
            with self.comm.group():
                self.comm.send(send, self.given["to"])
                self.comm.recv(recv, self.given["from"])
        else:
            if self.comm.rank == 0:
                self.comm.send(send, self.given["to"])
            self.comm.recv(recv, self.given["from"])
            if self.comm.rank > 0:
                self.comm.send(send, self.given["to"])

    def run(self):
        """The bytes of the result, and those that are wanted."""
        if self.kind == "send":
            self.transfer()
        else:
            plain, named = self.arguments()
            if self.form == "asynchronous":
                getattr(self.comm, self.kind + "_async")(*plain, **named).wait()
            elif self.form == "group":
                with self.comm.group():
                    getattr(self.comm, self.kind)(*plain, **named)
            else:
                getattr(self.comm, self.kind)(*plain, **named)
        wanted = self.given.get("result")
        return ("" if wanted is None else self.result.hex()), wanted or ""


class Matrix(unittest.TestCase):
    def all_cases(self, ranks):
        def body(_, comm):
            for form in FORMS:
                for case in CASES:
                    if case["ranks"] != ranks:
                        continue
                    try:
                        found, wanted = Call(case, comm, form).run()
                    except Exception as error:
                        raise AssertionError(f"{form}, rank {comm.rank}: {case}") from error
                    self.assertEqual(found, wanted, f"{form}, rank {comm.rank}: {case}")
        run_ranks(ranks, body)

    def test_1_rank(self):
        self.all_cases(1)

    def test_2_ranks(self):
        self.all_cases(2)

    def test_3_ranks(self):
        self.all_cases(3)

    def test_every_kind_is_there(self):
        kinds = run_ranks(1, lambda job, _: set(job.statistics().operations))[0]
        self.assertEqual({case["kind"] for case in CASES} | {"recv"}, kinds)


if __name__ == "__main__":
    unittest.main()
