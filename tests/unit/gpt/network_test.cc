// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "device_cpu.h"

using namespace gpt;

namespace {

constexpr int64_t kSequences = 3;

Shape tiny(bool tied) {
  Shape shape;
  shape.layers = 2;
  shape.channels = 12;
  shape.heads = 3;
  shape.length = 5;
  shape.tied = tied;
  return shape;
}

/// Bytes from a fixed rule; some occur twice, also beside each other.
std::vector<uint8_t> make_text(const Shape& shape) {
  std::vector<uint8_t> text;
  for (int64_t i = 0; i < kSequences * (shape.length + 1); ++i) {
    text.push_back(static_cast<uint8_t>(i % 4 == 3 ? 255 : i * i * 7 % 50));
  }
  return text;
}

template <class Real>
struct Gradients {
  explicit Gradients(const Network& network) {
    for (const Parameter& parameter : network.layout()) {
      values.emplace_back(static_cast<size_t>(parameter.count), NAN);  // must all be overwritten
    }
  }
  std::vector<std::vector<Real>> values;
  const std::function<void*(int)> places = [this](int parameter) {
    return values[static_cast<size_t>(parameter)].data();
  };
};

/// Weights far from their start, where no gradient is near zero.
void shake(Network* network) {
  std::vector<float> values(static_cast<size_t>(network->parameter_count()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(static_cast<double>(i) * 1.7)) * 0.4f + 0.1f;
  }
  network->write_parameters(values);
}

}  // namespace

TEST_CASE("gradients agree with finite differences in every parameter") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Shape shape = tiny(tied);
    const std::vector<uint8_t> text = make_text(shape);
    const auto device = make_cpu_device(Precision::kF64);
    Network network(device.get(), shape, kSequences);
    network.initialise(7);
    shake(&network);
    Gradients<double> gradients(network);
    network.forward(text.data(), kSequences);
    std::vector<int> order;
    network.backward(gradients.places, [&](int parameter) { order.push_back(parameter); });
    CHECK(order.size() == network.layout().size());
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) CHECK(order[i] == static_cast<int>(i));

    const auto rows = static_cast<double>(kSequences * shape.length);
    for (size_t i = 0; i < network.layout().size(); ++i) {
      const Parameter& parameter = network.layout()[i];
      CAPTURE(parameter.name);
      auto* weights = static_cast<double*>(network.weight(static_cast<int>(i)));
      double largest = 0, worst = 0;
      // Every element of a small one, and a prime stride through a large one.
      const int64_t stride = parameter.count > 700 ? 37 : 1;
      for (int64_t at = 0; at < parameter.count; at += stride) {
        const double kept = weights[at];
        constexpr double kStep = 1e-5;
        weights[at] = kept + kStep;
        network.forward(text.data(), kSequences);
        const double above = network.read_loss();
        weights[at] = kept - kStep;
        network.forward(text.data(), kSequences);
        const double below = network.read_loss();
        weights[at] = kept;
        const double expected = (above - below) / (2 * kStep) / rows;
        const double got = gradients.values[i][static_cast<size_t>(at)];
        REQUIRE(std::isfinite(got));
        largest = std::max(largest, std::fabs(expected));
        worst = std::max(worst, std::fabs(got - expected));
      }
      CHECK(worst <= 1e-7 * largest + 1e-9);
    }
  }
}

TEST_CASE("float gradients agree with double ones") {
  const Shape shape = tiny(true);
  const std::vector<uint8_t> text = make_text(shape);
  const auto precise_device = make_cpu_device(Precision::kF64);
  const auto device = make_cpu_device(Precision::kF32);
  Network precise(precise_device.get(), shape, kSequences),
      network(device.get(), shape, kSequences);
  shake(&precise);
  shake(&network);
  Gradients<double> expected(precise);
  Gradients<float> got(network);
  precise.forward(text.data(), kSequences);
  precise.backward(expected.places, [](int) {});
  network.forward(text.data(), kSequences);
  network.backward(got.places, [](int) {});
  CHECK(network.read_loss() == doctest::Approx(precise.read_loss()).epsilon(1e-5));
  for (size_t i = 0; i < network.layout().size(); ++i) {
    CAPTURE(network.layout()[i].name);
    double largest = 0, worst = 0;
    for (size_t at = 0; at < got.values[i].size(); ++at) {
      const double wanted = expected.values[i][at];
      largest = std::max(largest, std::fabs(wanted));
      worst = std::max(worst, std::fabs(wanted - static_cast<double>(got.values[i][at])));
    }
    CHECK(worst <= 1e-4 * largest + 1e-7);
  }
}

TEST_CASE("a batch in parts has the loss and the gradients of the whole") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Shape shape = tiny(tied);
    const std::vector<uint8_t> text = make_text(shape);
    const auto device = make_cpu_device(Precision::kF64);
    Network whole(device.get(), shape, kSequences), parts(device.get(), shape, 1);
    shake(&whole);
    shake(&parts);
    Gradients<double> expected(whole), got(parts);
    whole.forward(text.data(), kSequences);
    whole.backward(expected.places, [](int) {});
    for (int64_t i = 0; i < kSequences; ++i) {
      parts.forward(text.data() + i * (shape.length + 1), 1, {i, kSequences});
      parts.backward(got.places, [](int) {});
    }
    CHECK(parts.read_loss() == doctest::Approx(whole.read_loss()).epsilon(1e-12));
    for (size_t i = 0; i < whole.layout().size(); ++i) {
      CAPTURE(whole.layout()[i].name);
      for (size_t at = 0; at < got.values[i].size(); ++at) {
        REQUIRE(std::fabs(got.values[i][at] - expected.values[i][at]) <= 1e-12);
      }
    }
  }
}

TEST_CASE("at the start every byte is about equally likely") {
  const Shape shape = tiny(true);
  const auto device = make_cpu_device(Precision::kF32);
  Network network(device.get(), shape, kSequences);
  network.initialise(1);
  const std::vector<uint8_t> text = make_text(shape);
  network.forward(text.data(), kSequences);
  const auto rows = static_cast<double>(kSequences * shape.length);
  CHECK(network.read_loss() / rows == doctest::Approx(std::log(256.0)).epsilon(0.01));
}

TEST_CASE("no byte sees those behind it") {
  const Shape shape = tiny(true);
  const auto device = make_cpu_device(Precision::kF64);
  // The same network for four bytes foretells the first four of five alike.
  Shape shorter = shape;
  shorter.length = 4;
  Network network(device.get(), shape, 1), cut(device.get(), shorter, 1);
  shake(&network);
  std::vector<float> values = network.read_parameters();
  const Parameter& positions = network.layout()[1];
  values.erase(values.begin() + positions.offset + shorter.length * shape.channels,
               values.begin() + positions.offset + positions.count);
  cut.write_parameters(values);
  const std::vector<uint8_t> text = {10, 20, 30, 40, 50};
  cut.forward(text.data(), 1);
  const double of_four = cut.read_loss();

  // The shares of all targets of the fifth byte add up to one, if the first four keep their loss.
  double shares = 0;
  for (int target = 0; target < kVocabulary; ++target) {
    std::vector<uint8_t> longer = text;
    longer.push_back(static_cast<uint8_t>(target));
    network.forward(longer.data(), 1);
    shares += std::exp(of_four - network.read_loss());
  }
  CHECK(shares == doctest::Approx(1.0).epsilon(1e-9));
}

namespace {

/// A network's parameters, which are nowhere unless their units are in use.
class Guarded final : public ParameterSource {
 public:
  explicit Guarded(Network* network) : network_(network), used_(network->layout().size(), false) {
    network->initial_values(
        3, [&](int, const std::vector<float>& values) { values_.push_back(values); });
    network->use(this);
  }
  void enter(int unit) override { mark(unit, true); }
  void leave(int unit) override { mark(unit, false); }
  void* weight(int parameter) override {
    const auto index = static_cast<size_t>(parameter);
    return used_[index] ? values_[index].data() : nullptr;
  }
  bool is_used() const { return std::count(used_.begin(), used_.end(), true) > 0; }

 private:
  void mark(int unit, bool used) {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (network_->layout()[i].unit == unit) used_[i] = used;
    }
  }

  Network* const network_;
  std::vector<bool> used_;
  std::vector<std::vector<float>> values_;
};

}  // namespace

TEST_CASE("parameters of a source are used between enter and leave only") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Shape shape = tiny(tied);
    const auto device = make_cpu_device(Precision::kF32);
    Network own(device.get(), shape, kSequences), other(device.get(), shape, kSequences);
    own.initialise(3);
    Guarded source(&other);
    const std::vector<uint8_t> text = make_text(shape);
    Gradients<float> expected(own), got(other);
    own.forward(text.data(), kSequences);
    own.backward(expected.places, [](int) {});
    other.forward(text.data(), kSequences);
    other.backward(got.places, [](int) {});
    CHECK(expected.values == got.values);
    CHECK(own.read_loss() == other.read_loss());
    CHECK_FALSE(source.is_used());
  }
}

TEST_CASE("the first AdamW step moves each parameter by the rate, against its gradient") {
  const auto device = make_cpu_device(Precision::kF32);
  const std::vector<float> gradient = {2.0f, -3.0f, 0.5f};
  std::vector<float> first(3), second(3), values = {1.0f, 1.0f, 1.0f};
  AdamStep adam;
  adam.rate = 0.25;
  adam.decay = 0.5;
  device->adamw(adam, 3, gradient.data(), first.data(), second.data(), values.data(),
                values.data());
  const float kept = 1 - 0.25f * 0.5f;
  CHECK(values[0] == doctest::Approx(kept - 0.25f));
  CHECK(values[1] == doctest::Approx(kept + 0.25f));
  CHECK(values[2] == doctest::Approx(kept - 0.25f));
}

TEST_CASE("what does not fit is refused before memory is touched") {
  const auto device = make_cpu_device(Precision::kF32);
  CHECK_THROWS_WITH(device->allocate(int64_t{1} << 60), doctest::Contains("choose a smaller"));
}
