// SPDX-License-Identifier: Apache-2.0
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "device_cuda.h"
#include "kernels.cuh"

namespace gpt {
namespace {

using namespace kernels;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status) +
                           "; `dt doctor` looks at the GPU and its driver");
}

void check(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("cuBLAS: ") + cublasGetStatusString(status));
}

template <class Element>
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    take();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a CUDA stream");
    if (const cublasStatus_t status = cublasCreate(&blas_); status != CUBLAS_STATUS_SUCCESS) {
      cudaStreamDestroy(stream_);
      check(status);
    }
    check(cublasSetStream(blas_, stream_));
  }
  ~CudaDevice() override {
    cudaSetDevice(index_);
    cudaStreamSynchronize(stream_);
    cublasDestroy(blas_);
    for (void* memory : memory_) cudaFree(memory);
    cudaStreamDestroy(stream_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Precision precision() const override {
    return sizeof(Element) == sizeof(float) ? Precision::kF32 : Precision::kBf16;
  }
  bool is_gpu() const override { return true; }
  void* stream() const override { return stream_; }
  int64_t taken_bytes() const override {
    take();
    size_t free_bytes = 0, all_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &all_bytes), "asking for the GPU's memory");
    return static_cast<int64_t>(all_bytes - free_bytes);
  }

  void* allocate(int64_t bytes) override {
    take();
    // Whole words, and never none.
    const size_t rounded = (static_cast<size_t>(bytes) + 255) / 256 * 256 + 256;
    memory_.reserve(memory_.size() + 1);
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, rounded);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears it
      throw std::runtime_error(kTooLarge);
    }
    check(status, "allocating GPU memory");
    memory_.push_back(memory);
    clear(memory, static_cast<int64_t>(rounded));
    return memory;
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    take();
    // From pageable memory: `from` has been read when this returns.
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
          "copying to the GPU");
  }
  void download(void* to, const void* from, int64_t bytes) override {
    take();
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
          "copying from the GPU");
    synchronise();
  }
  void synchronise() override { check(cudaStreamSynchronize(stream_), "computing on the GPU"); }
  void clear(void* memory, int64_t bytes) override {
    check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), "clearing GPU memory");
  }
  void convert(int64_t count, const float* from, void* to) override {
    run_each(count, kernels::convert<Element>, count, from, out(to));
  }

  void multiply(const Product& p, const void* a, const void* b, void* c) override {
    if (p.rows == 0 || p.columns == 0 || p.batch == 0) return;
    constexpr cudaDataType_t kType = std::is_same_v<Element, float> ? CUDA_R_32F : CUDA_R_16BF;
    const auto scale = static_cast<float>(p.scale), keep = static_cast<float>(p.keep);
    // cuBLAS works column by column, so to it these are the transposed matrices: c' = b' * a'.
    check(cublasGemmStridedBatchedEx(
        blas_, p.turn_b ? CUBLAS_OP_T : CUBLAS_OP_N, p.turn_a ? CUBLAS_OP_T : CUBLAS_OP_N,
        static_cast<int>(p.columns), static_cast<int>(p.rows), static_cast<int>(p.inner), &scale, b,
        kType, static_cast<int>(p.turn_b ? p.inner : p.columns), p.inner * p.columns, a, kType,
        static_cast<int>(p.turn_a ? p.rows : p.inner), p.rows * p.inner, &keep, c, kType,
        static_cast<int>(p.columns), p.rows * p.columns, static_cast<int>(p.batch),
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  void add(int64_t count, const void* from, void* to) override {
    run_each(count, kernels::add<Element>, count, in(from), out(to));
  }
  void add_bias(int64_t rows, int64_t columns, const void* bias, void* values) override {
    run_each(rows * columns, kernels::add_bias<Element>, rows * columns, columns, in(bias),
             out(values));
  }
  void sum_rows(int64_t rows, int64_t columns, const void* values, bool keep, void* sums) override {
    run_tiles(columns, kernels::sum_rows<Element>, rows, columns, in(values), keep ? 1 : 0,
              out(sums));
  }

  void embed(int64_t rows, int64_t length, int64_t channels, const uint8_t* tokens,
             const void* token_table, const void* position_table, void* result) override {
    run_each(rows * channels, kernels::embed<Element>, rows * channels, length, channels, tokens,
             in(token_table), in(position_table), out(result));
  }
  void embed_backward(int64_t rows, int64_t length, int64_t channels, int64_t vocabulary,
                      const uint8_t* tokens, const void* gradient, bool keep_tokens,
                      bool keep_positions, void* token_gradient, void* position_gradient) override {
    run_each(length * channels, kernels::position_gradient<Element>, rows, length, channels,
             in(gradient), keep_positions ? 1 : 0, out(position_gradient));
    run_each(vocabulary * channels, kernels::token_gradient<Element>, rows, channels, vocabulary,
             tokens, in(gradient), keep_tokens ? 1 : 0, out(token_gradient));
  }

  void normalise(int64_t rows, int64_t channels, const void* input, const void* weight,
                 const void* bias, void* result, void* statistics) override {
    run_rows(rows, normalise_rows<Element>, channels, in(input), in(weight), in(bias), out(result),
             static_cast<float*>(statistics));
  }
  void normalise_backward(int64_t rows, int64_t channels, const void* out_gradient,
                          const void* input, const void* weight, const void* statistics, bool keep,
                          void* in_gradient, void* weight_gradient, void* bias_gradient) override {
    const auto* numbers = static_cast<const float*>(statistics);
    run_tiles(channels, norm_weight_gradient<Element>, rows, channels, in(out_gradient), in(input),
              numbers, keep ? 1 : 0, out(weight_gradient));
    sum_rows(rows, channels, out_gradient, keep, bias_gradient);
    run_rows(rows, normalise_backward_rows<Element>, channels, in(out_gradient), in(input),
             in(weight), numbers, out(in_gradient));
  }

  void gelu(int64_t count, const void* input, void* result) override {
    run_each(count, kernels::gelu<Element>, count, in(input), out(result));
  }
  void gelu_backward(int64_t count, const void* input, void* gradient) override {
    run_each(count, kernels::gelu_backward<Element>, count, in(input), out(gradient));
  }

  void split_heads(const HeadShape& shape, int64_t parts, const void* input,
                   void* result) override {
    const int64_t count = parts * shape.matrices() * shape.length * shape.width;
    run_each(count, kernels::split_heads<Element>, count, shape, parts, in(input), out(result));
  }
  void merge_heads(const HeadShape& shape, int64_t parts, const void* input,
                   void* result) override {
    const int64_t count = parts * shape.matrices() * shape.length * shape.width;
    run_each(count, kernels::merge_heads<Element>, count, shape, parts, in(input), out(result));
  }
  void causal_softmax(const HeadShape& shape, void* scores) override {
    run_rows(shape.matrices() * shape.length, causal_softmax_rows<Element>, shape.length,
             out(scores));
  }
  void causal_softmax_backward(const HeadShape& shape, const void* shares,
                               void* gradient) override {
    run_rows(shape.matrices() * shape.length, causal_softmax_backward_rows<Element>, shape.length,
             in(shares), out(gradient));
  }

  void cross_entropy(int64_t rows, int64_t columns, const uint8_t* targets, double scale, bool keep,
                     void* logits, double* loss) override {
    if (rows > loss_rows_) {
      losses_ = static_cast<float*>(allocate(rows * int64_t{sizeof(float)}));
      loss_rows_ = rows;
    }
    run_rows(rows, cross_entropy_rows<Element>, columns, targets, static_cast<float>(scale),
             out(logits), losses_);
    run_rows(1, sum_losses, rows, losses_, keep ? 1 : 0, loss);
  }

  void adamw(const AdamStep& step, int64_t count, const void* gradient, float* first, float* second,
             float* values, void* rounded) override {
    const auto steps = static_cast<double>(step.step + 1);
    AdamNumbers numbers;
    numbers.beta1 = static_cast<float>(kBeta1);
    numbers.beta2 = static_cast<float>(kBeta2);
    numbers.rate = static_cast<float>(step.rate / (1 - std::pow(kBeta1, steps)));
    numbers.correction = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, steps)));
    numbers.remaining = static_cast<float>(1 - step.rate * step.decay);
    numbers.epsilon = static_cast<float>(kAdamEpsilon);
    run_each(count, kernels::adamw<Element>, count, numbers, in(gradient), first, second, values,
             out(rounded));
  }

 private:
  static const Element* in(const void* memory) { return static_cast<const Element*>(memory); }
  static Element* out(void* memory) { return static_cast<Element*>(memory); }
  /// Another part of the program may have changed this thread's GPU.
  void take() const { check(cudaSetDevice(index_), "choosing the GPU"); }

  template <class... Parameters, class... Arguments>
  void run(dim3 blocks, dim3 threads, void (*kernel)(Parameters...), Arguments... arguments) {
    launch(blocks, threads, stream_, kernel, arguments...);
    check(cudaGetLastError(), "starting a CUDA kernel");
  }
  /// One thread per element.
  template <class Kernel, class... Arguments>
  void run_each(int64_t count, Kernel kernel, Arguments... arguments) {
    if (count == 0) return;
    run(dim3(static_cast<unsigned>((count + kBlock - 1) / kBlock)), dim3(kBlock), kernel,
        arguments...);
  }
  /// One block per row.
  template <class Kernel, class... Arguments>
  void run_rows(int64_t rows, Kernel kernel, Arguments... arguments) {
    if (rows == 0) return;
    run(dim3(static_cast<unsigned>(rows)), dim3(kBlock), kernel, arguments...);
  }
  /// One block per kTileColumns columns.
  template <class Kernel, class... Arguments>
  void run_tiles(int64_t columns, Kernel kernel, Arguments... arguments) {
    run(dim3(static_cast<unsigned>((columns + kTileColumns - 1) / kTileColumns)),
        dim3(kTileColumns, kTileRows), kernel, arguments...);
  }

  const int index_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  std::vector<void*> memory_;
  float* losses_ = nullptr;  // [loss_rows_]
  int64_t loss_rows_ = 0;
};

}  // namespace

bool has_cuda() { return true; }

std::unique_ptr<Device> make_cuda_device(int index, Precision precision) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "looking for a GPU");
  if (count == 0) throw std::runtime_error("there is no GPU here; use --device cpu");
  // As dt chooses: ranks beyond the last GPU share, where it allows that.
  index %= count;
  if (precision == Precision::kBf16) return std::make_unique<CudaDevice<__nv_bfloat16>>(index);
  return std::make_unique<CudaDevice<float>>(index);
}

}  // namespace gpt
