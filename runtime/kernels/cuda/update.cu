// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers: the arithmetic of kernels/host/optimize_impl.h, bit for bit.
#include <iterator>
#include <span>

#include "kernels/cuda/elements.cuh"

namespace dt::kernels {
namespace {

// Each rounds its result. nvcc would compile a * b + c to one instruction that rounds only once.
__device__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ double product(double a, double b) { return __dmul_rn(a, b); }
__device__ float sum(float a, float b) { return __fadd_rn(a, b); }
__device__ double sum(double a, double b) { return __dadd_rn(a, b); }
__device__ float difference(float a, float b) { return __fsub_rn(a, b); }
__device__ double difference(double a, double b) { return __dsub_rn(a, b); }
__device__ float quotient(float a, float b) { return __fdiv_rn(a, b); }
__device__ double quotient(double a, double b) { return __ddiv_rn(a, b); }
__device__ float square_root(float x) { return __fsqrt_rn(x); }
__device__ double square_root(double x) { return __dsqrt_rn(x); }

// Casts with the host's NaN, so that parameters have its bits.

template <class T>
__device__ T narrowed(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, __half>) {
    return isnan(value) ? __ushort_as_half(0x7e00) : cast<T>(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return isnan(value) ? __ushort_as_bfloat16(0x7fc0) : cast<T>(value);
  } else {
    return value;
  }
}

__device__ unsigned short bits_of(__half value) { return __half_as_ushort(value); }
__device__ unsigned short bits_of(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }

/// Parameters whose f32 values are kept apart.
template <class T>
inline constexpr bool kHasMaster = sizeof(T) < sizeof(Accumulator<T>);

// A step is a function of one element of all arrays: `source` is of the gradient, `value` of the
// master, or of the parameter where it is its own master. Returns whether something is to be
// written. What it does not have of `first` and `second` is neither read nor written.

template <class T>
struct AdamW {
  using Wide = Accumulator<T>;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = true;
  static constexpr bool kFollows = false;

  AdamW() = default;
  explicit AdamW(const AdamWStep& step)
      : first_share(static_cast<Wide>(step.first_share)),
        second_kept(static_cast<Wide>(step.second_kept)),
        second_share(static_cast<Wide>(step.second_share)),
        kept(static_cast<Wide>(step.kept)),
        rate(static_cast<Wide>(step.rate)),
        unbias(static_cast<Wide>(step.unbias)),
        epsilon(static_cast<Wide>(step.epsilon)) {}

  __device__ bool operator()(T source, Wide& value, Wide& first, Wide& second) const {
    const auto g = cast<Wide>(source);
    first = sum(first, product(first_share, difference(g, first)));
    second = sum(product(second_kept, second), product(second_share, product(g, g)));
    const Wide root = sum(product(unbias, square_root(second)), epsilon);
    value = difference(product(kept, value), product(rate, quotient(first, root)));
    return true;
  }

  Wide first_share, second_kept, second_share, kept, rate, unbias, epsilon;
};

template <class T, bool kMomentum>
struct Sgd {
  using Wide = Accumulator<T>;
  static constexpr bool kFirst = kMomentum;
  static constexpr bool kSecond = false;
  static constexpr bool kFollows = false;

  Sgd() = default;
  explicit Sgd(const SgdStep& step)
      : decay(static_cast<Wide>(step.decay)),
        momentum_kept(static_cast<Wide>(step.momentum_kept)),
        share(static_cast<Wide>(step.share)),
        rate(static_cast<Wide>(step.rate)),
        nesterov(step.nesterov) {}

  __device__ bool operator()(T source, Wide& value, Wide& momentum, Wide&) const {
    const Wide g = sum(cast<Wide>(source), product(decay, value));
    Wide direction = g;
    if constexpr (kMomentum) {
      momentum = sum(product(momentum_kept, momentum), product(share, g));
      direction = nesterov ? sum(g, product(momentum_kept, momentum)) : momentum;
    }
    value = difference(value, product(rate, direction));
    return true;
  }

  Wide decay, momentum_kept, share, rate;
  bool nesterov;
};

/// `source` is of the parameter.
template <class T>
struct Follow {
  using Wide = float;
  static constexpr bool kFirst = false;
  static constexpr bool kSecond = false;
  static constexpr bool kFollows = true;

  Follow() = default;
  explicit Follow(bool all_of_them) : all(all_of_them) {}

  __device__ bool operator()(T source, Wide& value, Wide&, Wide&) const {
    if (!all && bits_of(narrowed<T>(value)) == bits_of(source)) return false;
    const auto wide = cast<float>(source);
    value = isnan(wide) ? __uint_as_float(0x7fc00000) : wide;
    return true;
  }

  bool all = false;
};

/// One part of one tensor; arrays that the step does not have are null.
template <class T, class Step>
struct Part {
  using Wide = Accumulator<T>;

  __device__ Part(const UpdatedTensor& tensor, int64_t begin)
      : source(at<const T>(Step::kFollows ? tensor.param : tensor.gradient, begin)),
        value(at<Wide>(kHasMaster<T> ? tensor.master : tensor.param, begin)) {
    if constexpr (Step::kFirst) first = at<Wide>(tensor.first, begin);
    if constexpr (Step::kSecond) second = at<Wide>(tensor.second, begin);
    if constexpr (kWritesParam) param = at<T>(tensor.param, begin);
  }

  /// Elements up to the first place where all arrays have a whole pack; negative: there is none.
  template <int kWidth>
  __device__ int head() const {
    const int behind = misplaced<T, kWidth>(source);
    bool alike = misplaced<Wide, kWidth>(value) == behind;
    if constexpr (Step::kFirst) alike = alike && misplaced<Wide, kWidth>(first) == behind;
    if constexpr (Step::kSecond) alike = alike && misplaced<Wide, kWidth>(second) == behind;
    if constexpr (kWritesParam) alike = alike && misplaced<T, kWidth>(param) == behind;
    return alike ? (kWidth - behind) % kWidth : -1;
  }

  __device__ Part behind(int elements) const {
    Part part = *this;
    part.source += elements;
    part.value += elements;
    if constexpr (Step::kFirst) part.first += elements;
    if constexpr (Step::kSecond) part.second += elements;
    if constexpr (kWritesParam) part.param += elements;
    return part;
  }

  static constexpr bool kWritesParam = kHasMaster<T> && !Step::kFollows;
  const T* source;
  Wide* value;
  Wide* first = nullptr;
  Wide* second = nullptr;
  T* param = nullptr;  ///< only written: the rounded value

 private:
  template <class Element, class Void>
  static __device__ Element* at(Void* data, int64_t begin) {
    // The compiler cannot know this of a loaded pointer, and would use slower instructions.
    __builtin_assume(__isGlobal(data));
    return static_cast<Element*>(data) + begin;
  }
};

/// Neighbours in all arrays.
template <int kWidth, class T, class Step>
struct Neighbours {
  using Wide = Accumulator<T>;
  using Wides = Pack<Wide, kWidth>;
  using Narrows = Pack<T, kWidth>;

  __device__ void load(const Part<T, Step>& part, int index) {
    source = reinterpret_cast<const Narrows*>(part.source)[index];
    value = reinterpret_cast<const Wides*>(part.value)[index];
    if constexpr (Step::kFirst) first = reinterpret_cast<const Wides*>(part.first)[index];
    if constexpr (Step::kSecond) second = reinterpret_cast<const Wides*>(part.second)[index];
  }

  __device__ void step_and_store(const Step& step, const Part<T, Step>& part, int index) {
    bool changed = false;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      changed |= step(source.values[e], value.values[e], first.values[e], second.values[e]);
    }
    if (!changed) return;
    reinterpret_cast<Wides*>(part.value)[index] = value;
    if constexpr (Step::kFirst) reinterpret_cast<Wides*>(part.first)[index] = first;
    if constexpr (Step::kSecond) reinterpret_cast<Wides*>(part.second)[index] = second;
    if constexpr (Part<T, Step>::kWritesParam) {
      Narrows param;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) param.values[e] = narrowed<T>(value.values[e]);
      reinterpret_cast<Narrows*>(part.param)[index] = param;
    }
  }

  Narrows source;
  Wides value, first, second;
};

/// Packs of kWidth elements of all arrays, by all threads of the block. A thread has 32 bytes of
/// each wide array under way at once.
template <int kWidth, class T, class Step>
__device__ void update_packs(const Part<T, Step>& part, int packs, const Step& step) {
  constexpr int kTogether = 32 / static_cast<int>(sizeof(Accumulator<T>)) / kWidth;
  for (int begin = static_cast<int>(threadIdx.x); begin < packs; begin += kThreads * kTogether) {
    Neighbours<kWidth, T, Step> loaded[kTogether];
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      if (begin + b * kThreads < packs) loaded[b].load(part, begin + b * kThreads);
    }
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      if (begin + b * kThreads < packs) {
        loaded[b].step_and_store(step, part, begin + b * kThreads);
      }
    }
  }
}

/// Which of several steps is taken.
template <class Step>
struct Choice {
  static constexpr int kMost = Step::kFollows ? 1 : StepGuard::kSlots;

  /// Negative: none.
  __device__ int taken() const {
    if (guard.norms == nullptr) return 0;
    if (!isfinite(guard.norms[guard.own])) return -1;
    int missed = 0;
#pragma unroll
    for (int slot = 0; slot < StepGuard::kSlots; ++slot) {
      if ((guard.earlier >> slot & 1) != 0 && !isfinite(guard.norms[slot])) ++missed;
    }
    return missed;
  }

  StepGuard guard;
  Step steps[kMost];
};

template <class T, class Step>
__global__ void __launch_bounds__(kThreads)
    update(DeviceUpdates list, const __grid_constant__ Choice<Step> choice) {
  constexpr int kWidth = kPackElements<T>;
  const int taken = choice.taken();
  if (taken < 0) return;
  const Step step = choice.steps[taken];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const UpdateRecord record = list.tensors[list.tensor_of_chunk[index]];
    const int64_t first = (index - record.first_chunk) * kChunkElements;
    const int count =
        static_cast<int>(min(static_cast<int64_t>(kChunkElements), record.arrays.count - first));
    const Part<T, Step> part(record.arrays, first);
    const int misfit = part.template head<kWidth>();
    if (misfit < 0) {  // no pack fits all arrays
      update_packs<1>(part, count, step);
      continue;
    }
    const int head = min(count, misfit);
    const int packs = (count - head) / kWidth;
    const int tail = head + packs * kWidth;
    // The few elements before and behind the packs: one each for the first threads.
    const int single = thread < head ? thread : tail + thread - head;
    if (single < head || (single >= tail && single < count)) {
      Neighbours<1, T, Step> one;
      one.load(part, single);
      one.step_and_store(step, part, single);
    }
    update_packs<kWidth>(part.behind(head), packs, step);
  }
}

template <class T, class Step, class Given>
cudaError_t start(const UpdateLaunch& launch, std::span<const Given> steps,
                  const StepGuard& guard = {}) {
  Choice<Step> choice{guard, {}};
  if (steps.empty() || steps.size() > std::size(choice.steps)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < steps.size(); ++i) choice.steps[i] = Step(steps[i]);
  update<T, Step>
      <<<blocks_for(launch.list.chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
          launch.list, choice);
  return cudaGetLastError();
}

}  // namespace

cudaError_t load_update() {
  for (const cudaError_t error :
       {load(update<__half, Follow<__half>>), load(update<__nv_bfloat16, Follow<__nv_bfloat16>>)}) {
    if (error != cudaSuccess) return error;
  }
  return with_each_float_type([&]<class T>() {
    for (const cudaError_t error : {load(update<T, AdamW<T>>), load(update<T, Sgd<T, false>>),
                                    load(update<T, Sgd<T, true>>)}) {
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t launch_adamw(const UpdateLaunch& launch, Dtype dtype, std::span<const AdamWStep> steps,
                         const StepGuard& guard) {
  return with_float_type(dtype,
                         [&]<class T>() { return start<T, AdamW<T>>(launch, steps, guard); });
}

cudaError_t launch_sgd(const UpdateLaunch& launch, Dtype dtype, std::span<const SgdStep> steps,
                       const StepGuard& guard, bool momentum) {
  return with_float_type(dtype, [&]<class T>() {
    return momentum ? start<T, Sgd<T, true>>(launch, steps, guard)
                    : start<T, Sgd<T, false>>(launch, steps, guard);
  });
}

cudaError_t launch_follow(const UpdateLaunch& launch, Dtype dtype, bool all) {
  const std::span<const bool> step(&all, 1);
  if (dtype == Dtype::kF16) return start<__half, Follow<__half>>(launch, step);
  if (dtype == Dtype::kBf16) return start<__nv_bfloat16, Follow<__nv_bfloat16>>(launch, step);
  return cudaErrorInvalidValue;
}

}  // namespace dt::kernels
