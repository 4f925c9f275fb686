// SPDX-License-Identifier: Apache-2.0
#include "training/bucket_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

using nlohmann::json;

namespace {

dt::Dtype dtype_of(const std::string& name) {
  for (int i = 0; i < dt::kDtypeCount; ++i) {
    if (name == dt::dtype_name(static_cast<dt::Dtype>(i))) return static_cast<dt::Dtype>(i);
  }
  FAIL("unknown dtype " << name);
  return dt::Dtype::kU8;
}

}  // namespace

TEST_CASE("plan_buckets: equals every recorded case of PyTorch") {
  std::ifstream file(std::string(DT_TEST_VECTORS) + "/bucket_vectors.json");
  REQUIRE(file.good());
  const json vectors = json::parse(file);
  int cases = 0;
  for (const json& each : vectors.at("cases")) {
    const std::string name = each.at("name");
    CAPTURE(name);
    std::vector<dt::training::PlanParam> params;
    for (const json& param : each.at("params")) {
      params.push_back({param.at(0).get<int64_t>(), dtype_of(param.at(1)),
                        param.at(2) == "cpu" ? -1 : 0, false});
    }
    const std::vector<int> sparse = each.at("sparse");
    for (size_t i = 0; i < sparse.size(); ++i) params[i].sparse = sparse[i] != 0;
    const std::vector<int64_t> limits = each.at("limits");
    const std::vector<int32_t> order = each.at("order");
    const auto plan = dt::training::plan_buckets(params, limits, order);
    std::vector<std::vector<int32_t>> got = plan.buckets;
    std::vector<std::vector<int32_t>> want = each.at("buckets");
    std::vector<int64_t> caps = plan.caps;
    std::vector<int64_t> want_caps = each.at("bucket_limits");
    // torch leaves the order among unfinished buckets to a hash map
    const auto free = static_cast<std::ptrdiff_t>(each.value("leftover_order_free", 0));
    std::sort(got.end() - std::min<std::ptrdiff_t>(free, static_cast<std::ptrdiff_t>(got.size())),
              got.end());
    std::sort(want.end() - free, want.end());
    std::sort(caps.end() - std::min<std::ptrdiff_t>(free, static_cast<std::ptrdiff_t>(caps.size())),
              caps.end());
    std::sort(want_caps.end() - free, want_caps.end());
    CHECK(got == want);
    CHECK(caps == want_caps);
    ++cases;
  }
  CHECK(cases == 78);
}

TEST_CASE("plan_buckets: in reverse order the last parameters come first, 1 MiB, then 25 MiB") {
  const std::vector<dt::training::PlanParam> params(4, {300'000, dt::Dtype::kF32, -1, false});
  const std::vector<int64_t> caps = {1 << 20, 25 << 20};
  const std::vector<int32_t> order = {3, 2, 1, 0};
  const auto plan = dt::training::plan_buckets(params, caps, order);
  CHECK(plan.buckets == std::vector<std::vector<int32_t>>{{3}, {2, 1, 0}});
}

TEST_CASE("plan_in_place: a bucket is one piece of memory, of one dtype, up to its cap") {
  using Buckets = std::vector<std::vector<int32_t>>;
  alignas(8) char memory[100];
  std::vector<dt::training::PlanParam> params(7);
  for (auto& param : params) param.count = 2;
  params[3].dtype = dt::Dtype::kI32;
  params[5].count = 0;
  // 0, 1, 2 and 4 follow each other; 3, of another dtype, 6 and then a gap come behind.
  std::vector<char*> places;
  for (const int at : {0, 8, 16, 32, 24, 0, 40}) places.push_back(memory + at);
  const auto plan = [&](const std::vector<int32_t>& order, const std::vector<int64_t>& caps) {
    const auto neighbours = dt::training::find_neighbours(params, order, places);
    return dt::training::plan_in_place(params, caps, order, neighbours);
  };
  CHECK(plan({0, 1, 2, 4, 3, 5, 6}, {100}) == Buckets{{0, 1, 2, 4, 5}, {3}, {6}});
  CHECK(plan({6, 3, 4, 2, 1, 5, 0}, {100}) == Buckets{{6}, {3}, {4, 2, 1, 5, 0}});
  CHECK(plan({6, 3, 4, 2, 1, 5, 0}, {1, 16}) == Buckets{{6}, {3}, {4, 2}, {1, 5, 0}});
  CHECK(plan({0, 2, 1, 4, 3, 5, 6}, {100}) == Buckets{{0}, {2, 1}, {4, 5}, {3}, {6}});
  // An array of each dtype, with parameters by turns.
  CHECK(plan({0, 3, 1, 5, 2}, {100}) == Buckets{{0, 1, 5, 2}, {3}});
  places[0] -= 4;
  CHECK(plan({6, 3, 4, 2, 1, 5, 0}, {100}) == Buckets{{6}, {4, 2, 1, 5}, {3}, {0}});
}
