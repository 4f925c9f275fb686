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

using dt::Dtype;
using dt::cuda::Event;
using dt::kernels::Tensor;
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
        norm(gpu, size_t{4}),
        found_inf(gpu, Bytes(4, 0)) {
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
  DeviceBytes tensors, flat, flat_half, other, norm, found_inf;
  std::shared_ptr<dt::kernels::TensorList> prepared;
  double squares = 0;
};

struct Operation {
  const char* name;
  int64_t traffic_bytes;
  std::function<dt::Status()> start;
  bool must_be_fast = false;
  std::vector<double> rates{};  ///< GB/s
};

std::vector<Operation> operations_of(Gpu* gpu, Model* model) {
  dt::kernels::TensorKernels* kernels = gpu->kernels.get();
  const dt::cuda::Stream stream = gpu->stream;
  const int64_t count = model->count;
  const auto& list = *model->prepared;
  auto* norm = static_cast<float*>(model->norm.at());
  auto* found_inf = static_cast<int32_t*>(model->found_inf.at());
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
                                  static_cast<float*>(model->norm.at()), nullptr, gpu->stream));
  float norm = 0;
  std::memcpy(&norm, model->norm.read().data(), sizeof norm);
  if (norm == static_cast<float>(model->squares)) return true;
  std::fprintf(stderr, "%s: the squared norm is %g, not %g\n", model->name,
               static_cast<double>(norm), model->squares);
  return false;
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
bool measure(Gpu* gpu, Model* model, double least) {
  std::vector<Operation> operations = operations_of(gpu, model);
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
    std::printf("%-10s %-20s %8.1f %8.1f %8.1f  %5.2f\n", model->name, operation.name,
                operation.rates.front(), median, operation.rates.back(), ratio);
    if (!operation.must_be_fast || ratio >= least) continue;
    std::fprintf(stderr, "%s, %s: %.2f of the copy, at least %.2f is wanted\n", model->name,
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
  return is_right(gpu, &model) && measure(gpu, &model, least);
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
