// SPDX-License-Identifier: Apache-2.0
// The sum of squares in two steps: each block sums chunks, one block sums those sums. Neither order
// depends on the size of the grid or on timing. A thread adds the few elements that it has of a
// chunk in f32, because many GPUs have few units for f64; all other sums are in f64.
#include "kernels/cuda/blocks.cuh"

namespace dt::kernels {
namespace {

constexpr int kFinalThreads = 1024;
// Squares that f32 cannot hold, or not well, are less than 2^-34 of a chunk's sum of at least this.
constexpr double kLeastInF32 = 0x1p-80;

template <class T>
__global__ void __launch_bounds__(kThreads) sum_chunks(DeviceChunks list, int32_t* found_inf) {
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const Chunk chunk = chunk_at(list, index);
    const T* const data = static_cast<const T*>(chunk.data) + chunk.begin;
    Accumulator<T> sum = 0;
    bool finite = true;
    for_each(data, chunk.count, [&](T element) {
      const auto value = cast<Accumulator<T>>(element);
      finite = finite && isfinite(value);
      sum = fma(value, value, sum);
    });
    double of_block = block_reduce<kThreads, Plus>(static_cast<double>(sum));
    if constexpr (!std::is_same_v<Accumulator<T>, double>) {
      __shared__ bool again;  // read before the barriers of the next block_reduce()
      if (threadIdx.x == 0) again = !isfinite(of_block) || of_block < kLeastInF32;
      __syncthreads();
      if (again) {
        double wide_sum = 0;
        for_each(data, chunk.count, [&](T element) {
          const auto wide = static_cast<double>(cast<float>(element));
          wide_sum = fma(wide, wide, wide_sum);
        });
        of_block = block_reduce<kThreads, Plus>(wide_sum);
      }
    }
    if (threadIdx.x == 0) list.partial_sums[index] = of_block;
    if (found_inf != nullptr && !finite) *found_inf = 1;  // each writes the same
  }
}

__global__ void __launch_bounds__(kFinalThreads)
    sum_partial_sums(const double* partial_sums, int64_t count, double* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kFinalThreads) sum += partial_sums[i];
  const double total = block_reduce<kFinalThreads, Plus>(sum);
  if (threadIdx.x == 0) *out = total;
}

__global__ void clip_factor(const double* squares, int32_t count, float max_norm, float tiny,
                            float* norm, float* factor) {
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += squares[i];
  const auto root = static_cast<float>(sqrt(sum));
  const float wanted = max_norm / (root + tiny);
  *norm = root;
  *factor = isfinite(root) && wanted < 1 ? wanted : 1;
}

}  // namespace

cudaError_t load_norm() {
  for (const cudaError_t error : {load(sum_partial_sums), load(clip_factor)}) {
    if (error != cudaSuccess) return error;
  }
  return with_each_float_type([&]<class T>() { return load(sum_chunks<T>); });
}

cudaError_t launch_squared_norm(const Launch& launch, Dtype dtype, double* out,
                                int32_t* found_inf) {
  const DeviceChunks& list = launch.list;
  if (list.chunks > 0) {
    const cudaError_t error = with_float_type(dtype, [&]<class T>() {
      sum_chunks<T>
          <<<blocks_for(list.chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
              list, found_inf);
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
  }
  sum_partial_sums<<<1, kFinalThreads, 0, launch.stream>>>(list.partial_sums, list.chunks, out);
  return cudaGetLastError();
}

cudaError_t launch_clip_factor(const Launch& launch, const double* squares, int32_t count,
                               float max_norm, float tiny, float* norm, float* factor) {
  clip_factor<<<1, 1, 0, launch.stream>>>(squares, count, max_norm, tiny, norm, factor);
  return cudaGetLastError();
}

}  // namespace dt::kernels
