// SPDX-License-Identifier: Apache-2.0
// host.numa: ranks of one host that live, or pretend to live, on several NUMA nodes.
#include <string>
#include <vector>

#include "thread_ranks.h"

namespace dt_test::numa_test {

namespace {

constexpr int64_t kElements = 100'000;

float given(int rank, int64_t index) { return static_cast<float>(rank + 4 * (index % 1000)); }

/// Sums, broadcasts and gathers ordinary buffers, whose parts are relayed.
dt_status move_data(const Rank& rank) {
  std::vector<float> mine(kElements);
  for (int64_t i = 0; i < kElements; ++i) mine[static_cast<size_t>(i)] = given(rank.rank, i);
  std::vector<float> sum(kElements);
  RANK_TRY(dt_allreduce(rank.world, mine.data(), sum.data(), kElements, DT_F32, DT_SUM, nullptr,
                        nullptr));
  std::vector<float> all(static_cast<size_t>(kElements * rank.world_size));
  RANK_TRY(dt_allgather(rank.world, mine.data(), all.data(), kElements, DT_F32, nullptr, nullptr));
  RANK_TRY(dt_broadcast(rank.world, mine.data(), kElements, DT_F32, 1, nullptr, nullptr));
  for (int64_t i = 0; i < kElements; ++i) {
    float expected = 0;
    for (int each = 0; each < rank.world_size; ++each) {
      expected += given(each, i);
      if (all[static_cast<size_t>(each * kElements + i)] != given(each, i)) return DT_ERR_INTERNAL;
    }
    if (sum[static_cast<size_t>(i)] != expected) return DT_ERR_INTERNAL;
    if (mine[static_cast<size_t>(i)] != given(1, i)) return DT_ERR_INTERNAL;
  }
  return DT_OK;
}

}  // namespace

TEST_CASE("numa: collectives are right wherever ranks are said to live") {
  for (const char* nodes : {"auto", "off", "0,0,1,1", "0,1,0,1,5", "3,3,3,0"}) {
    CAPTURE(nodes);
    require_all_ok(run_ranks(4, move_data, {{"host.numa", nodes}}));
  }
}

TEST_CASE("numa: nodes that make no sense are refused with the rank, the text and what to write") {
  const struct {
    const char* nodes;
    const char* says;
  } cases[] = {
      {"0,x",
       "): host.numa of call: \"0,x\" is neither auto nor off nor a list of nodes from \"x\" on; "
       "write the NUMA node of each rank of a host as \"0,0,1,1\", with numbers below 1024"},
      {"0",
       "): host.numa has 1 of the nodes of the 2 ranks on this host; name one for each, or set it "
       "to auto"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.nodes);
    const auto outcomes =
        run_ranks(2, [](const Rank&) -> dt_status { return DT_OK; }, {{"host.numa", each.nodes}});
    for (const Outcome& outcome : outcomes) {
      INFO(outcome.message);
      CHECK(outcome.status == DT_ERR_CONFIG);
      CHECK(contains(outcome.message, each.says));
    }
  }
}

TEST_CASE("numa: ranks that are told different nodes hear of it in the join") {
  const auto outcomes = run_ranks(
      2, [](const Rank&) -> dt_status { return DT_OK; }, {},
      [](int rank) {
        return Settings{{"host.numa", rank == 0 ? "0,0" : "0,1"}};
      });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status != DT_OK);
    CHECK(contains(outcome.message,
                   "config differs between ranks: host.numa is 0,0 on rank 0, 0,1 on rank 1"));
  }
}

}  // namespace dt_test::numa_test
