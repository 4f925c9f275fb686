// SPDX-License-Identifier: Apache-2.0
// Gradients in blocks of 8 bits on the GPU: the bits of the host's functions.
#include "kernels/host/quantize.h"

#include <doctest/doctest.h>

#include <cfloat>
#include <cmath>
#include <cstring>

#include "gpu.h"
#include "kernels/host/error_feedback.h"
#include "values.h"

using dt::Code;
using dt::kernels::kQuantBlock;
using dt::kernels::quantized_bytes;
using dt::kernels::QuantizedPart;
using dt::kernels::QuantizedTensor;
using namespace dt::test;

namespace {

constexpr unsigned char kGap = 0xa5;  // what nothing writes
constexpr int64_t kCounts[] = {1, 63, 64, 0, 65, 200, 4096, 4097, 100'003};
constexpr int64_t kGapBlocks = 3;  // between two tensors

Gpu& quantize_gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

int64_t blocks_of(int64_t count) { return (count + kQuantBlock - 1) / kQuantBlock; }

/// Blocks of every kind: of one magnitude, ties between two integers, zeros, numbers too small for
/// a scale or too large for a sum, and what is not finite.
std::vector<float> values_of(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t begin = 0; begin < values.size(); begin += kQuantBlock) {
    const size_t end = std::min(begin + kQuantBlock, values.size());
    const uint64_t kind = random.next() % 12;
    const auto exponent = static_cast<int>(random.next() % 60) - 30;
    for (size_t i = begin; i < end; ++i) {
      const double fraction = static_cast<double>(random.next() % (1U << 30)) / (1U << 29) - 1;
      double value = std::ldexp(fraction, exponent);
      if (kind == 0) value = (random.next() % 2 == 0 ? 127 : 0.5) + static_cast<double>(i % 7);
      if (kind == 1) value = i % 2 == 0 ? 0.0 : -0.0;
      if (kind == 2) value = std::ldexp(fraction, -120);  // of its scale a float has no more
      if (kind == 3) value = std::ldexp(fraction, -140);
      if (kind == 4) value = fraction * static_cast<double>(FLT_MAX);
      values[i] = static_cast<float>(value);
    }
    if (kind == 5) values[begin + random.next() % (end - begin)] = INFINITY;
    if (kind == 6) values[begin + random.next() % (end - begin)] = -INFINITY;
    if (kind == 7) values[begin + random.next() % (end - begin)] = std::nanf("");
    if (kind == 8) values[end - 1] = FLT_MAX;
  }
  return values;
}

/// Tensors on the host, and copies on the GPU, an element off from multiples of 8 bytes.
struct Model {
  explicit Model(uint64_t seed) {
    for (const int64_t count : kCounts) {
      data.push_back(values_of(count, seed + 2 * data.size()));
      errors.push_back(values_of(count, seed + 2 * data.size() + 1000));
      for (float& error : errors.back()) error = std::isfinite(error) ? error / 256 : 0;
      has_errors.push_back(data.size() % 4 != 2);
      const auto bytes = static_cast<size_t>(count + 1) * sizeof(float);
      gpu_data.push_back(std::make_unique<DeviceBytes>(&quantize_gpu(), shifted(data.back())));
      gpu_errors.push_back(std::make_unique<DeviceBytes>(&quantize_gpu(), shifted(errors.back())));
      CHECK(gpu_data.back()->read().size() == bytes);
      tensors.push_back(
          {static_cast<float*>(gpu_data.back()->at(sizeof(float))),
           has_errors.back() ? static_cast<float*>(gpu_errors.back()->at(sizeof(float))) : nullptr,
           count, blocks});
      blocks += blocks_of(count) + kGapBlocks;
    }
    list = must(quantize_gpu().kernels->prepare_quantized(tensors));
  }

  static Bytes shifted(const std::vector<float>& values) {
    Bytes bytes((values.size() + 1) * sizeof(float), kGap);
    std::memcpy(&bytes[sizeof(float)], values.data(), values.size() * sizeof(float));
    return bytes;
  }
  void check_memory() const {
    for (size_t t = 0; t < tensors.size(); ++t) {
      CAPTURE(t);
      CHECK(gpu_data[t]->read() == shifted(data[t]));
      CHECK(gpu_errors[t]->read() == shifted(errors[t]));
    }
  }
  float* errors_at(size_t tensor, int64_t element) {
    return has_errors[tensor] ? errors[tensor].data() + element : nullptr;
  }

  std::vector<std::vector<float>> data;
  std::vector<std::vector<float>> errors;
  std::vector<bool> has_errors;
  std::vector<std::unique_ptr<DeviceBytes>> gpu_data;
  std::vector<std::unique_ptr<DeviceBytes>> gpu_errors;
  std::vector<QuantizedTensor> tensors;
  std::shared_ptr<dt::kernels::QuantizedList> list;
  int64_t blocks = 0;
};

Bytes untouched(int64_t blocks) {
  return Bytes(static_cast<size_t>(quantized_bytes(blocks, 8)), kGap);
}

}  // namespace

TEST_CASE("quantize: the host's blocks and errors, step after step") {
  for (const float factor : {1.0F, 1.0F / 3}) {
    CAPTURE(factor);
    Model model(7);
    const DeviceBytes blocks(&quantize_gpu(), untouched(model.blocks));
    Bytes wanted = untouched(model.blocks);
    for (int step = 0; step < 3; ++step) {
      CAPTURE(step);
      must(quantize_gpu().kernels->quantize(*model.list, factor, blocks.at(),
                                            quantize_gpu().stream));
      for (size_t t = 0; t < model.tensors.size(); ++t) {
        const auto& tensor = model.tensors[t];
        void* const to = wanted.data() + quantized_bytes(tensor.block, 8);
        if (model.has_errors[t]) {
          dt::kernels::quantize_with_errors(model.data[t].data(), tensor.count, factor,
                                            model.errors[t].data(), to);
        } else {
          const std::vector<float> zeros(model.data[t].size());
          dt::kernels::quantize(8, zeros.data(), tensor.count, to);
        }
      }
      CHECK(blocks.read() == wanted);
      model.check_memory();
    }
  }
}

TEST_CASE("sum_parts: the host's sums and errors of a window of the blocks") {
  for (const int32_t ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    Model model(11);
    const QuantizedPart windows[] = {{nullptr, 0, ranks, 0, model.blocks},
                                     {nullptr, 0, ranks, 5, 70},
                                     {nullptr, 0, ranks, 200, model.blocks},
                                     {nullptr, 0, ranks, model.blocks, 4}};
    const float factor = 1 / static_cast<float>(ranks);
    for (QuantizedPart window : windows) {
      CAPTURE(window.first);
      window.stride = quantized_bytes(window.count + 1, 8);
      Bytes parts;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const auto values =
            values_of((window.count + 1) * kQuantBlock, static_cast<uint64_t>(rank + 31));
        Bytes part(static_cast<size_t>(window.stride));
        dt::kernels::quantize(8, values.data(), static_cast<int64_t>(values.size()), part.data());
        parts.insert(parts.end(), part.begin(), part.end());
      }
      const DeviceBytes there(&quantize_gpu(), parts);
      window.blocks = there.at();
      const DeviceBytes to(&quantize_gpu(), untouched(window.count));
      must(quantize_gpu().kernels->sum_parts(*model.list, window, factor, to.at(),
                                             quantize_gpu().stream));
      Bytes wanted = untouched(window.count);
      for (size_t t = 0; t < model.tensors.size(); ++t) {
        const auto& tensor = model.tensors[t];
        for (int64_t b = 0; b < blocks_of(tensor.count); ++b) {
          const int64_t at = tensor.block + b - window.first;
          if (at < 0 || at >= window.count) continue;
          const int64_t first = b * kQuantBlock;
          dt::kernels::sum_with_errors(parts.data() + quantized_bytes(at, 8), window.stride, ranks,
                                       std::min(kQuantBlock, tensor.count - first), factor,
                                       model.errors_at(t, first),
                                       wanted.data() + quantized_bytes(at, 8));
        }
      }
      CHECK(to.read() == wanted);
      model.check_memory();
    }
  }
}

TEST_CASE("dequantize: the host's numbers, and its NaN") {
  for (const float factor : {1.0F, 0.3F}) {
    CAPTURE(factor);
    Model model(13);
    const auto values = values_of(model.blocks * kQuantBlock, 17);
    Bytes blocks(static_cast<size_t>(quantized_bytes(model.blocks, 8)));
    dt::kernels::quantize(8, values.data(), static_cast<int64_t>(values.size()), blocks.data());
    const DeviceBytes there(&quantize_gpu(), blocks);
    must(
        quantize_gpu().kernels->dequantize(*model.list, there.at(), factor, quantize_gpu().stream));
    for (size_t t = 0; t < model.tensors.size(); ++t) {
      dt::kernels::dequantize(8, blocks.data() + quantized_bytes(model.tensors[t].block, 8),
                              model.tensors[t].count, factor, false, model.data[t].data());
    }
    model.check_memory();
  }
}

TEST_CASE("quantized lists: what cannot be is refused") {
  const Model model(3);
  auto& kernels = *quantize_gpu().kernels;
  const QuantizedTensor odd[] = {{reinterpret_cast<float*>(uintptr_t{0x1002}), nullptr, 4, 0}};
  CHECK(kernels.prepare_quantized(odd).status().code() == Code::kInvalidArgument);
  void* const misplaced = reinterpret_cast<void*>(uintptr_t{0x1002});
  CHECK(kernels.quantize(*model.list, 1, misplaced, nullptr).code() == Code::kInvalidArgument);
  CHECK(kernels.dequantize(*model.list, misplaced, 1, nullptr).code() == Code::kInvalidArgument);
  const QuantizedPart part{nullptr, 68, 0, 0, 1};
  CHECK(kernels.sum_parts(*model.list, part, 1, nullptr, nullptr).code() == Code::kInvalidArgument);
}
