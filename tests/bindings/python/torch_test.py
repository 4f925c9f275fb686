# SPDX-License-Identifier: Apache-2.0
"""dt.torch.DistributedDataParallel beside PyTorch's own with gloo, on 2 ranks; and parts of dt.torch on none."""

import importlib.util
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(__file__))
from ranks import dt_run


class Training(unittest.TestCase):
    def test_the_losses_are_those_of_pytorchs_own(self):
        run = dt_run(2, os.path.join(os.path.dirname(__file__), "torch_ranks.py"))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("largest difference"), 2, run.stdout)
        print(run.stdout, end="")

    def test_the_benchmark_compares_each_way(self):
        run = dt_run(2, os.path.join(os.path.dirname(__file__), "torch_ddp_bench.py"),
                     "--models", "7 k", "--rounds", "1", "--losses", "5")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("| 7,050 |"), 5, run.stdout)


class Buffers(unittest.TestCase):
    """Tensors as memory of dt."""

    def test_each_element_type_that_dt_has(self):
        import dt.torch
        import torch
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
                     "float32", "float64", "bool", "float8_e4m3fn", "float8_e5m2"):
            if hasattr(torch, name):
                made = dt.torch.buffer(torch.zeros(3).to(getattr(torch, name)))
                self.assertEqual((made.count, made.dtype), (3, dt.Dtype(name)))
        for wrong in (torch.zeros(3, dtype=torch.complex64), torch.zeros(3, device="meta")):
            with self.assertRaises(dt.InvalidArgumentError):
                dt.torch.buffer(wrong)

    def test_tensors_elsewhere_are_refused_as_bytes_too(self):
        import dt
        import torch
        from dt import _tensors
        with self.assertRaises(dt.InvalidArgumentError) as raised:
            _tensors.any_buffer(torch.zeros(3, dtype=torch.complex64, device="meta"))
        self.assertIn("a tensor is on meta", str(raised.exception))

    def test_an_interface_without_ipv4_has_its_address_of_ipv6(self):
        from dt import _process_group
        table = ("fe800000000000000000000000000001 02 40 20 80     eth1\n"
                 "fd000000000000000000000000000002 02 40 00 80     eth1\n"
                 "00000000000000000000000000000001 01 80 10 80       lo\n")
        found = [_process_group._ipv6_address(name, table) for name in ("eth1", "lo", "eth2")]
        self.assertEqual(found, ["fd00::2", "::1", ""])

    def test_a_second_try_over_gpus_does_not_find_the_failure_of_the_first(self):
        import datetime
        import torch.distributed
        from dt import _process_group

        def meet(store, *_):
            found.append(store.add("tries", 1))
            raise ValueError

        found, membership = [], mock.Mock(gpu=None)
        group = _process_group.Group(membership, mock.Mock(rank=0, size=2), [0, 1], "pair", True,
                                     torch.distributed.HashStore(), datetime.timedelta(seconds=1))
        with mock.patch.object(_process_group, "_meet", meet):
            for _ in range(2):
                with self.assertRaises(ValueError):
                    group.open_gpu(0)
        self.assertEqual(found, [1, 1])


class CacheFolder(unittest.TestCase):
    """Where the compiled backend lies."""

    def setUp(self):
        outer = tempfile.TemporaryDirectory()
        self.addCleanup(outer.cleanup)
        self.home, self.temporary = os.path.join(outer.name, "cache"), os.path.join(outer.name, "tmp")
        for patch in (mock.patch.dict(os.environ, XDG_CACHE_HOME=self.home),
                      mock.patch("tempfile.tempdir", self.temporary)):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(os.umask, os.umask(0o022))

    def folder(self):
        from dt import _extension
        return _extension._folder()

    def modes(self, folder):
        upper = os.path.dirname(folder)
        return [os.stat(each).st_mode & 0o777 for each in (os.path.dirname(upper), upper, folder)]

    def test_any_umask_will_do(self):
        for umask in (0o002, 0o000, 0o077):
            os.umask(umask)
            with mock.patch.dict(os.environ, XDG_CACHE_HOME=f"{self.home}{umask}"):
                folder = self.folder()
                self.assertTrue(folder.startswith(f"{self.home}{umask}/dt/torch/"), folder)
                self.assertEqual(self.modes(folder), [0o700] * 3)
                self.assertEqual(self.folder(), folder)

    def test_upper_folders_that_others_can_write_are_closed_to_them(self):
        for each in (self.home, f"{self.home}/dt", f"{self.home}/dt/torch"):
            os.mkdir(each)
            os.chmod(each, 0o775)
        folder = self.folder()
        self.assertTrue(folder.startswith(f"{self.home}/dt/torch/"), folder)
        self.assertEqual(self.modes(folder), [0o755, 0o755, 0o700])

    def test_each_refused_folder_is_named(self):
        folder = self.folder()
        os.chmod(folder, 0o770)
        with open(self.temporary, "w", encoding="utf-8"):
            pass
        with self.assertRaises(RuntimeError) as raised:
            self.folder()
        for part in (f"others can write to {folder} (mode 770)", self.temporary, "XDG_CACHE_HOME"):
            self.assertIn(part, str(raised.exception))
        os.remove(self.temporary)
        self.assertTrue(self.folder().startswith(self.temporary))


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not here (Debian: python3-torch)")
        sys.exit(77)
    unittest.main()
