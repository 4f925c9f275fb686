// SPDX-License-Identifier: Apache-2.0
// What the test cases of single backends share.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"

namespace conformance {

/// Rank r lives on host of_rank[r].
inline Setup hosts(std::vector<int32_t> of_rank) {
  Setup one;
  one.backend = "multihost";
  one.size = static_cast<int32_t>(of_rank.size());
  one.hosts = std::move(of_rank);
  return one;
}

inline void play(const Setup& setup, const std::function<void(Rank&)>& body) {
  for (const std::string& failure : run_ranks(setup, body)) FAIL_CHECK(failure);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A job of two ranks, one of which gives one thing otherwise.
inline void check_each_field_is_compared(const Setup& setup) {
  const auto differ = [&](const std::function<void(Collective&)>& change) {
    play(setup, [&](Rank& rank) {
      std::vector<double> data(4, 1);
      Collective one;
      one.kind = Kind::kReduce;
      one.dtype = Dtype::kI32;
      one.send = one.recv = data.data();
      one.count = 2;
      one.deadline = Deadline::after_ms(30'000);
      if (rank.rank == 1) change(one);
      rank.expect(rank.backend->run(one).code() == Code::kMismatch, "MISMATCH");
    });
  };
  differ([](Collective& one) { one.kind = Kind::kBroadcast; });
  differ([](Collective& one) { one.kind = Kind::kBarrier; });
  differ([](Collective& one) { one.dtype = Dtype::kF32; });
  differ([](Collective& one) { one.op = ReduceOp::kMax; });
  differ([](Collective& one) { one.root = 1; });
  differ([](Collective& one) { one.count = 1; });
}

}  // namespace conformance
