// SPDX-License-Identifier: Apache-2.0
// Sums of each channel of a batch, in two steps: each block sums a slice of one or more channels,
// then one thread a channel sums the slices. All in f64.
//
// Moments are made in one pass of differences from one of the channel's own elements. For any such
// pivot the squared distance of pivot and mean is at most `count` times the variance, so that the
// difference of the two sums loses no more than log2(count) bits, and as a rule next to none.
#include <math_constants.h>

#include <cstdint>

#include "kernels/cuda/elements.cuh"

namespace dt::kernels {
namespace {

constexpr int kLanes = 32;  // channels of a block where their elements lie apart
constexpr int kMergeThreads = 128;

struct Sums {
  double first = 0;
  double second = 0;
};

/// The elements of one slice of one channel that are this thread's: begin, begin + kStep, ...
template <int kStep>
class Elements {
 public:
  __device__ Elements(const BatchView& view, int64_t channel, int64_t begin, int64_t end)
      : view_(view),
        channel_(channel),
        left_(end - begin),
        sample_(begin / view.spatial),
        place_(begin % view.spatial),
        samples_(kStep / view.spatial),
        places_(kStep % view.spatial) {}

  /// visit(index) for each.
  template <class Visit>
  __device__ void each(Visit visit) {
#pragma unroll 4
    for (; left_ > 0; left_ -= kStep) {
      visit((sample_ * view_.channels + channel_) * view_.spatial + place_);
      sample_ += samples_;
      place_ += places_;
      if (place_ >= view_.spatial) {
        place_ -= view_.spatial;
        ++sample_;
      }
    }
  }

 private:
  const BatchView& view_;
  const int64_t channel_;
  int64_t left_;
  int64_t sample_;
  int64_t place_;
  const int64_t samples_;
  const int64_t places_;
};

/// An element of the channel that is finite, or 0.
template <class T>
__device__ double pivot_of(const BatchView& view, int64_t channel) {
  const auto first = static_cast<double>(
      cast<Accumulator<T>>(static_cast<const T*>(view.input)[channel * view.spatial]));
  return isfinite(first) ? first : 0;
}

template <class T>
struct OfInput {
  __device__ OfInput(const BatchView& view, const BatchScale& /*scale*/, int64_t channel)
      : input_(static_cast<const T*>(view.input)), pivot_(pivot_of<T>(view, channel)) {}
  __device__ void add(int64_t index, Sums& sums) const {
    const double difference = static_cast<double>(cast<Accumulator<T>>(input_[index])) - pivot_;
    sums.first += difference;
    sums.second += difference * difference;
  }

 private:
  const T* const input_;
  const double pivot_;
};

template <class T>
struct OfGradient {
  __device__ OfGradient(const BatchView& view, const BatchScale& scale, int64_t channel)
      : input_(static_cast<const T*>(view.input)),
        gradient_(static_cast<const T*>(view.gradient)),
        mean_(scale.mean[channel]),
        factor_(1 / sqrt(scale.variance[channel] + scale.epsilon)) {}
  __device__ void add(int64_t index, Sums& sums) const {
    const auto gradient = static_cast<double>(cast<Accumulator<T>>(gradient_[index]));
    const auto input = static_cast<double>(cast<Accumulator<T>>(input_[index]));
    sums.first += gradient;
    sums.second += gradient * ((input - mean_) * factor_);
  }

 private:
  const T* const input_;
  const T* const gradient_;
  const double mean_;
  const double factor_;
};

/// Block x sums slice y of the channels [x * kWidth, x * kWidth + kWidth), one beside the other.
template <template <class> class Of, class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_slices(BatchView view, BatchScale scale, int64_t slice, Sums* partial) {
  constexpr int kStep = kThreads / kWidth;  // threads of a channel
  __shared__ Sums of_thread[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWidth;
  const int worker = thread / kWidth;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kWidth + lane;
  Sums sums;
  if (channel < view.channels) {
    const int64_t begin = static_cast<int64_t>(blockIdx.y) * slice;
    const int64_t end = min(begin + slice, view.batch * view.spatial);
    const Of<T> of(view, scale, channel);
    Elements<kStep>(view, channel, begin + worker, end).each([&](int64_t index) {
      of.add(index, sums);
    });
  }
  of_thread[thread] = sums;
  for (int half = kStep / 2; half > 0; half /= 2) {
    __syncthreads();
    if (worker >= half) continue;
    of_thread[thread].first += of_thread[thread + half * kWidth].first;
    of_thread[thread].second += of_thread[thread + half * kWidth].second;
  }
  if (worker == 0 && channel < view.channels) {
    partial[static_cast<int64_t>(blockIdx.y) * view.channels + channel] = of_thread[thread];
  }
}

__device__ Sums sum_of(const Sums* partial, int64_t channels, int64_t slices, int64_t channel) {
  Sums sums;
  for (int64_t slice = 0; slice < slices; ++slice) {
    sums.first += partial[slice * channels + channel].first;
    sums.second += partial[slice * channels + channel].second;
  }
  return sums;
}

template <class T>
__global__ void __launch_bounds__(kMergeThreads)
    end_moments(BatchView view, int64_t slices, const Sums* partial, double* row) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  if (channel >= view.channels) return;
  const int64_t elements = view.batch * view.spatial;
  const auto count = static_cast<double>(elements);
  if (channel == 0) row[0] = count;
  double mean = 0;
  double deviation = 0;
  if (elements > 0) {
    const Sums sums = sum_of(partial, view.channels, slices, channel);
    mean = pivot_of<T>(view, channel) + sums.first / count;
    deviation = sums.second - sums.first * (sums.first / count);
    if (deviation < 0) deviation = 0;  // a NaN stays
  }
  row[1 + channel] = mean;
  row[1 + view.channels + channel] = deviation;
}

__global__ void __launch_bounds__(kMergeThreads)
    end_gradient_sums(int64_t channels, int64_t slices, const Sums* partial, double* row) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  if (channel >= channels) return;
  const Sums sums = sum_of(partial, channels, slices, channel);
  row[channel] = sums.first;
  row[channels + channel] = sums.second;
}

__global__ void __launch_bounds__(kMergeThreads)
    merge_moments(const double* rows, int32_t ranks, int64_t channels, double* out_mean,
                  double* out_variance, int64_t* out_count) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  if (channel >= channels) return;
  double count = 0;
  double mean = 0;
  double deviation = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const double* const row = rows + rank * (1 + 2 * channels);
    const double more = row[0];
    if (more == 0) continue;
    const double other = row[1 + channel];
    const double share = more / (count + more);
    // The first has all of it. An infinite mean stays; the deviation of its rank is NaN.
    const bool stays = other == mean || (isinf(mean) && isfinite(other));
    const double difference = count == 0 || stays ? 0 : other - mean;
    mean = count == 0 ? other : mean + difference * share;
    deviation += row[1 + channels + channel] + difference * difference * (count * share);
    count += more;
  }
  out_mean[channel] = count > 0 ? mean : CUDART_NAN;
  out_variance[channel] = count > 0 ? deviation / count : CUDART_NAN;
  if (channel == 0) *out_count = static_cast<int64_t>(count);
}

__global__ void __launch_bounds__(kMergeThreads)
    merge_gradient_sums(const double* rows, int32_t ranks, int64_t channels, double* out_sum,
                        double* out_product) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  if (channel >= channels) return;
  double sum = 0;
  double product = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const double* const row = rows + rank * 2 * channels;
    sum += row[channel];
    product += row[channels + channel];
  }
  out_sum[channel] = sum;
  out_product[channel] = product;
}

unsigned blocks_of(int64_t channels, int64_t of_block) {
  return static_cast<unsigned>((channels + of_block - 1) / of_block);
}

template <template <class> class Of>
cudaError_t launch_slices(cudaStream_t stream, const BatchView& view, const BatchScale& scale,
                          Sums* partial) {
  if (view.count() == 0) return cudaSuccess;
  const int64_t slices = batch_slices(view.channels, view.count());
  const int64_t slice = (view.count() + slices - 1) / slices;
  return with_float_type(view.dtype, [&]<class T>() {
    const auto start = [&](auto kernel, int64_t width) {
      const dim3 grid(blocks_of(view.channels, width), static_cast<unsigned>(slices));
      kernel<<<grid, kThreads, 0, stream>>>(view, scale, slice, partial);
      return cudaGetLastError();
    };
    return view.spatial >= kLanes ? start(sum_slices<Of, T, 1>, 1)
                                  : start(sum_slices<Of, T, kLanes>, kLanes);
  });
}

}  // namespace

cudaError_t load_batch() {
  for (const cudaError_t error :
       {load(end_gradient_sums), load(merge_moments), load(merge_gradient_sums)}) {
    if (error != cudaSuccess) return error;
  }
  return with_each_float_type([&]<class T>() {
    for (const cudaError_t error :
         {load(sum_slices<OfInput, T, 1>), load(sum_slices<OfInput, T, kLanes>),
          load(sum_slices<OfGradient, T, 1>), load(sum_slices<OfGradient, T, kLanes>),
          load(end_moments<T>)}) {
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t launch_batch_moments(cudaStream_t stream, const BatchView& view, double* scratch,
                                 double* row) {
  auto* const partial = reinterpret_cast<Sums*>(scratch);
  const cudaError_t error = launch_slices<OfInput>(stream, view, {}, partial);
  if (error != cudaSuccess) return error;
  return with_float_type(view.dtype, [&]<class T>() {
    end_moments<T><<<blocks_of(view.channels, kMergeThreads), kMergeThreads, 0, stream>>>(
        view, batch_slices(view.channels, view.count()), partial, row);
    return cudaGetLastError();
  });
}

cudaError_t launch_batch_gradient_sums(cudaStream_t stream, const BatchView& view,
                                       const BatchScale& scale, double* scratch, double* row) {
  auto* const partial = reinterpret_cast<Sums*>(scratch);
  const cudaError_t error = launch_slices<OfGradient>(stream, view, scale, partial);
  if (error != cudaSuccess) return error;
  const int64_t slices = view.count() > 0 ? batch_slices(view.channels, view.count()) : 0;
  end_gradient_sums<<<blocks_of(view.channels, kMergeThreads), kMergeThreads, 0, stream>>>(
      view.channels, slices, partial, row);
  return cudaGetLastError();
}

cudaError_t launch_merge_moments(cudaStream_t stream, const double* rows, int32_t ranks,
                                 int64_t channels, double* mean, double* variance, int64_t* count) {
  merge_moments<<<blocks_of(channels, kMergeThreads), kMergeThreads, 0, stream>>>(
      rows, ranks, channels, mean, variance, count);
  return cudaGetLastError();
}

cudaError_t launch_merge_gradient_sums(cudaStream_t stream, const double* rows, int32_t ranks,
                                       int64_t channels, double* sum, double* product) {
  merge_gradient_sums<<<blocks_of(channels, kMergeThreads), kMergeThreads, 0, stream>>>(
      rows, ranks, channels, sum, product);
  return cudaGetLastError();
}

}  // namespace dt::kernels
