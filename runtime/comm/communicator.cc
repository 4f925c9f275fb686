// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <algorithm>

namespace dt::comm {

Communicator::Communicator(Options options)
    : options_(std::move(options)),
      timeout_ms_(options_.timeout_ms),
      grace_until_ns_(monotonic_ns() + options_.first_timeout_ms * 1'000'000) {}

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
  if (timeout_ms == 0) return Deadline::never();
  return Deadline::after_ms(timeout_ms).later_ns(grace_until_ns_.load(std::memory_order_relaxed));
}

void Communicator::excuse(int64_t max_ms) {
  const int64_t timeout_ms = timeout_ms_.load(std::memory_order_relaxed);
  options_.backend->excuse(monotonic_ns() + (max_ms + timeout_ms) * 1'000'000);
}

Status Communicator::run(backend::Collective& collective) {
  collective.deadline = deadline();
  return options_.backend->run(collective);
}

Status Communicator::run_on_host(backend::Collective& collective) {
  backend::Backend& backend = *options_.backend;
  if (backend.device() == nullptr) return run(collective);
  collective.deadline = deadline();
  return backend.on_host().run(collective);
}

Status Communicator::submit(backend::Collective& collective, std::shared_ptr<backend::Work> work) {
  collective.deadline = deadline();
  return options_.backend->submit(collective, std::move(work));
}

Result<void*> Communicator::allocate(int64_t bytes) {
  DT_TRY_VALUE(void* const pointer, options_.backend->allocate(bytes));
  allocated_.with([&](std::set<void*>& allocated) { allocated.insert(pointer); });
  return pointer;
}

Status Communicator::release(void* pointer) {
  if (pointer == nullptr) return {};
  // Off the list before it is free: another thread may be given the same address at once.
  if (allocated_.with([&](std::set<void*>& allocated) { return allocated.erase(pointer); }) == 0) {
    return Status(Code::kInvalidArgument,
                  format("%p was not allocated here, or was released before", pointer));
  }
  const Status status = options_.backend->release(pointer);
  if (!status.ok()) {
    allocated_.with([&](std::set<void*>& allocated) { allocated.insert(pointer); });
  }
  return status;
}

Status Communicator::run_or_group(backend::Collective& collective) {
  if (!grouping_.load(std::memory_order_acquire)) return run(collective);
  Member member{new_work(), collective.stream};
  DT_TRY(submit(collective, member.work));
  const bool joined = group_.with([&](Group& group) {
    if (group.open) group.members.push_back(member);
    return group.open;
  });
  // Another thread has ended the group meanwhile.
  return joined ? Status() : options_.backend->wait_stream(*member.work, member.stream);
}

Status Communicator::begin_group() {
  return group_.with([&](Group& group) {
    DT_TRY(check_ungrouped("dt_group_begin"));
    DT_TRY(options_.backend->begin_group());
    group.open = true;
    grouping_.store(true, std::memory_order_release);
    return Status();
  });
}

Status Communicator::end_group() {
  Group ended;
  Status first;
  group_.with([&](Group& group) {
    std::swap(ended, group);
    if (!ended.open) return;
    first = options_.backend->end_group();
    grouping_.store(false, std::memory_order_release);
  });
  if (!ended.open) {
    return Status(Code::kInvalidState,
                  format("dt_group_end on comm \"%s\": no group was begun", options_.name.c_str()));
  }
  for (const Member& member : ended.members) {
    const Status status = options_.backend->wait_stream(*member.work, member.stream);
    if (first.ok()) first = status;
  }
  return first;
}

Status Communicator::check_ungrouped(const char* what) const {
  if (!grouping_.load(std::memory_order_acquire)) return {};
  return Status(Code::kInvalidState,
                format("%s on comm \"%s\": inside a group; call dt_group_end before", what,
                       options_.name.c_str()));
}

Result<std::shared_ptr<Communicator>> Communicator::split(int32_t color, int32_t key) {
  DT_TRY(check_ungrouped("dt_comm_split"));
  const std::string name = format("%s/%d.%d", options_.name.c_str(),
                                  splits_.fetch_add(1, std::memory_order_relaxed), color);
  DT_TRY_VALUE(auto part, options_.backend->split(color, key, name, deadline()));
  if (part.backend == nullptr) return std::shared_ptr<Communicator>();
  Options options;
  options.name = name;
  options.backend = std::move(part.backend);
  options.board = options_.board;
  options.timeout_ms = options_.timeout_ms;
  options.first_timeout_ms = options_.first_timeout_ms;
  for (size_t i = 0; i < part.members.size(); ++i) {
    if (part.members[i] == options_.rank) options.rank = static_cast<int32_t>(i);
    options.world_ranks.push_back(world_rank(part.members[i]));
  }
  return create(std::move(options));
}

}  // namespace dt::comm
