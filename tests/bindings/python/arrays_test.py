# SPDX-License-Identifier: Apache-2.0
"""Arrays of all kinds: what dt takes, what it refuses, and what it keeps alive."""

import array
import ctypes
import gc
import os
import sys
import unittest
import weakref
from unittest import mock

sys.path.insert(0, os.path.dirname(__file__))
import dt
from dt import _memory
from ranks import run_ranks

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None
else:
    import dt.torch


class Case(unittest.TestCase):
    def setUp(self):
        self.job = dt.Job()
        self.comm = self.job.world()
        self.addCleanup(self.job.close)

    def assert_refused(self, array_, *words):
        for call in (self.comm.broadcast, self.comm.allreduce, self.comm.allreduce_async):
            with self.assertRaises(dt.InvalidArgumentError) as caught:
                call(array_)
            for word in words:
                self.assertIn(word, str(caught.exception))
        return caught.exception


class Plain(Case):
    def test_arrays_of_the_standard_library(self):
        for letter, dtype in zip("bBhHiIlLqQfd", ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "I64", "U64",
                                                "F32", "F64")):
            values = array.array(letter, [1, 2, 3])
            self.assertEqual(dt.Buffer(values).dtype, dt.Dtype[dtype])
            self.comm.allreduce(values)
            self.assertEqual(list(values), [1, 2, 3])
        self.comm.allgather(b"ab", bytearray(2))
        self.comm.broadcast(memoryview(bytearray(8)).cast("f"))
        self.comm.broadcast((ctypes.c_float * 3)())

    def test_what_is_no_array(self):
        for wrong in ([1.0], 3j, None, "text", object()):
            self.assert_refused(wrong, "an array is needed, not " + type(wrong).__name__)
        for call in (self.comm.broadcast, self.comm.allreduce_async):
            with self.assertRaisesRegex(dt.InvalidArgumentError, "an array is needed, not float"):
                call(3.0)
        self.assert_refused((ctypes.c_wchar * 1)(), "elements are of format '", "dt.Buffer")

    def test_read_only(self):
        for values in (b"abcd", memoryview(bytearray(4)).toreadonly()):
            for call in (self.comm.allreduce, self.comm.allreduce_async,
                         lambda values: self.comm.recv(values, 0)):
                with self.assertRaisesRegex(dt.InvalidArgumentError, "read-only"):
                    call(values)
            self.comm.broadcast(values)  # of the root's nothing is written
            self.comm.broadcast_async(values).wait()
        result = bytearray(4)
        self.comm.allreduce(b"abcd", result)
        self.assertEqual(result, b"abcd")

    def test_read_only_with_a_root_that_compares_as_numpys_integers(self):
        class Root:
            """Comparing it gives no bool."""

            def __index__(self):
                return 1

            def __eq__(self, other):
                return int(other == 1)

            def __ne__(self, other):
                return int(other != 1)

        def body(_, comm):
            given = b"abcd" if comm.rank == 1 else bytes(4)
            if comm.rank == 0:
                for call in (comm.broadcast, comm.broadcast_async):
                    with self.assertRaisesRegex(dt.InvalidArgumentError, "the array is read-only"):
                        call(given, Root())
                self.assertEqual(given, bytes(4))
                given = bytearray(4)
            comm.broadcast(given, Root())
            self.assertEqual(given, b"abcd")
        run_ranks(2, body)

        class NoTruth:
            def __bool__(self):
                raise LookupError("neither")
        with self.assertRaisesRegex(LookupError, "neither"):
            dt._raw.one(bytearray(4), NoTruth(), "broadcast", False)
        with self.assertRaisesRegex(LookupError, "neither"):
            dt._raw.buffer(bytearray(4), NoTruth(), "broadcast")

    def test_not_contiguous(self):
        self.assert_refused(memoryview(bytearray(8))[::2], "not contiguous")

    def test_an_array_cannot_be_resized_while_dt_uses_it(self):
        values = bytearray(8)
        buffer = dt.Buffer(values)
        with self.assertRaises(BufferError):
            values.append(1)
        del buffer
        values.append(1)

    def test_sizes_that_do_not_match(self):
        small, large = array.array("f", [1] * 3), array.array("f", [1] * 4)
        other = array.array("d", [1] * 3)
        calls = ((self.comm.allreduce, "both need the same number"),
                 (self.comm.reduce, "both need the same number"),
                 (self.comm.allgather, "1 times as many"), (self.comm.reduce_scatter, "1 times as many"),
                 (self.comm.allreduce_async, "both need"), (self.comm.allgather_async, "as many"),
                 (self.comm.reduce_async, "both need"), (self.comm.reduce_scatter_async, "as many"))
        for call, words in calls:
            with self.assertRaisesRegex(dt.InvalidArgumentError, words):
                call(large, small)
            with self.assertRaisesRegex(dt.InvalidArgumentError, words):
                call(small, large)
            with self.assertRaisesRegex(dt.InvalidArgumentError, "F32 and recv of F64"):
                call(small, other)

    def test_nothing_to_do(self):
        for call in (self.comm.allreduce, self.comm.broadcast, self.comm.allreduce_async):
            call(array.array("f"))

    def test_a_dtype_may_be_given_for_elements_of_its_size(self):
        halves = array.array("H", [0x3F80, 0x4000])
        buffer = dt.Buffer(halves, dtype=dt.Dtype.BF16)
        self.assertEqual((buffer.count, buffer.dtype, buffer.readonly), (2, dt.Dtype.BF16, False))
        self.comm.allreduce(buffer)
        self.assertEqual(list(halves), [0x3F80, 0x4000])
        with self.assertRaisesRegex(dt.InvalidArgumentError, "elements have 2 bytes"):
            dt.Buffer(halves, dtype=dt.Dtype.F32)
        with self.assertRaisesRegex(dt.InvalidArgumentError, "77 is none"):
            dt.Buffer(halves, dtype=77)
        self.assertEqual(dt.Buffer(halves, dtype="bfloat16").dtype, dt.Dtype.BF16)

    def test_dtypes_by_name(self):
        for name, dtype in (("float32", "F32"), ("F32", "F32"), ("int8", "I8"), ("uint64", "U64"),
                            ("bfloat16", "BF16"), ("torch.float16", "F16")):
            self.assertIs(dt.Dtype(name), dt.Dtype[dtype])
            self.assertEqual(self.comm.alloc(1, name).dtype, dt.Dtype[dtype])
            self.assertIs(dt.Param(1, name).dtype, dt.Dtype[dtype])
        for wrong in ("f4", "i8", "complex64", "", None, str, 1.5):
            with self.assertRaisesRegex(dt.InvalidArgumentError, "dtype: .* is none of dt's; give a dt.Dtype"):
                dt.Dtype(wrong)
        with self.assertRaisesRegex(dt.InvalidArgumentError, "dtype: 'f4' is none"):
            dt.Buffer(bytearray(4), dtype="f4")

    def test_an_address(self):
        values = (ctypes.c_double * 3)(1, 2, 3)
        buffer = dt.Buffer.from_address(ctypes.addressof(values), 3, dt.Dtype.F64, values)
        before = sys.getrefcount(values)
        self.comm.allreduce(buffer)
        self.assertEqual(list(values), [1, 2, 3])
        del buffer
        self.assertEqual(sys.getrefcount(values), before - 1)
        with self.assertRaises(dt.InvalidArgumentError):
            dt.Buffer.from_address(1, -1, dt.Dtype.F64)


class OnGpu:
    """What a CUDA array looks like from outside."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False),
                                         "version": 3, "strides": None, **changes}


class Interfaces(Case):
    def test_cuda_array_interface(self):
        for typestr, dtype in (("<f4", "F32"), ("<f2", "F16"), ("|u1", "U8"), ("<i8", "I64")):
            buffer = dt.Buffer(OnGpu(typestr=typestr))
            self.assertEqual((buffer.address, buffer.count, buffer.dtype, buffer.on_gpu),
                             (4096, 6, dt.Dtype[dtype], True))
        self.assertTrue(dt.Buffer(OnGpu(data=(4096, True))).readonly)
        dt.Buffer(OnGpu(strides=(12, 4)))
        for changes, words in (({"strides": (4, 8)}, "not contiguous"), ({"typestr": ">f4"}, "big-endian"),
                               ({"typestr": "<c8"}, "typestr '<c8'"), ({"data": None}, "lacks data"),
                               ({"shape": 3}, "lacks data"), ({"typestr": ""}, "lacks data")):
            with self.assertRaisesRegex(dt.InvalidArgumentError, words):
                dt.Buffer(OnGpu(**changes))

    def test_gpu_memory_is_refused_by_a_communicator_over_host_memory(self):
        self.assert_refused(OnGpu(), "the array is GPU memory", "host memory", "nccl")

    @unittest.skipIf(numpy is None, "NumPy is not here")
    def test_dlpack_is_consumed_and_let_go(self):
        class Tensor:  # only DLPack, as PyTorch has it
            def __init__(self, values, device=(1, 0)):
                self.values, self.device = values, device

            def __dlpack_device__(self):
                return self.device

            def __dlpack__(self, stream=None):
                return self.values.__dlpack__()

        for dtype in "bBhHiIqQefd":
            values = numpy.arange(6, dtype=dtype).reshape(2, 3)
            buffer = dt.Buffer(Tensor(values))
            self.assertEqual((buffer.count, buffer.dtype), (6, dt.Buffer(values).dtype))
            self.assertEqual(buffer.address, values.ctypes.data)
        gone = weakref.ref(values)
        del values
        self.assertIsNotNone(gone())
        del buffer
        self.assertIsNone(gone())
        for values, words in ((numpy.zeros((3, 3))[:, 1], "not contiguous"),
                              (numpy.zeros(3, "c8"), "complex64"), (numpy.zeros(3, ">f4"), "byte order")):
            self.assert_refused(Tensor(values), words)
        self.assert_refused(Tensor(numpy.zeros(3), (10, 0)), "kind 10")
        self.assert_refused(Tensor(numpy.zeros(3), "cuda"), "__dlpack_device__")
        self.assert_refused(Tensor(numpy.zeros(3), (2, 0)), "GPU memory")

    @unittest.skipIf(numpy is None, "NumPy is not here")
    def test_jax_arrays_are_never_written(self):
        class ArrayImpl:  # as JAX has it, whose DLPack does not say that it is read-only
            __module__ = "jaxlib.xla_extension"

            def __init__(self, values):
                self.values = values

            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, stream=None):
                return self.values.__dlpack__()

        values = ArrayImpl(numpy.ones(3))
        result = numpy.zeros(3)
        self.comm.allreduce(values, result)
        self.assertEqual(list(result), [1] * 3)
        self.assertTrue(dt.Buffer(values).readonly)
        for call in (self.comm.allreduce, lambda recv: self.comm.allgather(result, recv)):
            with self.assertRaisesRegex(dt.InvalidArgumentError, "a JAX array is read-only, .* give a copy, "
                                        r"numpy.array\(array\), .* jax.numpy.asarray\(copy\)"):
                call(values)

    @unittest.skipIf(numpy is None, "NumPy is not here")
    def test_dlpack_of_a_gpu(self):
        values = numpy.zeros(3)  # nobody reads it

        class Tensor:
            def __dlpack_device__(self):
                return (2, 0)

            def __dlpack__(self, *, stream=None):
                if stream != -1:
                    raise ValueError(stream)
                return values.__dlpack__()

        class Broken(OnGpu, Tensor):
            def __dlpack__(self, **_):
                raise BufferError("why")

        buffer = dt.Buffer(Tensor())
        self.assertEqual((buffer.on_gpu, buffer.count, buffer.address), (True, 3, values.ctypes.data))
        buffer = dt.Buffer(Broken())
        self.assertEqual((buffer.on_gpu, buffer.count, buffer.address), (True, 6, 4096))
        broken = Broken()
        del broken.__cuda_array_interface__
        with self.assertRaisesRegex(dt.InvalidArgumentError, "by DLPack .BufferError: why"):
            dt.Buffer(broken)

    def test_what_says_nothing_about_the_array_stays_as_it_is(self):
        for kind in (KeyboardInterrupt, SystemExit, MemoryError):
            class Ends:
                def __dlpack_device__(self):
                    raise kind("why")

                def __dlpack__(self):
                    return None

            with self.assertRaisesRegex(kind, "why") as caught:
                self.comm.allreduce(Ends())
            self.assertIs(type(caught.exception), kind)

    def test_an_interface_that_raises_is_the_cause(self):
        class Broken:
            def __dlpack_device__(self):
                raise KeyError("why")

            def __dlpack__(self):
                return None

        error = self.assert_refused(Broken(), "__dlpack_device__() failed (KeyError: 'why')")
        self.assertIsInstance(error.__cause__, KeyError)


@unittest.skipIf(numpy is None, "NumPy is not here")
class NumpyArrays(Case):
    def test_all_dtypes(self):
        for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"):
            values = numpy.arange(24, dtype=dtype).reshape(2, 3, 4)
            result = numpy.zeros_like(values)
            self.comm.allreduce(values, result)
            numpy.testing.assert_array_equal(values, result)
        truth = numpy.array([True, False])
        self.comm.allreduce(truth, op="bor")
        self.assertEqual(truth.tolist(), [True, False])
        self.comm.broadcast(numpy.float32(3).reshape(1))
        self.comm.broadcast(numpy.zeros((0, 3), "f4"))

    def test_what_is_refused(self):
        values = numpy.zeros((4, 4), "f4")
        self.assert_refused(values[:, 1], "not contiguous")
        self.assert_refused(values.T, "not contiguous")
        self.assert_refused(values.astype(">f4"), "big-endian")
        self.assert_refused(values.astype("c8"), "format 'Zf'")
        self.assert_refused(numpy.zeros(2, "O"), "'O'")
        self.assert_refused(numpy.zeros(2, "M8[s]"), "BufferError: ")
        values.flags.writeable = False
        with self.assertRaisesRegex(dt.InvalidArgumentError, "read-only"):
            self.comm.allreduce(values)

    def test_its_dtypes(self):
        for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
                     "float32", "float64"):
            expected = dt.Buffer(numpy.zeros(1, name)).dtype
            for given in (name, numpy.dtype(name), getattr(numpy, name, bool)):
                self.assertEqual(dt.Dtype(given), expected)
                self.assertEqual(self.comm.alloc(2, given).dtype, expected)
                self.assertEqual(dt.Buffer.from_address(0, 0, given).dtype, expected)
        with self.assertRaisesRegex(dt.InvalidArgumentError, "complex64"):
            dt.Dtype(numpy.complex64)

    def test_numpy_integers_are_numbers(self):
        self.comm.broadcast(numpy.zeros(2, "f4"), numpy.int64(0))
        self.assertEqual(self.comm.world_rank(numpy.int32(0)), 0)


class MemoryOfDt(Case):
    def test_it_is_zero_and_aligned(self):
        for dtype in dt.Dtype:
            memory = self.comm.alloc(5, dtype)
            self.assertEqual((len(memory), memory.dtype, memory.nbytes, memory.address % 4096),
                             (5, dtype, 5 * dtype.itemsize, 0))
            self.assertEqual(bytes(memory), b"\0" * memory.nbytes)
            self.comm.broadcast(memory)
            self.assertFalse(hasattr(memory, "__cuda_array_interface__"))

    def test_memory_of_a_gpu_says_its_type(self):
        for dtype in dt.Dtype:
            memory = _memory.Region(4096, 3, dtype, True)
            typestr = memory.__cuda_array_interface__["typestr"]
            self.assertEqual(int(typestr[2:]), dtype.itemsize, dtype)
            self.assertEqual(typestr[0], "|" if dtype.itemsize == 1 else "<")
            letter = {"B": "u", "I": "i", "U": "u", "F": "f"}[dtype.name[0]]
            if dtype in (dt.Dtype.BF16, dt.Dtype.F8E4M3, dt.Dtype.F8E5M2):
                letter = "u"  # these are their bits
            self.assertEqual(typestr[1], "b" if dtype is dt.Dtype.BOOL else letter, dtype)

    def test_it_is_not_freed_under_a_view(self):
        memory = self.comm.alloc(4)
        view = memoryview(memory)
        with self.assertRaisesRegex(dt.InvalidStateError, "1 array"):
            memory.close()
        work = self.comm.allreduce_async(memory)
        view.release()
        work.wait()
        memory.close()
        memory.close()
        with self.assertRaises(BufferError):
            memoryview(memory)
        self.assert_refused(memory, "closed")

    @unittest.skipIf(numpy is None, "NumPy is not here")
    def test_an_array_keeps_it_and_what_it_needs(self):
        values = numpy.asarray(self.comm.alloc(1000, dt.Dtype.F64))
        values[:] = numpy.arange(1000)
        self.comm.close()
        self.job.finalize()
        self.job.close()
        gc.collect()
        self.assertEqual(values.sum(), 999 * 500)
        values[:] = 1

    def test_dlpack_lends_host_memory_and_nothing_else(self):
        memory = self.comm.alloc(4)
        for wanted in ({}, {"stream": None}, {"max_version": (1, 0)}, {"dl_device": (1, 0)},
                       {"dl_device": None, "copy": False}, {"copy": None}):
            memory.__dlpack__(**wanted)
        for wanted in ({"copy": True}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}, {"dl_device": 1}):
            with self.assertRaises(BufferError):
                memory.__dlpack__(**wanted)
        with self.assertRaises(TypeError):
            memory.__dlpack__(dl_device=("cpu", 0))
        self.assertEqual(memory.exports, 0)

    def test_too_much(self):
        with self.assertRaises(dt.OutOfMemoryError) as caught:
            self.comm.alloc(2**60, dt.Dtype.U8)
        self.assertIsInstance(caught.exception, MemoryError)
        for count in (0, -1):
            with self.assertRaises(dt.InvalidArgumentError):
                self.comm.alloc(count)


@unittest.skipIf(torch is None, "PyTorch is not here")
class Tensors(Case):
    def test_all_dtypes(self):
        for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                      torch.float32, torch.float64):
            values = torch.arange(6).to(dtype).reshape(2, 3)
            result = torch.zeros_like(values)
            self.comm.allreduce(values, result)
            self.assertTrue(torch.equal(values, result))
            self.assertEqual(dt.Dtype(dtype), dt.Buffer(values).dtype)
        self.comm.broadcast(torch.zeros(0))

    def test_what_is_refused(self):
        self.assert_refused(torch.zeros(4, 4).t(), "not contiguous", "contiguous()")
        self.assert_refused(torch.zeros(2, dtype=torch.complex64), "complex64")
        self.assert_refused(torch.zeros(3, requires_grad=True), "require gradient", "detach()")

    def test_the_stream_of_a_gpu_is_that_of_torch(self):
        from dt._tensors import stream_of
        gpu = torch.device("cuda", 1)
        stream = mock.Mock(cuda_stream=4711)
        with mock.patch.object(torch.cuda, "current_stream", return_value=stream) as current:
            self.assertEqual(stream_of(gpu), 4711)
            current.assert_called_once_with(gpu)
            self.assertEqual(stream_of(torch.device("cpu")), 0)

    def test_broadcast_of_tensors_of_any_kind(self):
        for dtype in (torch.int16, torch.complex64, torch.bool, torch.float32):
            values = torch.arange(6).reshape(2, 3).to(dtype).t()
            before = values.clone()
            dt.torch.broadcast([values, values.contiguous()], self.comm)
            self.assertTrue(torch.equal(values, before))

        class Gpus:
            """A communicator over GPUs, which brings ones."""
            on_gpu = True

            def broadcast(self, buffer, root, stream):
                ctypes.memset(buffer.address, 1, buffer.count)

        values = torch.zeros(2, 3, dtype=torch.uint8).t()
        dt.torch.broadcast([values], Gpus(), 1)
        self.assertEqual(values.sum().item(), 6)

    def test_shards_over_gpus_refuse_unused_parameters_with_stage_3(self):
        class Reached(Exception):
            pass

        class Gpus:
            """A communicator over GPUs, up to the first operation."""
            on_gpu = True

            def broadcast(self, buffer, root, stream):
                raise Reached

        def wrap(**options):
            dt.torch.ShardedDataParallel(torch.nn.Linear(2, 2), Gpus(), **options)

        for options in ({}, {"stage": 3}):
            with self.assertRaises(dt.UnsupportedError) as caught:
                wrap(find_unused_parameters=True, **options)
            self.assertEqual(caught.exception.status, dt.Status.UNSUPPORTED)
            for part in ("ShardedDataParallel: stage 3 with find_unused_parameters is not supported on GPUs",
                         "different orders", "use stage=2, or leave find_unused_parameters out"):
                self.assertIn(part, str(caught.exception))
        for options in ({"stage": 2, "find_unused_parameters": True}, {"find_unused_parameters": False}, {}):
            with self.assertRaises(Reached):
                wrap(**options)

    def test_memory_as_a_tensor(self):
        for dtype in dt.Dtype:
            if dtype in (dt.Dtype.U32, dt.Dtype.U64) or dtype > dt.Dtype.F64:  # not all PyTorch has them
                continue
            memory = self.comm.alloc(4, dtype)
            tensor = torch.from_dlpack(memory)
            self.assertEqual(dt.Buffer(tensor).dtype, dtype)
            tensor.fill_(2)
            self.comm.allreduce(memory)
            with self.assertRaises(dt.InvalidStateError):
                memory.close()
            gone = weakref.ref(memory)
            del memory
            self.assertEqual(tensor.sum().item(), 8)
            self.assertIsNotNone(gone())
            del tensor
            self.assertIsNone(gone())
        memory = self.comm.alloc(4)
        memory.__dlpack__()  # nobody takes it
        self.assertEqual(memory.exports, 0)
        memory.close()
        with self.assertRaises(BufferError):
            torch.from_dlpack(memory)


if __name__ == "__main__":
    unittest.main()
