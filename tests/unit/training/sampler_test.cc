// SPDX-License-Identifier: Apache-2.0
#include "training/sampler.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

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
    std::vector<int64_t> taken(got.size() + 1);
    CHECK(sampler.next(sampler.length() + 1, taken.data()) == sampler.length());
    taken.pop_back();
    CHECK(taken == got);
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

namespace {

using dt::training::Sampler;

/// One of each order: torch's, none, blocks, weighted draws.
std::vector<Sampler::Options> every_order(int64_t size, int32_t world_size, int32_t rank) {
  Sampler::Options options;
  options.size = size;
  options.world_size = world_size;
  options.rank = rank;
  options.seed = 7;
  std::vector<Sampler::Options> all(4, options);
  all[1].shuffle = false;
  all[2].block = 5;
  std::vector<double> weights(static_cast<size_t>(size));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 4);
  all[3].weights = std::make_shared<dt::training::Weights>(weights.data(), size);
  all[3].draws = size + 9;
  return all;
}

std::vector<int64_t> dealt(Sampler& sampler) {
  std::vector<int64_t> all(static_cast<size_t>(sampler.length()));
  sampler.copy_indices(0, sampler.length(), all.data());
  return all;
}

/// The epoch's order, as one rank alone sees it.
std::vector<int64_t> whole_order(size_t order, int64_t size, int64_t epoch) {
  Sampler alone(every_order(size, 1, 0)[order]);
  alone.set_epoch(epoch);
  return dealt(alone);
}

}  // namespace

TEST_CASE("Sampler: every order is dealt out as DistributedSampler deals out its own") {
  for (size_t order = 0; order < 4; ++order) {
    const std::vector<int64_t> whole = whole_order(order, 101, 3);
    for (const bool drop_last : {false, true}) {
      for (int32_t rank = 0; rank < 4; ++rank) {
        Sampler::Options options = every_order(101, 4, rank)[order];
        options.drop_last = drop_last;
        Sampler sampler(options);
        sampler.set_epoch(3);
        const size_t length = drop_last ? whole.size() / 4 : (whole.size() + 3) / 4;
        std::vector<int64_t> expected;
        for (size_t i = 0; i < length; ++i) {
          expected.push_back(whole[(static_cast<size_t>(rank) + 4 * i) % whole.size()]);
        }
        CAPTURE(order);
        CHECK(dealt(sampler) == expected);
      }
    }
  }
}

TEST_CASE("Sampler: next gives the epoch in batches, then says that it has ended") {
  for (const Sampler::Options& options : every_order(100, 3, 1)) {
    Sampler sampler(options);
    const std::vector<int64_t> all = dealt(sampler);
    std::vector<int64_t> joined;
    int64_t batch[8];
    while (const int64_t given = sampler.next(8, batch)) {
      joined.insert(joined.end(), batch, batch + given);
      REQUIRE((given == 8 || joined.size() == all.size()));
      CHECK_FALSE(sampler.ended());
    }
    CHECK(joined == all);
    CHECK(sampler.ended());
  }
}

TEST_CASE("Sampler: set_epoch goes on in the epoch that is chosen, unless all of it was taken") {
  Sampler sampler(every_order(100, 1, 0)[0]);
  std::vector<int64_t> batch(100);
  CHECK(sampler.next(40, batch.data()) == 40);
  sampler.set_epoch(0);
  CHECK(sampler.taken() == 40);
  CHECK(sampler.next(100, batch.data()) == 60);
  sampler.set_epoch(0);
  CHECK(sampler.taken() == 0);
  CHECK(sampler.next(30, batch.data()) == 30);
  sampler.set_epoch(1);
  CHECK(sampler.taken() == 0);
  sampler.resume(2, 90);
  sampler.set_epoch(2);
  CHECK(sampler.length() == 10);
  sampler.set_epoch(3);
  CHECK(sampler.length() == 100);
  sampler.resume(4, 100);  // at an epoch's end
  sampler.set_epoch(4);
  CHECK(sampler.next(1, batch.data()) == 0);
  sampler.set_epoch(5);
  CHECK(sampler.length() == 100);
}

TEST_CASE("Sampler: with whole_batches a batch is whole or there is none, as many on each rank") {
  for (int32_t rank = 0; rank < 3; ++rank) {
    for (Sampler::Options options : every_order(100, 3, rank)) {
      options.whole_batches = true;
      Sampler sampler(options);
      const int64_t length = sampler.length();
      for (const int64_t count : {int64_t{1}, int64_t{8}, length, length + 1}) {
        sampler.set_epoch(sampler.epoch() + 1);
        const std::vector<int64_t> all = dealt(sampler);
        std::vector<int64_t> batch(static_cast<size_t>(count)), joined;
        while (sampler.next(count, batch.data()) == count) {
          joined.insert(joined.end(), batch.begin(), batch.end());
        }
        CHECK(sampler.ended());
        CHECK(sampler.taken() == length / count * count);
        CHECK(joined == std::vector<int64_t>(all.begin(), all.begin() + sampler.taken()));
        // A checkpoint from here has no batch left, and the next epoch is whole.
        Sampler after(options);
        after.resume(sampler.epoch(), sampler.consumed(sampler.taken()));
        CHECK(after.next(count, batch.data()) == 0);
        after.set_epoch(sampler.epoch());
        CHECK(after.length() == length);
      }
    }
  }
}

TEST_CASE("Sampler: a resumed rank gets what it would have got, padding with it") {
  for (const bool drop_last : {false, true}) {
    for (int64_t taken = 0; taken <= 34; ++taken) {
      for (Sampler::Options options : every_order(100, 3, 2)) {
        options.drop_last = drop_last;
        Sampler before(options);
        before.set_epoch(6);
        if (taken > before.length()) continue;
        const std::vector<int64_t> all = dealt(before);
        Sampler after(options);
        REQUIRE(after.order_digest() == before.order_digest());
        after.resume(6, before.consumed(taken));
        CAPTURE(taken);
        CHECK(dealt(after) == std::vector<int64_t>(all.begin() + taken, all.end()));
      }
    }
  }
}

TEST_CASE("Sampler: what is left of an epoch comes once each, on any number of ranks") {
  for (size_t order = 0; order < 4; ++order) {
    const std::vector<int64_t> whole = whole_order(order, 97, 2);
    const auto size = static_cast<int64_t>(whole.size());
    for (const int64_t consumed : {int64_t{0}, int64_t{1}, int64_t{50}, size - 2, size}) {
      for (const int32_t world : {1, 2, 3, 8}) {
        std::vector<std::vector<int64_t>> ranks;
        for (int32_t rank = 0; rank < world; ++rank) {
          Sampler sampler(every_order(97, world, rank)[order]);
          sampler.resume(2, consumed);
          ranks.push_back(dealt(sampler));
          REQUIRE(ranks[0].size() == ranks.back().size());
        }
        // Round by round over the ranks: the rest of the order, then its front again.
        std::vector<int64_t> joined;
        for (size_t i = 0; i < ranks[0].size(); ++i) {
          for (const std::vector<int64_t>& each : ranks) joined.push_back(each[i]);
        }
        std::vector<int64_t> expected(whole.begin() + consumed, whole.end());
        REQUIRE(joined.size() >= expected.size());
        REQUIRE(joined.size() < expected.size() + static_cast<size_t>(world));
        for (size_t i = 0; expected.size() < joined.size(); ++i) {
          expected.push_back(whole[i % whole.size()]);
        }
        CAPTURE(order);
        CHECK(joined == expected);
      }
    }
  }
}

TEST_CASE("Sampler: an epoch over 8, then 3, then 5 ranks takes every sample once") {
  for (size_t order = 0; order < 3; ++order) {
    std::vector<int64_t> seen;
    int64_t consumed = 0;
    for (const auto& [world, steps] : {std::pair{8, 40}, std::pair{3, 100}, std::pair{5, 1000}}) {
      int64_t after = consumed;
      for (int32_t rank = 0; rank < world; ++rank) {
        Sampler::Options options = every_order(1001, world, rank)[order];
        options.drop_last = true;
        Sampler sampler(options);
        sampler.resume(1, consumed);
        std::vector<int64_t> out(static_cast<size_t>(steps));
        const int64_t given = sampler.next(steps, out.data());
        seen.insert(seen.end(), out.begin(), out.begin() + given);
        after = sampler.consumed(sampler.taken());
      }
      consumed = after;
    }
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    // 1001 - 320 - 300 = 381 for 5 ranks: one is dropped.
    CHECK(seen.size() == 1000);
    CHECK(consumed == 1000);
  }
}

TEST_CASE("Sampler: epochs, seeds and orders differ, and their digests with them") {
  std::vector<int64_t> digests;
  for (uint64_t seed : {uint64_t{7}, uint64_t{8}}) {
    for (Sampler::Options options : every_order(100, 2, 0)) {
      options.seed = seed;
      Sampler sampler(options);
      const std::vector<int64_t> first = dealt(sampler);
      sampler.set_epoch(1);
      CHECK((dealt(sampler) == first) == !options.shuffle);
      CHECK(sampler.order_digest() >= 0);
      digests.push_back(sampler.order_digest());
    }
  }
  CHECK(digests[1] == digests[5]);  // no seed where nothing is shuffled
  std::sort(digests.begin(), digests.end());
  CHECK(std::unique(digests.begin(), digests.end()) - digests.begin() == 7);
  Sampler::Options other = every_order(100, 2, 0)[2];
  const int64_t digest = Sampler(other).order_digest();
  other.window = 17;
  CHECK(Sampler(other).order_digest() != digest);
  other = every_order(100, 5, 4)[2];
  other.drop_last = true;
  CHECK(Sampler(other).order_digest() == digest);
}

TEST_CASE("Sampler: 10^9 samples in order or in blocks, without an array of them") {
  for (const int64_t block : {int64_t{0}, int64_t{1}, int64_t{4096}}) {
    Sampler::Options options;
    options.size = 1000000000;
    options.world_size = 7;
    options.rank = 3;
    options.shuffle = block != 0;
    options.block = block;
    rusage before;
    rusage after;
    getrusage(RUSAGE_SELF, &before);
    Sampler sampler(options);
    CHECK(sampler.length() == 142857143);
    std::vector<int64_t> out(1000);
    std::vector<int64_t> seen;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      sampler.set_epoch(epoch);
      for (const int64_t first : {int64_t{0}, int64_t{71428571}, sampler.length() - 1001}) {
        sampler.copy_indices(first, 1000, out.data());
        for (size_t i = 0; i < out.size(); ++i) {
          REQUIRE(out[i] >= 0);
          REQUIRE(out[i] < options.size);
          if (block == 0) REQUIRE(out[i] == 3 + 7 * (first + static_cast<int64_t>(i)));
        }
        if (epoch == 0) seen.insert(seen.end(), out.begin(), out.end());
      }
    }
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_maxrss - before.ru_maxrss < 16 << 10);  // KiB; an array would be 8 GB
  }
}
