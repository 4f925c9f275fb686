// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device.h"

namespace gpt {

inline constexpr int64_t kVocabulary = 256;  // bytes

struct Shape {
  int64_t layers = 4;
  int64_t channels = 128;
  int64_t heads = 4;
  int64_t length = 64;  // bytes that the network sees at once
  bool tied = true;     // the head's weights are the token embedding's
};

/// One trainable tensor; its values lie at `offset` of the flat range of all parameters.
struct Parameter {
  std::string name;
  int64_t count;
  int64_t offset;  // elements
  int64_t rows;    // of the matrix; 0: a bias or of a norm, which does not decay
  int unit;        // those of one unit are used together: embeddings, a block, or norm and head
};

/// Which of a step's equal parts forward() and backward() take; those behind the first add to it.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
};

/// Memory of parameters outside of the network. It uses those of a unit between enter() and leave()
/// only.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual void enter(int unit) = 0;
  virtual void leave(int unit) = 0;
  /// Elements of the device's precision, on the device.
  virtual void* weight(int parameter) = 0;
};

/// A decoder-only transformer as GPT-2, on bytes: learned positions, norms before attention and
/// MLP. It keeps parameters and optimizer state, or uses the parameters of a source.
class Network {
 public:
  /// @param device borrowed. @param sequences most of one forward().
  Network(Device* device, const Shape& shape, int64_t sequences);

  /// In order of the forward pass, so gradients become ready from the last to the first, except a
  /// tied embedding's, which is last.
  const std::vector<Parameter>& layout() const { return layout_; }
  int64_t parameter_count() const { return parameter_count_; }
  int unit_count() const { return unit_count_; }

  /// Calls set(i, values) for each parameter: uniform, from its own generator, so equal bits on
  /// every rank.
  void initial_values(uint64_t seed,
                      const std::function<void(int, const std::vector<float>&)>& set) const;
  /// Keeps parameters and optimizer state itself, from these values on.
  void initialise(uint64_t seed);
  /// Uses the parameters of `source`, which is borrowed, and has none of its own.
  void use(ParameterSource* source) { source_ = source; }

  /// `text`: sequences * (length + 1) bytes; each byte is to be foretold from those before. The sum
  /// of the cross entropies, nats, goes to loss(). Runs half of the way back, up to the logits, and
  /// leaves the units of the head to backward().
  void forward(const uint8_t* text, int64_t sequences, const Part& part = {});
  /// Writes the last forward()'s share of the gradient of the step's mean loss to gradient(i),
  /// elements of the device's precision, or adds it there if its part is not the first, and calls
  /// ready(i) once the device was told all that makes it. Asks for gradient(i) each time.
  void backward(const std::function<void*(int)>& gradient, const std::function<void(int)>& ready);
  /// AdamW on the network's own parameters.
  void update(const AdamStep& step, const std::function<void*(int)>& gradient);

  /// On the device: one number.
  double* loss() const { return loss_; }
  double read_loss() const;
  /// Copies of its own, [parameter_count()]; `moments` has the first, then the second.
  std::vector<float> read_parameters() const;
  std::vector<float> read_moments() const;
  void write_parameters(const std::vector<float>& values);
  /// On the device: what forward() uses, elements of its precision.
  void* weight(int parameter) const;

 private:
  /// Indices into layout() and what the way back needs of one block.
  struct Block {
    int unit, norm1, qkv, qkv_bias, out, out_bias, norm2, up, up_bias, down, down_bias;
    void *in, *normal1, *statistics1, *heads, *shares, *mixed;
    void *middle, *normal2, *statistics2, *wide, *bent;
  };
  int add_parameter(const std::string& name, int64_t rows, int64_t columns);
  int add_norm(const std::string& name);
  void add_block(int64_t index);
  void* allocate(int64_t elements);
  void* part(void* memory, int64_t elements) const;
  int unit_of(int parameter) const { return layout_[static_cast<size_t>(parameter)].unit; }
  void enter(int unit) const;
  void leave(int unit) const;
  void* gradient(int parameter) const { return (*gradient_of_)(parameter); }
  void forward_block(const Block& block, void* out);
  void backward_block(const Block& block);
  void attend(const Block& block);
  void attend_backward(const Block& block);
  /// out = in * weight + bias.
  void linear(int weight, int bias, int64_t inputs, int64_t outputs, const void* in, void* out);
  /// From the gradient of `out` to all others; in_gradient is overwritten.
  void linear_backward(int weight, int bias, int64_t inputs, int64_t outputs, const void* in,
                       const void* out_gradient, void* in_gradient);
  void normalise(int norm, const void* in, void* out, void* statistics);
  void normalise_backward(int norm, const void* out_gradient, const void* in,
                          const void* statistics);
  HeadShape head_shape() const;

  Device* const device_;
  const Shape shape_;
  const int64_t most_rows_;  // tokens
  std::vector<Parameter> layout_;
  int64_t parameter_count_ = 0;
  int unit_count_ = 0;
  ParameterSource* source_ = nullptr;  // none: the parameters are below
  int token_table_, position_table_, final_norm_, head_;
  std::vector<Block> blocks_;
  float *values_ = nullptr, *first_ = nullptr, *second_ = nullptr;
  void* weights_ = nullptr;  // values_ rounded, or values_ itself

  int64_t rows_ = 0;   // tokens of the last forward()
  bool keep_ = false;  // its part is not the step's first
  uint8_t *tokens_, *targets_;
  void *last_, *normal_, *statistics_, *logits_;
  void *gradient_, *narrow_, *wide_, *heads_, *shares_;  // of the way back
  double* loss_;

  const std::function<void*(int)>* gradient_of_ = nullptr;  // while backward() runs
  const std::function<void(int)>* ready_ = nullptr;
};

}  // namespace gpt
