# SPDX-License-Identifier: Apache-2.0
"""Python objects between 1, 2 and 3 ranks, which are threads."""

import array
import os
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(__file__))
import dt
from dt import _objects
from ranks import run_ranks


def thing(rank):
    """Objects of different sizes and kinds."""
    return {"rank": rank, "text": "\u00fc" * (1000 * rank), "data": [b"\0" * rank, (rank, None)]}


class Unpicklable:
    def __reduce__(self):
        raise KeyError("why")


class Objects(unittest.TestCase):
    def check(self, body, worlds=(1, 2, 3)):
        for world in worlds:
            run_ranks(world, body)

    def test_broadcast(self):
        def body(_, comm):
            for root in range(comm.size):
                mine = thing(root) if comm.rank == root else Unpicklable()
                self.assertEqual(comm.broadcast_object(mine, root), thing(root))
            self.assertIsNone(comm.broadcast_object())
            self.assertEqual(comm.broadcast_object("name", name="settings", timeout=20), "name")
        self.check(body)

    def test_gather_and_allgather(self):
        def body(_, comm):
            everything = [thing(rank) for rank in range(comm.size)]
            self.assertEqual(comm.allgather_objects(thing(comm.rank)), everything)
            for root in range(comm.size):
                self.assertEqual(comm.gather_objects(thing(comm.rank), root),
                                 everything if comm.rank == root else None)
        self.check(body)

    def test_scatter(self):
        def body(_, comm):
            everything = [thing(rank) for rank in range(comm.size)]
            for root in range(comm.size):
                self.assertEqual(comm.scatter_objects(everything if comm.rank == root else None, root),
                                 thing(comm.rank))
            self.assertEqual(comm.scatter_objects(tuple(everything), name="parts"), thing(comm.rank))
        self.check(body)

    def test_what_cannot_be_pickled_is_an_error_on_all_ranks(self):
        def body(_, comm):
            last = comm.size - 1
            bad = Unpicklable() if comm.rank == last else 1
            for name, call in (
                    ("broadcast_object", lambda: comm.broadcast_object(bad, last)),
                    ("gather_objects", lambda: comm.gather_objects(bad)),
                    ("allgather_objects", lambda: comm.allgather_objects(bad)),
                    ("scatter_objects", lambda: comm.scatter_objects([bad] * comm.size, last))):
                if comm.rank == last:
                    self.assertRaisesRegex(KeyError, "why", call)
                else:
                    self.assertRaisesRegex(dt.InvalidStateError, f"{name}: rank {last} could not give its "
                                           "objects; its own error says why", call)
            comm.barrier()  # it is whole, and in step
        self.check(body)

    def test_a_list_of_another_length_is_an_error_on_all_ranks(self):
        def body(_, comm):
            for wrong, text in (([], "0 objects"), ([1] * 4, "4 objects"), (None, "None")):
                if comm.rank == 0:
                    with self.assertRaisesRegex(dt.InvalidArgumentError,
                                                f"values is {text}; give one for each of the {comm.size} ranks"):
                        comm.scatter_objects(wrong)
                else:
                    with self.assertRaisesRegex(dt.InvalidStateError, "rank 0 could not give"):
                        comm.scatter_objects()
            comm.barrier()
        self.check(body)

    def test_sizes_that_cannot_be(self):
        def body(_, comm):
            if comm.rank == 0:  # a rank that means something else
                values = array.array("q", [-7])
                comm.broadcast(values, 0)
            else:
                with self.assertRaisesRegex(dt.InvalidStateError, r"broadcast_object: rank 0 sent sizes that "
                                            r"cannot be \(\[-7\]\); see that all ranks call broadcast_object"):
                    comm.broadcast_object()
        self.check(body, [2])
        with mock.patch.object(_objects, "_LIMIT", 100):
            def too_much(_, comm):
                with self.assertRaisesRegex(dt.InvalidStateError, "rank 1 sent sizes that cannot be"):
                    comm.allgather_objects(b"1" * (10 + 200 * comm.rank))
            self.check(too_much, [2])

    def test_gpu_memory_and_a_closed_communicator(self):
        job = dt.Job()
        comm = job.world()
        comm._on_gpu = True
        for call in (comm.broadcast_object, lambda: comm.gather_objects(1), lambda: comm.allgather_objects(1),
                     lambda: comm.scatter_objects([1]), lambda: comm.allreduce(1)):
            self.assertRaisesRegex(dt.InvalidArgumentError, "host memory, and the communicator is over GPU", call)
        comm.close()
        comm = job.world()
        comm.close()
        self.assertRaisesRegex(dt.InvalidArgumentError, "comm is closed", comm.broadcast_object)


if __name__ == "__main__":
    unittest.main()
