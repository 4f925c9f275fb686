// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpt {

/// Of activations, of the weights that products use, and of gradients. kF64 is for tests.
enum class Precision { kF32, kBf16, kF64 };

/// One parameter update by AdamW (Loshchilov and Hutter, ICLR 2019).
struct AdamStep {
  int64_t step = 0;  // from 0
  double rate = 0;
  double decay = 0;
};

/// Two attention tensors of one shape, one matrix per (sequence, head).
struct HeadShape {
  int64_t sequences = 0;
  int64_t length = 0;  // tokens per sequence
  int64_t heads = 0;
  int64_t width = 0;  // channels per head
  int64_t matrices() const { return sequences * heads; }
};

/// One batch of matrix products c = scale * a * b + keep * c, [rows x inner] * [inner x columns],
/// all row by row; a turned matrix is stored transposed. The matrices of a batch lie back to back.
struct Product {
  int64_t rows = 0, columns = 0, inner = 0;
  bool turn_a = false, turn_b = false;
  double scale = 1;
  double keep = 0;
  int64_t batch = 1;
};

/// Memory and arithmetic of one processor. Pointers are to its own memory; `void*` means elements
/// of its precision. Calls are carried out in order, and on a GPU return before they are done; what
/// goes wrong is thrown as std::runtime_error.
class Device {
 public:
  virtual ~Device() = default;

  virtual Precision precision() const = 0;
  int64_t element_bytes() const;
  /// Whether its memory is a GPU's.
  virtual bool is_gpu() const { return false; }
  /// The CUDA stream of a GPU, on which everything below runs.
  virtual void* stream() const { return nullptr; }
  /// How many bytes of the GPU's memory all processes together have allocated.
  virtual int64_t taken_bytes() const { return 0; }

  /// Zeroed; lives as long as the device. Throws with advice when it does not fit.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  /// Waits for everything before.
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  virtual void synchronise() {}
  virtual void clear(void* memory, int64_t bytes) = 0;
  /// Rounds to elements.
  virtual void convert(int64_t count, const float* from, void* to) = 0;

  virtual void multiply(const Product& product, const void* a, const void* b, void* c) = 0;
  /// to += from.
  virtual void add(int64_t count, const void* from, void* to) = 0;
  /// Adds bias[column] to every row.
  virtual void add_bias(int64_t rows, int64_t columns, const void* bias, void* values) = 0;
  /// Sum of each column: the gradient of a bias; `keep` adds it to what is in sums.
  virtual void sum_rows(int64_t rows, int64_t columns, const void* values, bool keep,
                        void* sums) = 0;

  /// out[row] = token_table[tokens[row]] + position_table[row % length].
  virtual void embed(int64_t rows, int64_t length, int64_t channels, const uint8_t* tokens,
                     const void* token_table, const void* position_table, void* out) = 0;
  /// Each token's and position's sum of gradients; `keep_*` adds it to what is there.
  virtual void embed_backward(int64_t rows, int64_t length, int64_t channels, int64_t vocabulary,
                              const uint8_t* tokens, const void* gradient, bool keep_tokens,
                              bool keep_positions, void* token_gradient,
                              void* position_gradient) = 0;

  /// Layer normalisation of each row. `statistics`: 16 bytes per row, for the way back.
  virtual void normalise(int64_t rows, int64_t channels, const void* in, const void* weight,
                         const void* bias, void* out, void* statistics) = 0;
  /// Adds to in_gradient; overwrites the other two, or with `keep` adds to them.
  virtual void normalise_backward(int64_t rows, int64_t channels, const void* out_gradient,
                                  const void* in, const void* weight, const void* statistics,
                                  bool keep, void* in_gradient, void* weight_gradient,
                                  void* bias_gradient) = 0;

  /// GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415).
  virtual void gelu(int64_t count, const void* in, void* out) = 0;
  /// gradient *= the derivative at `in`.
  virtual void gelu_backward(int64_t count, const void* in, void* gradient) = 0;

  /// [sequence][token][part][head][width] to [part][sequence][head][token][width], for parts
  /// (query, key, value) that lie side by side in a row.
  virtual void split_heads(const HeadShape& shape, int64_t parts, const void* in, void* out) = 0;
  /// The way back.
  virtual void merge_heads(const HeadShape& shape, int64_t parts, const void* in, void* out) = 0;
  /// Softmax in place of each row of [matrices][length][length] over columns <= row; the others
  /// become 0.
  virtual void causal_softmax(const HeadShape& shape, void* scores) = 0;
  /// From the softmax's output and in place of its gradient to the gradient of its input.
  virtual void causal_softmax_backward(const HeadShape& shape, const void* shares,
                                       void* gradient) = 0;

  /// *loss = sum over rows of the cross entropy in nats, or with `keep` += it; logits become their
  /// gradient times scale.
  virtual void cross_entropy(int64_t rows, int64_t columns, const uint8_t* targets, double scale,
                             bool keep, void* logits, double* loss) = 0;

  /// Updates `count` values and their rounded copy, which may be the same memory.
  virtual void adamw(const AdamStep& step, int64_t count, const void* gradient, float* first,
                     float* second, float* values, void* rounded) = 0;
};

inline int64_t Device::element_bytes() const {
  switch (precision()) {
    case Precision::kBf16: return 2;
    case Precision::kF64: return 8;
    case Precision::kF32: break;
  }
  return 4;
}

inline constexpr double kBeta1 = 0.9, kBeta2 = 0.95;  // as Brown et al., arXiv 2005.14165
inline constexpr double kAdamEpsilon = 1e-8;
inline constexpr double kNormEpsilon = 1e-5;
inline constexpr int64_t kStatisticsBytes = 16;           // per row: mean and 1 / deviation
inline constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
inline constexpr double kGeluCube = 0.044715;

/// What a GPU or host says when memory is short.
inline constexpr char kTooLarge[] =
    "the model and its activations do not fit; choose a smaller --batch, --length, --channels or "
    "--layers, or more ranks";

}  // namespace gpt
