// SPDX-License-Identifier: Apache-2.0
#include "ps/table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "../contains.h"

using namespace dt;
using namespace dt::ps;

namespace {

/// A row as its formula says it, in f64.
struct PlainRow {
  std::vector<double> values, first, second;
  int64_t times = 0;

  void push(const Variable& v, const float* gradient, double rate) {
    ++times;
    for (size_t i = 0; i < values.size(); ++i) {
      const double g = gradient[i];
      switch (v.method) {
        case Method::kSgd: values[i] -= rate * g; break;
        case Method::kMomentum:
          first[i] = v.momentum * first[i] + g;
          values[i] -= rate * (v.nesterov ? g + v.momentum * first[i] : first[i]);
          break;
        case Method::kAdagrad:
          first[i] += g * g;
          values[i] -= rate * g / (std::sqrt(first[i]) + v.epsilon);
          break;
        case Method::kAdam: {
          first[i] = v.beta1 * first[i] + (1 - v.beta1) * g;
          second[i] = v.beta2 * second[i] + (1 - v.beta2) * g * g;
          const double mean = first[i] / (1 - std::pow(v.beta1, times));
          const double square = second[i] / (1 - std::pow(v.beta2, times));
          values[i] -= rate * mean / (std::sqrt(square) + v.epsilon);
          break;
        }
      }
    }
  }
};

void compare(Variable variable, uint32_t seed) {
  constexpr int64_t kRows = 9;
  variable.name = "x";
  variable.rows = kRows;
  variable.columns = 5;
  variable.rate = 0.1;
  variable.initial = Initial::kUniform;
  variable.initial_value = 1;
  auto made = Table::create(variable, 0, 1);
  REQUIRE(made.ok());
  Table& table = *made.value();
  REQUIRE(table.rows() == kRows);
  std::vector<PlainRow> plain(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    PlainRow& each = plain[static_cast<size_t>(row)];
    for (int32_t i = 0; i < 5; ++i) each.values.push_back(initial_value(variable, row, i));
    each.first.resize(5);
    each.second.resize(5);
  }
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 60; ++step) {
    // Some rows by themselves, then ranges of rows that were updated differently often.
    const int64_t from = random() % kRows;
    const int64_t count = step % 3 == 0 ? 1 : 1 + random() % (kRows - from);
    const double rate = step % 2 == 0 ? -1 : 0.03;
    std::vector<float> gradients;
    for (int64_t i = 0; i < count * 5; ++i) gradients.push_back(normal(random));
    table.push(from, count, gradients.data(), rate);
    for (int64_t i = 0; i < count; ++i) {
      plain[static_cast<size_t>(from + i)].push(variable, &gradients[static_cast<size_t>(i * 5)],
                                                rate < 0 ? variable.rate : rate);
    }
  }
  for (int64_t row = 0; row < kRows; ++row) {
    const float* values = table.read(row, 1);
    for (size_t i = 0; i < 5; ++i) {
      CHECK(values[i] == doctest::Approx(plain[static_cast<size_t>(row)].values[i]).epsilon(1e-4));
    }
  }
}

}  // namespace

TEST_CASE("updates of rows are what the formulas say") {
  Variable variable;
  compare(variable, 1);
  variable.method = Method::kMomentum;
  variable.momentum = 0.9;
  compare(variable, 2);
  variable.nesterov = true;
  compare(variable, 3);
  variable.method = Method::kAdagrad;
  compare(variable, 4);
  variable.method = Method::kAdam;
  compare(variable, 5);
}

TEST_CASE("a row without a gradient stays as it is") {
  Variable variable;
  variable.name = "x";
  variable.rows = 4;
  variable.columns = 2;
  variable.method = Method::kMomentum;
  variable.momentum = 0.9;
  variable.initial_value = 3;
  auto table = Table::create(variable, 0, 1);
  REQUIRE(table.ok());
  const float gradient[2] = {1, 1};
  for (int i = 0; i < 10; ++i) table.value()->push(2, 1, gradient, 0.1);
  CHECK(table.value()->read(1, 1)[0] == 3);
  CHECK(table.value()->read(2, 1)[0] < 0);
  const float values[2] = {7, 8};
  table.value()->set(2, 1, values);
  CHECK(table.value()->read(2, 1)[1] == 8);
}

TEST_CASE("a server with no row of a variable") {
  Variable variable;
  variable.name = "x";
  variable.rows = 1;
  variable.columns = 2;
  int64_t rows = 0;
  for (int32_t server = 0; server < 3; ++server) {
    auto table = Table::create(variable, server, 3);
    REQUIRE(table.ok());
    rows += table.value()->rows();
    CHECK((table.value()->rows() == 1 || table.value()->values() == nullptr));
  }
  CHECK(rows == 1);
}

TEST_CASE("a variable for which there is no memory: the error says what to do") {
  Variable variable;
  variable.name = "wide";
  variable.rows = int64_t{1} << 40;
  variable.columns = 256;
  REQUIRE(check(variable).ok());
  const auto table = Table::create(variable, 0, 1);
  REQUIRE_FALSE(table.ok());
  CHECK(table.status().code() == Code::kOutOfMemory);
  const std::string& message = table.status().message();
  CAPTURE(message);
  CHECK(test::contains(message, "variable \"wide\": cannot get 1130297953353728 bytes"));
  CHECK(test::contains(message, "start more parameter servers (--servers)"));
  CHECK_FALSE(test::contains(message, "offload"));
}
