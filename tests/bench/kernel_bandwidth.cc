// SPDX-License-Identifier: Apache-2.0
// Memory traffic of the kernels on lists of tensors beside cudaMemcpyAsync on the device, in turns
// in the same run. GB/s (1e9) counts every byte read and written once: a copy counts its bytes
// twice.
//   kernel_bandwidth [--least RATIO]
// fails where a gather or scatter of f32 moves less than RATIO times what the copy does.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "../gpu/gpu.h"
#include "../gpu/shapes.h"
#include "../gpu/values.h"
#include "kernels/host/optimize.h"

using dt::Dtype;
using dt::cuda::Event;
using dt::kernels::Tensor;
using dt::kernels::UpdatedTensor;
using namespace dt::test;

namespace {

constexpr int kSamples = 31;
constexpr int64_t kBytesPerSample = int64_t{1} << 31;  // some 1 ms: events cost microseconds
constexpr int64_t kAlignment = 512;                    // of an allocation in PyTorch's allocator

float value_at(int64_t index) { return static_cast<float>(index % 13 - 6); }

/// A model's gradients, each allocated on its own, and flat buffers for all of them.
struct Model {
  Model(Gpu* gpu, const char* model_name, const Shapes& shapes)
      : name(model_name),
        count(std::accumulate(shapes.begin(), shapes.end(), int64_t{0})),
        tensor_bytes(static_cast<size_t>(count) * 4 +
                     shapes.size() * static_cast<size_t>(kAlignment)),
        tensors(gpu, tensor_bytes),
        flat(gpu, static_cast<size_t>(count) * 4),
        flat_half(gpu, static_cast<size_t>(count) * 2),
        other(gpu, static_cast<size_t>(count) * 4),
        norm(gpu, sizeof(double)),
        found_inf(gpu, Bytes(4, 0)),
        sums(gpu, Bytes(5 * 8, 0)) {
    Bytes content(tensor_bytes);
    std::vector<Tensor> list;
    int64_t at = 0;
    int64_t offset = 0;
    for (const int64_t elements : shapes) {
      for (int64_t i = 0; i < elements; ++i) {
        const float value = value_at(offset + i);
        std::memcpy(&content[static_cast<size_t>(at + i * 4)], &value, sizeof value);
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      list.push_back({tensors.at(at), elements, offset});
      at = (at + elements * 4 + kAlignment - 1) / kAlignment * kAlignment;
      offset += elements;
    }
    tensors.write(content);
    prepared = must(gpu->kernels->prepare(list));
  }

  const char* name;
  int64_t count;
  size_t tensor_bytes;
  DeviceBytes tensors, flat, flat_half, other, norm, found_inf, sums;
  std::shared_ptr<dt::kernels::TensorList> prepared;
  double squares = 0;
};

constexpr dt::kernels::AdamWStep kAdamWStep = {0.1, 0.999, 0.001, 0.9999, 0.001, 1, 1e-8};
constexpr int64_t kGradients = 8;  // different ones: no zero, whose division would take longer

/// What AdamW reads and writes of a model: each array in one piece, each tensor at a multiple of
/// kAlignment in it.
struct Optimized {
  Optimized(Gpu* gpu, const Shapes& shapes, Dtype dtype_of_params)
      : dtype(dtype_of_params),
        elements(placed(shapes)),
        param(gpu, repeated(dtype, elements, 1, 0)),
        gradient(gpu, repeated(dtype, elements, 1, 1.0 / kGradients)),
        first(gpu, static_cast<size_t>(elements) * 4),
        second(gpu, static_cast<size_t>(elements) * 4),
        master(gpu, repeated(Dtype::kF32, dtype == Dtype::kF32 ? 0 : elements, 1, 0)) {
    for (const DeviceBytes* moment : {&first, &second}) {
      must(gpu->runtime->fill_zero(moment->at(), elements * 4, gpu->stream));
    }
    const int64_t size = dtype_bytes(dtype);
    std::vector<UpdatedTensor> list;
    int64_t at = 0;
    for (const int64_t count : shapes) {
      list.push_back({param.at(at * size), gradient.at(at * size), first.at(at * 4),
                      second.at(at * 4), dtype == Dtype::kF32 ? nullptr : master.at(at * 4),
                      count});
      at += placed({count});
    }
    prepared = must(gpu->kernels->prepare_update(list, dtype));
  }

  /// Elements with the gaps.
  static int64_t placed(const Shapes& shapes) {
    int64_t total = 0;
    for (const int64_t count : shapes) total += (count + kAlignment - 1) / kAlignment * kAlignment;
    return total;
  }
  static double repeated_value(int64_t index, double base, double step) {
    return base + step * static_cast<double>(index % kGradients);
  }
  static Bytes repeated(Dtype dtype, int64_t count, double base, double step) {
    const int64_t size = dtype_bytes(dtype);
    Bytes bytes(static_cast<size_t>(count * size));
    for (int64_t i = 0; i < std::min(count, kGradients); ++i) {
      encode(dtype, repeated_value(i, base, step), &bytes[static_cast<size_t>(i * size)]);
    }
    for (auto i = static_cast<size_t>(kGradients * size); i < bytes.size(); ++i) {
      bytes[i] = bytes[i - static_cast<size_t>(kGradients * size)];
    }
    return bytes;
  }

  const Dtype dtype;
  const int64_t elements;
  DeviceBytes param, gradient, first, second, master;
  std::shared_ptr<dt::kernels::UpdateList> prepared;
};

struct Operation {
  const char* name;
  int64_t traffic_bytes;
  std::function<dt::Status()> start;
  bool must_be_fast = false;
  std::vector<double> rates{};  ///< GB/s
};

std::vector<Operation> operations_of(Gpu* gpu, Model* model, const Optimized& single,
                                     const Optimized& half) {
  dt::kernels::TensorKernels* kernels = gpu->kernels.get();
  const dt::cuda::Stream stream = gpu->stream;
  const int64_t count = model->count;
  const auto& list = *model->prepared;
  auto* norm = static_cast<double*>(model->norm.at());
  auto* found_inf = static_cast<int32_t*>(model->found_inf.at());
  auto* largest = static_cast<double*>(model->sums.at());
  auto* sum = static_cast<int64_t*>(model->sums.at(3 * sizeof(double)));
  return {
      {"copy on the device", 8 * count,
       [=] { return gpu->runtime->copy(model->other.at(), model->flat.at(), 4 * count, stream); }},
      {"gather f32 to f32", 8 * count,
       [=, &list] {
         return kernels->gather(list, Dtype::kF32, model->flat.at(), Dtype::kF32, 1, stream);
       },
       true},
      {"gather f32 to bf16", 6 * count,
       [=, &list] {
         return kernels->gather(list, Dtype::kF32, model->flat_half.at(), Dtype::kBf16, 1, stream);
       }},
      {"scatter f32 to f32", 8 * count,
       [=, &list] {
         return kernels->scatter(list, Dtype::kF32, model->flat.at(), Dtype::kF32, 1, stream);
       },
       true},
      {"scatter bf16 to f32", 6 * count,
       [=, &list] {
         return kernels->scatter(list, Dtype::kF32, model->flat_half.at(), Dtype::kBf16, 1, stream);
       }},
      {"squared norm of f32", 4 * count,
       [=, &list] { return kernels->squared_norm(list, Dtype::kF32, norm, found_inf, stream); }},
      // By 1, so that nothing becomes 0 on the way.
      {"scale f32", 8 * count,
       [=, &list] { return kernels->scale(list, Dtype::kF32, -1, nullptr, stream); }},
      {"divide f32, flat", 8 * count,
       [=] { return kernels->divide(model->other.at(), Dtype::kF32, count, 3, stream); }},
      {"largest of f32", 4 * count,
       [=, &list] { return kernels->largest(list, Dtype::kF32, largest, stream); }},
      {"squares of f32", 4 * count,
       [=, &list] { return kernels->powers(list, Dtype::kF32, largest, 2, sum, stream); }},
      // Reads four numbers of each parameter and writes three.
      {"adamw f32", 28 * count,
       [=, &single] { return kernels->adamw(*single.prepared, kAdamWStep, stream); }},
      // Reads a gradient and three f32 values, and writes a parameter and the three.
      {"adamw bf16, masters", 28 * count,
       [=, &half] { return kernels->adamw(*half.prepared, kAdamWStep, stream); }},
  };
}

/// Whether gather, scatter and norm do what they should, before their time is taken.
bool is_right(Gpu* gpu, Model* model) {
  must(gpu->kernels->gather(*model->prepared, Dtype::kF32, model->flat.at(), Dtype::kF32, 1,
                            gpu->stream));
  const Bytes flat = model->flat.read();
  for (int64_t i = 0; i < model->count; ++i) {
    float value = 0;
    std::memcpy(&value, &flat[static_cast<size_t>(i) * 4], sizeof value);
    if (value == value_at(i)) continue;
    std::fprintf(stderr, "%s: gather: element %lld is %g, not %g\n", model->name,
                 static_cast<long long>(i), static_cast<double>(value),
                 static_cast<double>(value_at(i)));
    return false;
  }
  const Bytes before = model->tensors.read();
  must(gpu->runtime->fill_zero(model->tensors.at(), static_cast<int64_t>(before.size()),
                               gpu->stream));
  must(gpu->kernels->scatter(*model->prepared, Dtype::kF32, model->flat.at(), Dtype::kF32, 1,
                             gpu->stream));
  if (model->tensors.read() != before) {
    std::fprintf(stderr, "%s: scatter does not bring back what was gathered\n", model->name);
    return false;
  }
  must(gpu->kernels->squared_norm(*model->prepared, Dtype::kF32,
                                  static_cast<double*>(model->norm.at()), nullptr, gpu->stream));
  double norm = 0;
  std::memcpy(&norm, model->norm.read().data(), sizeof norm);
  if (static_cast<float>(norm) == static_cast<float>(model->squares)) return true;
  std::fprintf(stderr, "%s: the squared norm is %g, not %g\n", model->name, norm, model->squares);
  return false;
}

/// Whether a first step of AdamW gives the parameters that the host computes.
bool is_right(Gpu* gpu, const char* model, const Optimized& optimized, const Shapes& shapes) {
  must(gpu->kernels->adamw(*optimized.prepared, kAdamWStep, gpu->stream));
  float param[kGradients], gradient[kGradients], first[kGradients] = {}, second[kGradients] = {};
  for (int64_t i = 0; i < kGradients; ++i) {
    param[i] = 1;
    gradient[i] = static_cast<float>(Optimized::repeated_value(i, 1, 1.0 / kGradients));
  }
  dt::kernels::adamw(Dtype::kF32, kAdamWStep, {param, gradient, first, second, kGradients});
  const auto size = static_cast<size_t>(dtype_bytes(optimized.dtype));
  Bytes wanted(static_cast<size_t>(kGradients) * size);
  for (size_t i = 0; i < static_cast<size_t>(kGradients); ++i) {
    encode(optimized.dtype, rounded(optimized.dtype, static_cast<double>(param[i])),
           &wanted[i * size]);
  }
  const Bytes found = optimized.param.read();
  int64_t begin = 0;
  for (const int64_t count : shapes) {
    for (int64_t i = 0; i < count; ++i) {
      const unsigned char* const element = &found[static_cast<size_t>(begin + i) * size];
      const unsigned char* const as_host = &wanted[static_cast<size_t>(i % kGradients) * size];
      if (std::memcmp(element, as_host, size) == 0) continue;
      std::fprintf(stderr, "%s: adamw of %s: element %lld of %lld is %g, not %g\n", model,
                   dtype_name(optimized.dtype), static_cast<long long>(i),
                   static_cast<long long>(count), decode(optimized.dtype, element),
                   decode(optimized.dtype, as_host));
      return false;
    }
    begin += Optimized::placed({count});
  }
  return true;
}

double rate_of(Gpu* gpu, const Operation& operation, Event begin, Event end) {
  const int64_t repeats = std::max<int64_t>(1, kBytesPerSample / operation.traffic_bytes);
  must(operation.start());  // so that the GPU does not wait for the host
  must(gpu->runtime->record(begin, gpu->stream));
  for (int64_t i = 0; i < repeats; ++i) must(operation.start());
  must(gpu->runtime->record(end, gpu->stream));
  gpu->finish();
  const auto milliseconds = static_cast<double>(must(gpu->runtime->elapsed_ms(begin, end)));
  return static_cast<double>(repeats * operation.traffic_bytes) / milliseconds / 1e6;
}

/// False if an operation that must be fast is not.
bool measure(Gpu* gpu, const Model& model, std::vector<Operation> operations, double least) {
  const Event begin = must(gpu->runtime->create_event(true));
  const Event end = must(gpu->runtime->create_event(true));
  for (int sample = -2; sample < kSamples; ++sample) {
    for (Operation& operation : operations) {
      const double rate = rate_of(gpu, operation, begin, end);
      if (sample >= 0) operation.rates.push_back(rate);  // the first ones warm up
    }
  }
  bool fast = true;
  double copy_rate = 0;
  for (Operation& operation : operations) {
    std::sort(operation.rates.begin(), operation.rates.end());
    const double median = operation.rates[operation.rates.size() / 2];
    if (copy_rate == 0) copy_rate = median;
    const double ratio = median / copy_rate;
    std::printf("%-10s %-20s %8.1f %8.1f %8.1f  %5.2f\n", model.name, operation.name,
                operation.rates.front(), median, operation.rates.back(), ratio);
    if (!operation.must_be_fast || ratio >= least) continue;
    std::fprintf(stderr, "%s, %s: %.2f of the copy, at least %.2f is wanted\n", model.name,
                 operation.name, ratio, least);
    fast = false;
  }
  must(gpu->runtime->destroy_event(begin));
  must(gpu->runtime->destroy_event(end));
  return fast;
}

bool bench(Gpu* gpu, const char* name, const Shapes& shapes, double least) {
  Model model(gpu, name, shapes);
  std::printf("%s: %zu tensors, %lld elements\n", name, shapes.size(),
              static_cast<long long>(model.count));
  const Optimized single(gpu, shapes, Dtype::kF32);
  const Optimized half(gpu, shapes, Dtype::kBf16);
  return is_right(gpu, &model) && is_right(gpu, name, single, shapes) &&
         is_right(gpu, name, half, shapes) &&
         measure(gpu, model, operations_of(gpu, &model, single, half), least);
}

}  // namespace

int main(int argument_count, char** arguments) {
  double least = 0;
  if (argument_count == 3 && std::strcmp(arguments[1], "--least") == 0) {
    least = std::strtod(arguments[2], nullptr);
  } else if (argument_count != 1) {
    std::fprintf(stderr, "kernel_bandwidth [--least RATIO]\n");
    return 2;
  }
  const dt::cuda::Answers answers = dt::cuda::ask();
  const dt::Status reason = dt::cuda::explain(answers);
  if (!reason.ok()) {
    std::printf("skipped: %s\n", reason.message().c_str());
    return 77;
  }
  Gpu gpu;
  const dt::cuda::DeviceInfo& device = gpu.runtime->device();
  std::printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GiB\n", device.name.c_str(),
              device.compute_major, device.compute_minor, device.multiprocessors,
              static_cast<double>(device.memory_bytes) / (1 << 30));
  std::printf("driver API %s, dt is built with CUDA %s\n",
              dt::cuda::version_text(answers.driver_version).c_str(),
              dt::cuda::build_text().c_str());
  std::printf("%d samples in turns; GB/s read and written\n", kSamples);
  std::printf("%-10s %-20s %8s %8s %8s  %5s\n", "list", "what", "min", "p50", "max", "ratio");
  const bool resnet = bench(&gpu, "ResNet-50", resnet50(), least);
  const bool gpt = bench(&gpu, "GPT-2", gpt2(), least);
  return resnet && gpt ? 0 : 1;
}
