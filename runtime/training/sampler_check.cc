// SPDX-License-Identifier: Apache-2.0
#include "training/sampler_check.h"

#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "training/equality.h"

namespace dt::training {
namespace {

/// One rank's sampler, as it shows it to the others.
struct Deal {
  struct Field {
    const char* name;
    int64_t Deal::*value;
  };

  int64_t size;
  int64_t world_size;
  int64_t seed;
  int64_t sequential;
  int64_t drop_last;
  int64_t whole_batches;
  int64_t block;
  int64_t window;
  int64_t draws;
  int64_t weights;
  int64_t epoch;
  int64_t consumed;
  int64_t rank;
  int64_t pid;
  char host[64];
};
static_assert(sizeof(Deal) == 176);

constexpr Deal::Field kEqualFields[] = {
    {"size", &Deal::size},           {"world_size", &Deal::world_size},
    {"seed", &Deal::seed},           {"sequential", &Deal::sequential},
    {"drop_last", &Deal::drop_last}, {"whole_batches", &Deal::whole_batches},
    {"block", &Deal::block},         {"window", &Deal::window},
    {"draws", &Deal::draws},         {"weights", &Deal::weights},
    {"epoch", &Deal::epoch},         {"consumed", &Deal::consumed},
};

Deal deal_of(const Sampler& sampler) {
  const Sampler::Options& options = sampler.options();
  const Exhibit self = own_exhibit({});
  Deal deal = {};
  deal.size = options.size;
  deal.world_size = options.world_size;
  deal.seed = static_cast<int64_t>(options.seed);
  deal.sequential = options.shuffle ? 0 : 1;
  deal.drop_last = options.drop_last ? 1 : 0;
  deal.whole_batches = options.whole_batches ? 1 : 0;
  deal.block = options.block;
  deal.window = options.window;
  deal.draws = options.draws;
  deal.weights = options.weights ? static_cast<int64_t>(options.weights->digest() >> 1) : 0;
  deal.epoch = sampler.epoch();
  deal.consumed = sampler.consumed(sampler.taken());
  deal.rank = options.rank;
  deal.pid = self.pid;
  std::memcpy(deal.host, self.host, sizeof deal.host);
  return deal;
}

Status deals_differ(const comm::Communicator& comm, const std::vector<Deal>& all, size_t left,
                    size_t right, const Deal::Field& field, const char* problem, const char* next) {
  const auto side = [&](size_t rank) {
    return format("rank %zu (%s, pid %lld) has %s = %lld", rank, all[rank].host,
                  static_cast<long long>(all[rank].pid), field.name,
                  static_cast<long long>(all[rank].*field.value));
  };
  ErrorInfo info;
  info.code = Code::kMismatch;
  info.rank = comm.world_rank(static_cast<int32_t>(right));
  info.host = all[right].host;
  info.pid = all[right].pid;
  info.operation = "sampler_check";
  info.message =
      format("dt_sampler_check on comm \"%s\", rank %d: %s: %s, %s; %s", comm.name().c_str(),
             comm.rank(), problem, side(left).c_str(), side(right).c_str(), next);
  return Status(std::move(info));
}

}  // namespace

Status check_samplers(comm::Communicator& comm, const Sampler& sampler) {
  DT_TRY(comm.check_ungrouped("dt_sampler_check"));
  const Deal mine = deal_of(sampler);
  DT_TRY_VALUE(const std::vector<char> bytes,
               gather_rows(comm, &mine, sizeof mine, "sampler check"));
  std::vector<Deal> all(static_cast<size_t>(comm.size()));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  for (const Deal::Field& field : kEqualFields) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].*field.value == all[0].*field.value) continue;
      return deals_differ(
          comm, all, 0, rank, field, "the samplers differ between ranks",
          field.value == &Deal::consumed
              ? "resume every rank from the same state, and take as many samples on each"
              : "create the same sampler on every rank, and set the same epoch");
    }
  }
  for (size_t right = 1; right < all.size(); ++right) {
    for (size_t left = 0; left < right; ++left) {
      if (all[left].rank != all[right].rank) continue;
      return deals_differ(comm, all, left, right, {"rank", &Deal::rank},
                          "two ranks deal themselves the same samples",
                          "give each sampler the rank of its own process");
    }
  }
  return {};
}

}  // namespace dt::training
