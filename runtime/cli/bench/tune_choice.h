// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace dt::cli::bench {

/// What one value of a setting took: microseconds [round][point]. All values have the same points,
/// and round r of one was measured beside round r of the others.
using Trial = std::vector<std::vector<double>>;

/// How many times as fast one trial is as another. Each round gives one ratio, the geometric mean
/// over the points. From five rounds on the slowest and the fastest do not count for the spread:
/// the machine had something else to do.
struct Comparison {
  double median = 1;  ///< of the rounds
  double low = 1;     ///< the slowest that counts
  double high = 1;    ///< the fastest
  double worst = 1;   ///< the point that does worst: the median of its rounds
};
Comparison compare_trials(const Trial& present, const Trial& other);

/// Whether it is faster for sure. `again` compares the present value with itself: what is noise.
/// Every round that counts has to exceed the largest of it in either direction, and the median a
/// fiftieth; no point may lose more than noise explains, or a twentieth.
bool is_better(const Comparison& other, const Comparison& again);

/// Whether it is faster, of one candidate that was chosen before: no chance to pick the luckiest.
/// The median has to exceed noise and a fiftieth, every round that counts has to be faster, and
/// points as above.
bool holds(const Comparison& other, const Comparison& again);

struct Choice {
  int best = -1;  ///< index into `others`; -1: the present value stays
  Comparison again;
  std::vector<Comparison> others;
};
Choice choose(const Trial& present, const Trial& again, const std::vector<Trial>& others);

}  // namespace dt::cli::bench
