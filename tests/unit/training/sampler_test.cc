// SPDX-License-Identifier: Apache-2.0
#include "training/sampler.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "sha256.h"

using nlohmann::json;

namespace {

json load_vectors() {
  std::ifstream file(std::string(DT_TEST_VECTORS) + "/sampler_vectors.json");
  REQUIRE(file.good());
  return json::parse(file);
}

void check_equal(const json& each, const char* key, const std::vector<int64_t>& got) {
  if (each.contains(key)) {
    CHECK(got == each.at(key).get<std::vector<int64_t>>());
    return;
  }
  const std::vector<int64_t> first = each.at("first8");
  CHECK(std::vector<int64_t>(got.begin(), got.begin() + 8) == first);
  CHECK(sha256_hex(got.data(), got.size() * sizeof(int64_t)) ==
        each.at("sha256").get<std::string>());
}

}  // namespace

TEST_CASE("random_permutation: equals every recorded torch.randperm") {
  const json vectors = load_vectors();
  int cases = 0;
  for (const json& each : vectors.at("randperm")) {
    ++cases;
    CAPTURE(each.at("n").get<int64_t>());
    check_equal(each, "perm",
                dt::training::random_permutation(each.at("n"), each.at("seed").get<uint64_t>()));
  }
  CHECK(cases == 31);
}

TEST_CASE("Sampler: equals every recorded DistributedSampler") {
  const json vectors = load_vectors();
  int cases = 0;
  for (const json& each : vectors.at("sampler")) {
    dt::training::Sampler::Options options;
    options.size = each.at("n");
    options.world_size = each.at("world");
    options.rank = each.at("rank");
    options.shuffle = each.at("shuffle");
    options.seed = each.at("seed").get<uint64_t>();
    options.drop_last = each.at("drop_last");
    dt::training::Sampler sampler(options);
    sampler.set_epoch(each.at("epoch"));
    REQUIRE(sampler.length() == each.at("num_samples").get<int64_t>());
    std::vector<int64_t> got(static_cast<size_t>(sampler.length()));
    sampler.copy_indices(0, sampler.length(), got.data());
    check_equal(each, "indices", got);
    ++cases;
  }
  CHECK(cases == 346);
}

TEST_CASE("Sampler: a range in the middle is what a resumed job reads") {
  dt::training::Sampler sampler({100, 3, 1, true, 7, false});
  std::vector<int64_t> all(static_cast<size_t>(sampler.length()));
  sampler.copy_indices(0, sampler.length(), all.data());
  std::vector<int64_t> tail(10);
  sampler.copy_indices(sampler.length() - 10, 10, tail.data());
  CHECK(tail == std::vector<int64_t>(all.end() - 10, all.end()));
  sampler.set_epoch(1);
  std::vector<int64_t> other(all.size());
  sampler.copy_indices(0, sampler.length(), other.data());
  CHECK(other != all);
}
