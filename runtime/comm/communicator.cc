// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <algorithm>

namespace dt::comm {

std::shared_ptr<Communicator> Communicator::create(Options options) {
  std::shared_ptr<Communicator> communicator(new Communicator(std::move(options)));
  communicator->options_.board->enlist(communicator);
  return communicator;
}

bool Communicator::contains(int32_t world_rank) const {
  const auto& ranks = options_.world_ranks;
  return std::find(ranks.begin(), ranks.end(), world_rank) != ranks.end();
}

Deadline Communicator::deadline() const {
  const int64_t timeout_ms = timeout_ms_.load(std::memory_order_relaxed);
  return timeout_ms == 0 ? Deadline::never() : Deadline::after_ms(timeout_ms);
}

Status Communicator::run(backend::Collective& collective) {
  collective.deadline = deadline();
  return options_.backend->run(collective);
}

Status Communicator::run_on_host(backend::Collective& collective) {
  backend::Backend& backend = *options_.backend;
  if (backend.device() == nullptr) return run(collective);
  // Operations on the device may go over the same host communicator, on another thread. When what
  // was issued before is done, the order there is the order of the calls, as on every other rank.
  backend::Collective fence;
  fence.kind = backend::Kind::kBarrier;
  fence.steps = std::make_shared<collective::StreamSteps>();  // behind no stream of the caller
  fence.name = collective.name;
  const auto work = std::make_shared<backend::Work>();
  DT_TRY(submit(fence, work));
  (void)backend.wait(*work, Wait());  // ends: the backend keeps the deadline
  DT_TRY(work->status());
  collective.deadline = deadline();
  return backend.on_host().run(collective);
}

Status Communicator::submit(backend::Collective& collective, std::shared_ptr<backend::Work> work) {
  collective.deadline = deadline();
  return options_.backend->submit(collective, std::move(work));
}

Result<std::shared_ptr<Communicator>> Communicator::split(int32_t color, int32_t key) {
  const std::string name = format("%s/%d.%d", options_.name.c_str(),
                                  splits_.fetch_add(1, std::memory_order_relaxed), color);
  DT_TRY_VALUE(auto part, options_.backend->split(color, key, name, deadline()));
  if (part.backend == nullptr) return std::shared_ptr<Communicator>();
  Options options;
  options.name = name;
  options.backend = std::move(part.backend);
  options.board = options_.board;
  options.timeout_ms = options_.timeout_ms;
  for (size_t i = 0; i < part.members.size(); ++i) {
    if (part.members[i] == options_.rank) options.rank = static_cast<int32_t>(i);
    options.world_ranks.push_back(world_rank(part.members[i]));
  }
  return create(std::move(options));
}

}  // namespace dt::comm
