// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/tune_choice.h"

#include <algorithm>
#include <cmath>

#include "cli/bench/report.h"

namespace dt::cli::bench {
namespace {

constexpr double kLeastGain = 1.02;
constexpr double kMostLoss = 1.05;  // of one point
constexpr size_t kRoundsWithOutliers = 5;

double noise_of(const Comparison& again) { return std::max(again.high, 1 / again.low); }

bool spares_points(const Comparison& other, double noise) {
  return other.worst > 1 / std::max(noise, kMostLoss);
}

}  // namespace

Comparison compare_trials(const Trial& present, const Trial& other) {
  const size_t rounds = std::min(present.size(), other.size());
  if (rounds == 0) return {};
  const size_t points = present.front().size();
  std::vector<double> by_round(rounds, 0);
  std::vector<std::vector<double>> by_point(points);
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t point = 0; point < points; ++point) {
      const double ratio = std::log(present[round][point] / other[round][point]);
      by_round[round] += ratio / static_cast<double>(points);
      by_point[point].push_back(ratio);
    }
  }
  std::sort(by_round.begin(), by_round.end());
  const size_t out = rounds >= kRoundsWithOutliers ? 1 : 0;
  const double median = spread(by_round).median;
  Comparison result{std::exp(median), std::exp(by_round[out]), std::exp(by_round[rounds - 1 - out]),
                    1};
  double worst = 0;
  for (size_t point = 0; point < points; ++point) {
    const double of_point = spread(by_point[point]).median;
    worst = point == 0 ? of_point : std::min(worst, of_point);
  }
  result.worst = std::exp(worst);
  return result;
}

bool is_better(const Comparison& other, const Comparison& again) {
  const double noise = noise_of(again);
  return other.low > noise && other.median > kLeastGain && spares_points(other, noise);
}

bool holds(const Comparison& other, const Comparison& again) {
  const double noise = noise_of(again);
  return other.median > std::max(noise, kLeastGain) && other.low > 1 && spares_points(other, noise);
}

Choice choose(const Trial& present, const Trial& again, const std::vector<Trial>& others) {
  Choice choice;
  choice.again = compare_trials(present, again);
  for (const Trial& other : others) choice.others.push_back(compare_trials(present, other));
  for (size_t i = 0; i < others.size(); ++i) {
    const Comparison& one = choice.others[i];
    if (!is_better(one, choice.again)) continue;
    if (choice.best < 0 || one.median > choice.others[static_cast<size_t>(choice.best)].median) {
      choice.best = static_cast<int>(i);
    }
  }
  return choice;
}

}  // namespace dt::cli::bench
