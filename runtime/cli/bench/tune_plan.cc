// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/tune_plan.h"

#include <algorithm>
#include <utility>

#include "cli/bench/method.h"
#include "config/keys.h"

namespace dt::cli::bench {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
constexpr char kPrefix[] = "host.";

/// Buffers that together are around the caches' size.
std::vector<int64_t> sizes_around_caches(int ranks) {
  std::vector<int64_t> sizes;
  for (const int64_t all : {32 * kMiB, 64 * kMiB, 128 * kMiB}) {
    sizes.push_back(std::max(all / (2 * ranks) / kKiB * kKiB, kKiB));
  }
  return sizes;
}

/// One value where each rank sums a message itself and one where they share the sum.
int64_t other_way(int64_t present, int ranks) {
  return present >= ranks ? std::max(ranks - 1, 1) : ranks;
}

std::vector<Knob> all_knobs(int ranks, int64_t exchange_ranks) {
  const auto own = [](std::vector<int64_t> sizes) {
    return Probe{BENCH_ALLREDUCE, false, true, std::move(sizes)};
  };
  const auto shared = [](std::vector<int64_t> sizes) {
    return Probe{BENCH_ALLREDUCE, true, true, std::move(sizes)};
  };
  // What is summed in place stays in the caches.
  const auto past_caches = [ranks](bool is_shared) {
    return Probe{BENCH_ALLREDUCE, is_shared, false, sizes_around_caches(ranks)};
  };
  const std::vector<int64_t> small = {4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB};
  const std::vector<int64_t> middle = {64 * kKiB, 256 * kKiB, kMiB};
  const std::vector<int64_t> large = {64 * kKiB, 512 * kKiB, 4 * kMiB, 16 * kMiB};
  return {
      {"host.inline_bytes",
       0,
       {2 * kKiB, 4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB},
       {own(small), shared(small)}},
      {"host.exchange_ranks", 0, {other_way(exchange_ranks, ranks)}, {own(large)}},
      {"host.slot_bytes",
       0,
       {16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB, 256 * kKiB},
       {own(large)}},
      {"host.segment_bytes",
       0,
       {8 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB},
       {own({16 * kKiB, 64 * kKiB, 256 * kKiB})}},
      {"host.segments", 0, {4, 8, 16}, {own(middle)}},
      {"host.ring_bytes", 0, {15 * 64 * kKiB, 31 * 64 * kKiB, 63 * 64 * kKiB}, {own(large)}},
      {"host.push_bytes",
       0,
       {128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB},
       {shared({kMiB, 4 * kMiB, 16 * kMiB})}},
      {"host.streaming_bytes",
       0,
       {32 * kMiB, 64 * kMiB, 128 * kMiB, 1024 * kMiB},
       {past_caches(true), past_caches(false)}},
      {"host.mapped_bytes",
       0,
       {2 * kKiB, 4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB},
       {Probe{BENCH_SENDRECV, true, false, {2 * kKiB, 4 * kKiB, 8 * kKiB, 16 * kKiB}}}},
  };
}

std::string full_name(const std::string& name) {
  return name.compare(0, sizeof kPrefix - 1, kPrefix) == 0 ? name : kPrefix + name;
}

}  // namespace

std::string variable_of(const std::string& key) {
  const config::Key* const found = config::find_key(config::keys(), key);
  return found == nullptr ? "" : found->environment;
}

Result<std::vector<Knob>> plan_tuning(const Options& options, const Config& config) {
  std::vector<Knob> known = all_knobs(options.ranks, config.integer("host.exchange_ranks"));
  std::vector<Knob> chosen;
  std::string names;
  for (const Knob& knob : known) {
    names += (names.empty() ? "" : ", ") + knob.key.substr(sizeof kPrefix - 1);
  }
  for (const std::string& name : options.tune_keys) {
    const auto is_it = [&](const Knob& knob) { return knob.key == full_name(name); };
    if (std::none_of(known.begin(), known.end(), is_it)) {
      return Status(Code::kInvalidArgument, "--tune-keys " + name + ": there are " + names);
    }
  }
  for (Knob& knob : known) {
    const auto is_it = [&](const std::string& name) { return full_name(name) == knob.key; };
    if (!options.tune_keys.empty() &&
        std::none_of(options.tune_keys.begin(), options.tune_keys.end(), is_it)) {
      continue;
    }
    const bool is_named = !options.tune_keys.empty();
    std::erase_if(knob.probes, [&](const Probe& probe) {
      return options.memory_given && probe.shared != options.shared;
    });
    if (knob.probes.empty() && is_named) {
      return Status(Code::kInvalidArgument, "--tune-keys " + knob.key.substr(sizeof kPrefix - 1) +
                                                ": --memory " + memory_name(options) +
                                                " is moved without it; leave out one of the two");
    }
    if (knob.probes.empty()) continue;
    knob.present = config.integer(knob.key);
    std::erase(knob.values, knob.present);
    for (Probe& probe : knob.probes) {
      if (options.sizes_given) probe.sizes_bytes = options.sizes_bytes;
    }
    chosen.push_back(std::move(knob));
  }
  return chosen;
}

}  // namespace dt::cli::bench
