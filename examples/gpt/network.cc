// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

constexpr double kDeviation = 0.02;  // of initial weights, as GPT-2

/// Steele, Lea, Flood, OOPSLA 2014.
uint64_t split_mix(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Network::Network(Device* device, const Shape& shape, int64_t sequences)
    : device_(device), shape_(shape), most_rows_(sequences * shape.length) {
  const int64_t channels = shape.channels;
  unit_count_ = 1;  // of which each parameter joins the last one
  token_table_ = add_parameter("token_embedding", kVocabulary, channels);
  position_table_ = add_parameter("position_embedding", shape.length, channels);
  for (int64_t i = 0; i < shape.layers; ++i) add_block(i);
  ++unit_count_;
  final_norm_ = add_norm("final_norm");
  head_ = shape.tied ? token_table_ : add_parameter("head", kVocabulary, channels);

  const int64_t scores = sequences * shape.heads * shape.length * shape.length;
  for (Block& block : blocks_) {
    block.in = allocate(most_rows_ * channels);
    block.normal1 = allocate(most_rows_ * channels);
    block.statistics1 = device_->allocate(most_rows_ * kStatisticsBytes);
    block.heads = allocate(3 * most_rows_ * channels);
    block.shares = allocate(scores);
    block.mixed = allocate(most_rows_ * channels);
    block.middle = allocate(most_rows_ * channels);
    block.normal2 = allocate(most_rows_ * channels);
    block.statistics2 = device_->allocate(most_rows_ * kStatisticsBytes);
    block.wide = allocate(4 * most_rows_ * channels);
    block.bent = allocate(4 * most_rows_ * channels);
  }
  tokens_ = static_cast<uint8_t*>(device_->allocate(most_rows_));
  targets_ = static_cast<uint8_t*>(device_->allocate(most_rows_));
  last_ = allocate(most_rows_ * channels);
  normal_ = allocate(most_rows_ * channels);
  statistics_ = device_->allocate(most_rows_ * kStatisticsBytes);
  logits_ = allocate(most_rows_ * kVocabulary);
  gradient_ = allocate(most_rows_ * channels);
  narrow_ = allocate(most_rows_ * channels);
  wide_ = allocate(4 * most_rows_ * channels);
  heads_ = allocate(3 * most_rows_ * channels);
  shares_ = allocate(scores);
  loss_ = static_cast<double*>(device_->allocate(sizeof(double)));
}

int Network::add_parameter(const std::string& name, int64_t rows, int64_t columns) {
  const int64_t count = std::max<int64_t>(rows, 1) * columns;
  layout_.push_back({name, count, parameter_count_, rows, unit_count_ - 1});
  parameter_count_ += count;
  return static_cast<int>(layout_.size()) - 1;
}

int Network::add_norm(const std::string& name) {
  const int weight = add_parameter(name + ".weight", 0, shape_.channels);
  add_parameter(name + ".bias", 0, shape_.channels);
  return weight;
}

void Network::add_block(int64_t index) {
  const int64_t channels = shape_.channels;
  const std::string name = "block" + std::to_string(index) + ".";
  Block block = {};
  block.unit = unit_count_++;
  block.norm1 = add_norm(name + "norm1");
  block.qkv = add_parameter(name + "qkv.weight", channels, 3 * channels);
  block.qkv_bias = add_parameter(name + "qkv.bias", 0, 3 * channels);
  block.out = add_parameter(name + "out.weight", channels, channels);
  block.out_bias = add_parameter(name + "out.bias", 0, channels);
  block.norm2 = add_norm(name + "norm2");
  block.up = add_parameter(name + "up.weight", channels, 4 * channels);
  block.up_bias = add_parameter(name + "up.bias", 0, 4 * channels);
  block.down = add_parameter(name + "down.weight", 4 * channels, channels);
  block.down_bias = add_parameter(name + "down.bias", 0, channels);
  blocks_.push_back(block);
}

void* Network::allocate(int64_t elements) {
  return device_->allocate(elements * device_->element_bytes());
}

void* Network::part(void* memory, int64_t elements) const {
  return static_cast<char*>(memory) + elements * device_->element_bytes();
}

void Network::enter(int unit) const {
  if (source_) source_->enter(unit);
}

void Network::leave(int unit) const {
  if (source_) source_->leave(unit);
}

void* Network::weight(int parameter) const {
  if (source_) return source_->weight(parameter);
  return part(weights_, layout_[static_cast<size_t>(parameter)].offset);
}

void Network::initial_values(uint64_t seed,
                             const std::function<void(int, const std::vector<float>&)>& set) const {
  uint64_t state = seed;
  for (size_t index = 0; index < layout_.size(); ++index) {
    const Parameter& parameter = layout_[index];
    std::vector<float> values(static_cast<size_t>(parameter.count));
    if (parameter.rows == 0) {
      const bool is_scale =
          parameter.name.find("norm") != std::string::npos && ends_with(parameter.name, ".weight");
      std::fill(values.begin(), values.end(), is_scale ? 1.0f : 0.0f);
    } else {
      // What is added to the residual path is smaller in deep networks, as in GPT-2.
      const bool joins =
          ends_with(parameter.name, "out.weight") || ends_with(parameter.name, "down.weight");
      const double deviation =
          joins ? kDeviation / std::sqrt(2.0 * static_cast<double>(shape_.layers)) : kDeviation;
      const double width = deviation * std::sqrt(12.0);
      for (float& value : values) {
        const double uniform = static_cast<double>(split_mix(&state) >> 11) * 0x1p-53;
        value = static_cast<float>((uniform - 0.5) * width);
      }
    }
    set(static_cast<int>(index), values);
  }
}

void Network::initialise(uint64_t seed) {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(parameter_count_));
  initial_values(seed, [&](int, const std::vector<float>& values) {
    all.insert(all.end(), values.begin(), values.end());
  });
  write_parameters(all);
}

HeadShape Network::head_shape() const {
  return {rows_ / shape_.length, shape_.length, shape_.heads, shape_.channels / shape_.heads};
}

void Network::forward(const uint8_t* text, int64_t sequences, const Part& part) {
  const int64_t length = shape_.length, channels = shape_.channels;
  rows_ = sequences * length;
  keep_ = part.index > 0;
  std::vector<uint8_t> tokens, targets;
  for (int64_t i = 0; i < sequences; ++i) {
    const uint8_t* begin = text + i * (length + 1);
    tokens.insert(tokens.end(), begin, begin + length);
    targets.insert(targets.end(), begin + 1, begin + length + 1);
  }
  device_->upload(tokens_, tokens.data(), rows_);
  device_->upload(targets_, targets.data(), rows_);

  enter(unit_of(token_table_));
  device_->embed(rows_, length, channels, tokens_, weight(token_table_), weight(position_table_),
                 blocks_.empty() ? last_ : blocks_[0].in);
  leave(unit_of(token_table_));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    enter(blocks_[i].unit);
    forward_block(blocks_[i], i + 1 < blocks_.size() ? blocks_[i + 1].in : last_);
    leave(blocks_[i].unit);
  }
  enter(unit_of(final_norm_));
  if (shape_.tied) enter(unit_of(head_));
  normalise(final_norm_, last_, normal_, statistics_);
  Product product;
  product.rows = rows_;
  product.columns = kVocabulary;
  product.inner = channels;
  product.turn_b = true;
  device_->multiply(product, normal_, weight(head_), logits_);
  device_->cross_entropy(rows_, kVocabulary, targets_,
                         1.0 / static_cast<double>(rows_ * part.count), keep_, logits_, loss_);
}

void Network::forward_block(const Block& block, void* out) {
  const int64_t channels = shape_.channels, elements = rows_ * channels;
  normalise(block.norm1, block.in, block.normal1, block.statistics1);
  attend(block);
  linear(block.out, block.out_bias, channels, channels, block.mixed, block.middle);
  device_->add(elements, block.in, block.middle);

  normalise(block.norm2, block.middle, block.normal2, block.statistics2);
  linear(block.up, block.up_bias, channels, 4 * channels, block.normal2, block.wide);
  device_->gelu(4 * elements, block.wide, block.bent);
  linear(block.down, block.down_bias, 4 * channels, channels, block.bent, out);
  device_->add(elements, block.middle, out);
}

void Network::attend(const Block& block) {
  const HeadShape shape = head_shape();
  const int64_t elements = rows_ * shape_.channels;
  void* const queries = block.heads;
  void* const keys = part(block.heads, elements);
  void* const values = part(block.heads, 2 * elements);
  linear(block.qkv, block.qkv_bias, shape_.channels, 3 * shape_.channels, block.normal1, wide_);
  device_->split_heads(shape, 3, wide_, block.heads);
  Product score;
  score.rows = score.columns = shape.length;
  score.inner = shape.width;
  score.turn_b = true;
  score.scale = 1 / std::sqrt(static_cast<double>(shape.width));
  score.batch = shape.matrices();
  device_->multiply(score, queries, keys, block.shares);
  device_->causal_softmax(shape, block.shares);
  Product mix;
  mix.rows = mix.inner = shape.length;
  mix.columns = shape.width;
  mix.batch = shape.matrices();
  device_->multiply(mix, block.shares, values, narrow_);
  device_->merge_heads(shape, 1, narrow_, block.mixed);
}

void Network::backward(const std::function<void*(int)>& gradient,
                       const std::function<void(int)>& ready) {
  const int64_t channels = shape_.channels;
  gradient_of_ = &gradient;
  ready_ = &ready;
  Product head;
  head.rows = kVocabulary;
  head.columns = channels;
  head.inner = rows_;
  head.turn_a = true;
  head.keep = keep_ ? 1 : 0;
  device_->multiply(head, logits_, normal_, gradient(head_));
  if (!shape_.tied) ready(head_);
  Product back;
  back.rows = rows_;
  back.columns = channels;
  back.inner = kVocabulary;
  device_->multiply(back, logits_, weight(head_), narrow_);

  // gradient_ is that of the residual path; each block adds its share to it.
  device_->clear(gradient_, rows_ * channels * device_->element_bytes());
  normalise_backward(final_norm_, narrow_, last_, statistics_);
  leave(unit_of(final_norm_));
  if (shape_.tied) leave(unit_of(head_));
  for (size_t i = blocks_.size(); i-- > 0;) {
    enter(blocks_[i].unit);
    backward_block(blocks_[i]);
    leave(blocks_[i].unit);
  }
  // The gradients of the embeddings need none of their values.
  device_->embed_backward(rows_, shape_.length, channels, kVocabulary, tokens_, gradient_,
                          keep_ || shape_.tied, keep_, gradient(token_table_),
                          gradient(position_table_));
  ready(position_table_);
  ready(token_table_);
  gradient_of_ = nullptr;
  ready_ = nullptr;
}

void Network::backward_block(const Block& block) {
  const int64_t channels = shape_.channels;
  linear_backward(block.down, block.down_bias, 4 * channels, channels, block.bent, gradient_,
                  wide_);
  device_->gelu_backward(4 * rows_ * channels, block.wide, wide_);
  linear_backward(block.up, block.up_bias, channels, 4 * channels, block.normal2, wide_, narrow_);
  normalise_backward(block.norm2, narrow_, block.middle, block.statistics2);

  linear_backward(block.out, block.out_bias, channels, channels, block.mixed, gradient_, narrow_);
  attend_backward(block);
  linear_backward(block.qkv, block.qkv_bias, channels, 3 * channels, block.normal1, wide_, narrow_);
  normalise_backward(block.norm1, narrow_, block.in, block.statistics1);
}

/// From the gradient of `mixed` in narrow_ to that of queries, keys and values in wide_.
void Network::attend_backward(const Block& block) {
  const HeadShape shape = head_shape();
  const int64_t elements = rows_ * shape_.channels;
  void* const mixed_gradient = wide_;  // split; wide_ itself is written last
  device_->split_heads(shape, 1, narrow_, mixed_gradient);
  Product to_shares;
  to_shares.rows = to_shares.columns = shape.length;
  to_shares.inner = shape.width;
  to_shares.turn_b = true;
  to_shares.batch = shape.matrices();
  device_->multiply(to_shares, mixed_gradient, part(block.heads, 2 * elements), shares_);
  Product to_heads;
  to_heads.rows = to_heads.inner = shape.length;
  to_heads.columns = shape.width;
  to_heads.batch = shape.matrices();
  to_heads.turn_a = true;
  device_->multiply(to_heads, block.shares, mixed_gradient, part(heads_, 2 * elements));
  device_->causal_softmax_backward(shape, block.shares, shares_);
  to_heads.scale = 1 / std::sqrt(static_cast<double>(shape.width));
  device_->multiply(to_heads, shares_, block.heads, part(heads_, elements));
  to_heads.turn_a = false;
  device_->multiply(to_heads, shares_, part(block.heads, elements), heads_);
  device_->merge_heads(shape, 3, heads_, wide_);
}

void Network::linear(int weight_index, int bias, int64_t inputs, int64_t outputs, const void* in,
                     void* out) {
  Product product;
  product.rows = rows_;
  product.columns = outputs;
  product.inner = inputs;
  device_->multiply(product, in, weight(weight_index), out);
  device_->add_bias(rows_, outputs, weight(bias), out);
}

void Network::linear_backward(int weight_index, int bias, int64_t inputs, int64_t outputs,
                              const void* in, const void* out_gradient, void* in_gradient) {
  device_->sum_rows(rows_, outputs, out_gradient, keep_, gradient(bias));
  (*ready_)(bias);
  Product to_weight;
  to_weight.rows = inputs;
  to_weight.columns = outputs;
  to_weight.inner = rows_;
  to_weight.turn_a = true;
  to_weight.keep = keep_ ? 1 : 0;
  device_->multiply(to_weight, in, out_gradient, gradient(weight_index));
  (*ready_)(weight_index);
  Product to_input;
  to_input.rows = rows_;
  to_input.columns = inputs;
  to_input.inner = outputs;
  to_input.turn_b = true;
  device_->multiply(to_input, out_gradient, weight(weight_index), in_gradient);
}

void Network::normalise(int norm, const void* in, void* out, void* statistics) {
  device_->normalise(rows_, shape_.channels, in, weight(norm), weight(norm + 1), out, statistics);
}

void Network::normalise_backward(int norm, const void* out_gradient, const void* in,
                                 const void* statistics) {
  device_->normalise_backward(rows_, shape_.channels, out_gradient, in, weight(norm), statistics,
                              keep_, gradient_, gradient(norm), gradient(norm + 1));
  (*ready_)(norm + 1);
  (*ready_)(norm);
}

void Network::update(const AdamStep& step, const std::function<void*(int)>& gradient) {
  for (size_t i = 0; i < layout_.size(); ++i) {
    const Parameter& parameter = layout_[i];
    AdamStep own = step;
    if (parameter.rows == 0) own.decay = 0;
    device_->adamw(own, parameter.count, gradient(static_cast<int>(i)), first_ + parameter.offset,
                   second_ + parameter.offset, values_ + parameter.offset,
                   part(weights_, parameter.offset));
  }
}

double Network::read_loss() const {
  double value = 0;
  device_->download(&value, loss_, sizeof value);
  return value;
}

std::vector<float> Network::read_parameters() const {
  std::vector<float> values(static_cast<size_t>(parameter_count_));
  device_->download(values.data(), values_, parameter_count_ * int64_t{sizeof(float)});
  return values;
}

std::vector<float> Network::read_moments() const {
  std::vector<float> values(2 * static_cast<size_t>(parameter_count_));
  const int64_t bytes = parameter_count_ * int64_t{sizeof(float)};
  device_->download(values.data(), first_, bytes);
  device_->download(values.data() + parameter_count_, second_, bytes);
  return values;
}

void Network::write_parameters(const std::vector<float>& values) {
  if (!values_) {
    const int64_t bytes = parameter_count_ * int64_t{sizeof(float)};
    values_ = static_cast<float*>(device_->allocate(bytes));
    first_ = static_cast<float*>(device_->allocate(bytes));
    second_ = static_cast<float*>(device_->allocate(bytes));
    weights_ = device_->precision() == Precision::kF32 ? values_ : allocate(parameter_count_);
  }
  device_->upload(values_, values.data(), parameter_count_ * int64_t{sizeof(float)});
  if (weights_ != values_) device_->convert(parameter_count_, values_, weights_);
}

}  // namespace gpt
