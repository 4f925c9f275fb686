# SPDX-License-Identifier: Apache-2.0
"""The backend "dt" of torch.distributed on 2 to 4 ranks, each a process of process_group_ranks.py; in C++ and in
Python."""

import importlib.metadata
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

LIMIT_S = 200
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "process_group_ranks.py")
RELEASE = (0, 0)
if importlib.util.find_spec("torch") is not None:
    RELEASE = tuple(int(each) for each in importlib.metadata.version("torch").split(".")[:2])


def since(major, minor):
    return unittest.skipIf((major, minor) > RELEASE, f"PyTorch has it since {major}.{minor}")


class ProcessGroupTest(unittest.TestCase):
    environment = {}

    def run_case(self, name, size, **environment):
        with tempfile.TemporaryDirectory() as folder:
            variables = {**os.environ, **self.environment, **environment}
            ranks = [subprocess.Popen([sys.executable, "-I", RANK, name, str(rank), str(size), folder],
                                      env=variables, stderr=subprocess.PIPE, text=True)
                     for rank in range(size)]
            try:
                return [(rank.communicate(timeout=LIMIT_S)[1], rank.returncode) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()

    def all_pass(self, name, size, **environment):
        for rank, (text, status) in enumerate(self.run_case(name, size, **environment)):
            self.assertEqual(status, 0, f"{name}, rank {rank} of {size}: {text}")

    def test_collectives(self):
        for size in (2, 3):
            self.all_pass("collectives", size)

    def test_a_port_that_the_launcher_holds(self):
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = str(held.getsockname()[1])
            self.all_pass("futures", 2, DT_MASTER_ADDR="127.0.0.1", DT_MASTER_PORT=port)

    def test_parts_of_another_size_than_the_ranks_own(self):
        self.all_pass("wrong_sizes", 3)

    def test_element_types(self):
        self.all_pass("types", 3)

    def test_works_and_futures(self):
        self.all_pass("futures", 2)

    def test_memory_of_works_that_have_ended(self):
        self.all_pass("memory", 2)

    @since(2, 1)
    def test_groups_of_some_ranks(self):
        self.all_pass("groups", 3)

    def test_messages(self):
        for size in (2, 3):
            self.all_pass("messages", size)

    def test_sparse_and_premultiplied_sums(self):
        for size in (2, 3):
            self.all_pass("reductions", size)

    @since(2, 4)
    def test_batches(self):
        for size in (2, 3):
            self.all_pass("batches", size)

    @since(2, 4)
    def test_batches_that_an_exception_ends(self):
        self.all_pass("refused_batches", 3)

    @since(2, 1)
    def test_threads_beside_a_batch(self):
        self.all_pass("threads_and_batches", 2)

    def test_receives_end_when_the_group_is_destroyed(self):
        self.all_pass("destroyed_while_waiting", 2)

    def test_a_rank_that_cannot_say_farewell_leaves(self):
        self.all_pass("no_farewell", 2)

    @since(2, 14)
    def test_split_groups(self):
        self.all_pass("splits", 3)

    @since(2, 14)
    def test_monitored_barrier_names_the_missing(self):
        for size in (2, 3):
            self.all_pass("monitored", size)

    @since(2, 14)
    def test_monitored_barrier_after_a_rank_gave_up(self):
        self.all_pass("given_up", 3)

    @since(2, 14)
    def test_monitored_barrier_names_the_killed(self):
        *others, killed = self.run_case("barrier_killed", 3)
        self.assertEqual(killed[1], -signal.SIGKILL)
        for text, status in others:
            self.assertEqual(status, 0, text)

    @since(2, 4)
    def test_a_group_with_the_name_of_a_destroyed_one(self):
        self.all_pass("same_name", 2)

    def test_where_no_thread_can_be_started(self):
        self.all_pass("no_thread", 2)

    @since(2, 4)
    def test_shrink_without_a_lost_rank(self):
        self.all_pass("shrunk_whole", 3)

    @since(2, 1)
    def test_a_rank_that_is_lost_in_a_shrink(self):
        *others, _, _ = self.run_case("lost_in_shrink", 4)
        for text, status in others:
            self.assertEqual(status, 0, text)

    def test_a_send_that_nobody_receives_fails_alone(self):
        self.all_pass("untaken", 2)

    @since(2, 7)
    def test_abort_reaches_all_ranks(self):
        self.all_pass("aborted", 3)

    def test_a_group_after_another(self):
        self.all_pass("again", 2)

    @since(2, 4)
    def test_a_group_has_its_name_in_errors(self):
        self.all_pass("names", 2)

    def test_a_group_beside_a_default_group_of_gloo(self):
        self.all_pass("not_default", 3)

    def test_all_ranks_hear_why_rank_0_makes_no_group(self):
        self.all_pass("rank_0_fails", 2)

    @since(2, 15)
    def test_one_rank_without_a_compiler(self):
        self.all_pass("without_compiler", 3)

    def test_host_memory_whatever_backend_the_environment_names(self):
        self.all_pass("futures", 2, DT_BACKEND_NAME="nccl")

    def test_ddp_learns_as_with_gloo(self):
        for size in (2, 3):
            self.all_pass("ddp", size)

    def test_shared_memory_of_tensors(self):
        self.all_pass("shared_memory", 2)
        self.all_pass("memory_after_failure", 2)

    def test_ddp_has_its_buckets_in_shared_memory(self):
        for size in (2, 3):
            self.all_pass("buckets", size, DDP_DISABLE_COMM_MEM="0")

    def test_an_exception_before_the_end(self):
        self.all_pass("left_by_exception", 3)

    def test_tensors_that_overlap(self):
        self.all_pass("overlapping", 3)

    def test_ranks_that_disagree(self):
        self.all_pass("differing", 2)

    def test_a_killed_rank_is_named(self):
        *others, killed = self.run_case("killed", 3)
        self.assertEqual(killed[1], -signal.SIGKILL)
        for text, status in others:  # the call after the failed one raises too, in its turn
            self.assertEqual(status, 1, text)
            self.assertIn("DistBackendError", text)
            self.assertNotIn("AssertionError", text)

    @since(2, 7)
    def test_an_abort_without_the_store(self):
        killed, *others = self.run_case("store_killed", 2)
        self.assertEqual(killed[1], -signal.SIGKILL)
        for text, status in others:
            self.assertEqual(status, 0, text)

    def test_no_group_is_made_with_a_killed_rank(self):
        *others, killed = self.run_case("no_new_group", 3)
        self.assertEqual(killed[1], -signal.SIGKILL)
        for text, status in others:
            self.assertEqual(status, 0, text)

    def test_a_group_over_gpus_goes_on_without_killed_ranks(self):
        *others, _, _ = self.run_case("shrunk_with_gpus", 4)
        for text, status in others:
            self.assertEqual(status, 0, text)

    def test_messages_of_a_killed_rank_end(self):
        *others, killed = self.run_case("peer_killed", 4)
        self.assertEqual(killed[1], -signal.SIGKILL)
        for text, status in others:
            self.assertEqual(status, 0, text)


@since(2, 15)
class WithoutCompilerTest(ProcessGroupTest):
    """The same with the backend in Python, which has no batches, no splits and no shared memory for tensors."""

    environment = {"WITHOUT_COMPILER": "1"}
    test_batches = test_batches_that_an_exception_ends = test_threads_beside_a_batch = test_split_groups = None
    test_shared_memory_of_tensors = test_ddp_has_its_buckets_in_shared_memory = None
    test_one_rank_without_a_compiler = None

    def test_monitored_barrier_after_an_interrupt(self):  # the one in C++ is not interrupted
        self.all_pass("interrupted", 2)


def why_not():
    if RELEASE == (0, 0):
        return "PyTorch is not here"
    return f"PyTorch is {importlib.metadata.version('torch')}, older than 2" if RELEASE < (2, 0) else ""


if __name__ == "__main__":
    if why_not():
        print(f"skipped: {why_not()}")
        sys.exit(77)
    else:
        unittest.main()
