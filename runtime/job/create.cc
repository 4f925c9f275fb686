// SPDX-License-Identifier: Apache-2.0
// A communicator that its members make by themselves, while other ranks do something else.
//
// 1. Each member makes its block in the memory of its host. All gather at the store, with the
//    places of these.
// 2. Each opens the communicator with the places of those of its host and, if there are more hosts,
//    joins these parts over the mesh.
// 3. They gather again: all have it, or the error of one is the error of all.
#include <algorithm>

#include "base/number.h"
#include "job/job.h"
#include "job/outcome.h"
#include "job/rank_list.h"
#include "store/gather.h"

namespace dt::job {
namespace {

constexpr char kCreate[] = "dt_comm_create";

/// Those of `ranks` that share the engine's memory, by their places there.
std::vector<int32_t> places_in(const backend::HostEngine& engine,
                               const std::vector<int32_t>& ranks) {
  std::vector<int32_t> places;
  const auto& local = engine.options().world_ranks;
  for (const int32_t rank : ranks) {
    const auto found = std::find(local.begin(), local.end(), rank);
    if (found != local.end()) places.push_back(static_cast<int32_t>(found - local.begin()));
  }
  return places;
}

/// The first of `ranks` that is not there.
Status absent(const store::GatherVerdict& met, const std::vector<int32_t>& ranks) {
  ErrorInfo info;
  info.code = Code::kPeerLost;
  for (const int32_t rank : ranks) {
    const auto is_it = [rank](const auto& guest) { return guest.first == rank; };
    if (std::any_of(met.present.begin(), met.present.end(), is_it)) continue;
    info.rank = rank;
    break;
  }
  info.message = format("rank %d has left the job, or was lost", info.rank);
  return Status(std::move(info));
}

}  // namespace

Result<std::shared_ptr<comm::Communicator>> Job::create(const std::vector<int32_t>& ranks,
                                                        const std::string& name) {
  if (local_store_ != nullptr) return world_->split(0, 0);
  const auto client = control_->client();
  if (client == nullptr) return ended();
  const std::string what =
      format("dt_comm_create \"%s\" of ranks %s", name.c_str(), rank_list(ranks).c_str());
  std::unique_lock lock(making_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return Status(Code::kInvalidState,
                  what + ": another thread makes a communicator of this job; one at a time");
  }
  const int64_t limit_ms =
      collective_timeout_ms_ > 0 ? collective_timeout_ms_ : rendezvous_timeout_ms_;
  Interrupt interrupt;
  meeting_.with([&](Meeting& meeting) { meeting = {&interrupt, ranks}; });
  if (const Status known = board_->concerning(ranks); !known.ok()) interrupt.fire(known);
  auto made =
      create_among(*client, ranks, name, what, Wait{Deadline::after_ms(limit_ms), &interrupt});
  meeting_.with([](Meeting& meeting) { meeting = {}; });
  if (!made.ok()) return named(made.status(), what, kCreate);
  return made;
}

Result<std::shared_ptr<comm::Communicator>> Job::create_among(store::Client& client,
                                                              const std::vector<int32_t>& ranks,
                                                              const std::string& name,
                                                              const std::string& what,
                                                              const Wait& wait) {
  const std::shared_ptr<backend::HostEngine> engine = engine_of(ranks);
  backend::HostWorldOptions part;
  const std::vector<int32_t> places = places_in(*engine, ranks);
  auto block = backend::HostBlock::make(engine, static_cast<int32_t>(places.size()));
  const std::string mine = block.ok() ? std::to_string(block.value().offset()) : std::string();
  const auto gathered = client.gather(what, ranks, mine, wait);
  if (!gathered.ok()) {
    // This rank went before it had the answer, with which others may open and write to its block.
    const bool in_vain = gathered.status().info().operation == store::kGatherOperation;
    if (block.ok() && !in_vain) block.value().leave_reserved();
    return gathered.status();
  }
  const store::GatherVerdict& met = gathered.value();
  if (met.present.size() != ranks.size()) {
    DT_TRY(board_->concerning(ranks));
    return absent(met, ranks);
  }
  // Names are unique in a job, and the number is the same on all of them.
  const std::string unique =
      format("%s#%llu", name.c_str(), static_cast<unsigned long long>(met.number));
  Status made = block.status();
  std::shared_ptr<backend::Backend> backend;
  if (made.ok()) {
    auto opened = open_part(engine, std::move(block).value(), met, unique, wait);
    made = opened.status();
    if (made.ok()) backend = std::move(opened).value();
  }
  const auto built = client.gather(what + format(" as \"%s\"", unique.c_str()), ranks, told(made),
                                   Wait{wait.deadline.plus_ms(kTellMs), wait.interrupt});
  if (!built.ok()) return made.ok() || wait.interrupted() ? built.status() : made;
  DT_TRY(outcome(built.value().present, made));
  return comm::Communicator::create(options_of(unique, ranks, std::move(backend)));
}

Result<std::shared_ptr<backend::Backend>> Job::open_part(
    const std::shared_ptr<backend::HostEngine>& engine, backend::HostBlock block,
    const store::GatherVerdict& met, const std::string& name, const Wait& wait) {
  std::vector<int32_t> ranks;
  for (const auto& [rank, place] : met.present) ranks.push_back(rank);
  const std::vector<int32_t> places = places_in(*engine, ranks);
  backend::HostWorldOptions options;
  options.name = name;
  options.part = places.size() != ranks.size();
  tell_failures(&options);
  std::vector<int64_t> offsets;
  const auto& local = engine->options().world_ranks;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto& [rank, says] = met.present[i];
    if (std::find(local.begin(), local.end(), rank) == local.end()) continue;
    const auto offset = parse_number<int64_t>(says);
    if (!offset) {
      return Status(Code::kOutOfMemory,
                    format("rank %d has no memory for it; its own error says more", rank));
    }
    options.whole_ranks.push_back(static_cast<int32_t>(i));
    offsets.push_back(*offset);
  }
  const bool spans_hosts = options.part;
  DT_TRY_VALUE(auto backend, std::move(block).open(options, places, offsets));
  if (spans_hosts) {
    backend::MultihostOptions over_hosts = multihost_options(engine);
    over_hosts.roster.name = name;
    DT_TRY_VALUE(backend,
                 links_->among(verdict_, ranks, std::move(backend), std::move(over_hosts)));
  }
  const auto rank = std::find(ranks.begin(), ranks.end(), place_.rank) - ranks.begin();
  return world_->backend().among(std::move(backend), name, static_cast<int32_t>(rank),
                                 static_cast<int32_t>(ranks.size()), wait);
}

/// The newest memory that all those of this host share: after a shrink lost ranks reach the older.
std::shared_ptr<backend::HostEngine> Job::engine_of(const std::vector<int32_t>& ranks) {
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  const size_t wanted = places_in(*local.engine, ranks).size();
  for (auto newer = local.newer.rbegin(); newer != local.newer.rend(); ++newer) {
    if (places_in(**newer, ranks).size() == wanted) return *newer;
  }
  return local.engine;
}

}  // namespace dt::job
