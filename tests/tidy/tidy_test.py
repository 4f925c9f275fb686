#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of this folder see what they are for."""

import tempfile
import unittest
from pathlib import Path

import check_bindings
import check_headers
import check_layers
import check_words
import dt_header


def layers(path, text):
    return check_layers.check_file(Path(path), text)


def words(path, text):
    return check_words.check_file(Path(path), text)


def headers(text):
    with tempfile.NamedTemporaryFile("w", suffix=".h") as file:
        file.write(text)
        file.flush()
        return [complaint for function in dt_header.functions(file.name)
                for complaint in check_headers.complaints_about(function)]


class Bindings(unittest.TestCase):
    def test_both_forms_are_wanted(self):
        missing = check_bindings.missing_forms
        both = "public void allToAll(Tensor a)\npublic Work allToAllAsync(Tensor a)"
        self.assertEqual(missing("java/src/io/dt", both, ["alltoall"]), [])
        self.assertEqual(len(missing("java/src/io/dt", both, ["alltoallv", "all_reduce"])), 4)
        blocks = "public void allGather(Tensor a, Blocks b)\npublic Work allGatherAsync(\n  Tensor a, Blocks b)"
        self.assertEqual(missing("java/src/io/dt", blocks, ["allgatherv", "allgather"]), [])
        self.assertEqual(missing("csharp/src", "public void AllToAll<T>(\n", ["alltoallv"]),
                         ["bindings/csharp/src: alltoallv: nothing matches 'public Work AllToAllAsync[<(]'"])
        self.assertEqual(len(missing("python/dt", "\n    def sender(self)\n", ["send"])), 2)

    def test_kinds_are_those_of_the_header(self):
        wrong = check_bindings.wrong_kinds
        kinds = ["send", "all_to_all"]
        self.assertEqual(wrong("python/dt", '_KINDS = ("send",\n  "all_to_all")', kinds), [])
        java = "public enum OperationKind {\n  /** {@link A}, b. */\n  SEND(a, B),\n  ALL_TO_ALL(c);\n  D }"
        self.assertEqual(wrong("java/src/io/dt", java, kinds), [])
        csharp = "public enum OperationKind\n{ Recv = 0, // a, b\nAllToAllV = 1 }"
        self.assertEqual(wrong("csharp/src", csharp, ["recv", "alltoallv"]), [])
        self.assertEqual(len(wrong("csharp/src", "public enum OperationKind { AllToAll = 0, Send = 1 }", kinds)), 1)
        self.assertEqual(len(wrong("python/dt", "", kinds)), 1)

    def test_loops_end_with_the_last_kind(self):
        loop = r"kind <= (\w+);"
        self.assertEqual(check_bindings.unfinished_loop("raw.h", "kind <= B;", loop, "B"), [])
        self.assertEqual(check_bindings.unfinished_loop("raw.h", "kind <= A;", loop, "B"),
                         ["bindings/raw.h: a loop over the kinds of operations ends with A, not with B"])
        self.assertEqual(len(check_bindings.unfinished_loop("raw.h", "", loop, "B")), 1)


class Layers(unittest.TestCase):
    def test_below_is_fine(self):
        self.assertEqual(layers("comm/a.cc", '#include "backend/backend.h"\n#include <vector>\n'), [])
        self.assertEqual(layers("backend/host/a.cc", '#include "backend/work.h"\n'), [])

    def test_above_and_beside_are_refused(self):
        self.assertEqual(layers("store/a.h", '\n#include "job/job.h"\n'),
                         ["runtime/store/a.h:2: job/job.h: job is not below store"])
        self.assertEqual(len(layers("config/a.h", '#include "net/loop.h"\n')), 1)
        self.assertEqual(len(layers("cli/a.cc", '#include "capi/handles.h"\n')), 1)
        self.assertEqual(len(layers("base/a.cc", '#  include "../store/a.h"\n')), 1)

    def test_foreign_headers_have_one_home(self):
        self.assertEqual(layers("net/a.cc", "#include <uv.h>\n"), [])
        self.assertEqual(len(layers("store/a.cc", "#include <uv.h>\n")), 1)
        self.assertEqual(len(layers("launch/a.cc", "#include <toml++/toml.h>\n")), 1)
        self.assertEqual(layers("kernels/cuda/a.cu", "#include <cuda_bf16.h>\n"), [])
        self.assertEqual(len(layers("kernels/host/a.cc", "#include <cuda_bf16.h>\n")), 1)
        self.assertEqual(len(layers("comm/a.cc", "#include <nccl.h>\n")), 1)
        self.assertEqual(len(layers("job/a.cc", "#include <dt/dt.h>\n")), 1)
        self.assertEqual(layers("job/a.cc", "#include <dt/version.h>\n"), [])

    def test_our_cuda_folder_is_not_the_toolkits(self):
        self.assertEqual(layers("cli/a.cc", '#include "cuda/runtime.h"\n'), [])
        self.assertEqual(len(layers("kernels/host/a.cc", "#include <cuda/atomic>\n")), 1)
        self.assertEqual(len(layers("net/a.cc", '#include "cuda/runtime.h"\n')), 1)

    def test_unknown_folder_is_refused(self):
        self.assertEqual(len(layers("misc/a.cc", "")), 1)


class Words(unittest.TestCase):
    head = "// " + check_words.LICENCE + "\n"

    def test_clean_source(self):
        self.assertEqual(words("tests/a.cc", self.head + "bell.sleep_count();  // may sleep(1)\n"), [])

    def test_each_fault_is_seen(self):
        self.assertEqual(len(words("runtime/base/a.cc", "int a;\n")), 1)
        self.assertEqual(words("tests/b.cc", self.head + "bell.sleep(ticket, deadline);\n"), [])
        self.assertEqual(len(words("tests/b.cc", self.head + "::sleep" + "(1);\n")), 1)
        self.assertEqual(len(words("runtime/base/a.cc", self.head + "// TO" + "DO: more\n")), 1)
        self.assertEqual(len(words("runtime/base/a.cc", self.head + "\tint a;\n")), 1)
        self.assertEqual(len(words("tests/a.cc", self.head + "std::this_thread::sleep_" + "for(1ms);\n")), 1)
        self.assertEqual(len(words("tests/a.py", "#" + self.head + "time.sleep" + "(1)\n")), 1)
        self.assertEqual(len(words("tests/a.sh", "#" + self.head + "make; sleep" + " 1\n")), 1)

    def test_constants_are_used(self):
        constant = "constexpr int64_t kLimitMs = 5;\n"
        self.assertEqual(words("runtime/base/a.cc", self.head + constant),
                         ["runtime/base/a.cc:2: nothing uses kLimitMs"])
        self.assertEqual(words("runtime/base/a.cc", self.head + constant + "int64_t a = kLimitMs;\n"), [])
        self.assertEqual(len(words("runtime/base/a.cc", self.head + "const char* const kNames[] = {\n")), 1)

    def test_constants_of_a_namespace_differ(self):
        text = "namespace dt::store {\nnamespace {\nconstexpr int64_t kLimitMs = 5;\n"
        self.assertEqual(check_words.shared_names([("a.cc", text), ("b.cc", text)]),
                         ["b.cc:3: kLimitMs is defined in a.cc, too: give it a name of its own"])
        self.assertEqual(check_words.shared_names([("a.cc", text), ("b.cc", text.replace("store", "net"))]), [])

    def test_runtime_may_sleep(self):
        self.assertEqual(words("runtime/base/a.cc", self.head + "bell_.sleep(ticket);\n"), [])


class Headers(unittest.TestCase):
    good = "/**\n * Does.\n * @param a x.\n * @return DT_OK.\n * @thread any\n * @since ABI 0\n */\n"

    def test_good(self):
        self.assertEqual(headers(self.good + "DT_API dt_status dt_f(int a);\n"), [])
        self.assertEqual(headers(self.good + "DT_API dt_status dt_f(const int* const* a);\n"), [])

    def test_each_omission_is_seen(self):
        for word in ("@param a", "@return", "@thread", "@since"):
            text = "\n".join(line for line in self.good.split("\n") if word not in line)
            self.assertEqual(len(headers(text + "DT_API dt_status dt_f(int a);\n")), 1, word)
        self.assertEqual(len(headers(self.good + "DT_API dt_status dt_f(int a, int b);\n")), 1)
        self.assertEqual(len(headers(self.good + "DT_API void dt_f(int a);\n")), 1)
        self.assertEqual(len(headers("/* a */\nDT_API dt_status dt_f(int a);\n")), 1)


if __name__ == "__main__":
    unittest.main()
