// SPDX-License-Identifier: Apache-2.0
#include "collective/exchange.h"

#include <algorithm>

namespace dt::collective {
namespace {

/// 5 hosts: {5, 3, 2, 1}.
std::vector<int32_t> halvings(int32_t hosts) {
  std::vector<int32_t> sizes = {hosts};
  while (sizes.back() > 1) sizes.push_back((sizes.back() + 1) / 2);
  return sizes;
}

}  // namespace

/// Halving (Traeff 2024, "Optimal, non-pipelined reduce-scatter and allreduce algorithms"): a host
/// has partial sums of the `many` parts that begin with its own, and passes all but the first `few`
/// of them on to the host `few` further, for which they are the first ones.
std::vector<ExchangeStep> reduce_scatter_steps(Way way, int32_t hosts, int32_t host) {
  const auto at = [&](int32_t distance) { return (host + distance + hosts) % hosts; };
  std::vector<ExchangeStep> steps;
  if (way == Way::kDirect) {
    steps.resize(1);
    for (int32_t other = 0; other < hosts; ++other) {
      if (other == host) continue;
      steps[0].sends.push_back({other, other, 1});
      steps[0].receives.push_back({other, host, 1});
    }
  } else if (way == Way::kRing) {
    for (int32_t i = 1; i < hosts; ++i) {
      steps.push_back({{{at(1), at(-i), 1}}, {{at(-1), at(-i - 1), 1}}});
    }
  } else {
    const std::vector<int32_t> sizes = halvings(hosts);
    for (size_t i = 1; i < sizes.size(); ++i) {
      const int32_t few = sizes[i];
      const int32_t moved = sizes[i - 1] - few;
      steps.push_back({{{at(few), at(few), moved}}, {{at(-few), host, moved}}});
    }
  }
  return steps;
}

/// Doubling is halving backwards.
std::vector<ExchangeStep> allgather_steps(Way way, int32_t hosts, int32_t host) {
  const auto at = [&](int32_t distance) { return (host + distance + hosts) % hosts; };
  std::vector<ExchangeStep> steps;
  if (way == Way::kDirect) {
    steps.resize(1);
    for (int32_t other = 0; other < hosts; ++other) {
      if (other == host) continue;
      steps[0].sends.push_back({other, host, 1});
      steps[0].receives.push_back({other, other, 1});
    }
  } else if (way == Way::kRing) {
    for (int32_t i = 0; i + 1 < hosts; ++i) {
      steps.push_back({{{at(1), at(-i), 1}}, {{at(-1), at(-i - 1), 1}}});
    }
  } else {
    const std::vector<int32_t> sizes = halvings(hosts);
    for (size_t i = sizes.size() - 1; i > 0; --i) {
      const int32_t few = sizes[i];
      const int32_t moved = sizes[i - 1] - few;
      steps.push_back({{{at(-few), host, moved}}, {{at(few), at(few), moved}}});
    }
  }
  return steps;
}

}  // namespace dt::collective
