// SPDX-License-Identifier: Apache-2.0
#include "device_cpu.h"

#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace gpt {
namespace {

void gemm(const Product& p, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, p.turn_a ? CblasTrans : CblasNoTrans,
              p.turn_b ? CblasTrans : CblasNoTrans, static_cast<int>(p.rows),
              static_cast<int>(p.columns), static_cast<int>(p.inner), static_cast<float>(p.scale),
              a, static_cast<int>(p.turn_a ? p.rows : p.inner), b,
              static_cast<int>(p.turn_b ? p.inner : p.columns), static_cast<float>(p.keep), c,
              static_cast<int>(p.columns));
}

void gemm(const Product& p, const double* a, const double* b, double* c) {
  cblas_dgemm(
      CblasRowMajor, p.turn_a ? CblasTrans : CblasNoTrans, p.turn_b ? CblasTrans : CblasNoTrans,
      static_cast<int>(p.rows), static_cast<int>(p.columns), static_cast<int>(p.inner), p.scale, a,
      static_cast<int>(p.turn_a ? p.rows : p.inner), b,
      static_cast<int>(p.turn_b ? p.inner : p.columns), p.keep, c, static_cast<int>(p.columns));
}

int64_t physical_bytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : INT64_MAX;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <class Real>
class CpuDevice final : public Device {
 public:
  Precision precision() const override {
    return sizeof(Real) == sizeof(double) ? Precision::kF64 : Precision::kF32;
  }

  void* allocate(int64_t bytes) override {
    // Untouched zero pages are always granted; what will not fit must be refused before it is used.
    if (bytes > limit_bytes_ - allocated_bytes_) throw std::runtime_error(kTooLarge);
    memory_.emplace_back(std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1));
    if (!memory_.back()) throw std::runtime_error(kTooLarge);
    allocated_bytes_ += bytes;
    return memory_.back().get();
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void download(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void clear(void* memory, int64_t bytes) override {
    std::memset(memory, 0, static_cast<size_t>(bytes));
  }
  void convert(int64_t count, const float* from, void* to) override {
    std::copy_n(from, count, static_cast<Real*>(to));
  }

  void multiply(const Product& product, const void* a, const void* b, void* c) override {
    for (int64_t i = 0; i < product.batch; ++i) {
      gemm(product, in(a) + i * product.rows * product.inner,
           in(b) + i * product.inner * product.columns,
           out(c) + i * product.rows * product.columns);
    }
  }
  void add(int64_t count, const void* from, void* to) override {
    const Real* source = in(from);
    Real* target = out(to);
    for (int64_t i = 0; i < count; ++i) target[i] += source[i];
  }
  void add_bias(int64_t rows, int64_t columns, const void* bias, void* values) override {
    for (int64_t row = 0; row < rows; ++row) add(columns, bias, out(values) + row * columns);
  }
  void sum_rows(int64_t rows, int64_t columns, const void* values, bool keep, void* sums) override {
    if (!keep) std::fill_n(out(sums), columns, Real{0});
    for (int64_t row = 0; row < rows; ++row) add(columns, in(values) + row * columns, sums);
  }

  void embed(int64_t rows, int64_t length, int64_t channels, const uint8_t* tokens,
             const void* token_table, const void* position_table, void* result) override {
    for (int64_t row = 0; row < rows; ++row) {
      Real* target = out(result) + row * channels;
      std::copy_n(in(token_table) + tokens[row] * channels, channels, target);
      add(channels, in(position_table) + row % length * channels, target);
    }
  }
  void embed_backward(int64_t rows, int64_t length, int64_t channels, int64_t vocabulary,
                      const uint8_t* tokens, const void* gradient, bool keep_tokens,
                      bool keep_positions, void* token_gradient, void* position_gradient) override {
    if (!keep_tokens) std::fill_n(out(token_gradient), vocabulary * channels, Real{0});
    if (!keep_positions) std::fill_n(out(position_gradient), length * channels, Real{0});
    for (int64_t row = 0; row < rows; ++row) {
      const Real* source = in(gradient) + row * channels;
      add(channels, source, out(token_gradient) + tokens[row] * channels);
      add(channels, source, out(position_gradient) + row % length * channels);
    }
  }

  void normalise(int64_t rows, int64_t channels, const void* input, const void* weight,
                 const void* bias, void* result, void* statistics) override {
    for (int64_t row = 0; row < rows; ++row) {
      const Real* x = in(input) + row * channels;
      Real* y = out(result) + row * channels;
      Real mean = 0, variance = 0;
      for (int64_t c = 0; c < channels; ++c) mean += x[c];
      mean /= static_cast<Real>(channels);
      for (int64_t c = 0; c < channels; ++c) variance += (x[c] - mean) * (x[c] - mean);
      variance /= static_cast<Real>(channels);
      const Real scale = 1 / std::sqrt(variance + static_cast<Real>(kNormEpsilon));
      for (int64_t c = 0; c < channels; ++c) {
        y[c] = (x[c] - mean) * scale * in(weight)[c] + in(bias)[c];
      }
      out(statistics)[2 * row] = mean;
      out(statistics)[2 * row + 1] = scale;
    }
  }
  void normalise_backward(int64_t rows, int64_t channels, const void* out_gradient,
                          const void* input, const void* weight, const void* statistics, bool keep,
                          void* in_gradient, void* weight_gradient, void* bias_gradient) override {
    if (!keep) {
      std::fill_n(out(weight_gradient), channels, Real{0});
      std::fill_n(out(bias_gradient), channels, Real{0});
    }
    for (int64_t row = 0; row < rows; ++row) {
      const Real mean = in(statistics)[2 * row], scale = in(statistics)[2 * row + 1];
      const Real* x = in(input) + row * channels;
      const Real* dy = in(out_gradient) + row * channels;
      Real* dx = out(in_gradient) + row * channels;
      Real sum = 0, product_sum = 0;  // of the gradient at the normalised values
      for (int64_t c = 0; c < channels; ++c) {
        const Real normal = (x[c] - mean) * scale;
        const Real gradient = dy[c] * in(weight)[c];
        sum += gradient;
        product_sum += gradient * normal;
        out(weight_gradient)[c] += dy[c] * normal;
        out(bias_gradient)[c] += dy[c];
      }
      sum /= static_cast<Real>(channels);
      product_sum /= static_cast<Real>(channels);
      for (int64_t c = 0; c < channels; ++c) {
        const Real normal = (x[c] - mean) * scale;
        dx[c] += (dy[c] * in(weight)[c] - sum - normal * product_sum) * scale;
      }
    }
  }

  void gelu(int64_t count, const void* input, void* result) override {
    for (int64_t i = 0; i < count; ++i) {
      const Real x = in(input)[i];
      out(result)[i] = x * (1 + std::tanh(bend(x))) / 2;
    }
  }
  void gelu_backward(int64_t count, const void* input, void* gradient) override {
    for (int64_t i = 0; i < count; ++i) {
      const Real x = in(input)[i], tanh = std::tanh(bend(x));
      const Real slope =
          static_cast<Real>(kGeluScale) * (1 + 3 * static_cast<Real>(kGeluCube) * x * x);
      out(gradient)[i] *= (1 + tanh + x * (1 - tanh * tanh) * slope) / 2;
    }
  }

  void split_heads(const HeadShape& shape, int64_t parts, const void* input,
                   void* result) override {
    visit_heads(shape, parts, [&](int64_t joined, int64_t split) {
      std::copy_n(in(input) + joined, shape.width, out(result) + split);
    });
  }
  void merge_heads(const HeadShape& shape, int64_t parts, const void* input,
                   void* result) override {
    visit_heads(shape, parts, [&](int64_t joined, int64_t split) {
      std::copy_n(in(input) + split, shape.width, out(result) + joined);
    });
  }

  void causal_softmax(const HeadShape& shape, void* scores) override {
    const int64_t length = shape.length;
    for (int64_t row = 0; row < shape.matrices() * length; ++row) {
      Real* values = out(scores) + row * length;
      const int64_t seen = row % length + 1;
      const Real largest = *std::max_element(values, values + seen);
      Real sum = 0;
      for (int64_t i = 0; i < seen; ++i) sum += values[i] = std::exp(values[i] - largest);
      for (int64_t i = 0; i < seen; ++i) values[i] /= sum;
      std::fill(values + seen, values + length, Real{0});
    }
  }
  void causal_softmax_backward(const HeadShape& shape, const void* shares,
                               void* gradient) override {
    const int64_t length = shape.length;
    for (int64_t row = 0; row < shape.matrices() * length; ++row) {
      const Real* share = in(shares) + row * length;
      Real* values = out(gradient) + row * length;
      const int64_t seen = row % length + 1;
      Real sum = 0;
      for (int64_t i = 0; i < seen; ++i) sum += share[i] * values[i];
      for (int64_t i = 0; i < seen; ++i) values[i] = share[i] * (values[i] - sum);
      std::fill(values + seen, values + length, Real{0});
    }
  }

  void cross_entropy(int64_t rows, int64_t columns, const uint8_t* targets, double scale, bool keep,
                     void* logits, double* loss) override {
    double total = 0;
    for (int64_t row = 0; row < rows; ++row) {
      Real* values = out(logits) + row * columns;
      const Real largest = *std::max_element(values, values + columns);
      const Real wanted = values[targets[row]] - largest;
      Real sum = 0;
      for (int64_t i = 0; i < columns; ++i) sum += values[i] = std::exp(values[i] - largest);
      total += static_cast<double>(std::log(sum) - wanted);
      const Real factor = static_cast<Real>(scale) / sum;
      for (int64_t i = 0; i < columns; ++i) values[i] *= factor;
      values[targets[row]] -= static_cast<Real>(scale);
    }
    *loss = keep ? *loss + total : total;
  }

  void adamw(const AdamStep& step, int64_t count, const void* gradient, float* first, float* second,
             float* values, void* rounded) override {
    const auto beta1 = static_cast<float>(kBeta1), beta2 = static_cast<float>(kBeta2);
    const auto steps = static_cast<double>(step.step + 1);
    const auto rate = static_cast<float>(step.rate / (1 - std::pow(kBeta1, steps)));
    const auto correction = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, steps)));
    const auto remaining = static_cast<float>(1 - step.rate * step.decay);
    for (int64_t i = 0; i < count; ++i) {
      const auto g = static_cast<float>(in(gradient)[i]);
      first[i] = beta1 * first[i] + (1 - beta1) * g;
      second[i] = beta2 * second[i] + (1 - beta2) * (g * g);
      values[i] =
          remaining * values[i] -
          rate * first[i] / (std::sqrt(second[i]) * correction + static_cast<float>(kAdamEpsilon));
    }
    if (rounded != values) convert(count, values, rounded);
  }

 private:
  static const Real* in(const void* memory) { return static_cast<const Real*>(memory); }
  static Real* out(void* memory) { return static_cast<Real*>(memory); }
  static Real bend(Real x) {
    return static_cast<Real>(kGeluScale) * (x + static_cast<Real>(kGeluCube) * x * x * x);
  }

  /// Calls visit(offset in a row of tokens, offset among the heads) for each run of `width`.
  template <class Visit>
  static void visit_heads(const HeadShape& shape, int64_t parts, Visit visit) {
    int64_t joined = 0;
    for (int64_t token = 0; token < shape.sequences * shape.length; ++token) {
      const int64_t sequence = token / shape.length, place = token % shape.length;
      for (int64_t part = 0; part < parts; ++part) {
        for (int64_t head = 0; head < shape.heads; ++head) {
          const int64_t matrix = (part * shape.sequences + sequence) * shape.heads + head;
          visit(joined, (matrix * shape.length + place) * shape.width);
          joined += shape.width;
        }
      }
    }
  }

  const int64_t limit_bytes_ = physical_bytes();
  int64_t allocated_bytes_ = 0;
  std::vector<std::unique_ptr<void, Free>> memory_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(Precision precision) {
  if (precision == Precision::kBf16) {
    throw std::runtime_error("--dtype bf16 needs a GPU; use --dtype f32 with --device cpu");
  }
  if (precision == Precision::kF64) return std::make_unique<CpuDevice<double>>();
  return std::make_unique<CpuDevice<float>>();
}

}  // namespace gpt
