// SPDX-License-Identifier: Apache-2.0
// Matrices as products of two thin ones. A launch handles many matrices: blockIdx.y says which. The
// order of each sum follows from the size of the matrix alone, and products are added by fmaf, so
// that GPUs of different kinds get the same bits, too.
#include <math_constants.h>

#include "kernels/cuda/blocks.cuh"

namespace dt::kernels {
namespace {

constexpr int kMatrices = 60;  // of a launch
constexpr int kRanks = 8;      // columns of a factor that one pass over a matrix makes
constexpr int kRows = 4;       // of a matrix that a warp handles at once
constexpr int kWarps = kThreads / kWarp;
constexpr int kTallThreads = 1024;
constexpr int kTallWarps = kTallThreads / kWarp;

struct Batch {
  LowRankMatrix matrices[kMatrices];
};
static_assert(sizeof(Batch) + 16 <= 4096);  // bytes of arguments that a kernel may have

/// As in kernels/host/low_rank.cc.
__device__ float random_number(uint64_t seed, int64_t index) {
  uint64_t bits = seed + static_cast<uint64_t>(index + 1) * 0x9e3779b97f4a7c15U;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebU;
  bits ^= bits >> 31;
  return static_cast<float>(bits >> 40) / 8388608.0F - 1;
}

__global__ void __launch_bounds__(kThreads) draw_q(const __grid_constant__ Batch batch, int rank) {
  const LowRankMatrix& matrix = batch.matrices[blockIdx.y];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < rank * matrix.columns; i += stride) {
    matrix.q[i] = random_number(matrix.seed, i);
  }
}

/// The sum over all threads of the block, which each of them gets.
__device__ float sum_of_block(float sum) {
  __shared__ float of_block;
  sum = block_reduce<kTallThreads, Plus>(sum);
  if (threadIdx.x == 0) of_block = sum;
  __syncthreads();
  return of_block;
}

/// As in kernels/host/low_rank.cc. A pass subtracts the last projection and finds the next one;
/// each thread has the same elements in all passes, so it reads only what itself wrote.
__device__ float make_orthogonal(float* columns, int c, int64_t length) {
  float* const own = columns + c * length;
  float given = 0;
  for (int64_t i = threadIdx.x; i < length; i += kTallThreads) given = fmaf(own[i], own[i], given);
  given = sum_of_block(given);
  float product = 0;  // with the column before b; of b == c the square of the norm
  for (int b = 0; b <= c; ++b) {
    const float* const last = own + (b - 1 - c) * length;
    const float* const next = columns + b * length;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < length; i += kTallThreads) {
      float x = own[i];
      if (b > 0) own[i] = x = fmaf(-product, last[i], x);
      sum = fmaf(b < c ? next[i] : x, x, sum);
    }
    product = sum_of_block(sum);
  }
  if (!isfinite(product) || !isfinite(given)) return CUDART_NAN_F;
  return product >= kLowRankLeast && product > kLowRankDependent * given ? 1 / sqrtf(product) : 0;
}

/// One block for a matrix.
__global__ void __launch_bounds__(kTallThreads)
    orthonormalise(const __grid_constant__ Batch batch, LowRankFactor factor, int rank) {
  const LowRankMatrix& matrix = batch.matrices[blockIdx.y];
  const bool is_p = factor == LowRankFactor::kP;
  float* const columns = is_p ? matrix.p : matrix.q;
  const int64_t length = is_p ? matrix.rows : matrix.columns;
  for (int c = 0; c < rank; ++c) {
    float* const own = columns + c * length;
    float scale = make_orthogonal(columns, c, length);
    if (!is_p && !(scale > 0)) {  // in all threads
      for (int64_t i = threadIdx.x; i < length; i += kTallThreads) {
        own[i] = random_number(matrix.seed, c * length + i);
      }
      scale = make_orthogonal(columns, c, length);
    }
    for (int64_t i = threadIdx.x; i < length; i += kTallThreads) own[i] *= scale;
  }
}

__device__ float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_down_sync(0xffffffffU, value, static_cast<unsigned>(step));
  }
  return value;
}

/// A warp has kRows rows, its lanes share the columns.
__global__ void __launch_bounds__(kThreads) find_p(const __grid_constant__ Batch batch, int rank) {
  const LowRankMatrix& matrix = batch.matrices[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t columns = matrix.columns;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps * kRows;
  for (int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kRows;
       row < matrix.rows; row += step) {
    float* const data = matrix.data + row * columns;
    const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), matrix.rows - row));
    if (matrix.error != nullptr) {
      const float* const error = matrix.error + row * columns;
      for (int r = 0; r < rows; ++r) {
        for (int64_t i = r * columns + lane; i < (r + 1) * columns; i += kWarp) data[i] += error[i];
      }
    }
    for (int first = 0; first < rank; first += kRanks) {
      float sums[kRows][kRanks] = {};
      for (int64_t j = lane; j < columns; j += kWarp) {
        float x[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) x[r] = r < rows ? data[r * columns + j] : 0;
#pragma unroll
        for (int k = 0; k < kRanks; ++k) {
          if (first + k >= rank) continue;
          const float q = matrix.q[(first + k) * columns + j];
#pragma unroll
          for (int r = 0; r < kRows; ++r) sums[r][k] = fmaf(x[r], q, sums[r][k]);
        }
      }
#pragma unroll
      for (int k = 0; k < kRanks; ++k) {
        if (first + k >= rank) continue;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float sum = warp_sum(sums[r][k]);
          if (lane == 0 && r < rows) matrix.p[(first + k) * matrix.rows + row + r] = sum;
        }
      }
    }
  }
}

/// A block has as many columns as a warp has lanes, its warps share the rows.
__global__ void __launch_bounds__(kTallThreads)
    find_q(const __grid_constant__ Batch batch, int rank) {
  const LowRankMatrix& matrix = batch.matrices[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  __shared__ float of_warp[kTallWarps][kWarp];
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarp;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * kWarp; begin < matrix.columns;
       begin += step) {
    const int64_t j = begin + lane;
    const bool is_in = j < matrix.columns;
    for (int first = 0; first < rank; first += kRanks) {
      float sums[kRanks] = {};
#pragma unroll 4
      for (int64_t i = warp; i < matrix.rows; i += kTallWarps) {
        const float x = is_in ? matrix.data[i * matrix.columns + j] : 0;
#pragma unroll
        for (int k = 0; k < kRanks; ++k) {
          if (first + k < rank) sums[k] = fmaf(matrix.p[(first + k) * matrix.rows + i], x, sums[k]);
        }
      }
#pragma unroll
      for (int k = 0; k < kRanks; ++k) {
        if (first + k >= rank) continue;  // of all threads
        of_warp[warp][lane] = sums[k];
        __syncthreads();
        if (warp == 0 && is_in) {
          float sum = 0;
          for (int w = 0; w < kTallWarps; ++w) sum += of_warp[w][lane];
          matrix.q[(first + k) * matrix.columns + j] = sum;
        }
        __syncthreads();
      }
    }
  }
}

int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

/// A warp has kRows rows of as many columns as it has lanes.
__global__ void __launch_bounds__(kThreads) restore(const __grid_constant__ Batch batch, int rank) {
  const LowRankMatrix& matrix = batch.matrices[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t in_row = (matrix.columns + kWarp - 1) / kWarp;
  const int64_t tiles = in_row * ((matrix.rows + kRows - 1) / kRows);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; tile < tiles;
       tile += step) {
    const int64_t row = tile / in_row * kRows;
    const int64_t j = tile % in_row * kWarp + lane;
    if (j >= matrix.columns) continue;
    float sums[kRows] = {};
    for (int k = 0; k < rank; ++k) {
      const float q = matrix.q[k * matrix.columns + j];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float p = row + r < matrix.rows ? matrix.p[k * matrix.rows + row + r] : 0;
        sums[r] = fmaf(p, q, sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= matrix.rows) continue;
      const int64_t at = (row + r) * matrix.columns + j;
      if (matrix.error != nullptr) {
        const float left = matrix.data[at] - sums[r];
        if (isfinite(left)) matrix.error[at] = left;
      }
      matrix.data[at] = sums[r];
    }
  }
}

/// As keep_columns() in kernels/host/low_rank.cc. One block for a matrix.
__global__ void __launch_bounds__(kTallThreads)
    keep_q(const __grid_constant__ Batch batch, int rank) {
  const LowRankMatrix& matrix = batch.matrices[blockIdx.y];
  if (matrix.kept_q == nullptr) return;  // in all threads
  for (int k = 0; k < rank; ++k) {
    const float* const own = matrix.q + k * matrix.columns;
    float* const kept = matrix.kept_q + k * matrix.columns;
    int finite = 1;
    for (int64_t i = threadIdx.x; i < matrix.columns; i += kTallThreads) {
      finite = finite && isfinite(own[i]);
    }
    if (!__syncthreads_and(finite)) continue;  // in all threads
    for (int64_t i = threadIdx.x; i < matrix.columns; i += kTallThreads) kept[i] = own[i];
  }
}

/// Calls start(batch, grid) for all matrices; tiles(matrix): how many blocks one can use.
template <class Tiles, class Start>
cudaError_t for_each_batch(const Launch& launch, std::span<const LowRankMatrix> matrices,
                           Tiles tiles, Start start) {
  for (size_t begin = 0; begin < matrices.size(); begin += kMatrices) {
    const auto part = matrices.subspan(begin, std::min<size_t>(kMatrices, matrices.size() - begin));
    Batch batch;
    std::copy(part.begin(), part.end(), batch.matrices);
    int64_t most = 1;
    for (const LowRankMatrix& each : part) most = std::max<int64_t>(most, tiles(each));
    start(batch,
          dim3(blocks_for(most, launch.multiprocessors), static_cast<unsigned>(part.size())));
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t load_low_rank() {
  for (const cudaError_t error : {load(draw_q), load(orthonormalise), load(find_p), load(find_q),
                                  load(restore), load(keep_q)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_draw_q(const Launch& launch, std::span<const LowRankMatrix> matrices,
                          int32_t rank) {
  return for_each_batch(
      launch, matrices,
      [&](const LowRankMatrix& each) { return parts(rank * each.columns, kThreads); },
      [&](const Batch& batch, dim3 grid) {
        draw_q<<<grid, kThreads, 0, launch.stream>>>(batch, rank);
      });
}

cudaError_t launch_orthonormalise(const Launch& launch, std::span<const LowRankMatrix> matrices,
                                  LowRankFactor factor, int32_t rank) {
  return for_each_batch(
      launch, matrices, [](const LowRankMatrix&) { return 1; },
      [&](const Batch& batch, dim3 grid) {
        orthonormalise<<<grid, kTallThreads, 0, launch.stream>>>(batch, factor, rank);
      });
}

cudaError_t launch_find_p(const Launch& launch, std::span<const LowRankMatrix> matrices,
                          int32_t rank) {
  return for_each_batch(
      launch, matrices, [](const LowRankMatrix& each) { return parts(each.rows, kRows * kWarps); },
      [&](const Batch& batch, dim3 grid) {
        find_p<<<grid, kThreads, 0, launch.stream>>>(batch, rank);
      });
}

cudaError_t launch_find_q(const Launch& launch, std::span<const LowRankMatrix> matrices,
                          int32_t rank) {
  return for_each_batch(
      launch, matrices, [](const LowRankMatrix& each) { return parts(each.columns, kWarp); },
      [&](const Batch& batch, dim3 grid) {
        find_q<<<grid, kTallThreads, 0, launch.stream>>>(batch, rank);
      });
}

cudaError_t launch_restore(const Launch& launch, std::span<const LowRankMatrix> matrices,
                           int32_t rank) {
  const cudaError_t error = for_each_batch(
      launch, matrices,
      [](const LowRankMatrix& each) {
        return parts(parts(each.columns, kWarp) * parts(each.rows, kRows), kWarps);
      },
      [&](const Batch& batch, dim3 grid) {
        restore<<<grid, kThreads, 0, launch.stream>>>(batch, rank);
      });
  if (error != cudaSuccess) return error;
  return for_each_batch(
      launch, matrices, [](const LowRankMatrix&) { return 1; },
      [&](const Batch& batch, dim3 grid) {
        keep_q<<<grid, kTallThreads, 0, launch.stream>>>(batch, rank);
      });
}

}  // namespace dt::kernels
