// SPDX-License-Identifier: Apache-2.0
// The kernels on lists of tensors, each compared with a plain loop on the host.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "gpu.h"
#include "values.h"

using dt::Code;
using dt::Dtype;
using dt::dtype_bytes;
using dt::kernels::Tensor;
using namespace dt::test;

namespace {

constexpr Dtype kFloats[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};

Gpu& gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

/// Where the parts of a list lie in one buffer: each at a multiple of `align` elements, plus
/// `lead`.
struct Spread {
  int64_t align = 1;
  int64_t lead = 0;
};

std::vector<int64_t> starts(const std::vector<int64_t>& counts, Spread spread, int64_t* total) {
  std::vector<int64_t> found;
  int64_t end = 0;
  for (const int64_t count : counts) {
    found.push_back((end + spread.align - 1) / spread.align * spread.align + spread.lead);
    end = found.back() + count;
  }
  *total = end + 1;
  return found;
}

struct Layout {
  const char* name;
  Spread tensors;
  Spread flat;
};
constexpr Layout kLayouts[] = {
    {"all aligned", {16, 0}, {16, 0}},
    {"alike, but not aligned", {16, 3}, {16, 3}},
    {"unlike", {16, 1}, {16, 2}},
    {"packed", {1, 0}, {1, 0}},
    {"packed, flat aligned", {1, 1}, {16, 0}},
};

std::vector<std::vector<int64_t>> count_lists() {
  std::vector<int64_t> many(2000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * 7 % 61);
  return {{0},
          {1},
          {1, 0, 2, 3, 0, 5, 7, 17, 31, 33},
          {4095, 4096, 4097, 0, 12289},
          {100003},
          std::move(many)};
}

Bytes any_bytes(Dtype dtype, int64_t count, Random* random) {
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  Bytes bytes(static_cast<size_t>(count) * size);
  for (size_t at = 0; at < bytes.size(); at += size) {
    encode(dtype, any_value(dtype, random), &bytes[at]);
  }
  return bytes;
}

double element(Dtype dtype, const Bytes& bytes, int64_t index) {
  return decode(dtype, &bytes[static_cast<size_t>(index * dtype_bytes(dtype))]);
}

/// How many elements of `now` are not as they should be; the first is reported.
int64_t wrong_elements(Dtype dtype, const Bytes& now, const std::vector<double>& expected) {
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double found = element(dtype, now, static_cast<int64_t>(i));
    if (same(found, expected[i])) continue;
    if (wrong++ == 0) MESSAGE("element " << i << " is " << found << ", not " << expected[i]);
  }
  return wrong;
}

std::vector<double> decoded(Dtype dtype, const Bytes& bytes) {
  std::vector<double> values;
  for (int64_t i = 0; i * dtype_bytes(dtype) < static_cast<int64_t>(bytes.size()); ++i) {
    values.push_back(element(dtype, bytes, i));
  }
  return values;
}

/// A list of tensors in one buffer on the GPU, and the flat buffer beside it.
struct Case {
  Case(const std::vector<int64_t>& sizes, const Layout& layout, Dtype dtype, Dtype flat_dtype)
      : counts(sizes), random(sizes.size() * 31 + static_cast<uint64_t>(dtype)) {
    int64_t total = 0;
    begins = starts(counts, layout.tensors, &total);
    tensor_bytes = any_bytes(dtype, total, &random);
    offsets = starts(counts, layout.flat, &total);
    flat_bytes = any_bytes(flat_dtype, total, &random);
    tensors = std::make_unique<DeviceBytes>(&gpu(), tensor_bytes);
    flat = std::make_unique<DeviceBytes>(&gpu(), flat_bytes);
    std::vector<Tensor> list;
    for (size_t i = 0; i < counts.size(); ++i) {
      list.push_back({tensors->at(begins[i] * dtype_bytes(dtype)), counts[i], offsets[i]});
    }
    prepared = must(gpu().kernels->prepare(list));
  }

  std::vector<int64_t> counts, begins, offsets;
  Random random;
  Bytes tensor_bytes, flat_bytes;
  std::unique_ptr<DeviceBytes> tensors, flat;
  std::shared_ptr<dt::kernels::TensorList> prepared;
};

/// Calls check(case, from or only dtype, flat dtype) for every list, layout and pair of dtypes.
template <class Check>
void for_all_pairs(Check check) {
  for (const auto& counts : count_lists()) {
    for (const Layout& layout : kLayouts) {
      for (const Dtype dtype : kFloats) {
        for (const Dtype flat_dtype : kFloats) {
          CAPTURE(counts.size());
          CAPTURE(layout.name);
          CAPTURE(dtype_name(dtype));
          CAPTURE(dtype_name(flat_dtype));
          Case each(counts, layout, dtype, flat_dtype);
          check(&each, dtype, flat_dtype);
        }
      }
    }
  }
}

double double_of(const DeviceBytes& memory) { return element(Dtype::kF64, memory.read(), 0); }

int32_t int_of(const DeviceBytes& memory) {
  int32_t value = 0;
  std::memcpy(&value, memory.read().data(), sizeof value);
  return value;
}

Bytes bytes_of(int32_t value) {
  Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

}  // namespace

TEST_CASE("gather: all dtypes, sizes and alignments; gaps are left alone") {
  for (const float scale : {1.0F, 1.0F / 3}) {
    for_all_pairs([&](Case* each, Dtype from, Dtype to) {
      std::vector<double> expected = decoded(to, each->flat_bytes);
      for (size_t t = 0; t < each->counts.size(); ++t) {
        for (int64_t i = 0; i < each->counts[t]; ++i) {
          expected[static_cast<size_t>(each->offsets[t] + i)] =
              scaled(from, to, element(from, each->tensor_bytes, each->begins[t] + i), scale);
        }
      }
      must(gpu().kernels->gather(*each->prepared, from, each->flat->at(), to, scale, gpu().stream));
      CHECK(wrong_elements(to, each->flat->read(), expected) == 0);
      CHECK(each->tensors->read() == each->tensor_bytes);
    });
  }
}

TEST_CASE("scatter: all dtypes, sizes and alignments; what lies between tensors is left alone") {
  for (const float scale : {1.0F, 0.125F}) {
    for_all_pairs([&](Case* each, Dtype to, Dtype from) {
      std::vector<double> expected = decoded(to, each->tensor_bytes);
      for (size_t t = 0; t < each->counts.size(); ++t) {
        for (int64_t i = 0; i < each->counts[t]; ++i) {
          expected[static_cast<size_t>(each->begins[t] + i)] =
              scaled(from, to, element(from, each->flat_bytes, each->offsets[t] + i), scale);
        }
      }
      must(
          gpu().kernels->scatter(*each->prepared, to, each->flat->at(), from, scale, gpu().stream));
      CHECK(wrong_elements(to, each->tensors->read(), expected) == 0);
      CHECK(each->flat->read() == each->flat_bytes);
    });
  }
}

TEST_CASE("scale: by a number of the host, of the device, and both") {
  Bytes half(4);
  encode(Dtype::kF32, 0.5, half.data());
  const DeviceBytes device_scale(&gpu(), half);
  for (const bool with_device : {false, true}) {
    for (const auto& counts : count_lists()) {
      for (const Layout& layout : kLayouts) {
        for (const Dtype dtype : kFloats) {
          CAPTURE(layout.name);
          CAPTURE(dtype_name(dtype));
          const float scale = 1.0F / 3;
          Case each(counts, layout, dtype, dtype);
          std::vector<double> expected = decoded(dtype, each.tensor_bytes);
          for (size_t t = 0; t < counts.size(); ++t) {
            for (int64_t i = 0; i < counts[t]; ++i) {
              double& value = expected[static_cast<size_t>(each.begins[t] + i)];
              value = scaled(dtype, dtype, value, with_device ? scale * 0.5F : scale);
            }
          }
          must(gpu().kernels->scale(*each.prepared, dtype, scale,
                                    with_device ? static_cast<float*>(device_scale.at()) : nullptr,
                                    gpu().stream));
          CHECK(wrong_elements(dtype, each.tensors->read(), expected) == 0);
        }
      }
    }
  }
}

TEST_CASE("norm: exact where f32 is, and found_inf is left alone by finite elements") {
  const DeviceBytes out(&gpu(), size_t{8});
  DeviceBytes found(&gpu(), bytes_of(7));
  for (const auto& counts : count_lists()) {
    for (const Layout& layout : kLayouts) {
      for (const Dtype dtype : kFloats) {
        CAPTURE(layout.name);
        CAPTURE(dtype_name(dtype));
        Case each(counts, layout, dtype, dtype);
        // Small whole numbers: all sums are exact. Infinity in the gaps must not be seen.
        for (int64_t i = 0; i < static_cast<int64_t>(each.tensor_bytes.size()) / dtype_bytes(dtype);
             ++i) {
          encode(dtype, HUGE_VAL, &each.tensor_bytes[static_cast<size_t>(i * dtype_bytes(dtype))]);
        }
        double expected = 0;
        for (size_t t = 0; t < counts.size(); ++t) {
          for (int64_t i = 0; i < counts[t]; ++i) {
            const auto value = static_cast<double>((each.begins[t] + i) % 7 - 3);
            encode(
                dtype, value,
                &each.tensor_bytes[static_cast<size_t>((each.begins[t] + i) * dtype_bytes(dtype))]);
            expected += value * value;
          }
        }
        each.tensors->write(each.tensor_bytes);
        must(gpu().kernels->squared_norm(*each.prepared, dtype, static_cast<double*>(out.at()),
                                         static_cast<int32_t*>(found.at()), gpu().stream));
        CHECK(double_of(out) == expected);
        CHECK(int_of(found) == 7);
      }
    }
  }
}

TEST_CASE("norm: of finite elements it is finite, and clips, where f32 cannot hold their squares") {
  const float elements[] = {2e19F, 3, 4};
  Bytes content(sizeof elements);
  std::memcpy(content.data(), elements, sizeof elements);
  const DeviceBytes data(&gpu(), content);
  const DeviceBytes out(&gpu(), size_t{8});
  const DeviceBytes found(&gpu(), size_t{8});
  const dt::kernels::Tensor tensor[] = {{data.at(), 3, 0}};
  const auto list = must(gpu().kernels->prepare(tensor));
  auto* const squares = static_cast<double*>(out.at());
  auto* const norm = static_cast<float*>(found.at());
  must(gpu().kernels->squared_norm(*list, Dtype::kF32, squares, nullptr, gpu().stream));
  must(gpu().kernels->clip_factor(squares, 1, 1, 1e-6F, norm, norm + 1, gpu().stream));
  CHECK(double_of(out) == static_cast<double>(2e19F) * static_cast<double>(2e19F));
  float values[2];
  std::memcpy(values, found.read().data(), sizeof values);
  CHECK(values[0] == 2e19F);
  CHECK(values[1] == 1 / 2e19F);
}

TEST_CASE("norm: near the plain sum, and the same bits every time") {
  for (const Dtype dtype : kFloats) {
    Case each({5, 100003, 4096, 77}, kLayouts[1], dtype, dtype);
    double expected = 0;
    for (size_t t = 0; t < each.counts.size(); ++t) {
      for (int64_t i = 0; i < each.counts[t]; ++i) {
        const auto fraction = static_cast<double>(each.random.next() % 4096) / 4096;
        const double value = rounded(dtype, fraction);
        encode(dtype, value,
               &each.tensor_bytes[static_cast<size_t>((each.begins[t] + i) * dtype_bytes(dtype))]);
        expected += value * value;
      }
    }
    each.tensors->write(each.tensor_bytes);
    const DeviceBytes out(&gpu(), size_t{8});
    double first = 0;
    for (int repeat = 0; repeat < 20; ++repeat) {
      must(gpu().kernels->squared_norm(*each.prepared, dtype, static_cast<double*>(out.at()),
                                       nullptr, gpu().stream));
      const double norm = double_of(out);
      if (repeat == 0) first = norm;
      CHECK(norm == first);
    }
    CHECK(first == doctest::Approx(expected).epsilon(1e-5));
  }
}

TEST_CASE("norm: the same bits wherever the tensor begins") {
  constexpr int64_t kCount = 20'011;
  for (const Dtype dtype : kFloats) {
    Random random(7);
    Bytes values(static_cast<size_t>(kCount * dtype_bytes(dtype)));
    for (int64_t i = 0; i < kCount; ++i) {
      encode(dtype, rounded(dtype, static_cast<double>(random.next() % 4096) / 4096),
             &values[static_cast<size_t>(i * dtype_bytes(dtype))]);
    }
    const DeviceBytes out(&gpu(), size_t{8});
    double first = 0;
    for (int64_t behind = 0; behind < 9; ++behind) {
      Bytes content(static_cast<size_t>(behind * dtype_bytes(dtype)));
      content.insert(content.end(), values.begin(), values.end());
      const DeviceBytes memory(&gpu(), content);
      const dt::kernels::Tensor tensor[] = {{memory.at(behind * dtype_bytes(dtype)), kCount, 0}};
      const auto list = must(gpu().kernels->prepare(tensor));
      must(gpu().kernels->squared_norm(*list, dtype, static_cast<double*>(out.at()), nullptr,
                                       gpu().stream));
      const double norm = double_of(out);
      if (behind == 0) first = norm;
      CAPTURE(behind);
      CHECK(norm == first);
    }
  }
}

TEST_CASE("norm: one infinity or NaN anywhere is found") {
  for (const Dtype dtype : kFloats) {
    for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      for (const int64_t place : {int64_t{0}, int64_t{4095}, int64_t{4096}, int64_t{9000}}) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(place);
        Case each({9001}, kLayouts[1], dtype, dtype);
        for (int64_t i = 0; i < 9001; ++i) {
          encode(
              dtype, i == place ? bad : 1.0,
              &each.tensor_bytes[static_cast<size_t>((each.begins[0] + i) * dtype_bytes(dtype))]);
        }
        each.tensors->write(each.tensor_bytes);
        const DeviceBytes out(&gpu(), size_t{8});
        DeviceBytes found(&gpu(), bytes_of(0));
        must(gpu().kernels->squared_norm(*each.prepared, dtype, static_cast<double*>(out.at()),
                                         static_cast<int32_t*>(found.at()), gpu().stream));
        CHECK_FALSE(std::isfinite(double_of(out)));
        CHECK(int_of(found) == 1);
      }
    }
  }
}

TEST_CASE("an empty list has the norm 0, and nothing else happens") {
  const auto empty = must(gpu().kernels->prepare({}));
  CHECK(empty->size() == 0);
  const DeviceBytes out(&gpu(), Bytes(8, 0xff));
  must(gpu().kernels->squared_norm(*empty, Dtype::kF32, static_cast<double*>(out.at()), nullptr,
                                   gpu().stream));
  CHECK(double_of(out) == 0);
  must(gpu().kernels->gather(*empty, Dtype::kF32, nullptr, Dtype::kF16, 1, gpu().stream));
  must(gpu().kernels->scale(*empty, Dtype::kF32, 2, nullptr, gpu().stream));
}

TEST_CASE("divide: floats times the reciprocal, integers towards zero") {
  for (int code = 0; code < dt::kDtypeCount; ++code) {
    const auto dtype = static_cast<Dtype>(code);
    const bool is_float = dt::is_floating(dtype);
    if (dtype > Dtype::kF64) continue;  // NCCL has none of these
    const int64_t size = dtype_bytes(dtype);
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{4097}, int64_t{70001}}) {
      for (const int64_t lead : {0, 1, 5}) {
        for (const int32_t divisor : {1, 3, 8, 1000}) {
          CAPTURE(dtype_name(dtype));
          CAPTURE(count);
          CAPTURE(divisor);
          Random random(static_cast<uint64_t>(count));
          Bytes bytes(static_cast<size_t>((count + lead + 1) * size));
          for (auto& byte : bytes) byte = static_cast<unsigned char>(random.next());
          Bytes expected = bytes;
          for (int64_t i = lead; i < lead + count; ++i) {
            unsigned char* at = &expected[static_cast<size_t>(i * size)];
            const auto integer = [&]<class T>(T value) {
              std::memcpy(&value, at, sizeof value);
              value = std::is_signed_v<T> ? static_cast<T>(static_cast<int64_t>(value) / divisor)
                                          : static_cast<T>(static_cast<uint64_t>(value) /
                                                           static_cast<uint64_t>(divisor));
              std::memcpy(at, &value, sizeof value);
            };
            switch (dtype) {
              case Dtype::kI8: integer(int8_t()); break;
              case Dtype::kU8: integer(uint8_t()); break;
              case Dtype::kI32: integer(int32_t()); break;
              case Dtype::kU32: integer(uint32_t()); break;
              case Dtype::kI64: integer(int64_t()); break;
              case Dtype::kU64: integer(uint64_t()); break;
              case Dtype::kF64: encode(dtype, decode(dtype, at) * (1.0 / divisor), at); break;
              default:
                encode(dtype,
                       scaled(dtype, dtype, decode(dtype, at), 1.0F / static_cast<float>(divisor)),
                       at);
            }
          }
          const DeviceBytes data(&gpu(), bytes);
          must(gpu().kernels->divide(data.at(lead * size), dtype, count, divisor, gpu().stream));
          if (is_float) {
            CHECK(wrong_elements(dtype, data.read(), decoded(dtype, expected)) == 0);
          } else {
            CHECK(data.read() == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("add: floats are rounded once, integers wrap") {
  for (int code = 0; code <= static_cast<int>(Dtype::kF64); ++code) {
    const auto dtype = static_cast<Dtype>(code);
    const int64_t size = dtype_bytes(dtype);
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{70001}}) {
      for (const int64_t lead : {0, 1, 5}) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(count);
        CAPTURE(lead);
        Bytes part(static_cast<size_t>((count + 6) * size));
        Bytes expected = part;
        for (int64_t i = 0; i < count + 6; ++i) {
          unsigned char* const left = &expected[static_cast<size_t>(i * size)];
          unsigned char* const right = &part[static_cast<size_t>(i * size)];
          if (dt::is_floating(dtype)) {
            encode(dtype, static_cast<double>(i % 50), left);
            encode(dtype, static_cast<double>(i % 9), right);
          } else {
            left[0] = static_cast<unsigned char>(i);
            right[0] = static_cast<unsigned char>(i % 99);
          }
        }
        const DeviceBytes data(&gpu(), expected);
        const DeviceBytes from(&gpu(), part);
        for (int64_t i = lead; i < lead + count; ++i) {
          unsigned char* const at = &expected[static_cast<size_t>(i * size)];
          if (dt::is_floating(dtype)) {
            encode(dtype, static_cast<double>(i % 50 + i % 9), at);
          } else if (size == 1) {
            at[0] = static_cast<unsigned char>(i + i % 99);
          } else {
            const auto sum = static_cast<uint16_t>(static_cast<unsigned char>(i) + i % 99);
            std::memcpy(at, &sum, sizeof sum);
          }
        }
        must(gpu().kernels->add(data.at(lead * size), from.at(lead * size), dtype, count,
                                gpu().stream));
        CHECK(data.read() == expected);
      }
    }
  }
}

TEST_CASE("what cannot be done is refused before the GPU hears of it") {
  Case each({10}, kLayouts[0], Dtype::kF32, Dtype::kF32);
  auto& kernels = *gpu().kernels;
  const auto code = [](const dt::Status& status) { return status.code(); };
  CHECK(code(kernels.gather(*each.prepared, Dtype::kI32, each.flat->at(), Dtype::kF32, 1,
                            gpu().stream)) == Code::kInvalidArgument);
  CHECK(code(kernels.scatter(*each.prepared, Dtype::kF32, each.flat->at(2), Dtype::kF32, 1,
                             gpu().stream)) == Code::kInvalidArgument);
  CHECK(code(kernels.divide(each.flat->at(), Dtype::kF32, 1, 0, gpu().stream)) ==
        Code::kInvalidArgument);
  const Tensor odd[] = {{each.tensors->at(2), 1, 0}};
  const auto list = must(kernels.prepare(odd));
  CHECK(kernels.scale(*list, Dtype::kF32, 2, nullptr, gpu().stream).message() ==
        "scale of f32 at an address that is no multiple of 4 bytes");
  must(kernels.scale(*list, Dtype::kF16, 2, nullptr, gpu().stream));
  gpu().finish();
}
