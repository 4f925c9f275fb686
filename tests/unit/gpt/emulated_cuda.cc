// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA runtime and of cuBLAS that the example calls, on this processor.
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "emulated_launch.h"

namespace gpt::kernels {

Index threadIdx, blockIdx, blockDim;

namespace {

constexpr size_t kStackBytes = 64 << 10;

struct Coroutine {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  Index index;
  bool done = false;
};

ucontext_t scheduler;
Coroutine* running = nullptr;
const std::function<void()>* running_body = nullptr;
bool waited = false;  // any thread of the launch at a __syncthreads()

void enter() {
  (*running_body)();
  running->done = true;
}

}  // namespace

void __syncthreads() {
  if (running == nullptr) std::abort();  // a later block waits, the first did not
  waited = true;
  swapcontext(&running->context, &scheduler);
}

void run_blocks(dim3 blocks, dim3 threads, const std::function<void()>& body) {
  static std::vector<Coroutine> pool(kBlock + kTileRows * kTileColumns);
  const unsigned count = threads.x * threads.y;
  running_body = &body;
  blockDim = {threads.x, threads.y};
  waited = false;
  for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
    if (blockIdx.x > 0 && !waited) {  // coroutines would only cost time
      running = nullptr;
      for (unsigned i = 0; i < count; ++i) {
        threadIdx = {i % threads.x, i / threads.x};
        body();
      }
      continue;
    }
    for (unsigned i = 0; i < count; ++i) {
      Coroutine& each = pool.at(i);
      each.index = {i % threads.x, i / threads.x};
      each.done = false;
      getcontext(&each.context);
      each.context.uc_stack.ss_sp = each.stack.data();
      each.context.uc_stack.ss_size = each.stack.size();
      each.context.uc_link = &scheduler;
      makecontext(&each.context, enter, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (unsigned i = 0; i < count; ++i) {
        // Both orders, as none is promised.
        running = &pool[blockIdx.x % 2 == 0 ? i : count - 1 - i];
        if (running->done) continue;
        threadIdx = running->index;
        swapcontext(&scheduler, &running->context);
        any = any || !running->done;
      }
    }
  }
}

}  // namespace gpt::kernels

namespace {

float load(const void* from, cudaDataType type, int64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[index];
  return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[index]);
}

void store(void* to, cudaDataType type, int64_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(to)[index] = value;
  } else {
    static_cast<__nv_bfloat16*>(to)[index] = __float2bfloat16(value);
  }
}

}  // namespace

extern "C" {

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xff, bytes);  // NaN, as an element of any type
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  *free_bytes = *all_bytes = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusString(cublasStatus_t) { return "emulated"; }

/// Column by column, as cuBLAS documents it.
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t turn_a,
                                          cublasOperation_t turn_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType a_type,
                                          int lda, long long a_stride, const void* b,
                                          cudaDataType b_type, int ldb, long long b_stride,
                                          const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long c_stride, int batch, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
  if (lda < (turn_a == CUBLAS_OP_N ? m : k) || ldb < (turn_b == CUBLAS_OP_N ? k : n) || ldc < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  for (int64_t i = 0; i < int64_t{batch} * m * n; ++i) {
    const int64_t matrix = i / (int64_t{m} * n), row = i % m, column = i / m % n;
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at_a = turn_a == CUBLAS_OP_N ? row + j * lda : j + row * lda;
      const int64_t at_b = turn_b == CUBLAS_OP_N ? j + column * ldb : column + j * ldb;
      sum += load(a, a_type, matrix * a_stride + at_a) * load(b, b_type, matrix * b_stride + at_b);
    }
    const int64_t at = matrix * c_stride + row + column * ldc;
    // Nothing is read where it is not kept.
    store(c, c_type, at, scale * sum + (keep == 0 ? 0 : keep * load(c, c_type, at)));
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
