// SPDX-License-Identifier: Apache-2.0
// The example language model on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data.h"
#include "device_cpu.h"
#include "device_cuda.h"
#include "network.h"

using namespace gpt;

namespace {

/// Memory of a device for each gradient.
class Gradients {
 public:
  Gradients(Device* device, const Network& network) : device_(device), network_(network) {
    for (const Parameter& parameter : network.layout()) {
      pointers.push_back(device->allocate(parameter.count * device->element_bytes()));
    }
  }
  /// As float; from bf16 by its upper half.
  std::vector<float> read(size_t parameter) const {
    const auto count = static_cast<size_t>(network_.layout()[parameter].count);
    std::vector<float> values(count);
    if (device_->precision() == Precision::kF32) {
      device_->download(values.data(), pointers[parameter], static_cast<int64_t>(count * 4));
      return values;
    }
    std::vector<uint16_t> halves(count);
    device_->download(halves.data(), pointers[parameter], static_cast<int64_t>(count * 2));
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = uint32_t{halves[i]} << 16;
      std::memcpy(&values[i], &bits, sizeof bits);
    }
    return values;
  }
  std::vector<void*> pointers;
  const std::function<void*(int)> places = [this](int parameter) {
    return pointers[static_cast<size_t>(parameter)];
  };

 private:
  Device* const device_;
  const Network& network_;
};

std::string make_text(size_t bytes) {
  std::string text;
  const std::string words = "the quick brown fox jumps over the lazy dog; ";
  while (text.size() < bytes) text += words + static_cast<char>('a' + text.size() % 23);
  return text;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

/// Of b from a, relative to a; both zero is equal.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = b[i] - a[i];
  REQUIRE(std::isfinite(norm(b)));
  const double scale = norm(a);
  return scale == 0 ? norm(difference) : norm(difference) / scale;
}

/// Moves the weights from their start, so that every part of the network matters.
void shake(Network* network, float width) {
  std::vector<float> values = network->read_parameters();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += static_cast<float>(std::sin(static_cast<double>(i) * 1.7)) * width;
  }
  network->write_parameters(values);
}

/// Loss, gradients and the parameters after an update, on both.
void compare(const Shape& shape, Precision precision, double loss_limit, double gradient_limit) {
  constexpr int64_t kSequences = 3;
  const auto cpu = make_cpu_device(Precision::kF32);
  const auto gpu = make_cuda_device(0, precision);
  Network expected(cpu.get(), shape, kSequences), got(gpu.get(), shape, kSequences);
  for (Network* network : {&expected, &got}) {
    network->initialise(5);
    // Large weights would make much of the rounding of bf16.
    shake(network, precision == Precision::kF32 ? 0.1f : 0.02f);
  }
  CHECK(expected.read_parameters() == got.read_parameters());
  Gradients expected_gradients(cpu.get(), expected), gradients(gpu.get(), got);
  const std::string text = make_text(2000);
  // The second pass finds in every buffer what the first left there.
  for (int64_t step = 0; step < 2; ++step) {
    CAPTURE(step);
    const auto batch = cut_batch(text, 1, step, 0, kSequences, shape.length);
    std::vector<int> order, expected_order;
    expected.forward(batch.data(), kSequences);
    expected.backward(expected_gradients.places, [&](int i) { expected_order.push_back(i); });
    got.forward(batch.data(), kSequences);
    got.backward(gradients.places, [&](int i) { order.push_back(i); });
    CHECK(order == expected_order);
    CHECK(got.read_loss() == doctest::Approx(expected.read_loss()).epsilon(loss_limit));
    for (size_t i = 0; i < got.layout().size(); ++i) {
      CAPTURE(got.layout()[i].name);
      CHECK(distance(expected_gradients.read(i), gradients.read(i)) <= gradient_limit);
    }
  }
  if (precision != Precision::kF32) return;
  // The same gradients on both: a first step's size does not depend on theirs, so noise would
  // count.
  for (size_t i = 0; i < got.layout().size(); ++i) {
    const std::vector<float> values = expected_gradients.read(i);
    gpu->upload(gradients.pointers[i], values.data(), static_cast<int64_t>(values.size() * 4));
  }
  AdamStep adam;
  adam.rate = 0.01;
  adam.decay = 0.1;
  for (adam.step = 0; adam.step < 2; ++adam.step) {
    expected.update(adam, expected_gradients.places);
    got.update(adam, gradients.places);
  }
  CHECK(distance(expected.read_parameters(), got.read_parameters()) <= 1e-6);
  CHECK(distance(expected.read_moments(), got.read_moments()) <= 1e-5);
}

Shape shape_of(int64_t layers, int64_t channels, int64_t heads, int64_t length, bool tied) {
  Shape shape;
  shape.layers = layers;
  shape.channels = channels;
  shape.heads = heads;
  shape.length = length;
  shape.tied = tied;
  return shape;
}

/// Odd, smaller than a block of threads, larger than one, and one of everything.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      shape_of(2, 21, 3, 13, true), shape_of(1, 48, 4, 64, false), shape_of(2, 160, 5, 33, true),
      shape_of(1, 8, 1, 150, true), shape_of(1, 1, 1, 1, false),
  };
  return all;
}

}  // namespace

TEST_CASE("f32 loss, gradients and update are those of the CPU") {
  for (const Shape& shape : shapes()) {
    CAPTURE(shape.channels);
    compare(shape, Precision::kF32, 1e-5, 1e-3);
  }
}

TEST_CASE("bf16 loss and gradients are close to those of the CPU") {
  for (const Shape& shape : shapes()) {
    if (shape.channels == 1) continue;  // a norm of one channel is zero but for rounding
    CAPTURE(shape.channels);
    compare(shape, Precision::kBf16, 1e-2, 0.1);
  }
}

TEST_CASE("a batch in parts has the loss and the gradients of the whole on the CPU") {
  constexpr int64_t kSequences = 3;
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Shape shape = shape_of(2, 21, 3, 13, tied);
    const auto cpu = make_cpu_device(Precision::kF32);
    const auto gpu = make_cuda_device(0, Precision::kF32);
    Network expected(cpu.get(), shape, kSequences), got(gpu.get(), shape, 1);
    for (Network* network : {&expected, &got}) {
      network->initialise(5);
      shake(network, 0.1f);
    }
    Gradients expected_gradients(cpu.get(), expected), gradients(gpu.get(), got);
    const auto batch = cut_batch(make_text(2000), 1, 0, 0, kSequences, shape.length);
    expected.forward(batch.data(), kSequences);
    expected.backward(expected_gradients.places, [](int) {});
    for (int64_t i = 0; i < kSequences; ++i) {
      got.forward(batch.data() + i * (shape.length + 1), 1, {i, kSequences});
      got.backward(gradients.places, [](int) {});
    }
    CHECK(got.read_loss() == doctest::Approx(expected.read_loss()).epsilon(1e-5));
    for (size_t i = 0; i < got.layout().size(); ++i) {
      CAPTURE(got.layout()[i].name);
      CHECK(distance(expected_gradients.read(i), gradients.read(i)) <= 1e-3);
    }
  }
}

TEST_CASE("twenty steps on a GPU make the loss fall, twice alike") {
  constexpr int64_t kSequences = 4, kSteps = 20;
  const Shape shape = shape_of(2, 32, 4, 32, true);
  const std::string text = make_text(5000);
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    CAPTURE(static_cast<int>(precision));
    std::vector<std::vector<double>> curves;
    for (int run = 0; run < 2; ++run) {
      const auto gpu = make_cuda_device(0, precision);
      Network network(gpu.get(), shape, kSequences);
      network.initialise(1);
      Gradients gradients(gpu.get(), network);
      curves.emplace_back();
      for (int64_t step = 0; step < kSteps; ++step) {
        const auto batch = cut_batch(text, 1, step, 0, kSequences, shape.length);
        network.forward(batch.data(), kSequences);
        network.backward(gradients.places, [](int) {});
        AdamStep adam;
        adam.step = step;
        adam.rate = 0.01;
        network.update(adam, gradients.places);
        curves.back().push_back(network.read_loss() /
                                static_cast<double>(kSequences * shape.length));
      }
      CHECK(curves.back().front() == doctest::Approx(std::log(256.0)).epsilon(0.02));
      CHECK(curves.back().back() < curves.back().front() - 1.0);
    }
    CHECK(curves[0] == curves[1]);
  }
}
