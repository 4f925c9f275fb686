// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <algorithm>

namespace dt::comm {

Communicator::Communicator(Options options)
    : options_(std::move(options)),
      timeout_ms_(options_.timeout_ms),
      grace_until_ns_(monotonic_ns() + options_.first_timeout_ms * 1'000'000),
      use_(options_.use) {
  if (options_.recorder == nullptr) return;
  record::CommunicatorRecord record;
  record.name = options_.name;
  record.rank = options_.rank;
  record.world_ranks = options_.world_ranks;
  const bool on_device = options_.backend->device() != nullptr;
  if (on_device) {
    record.name += " (host memory)";
    host_track_ = options_.recorder->open(record);
    record.name = options_.name;
    record.on_device = true;
  }
  track_ = options_.recorder->open(std::move(record));
}

Communicator::~Communicator() {
  if (track_ != nullptr) track_->end();
  if (host_track_ != nullptr) host_track_->end();
}

record::Slot* Communicator::begin_record(record::Track* track,
                                         const backend::Collective& collective, bool queued) {
  if (track == nullptr || over_.load(std::memory_order_relaxed)) return nullptr;
  record::Call call;
  call.kind = static_cast<uint8_t>(collective.kind);
  call.dtype = static_cast<uint8_t>(collective.dtype);
  call.op = static_cast<uint8_t>(collective.op);
  call.root = traits(collective.kind).peer == PeerRole::kNone ? -1 : collective.root;
  call.count =
      collective.count * (collective.op == ReduceOp::kCustom ? collective.custom.element_bytes : 1);
  call.label = &collective.name;
  call.queued = queued;
  return options_.recorder->begin(*track, call);
}

Status Communicator::run_recorded(backend::Backend& backend, record::Track* track,
                                  backend::Collective& collective) {
  record::Slot* const slot = begin_record(track, collective, false);
  collective.mark = {options_.recorder.get(), slot};
  Status status = backend.run(collective);
  if (slot != nullptr) options_.recorder->complete(slot, status.code());
  if (!status.ok() && !broken().ok()) over_.store(true, std::memory_order_relaxed);
  return status;
}

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
  const Communicator& source = followed_ != nullptr ? *followed_ : *this;
  const int64_t timeout_ms = source.timeout_ms();
  if (timeout_ms == 0) return Deadline::never();
  return Deadline::roughly_after_ms(timeout_ms + more_ms_)
      .later_ns(source.grace_until_ns_.load(std::memory_order_relaxed));
}

Deadline Communicator::deadline_of(const backend::Collective& collective) const {
  if (collective.has_deadline) return collective.deadline;
  if (collective.timeout_ms == 0) return deadline();
  return collective.timeout_ms < 0 ? Deadline::never()
                                   : Deadline::roughly_after_ms(collective.timeout_ms);
}

Status Communicator::broken() const {
  const Status own = options_.backend->broken();
  if (!own.ok()) return own;
  std::vector<std::shared_ptr<Communicator>> parts;  // which may end here, so not under the lock
  parts_.with([&](const auto& all) {
    for (const auto& each : all) parts.push_back(each.lock());
  });
  for (const auto& part : parts) {
    const Status status = part != nullptr ? part->options_.backend->broken() : Status();
    if (status.ok()) continue;
    options_.backend->fail(status);
    return options_.backend->broken();
  }
  return {};
}

void Communicator::answer_for(const std::shared_ptr<Communicator>& part) {
  if (options_.backend->device() == nullptr) return;
  parts_.with([&](auto& parts) {
    std::erase_if(parts, [](const auto& each) { return each.expired(); });
    parts.emplace_back(part);
  });
}

Status Communicator::run(backend::Collective& collective) {
  if (host_track_ != nullptr) {  // on a device it ends later than the call
    const auto work = new_work();
    DT_TRY(submit(collective, work));
    return options_.backend->wait_stream(*work, collective.stream);
  }
  collective.deadline = deadline_of(collective);
  return run_recorded(*options_.backend, track_.get(), collective);
}

Status Communicator::run_on_host(backend::Collective& collective) {
  backend::Backend& backend = *options_.backend;
  if (backend.device() == nullptr) return run(collective);
  collective.deadline = deadline_of(collective);
  return run_recorded(backend.on_host(), host_track_.get(), collective);
}

Status Communicator::submit(backend::Collective& collective, std::shared_ptr<backend::Work> work) {
  collective.deadline = deadline_of(collective);
  record::Slot* const slot = begin_record(track_.get(), collective, true);
  collective.mark = {options_.recorder.get(), slot};
  if (slot != nullptr) work->record(options_.recorder, slot);
  Status status = options_.backend->submit(collective, std::move(work));
  if (status.ok()) return status;
  // Nothing was enqueued, so nobody completes it.
  if (slot != nullptr) options_.recorder->complete(slot, status.code());
  if (!broken().ok()) over_.store(true, std::memory_order_relaxed);
  return status;
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
  if (!grouping()) return run(collective);
  const Member member{new_work(), collective.stream};
  DT_TRY(submit(collective, member.work));
  const bool joined = group_.with([&](Group& group) {
    if (!group.open) return false;
    group.works.push_back(member.work);
    group.waited.push_back(member);
    return true;
  });
  // Another thread has ended the group meanwhile.
  return joined ? Status() : options_.backend->wait_stream(*member.work, member.stream);
}

Status Communicator::submit_or_group(backend::Collective& collective,
                                     const std::shared_ptr<backend::Work>& work) {
  if (!grouping()) return submit(collective, work);
  DT_TRY(submit(collective, work));
  group_.with([&](Group& group) {
    if (group.open) group.works.push_back(work);
  });
  return {};
}

Status Communicator::begin_group() {
  DT_TRY(broken());  // without the lock: it may report a failure
  return group_.with([&](Group& group) {
    DT_TRY(check_ungrouped("dt_group_begin"));
    DT_TRY(options_.backend->begin_group());
    group.open = true;
    grouping_.store(true, std::memory_order_release);
    return Status();
  });
}

Status Communicator::end_group(const std::shared_ptr<backend::Work>& whole) {
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
  // After dt_finalize, which every later call says, even if all of the group was done before it.
  const Status over = broken();
  if (first.ok() && over.code() == Code::kInvalidState) first = over;
  if (whole != nullptr && first.ok()) {
    backend::Work::stand_for(whole, std::move(ended.works));
  } else {
    for (const Member& member : ended.waited) {
      const Status status = options_.backend->wait_stream(*member.work, member.stream);
      if (first.ok()) first = status;
    }
  }
  options_.backend->leave_group();
  return first;
}

Status Communicator::check_ungrouped(const char* what) const {
  if (!grouping_.load(std::memory_order_acquire)) return {};
  return Status(Code::kInvalidState,
                format("%s on comm \"%s\": inside a group; call dt_group_end before", what,
                       options_.name.c_str()));
}

std::shared_ptr<Communicator> Communicator::on_host() {
  if (options_.backend->device() == nullptr) return shared_from_this();
  Options options = options_;
  options.name += " (host)";
  options.backend =
      std::shared_ptr<backend::Backend>(options_.backend, &options_.backend->on_host());
  options.timeout_ms = timeout_ms();
  auto host = create(std::move(options));
  // The board has it already, but nothing that the board calls reads these two.
  host->splits_ = host_splits_;
  host->grace_until_ns_.store(grace_until_ns_.load(std::memory_order_relaxed),
                              std::memory_order_relaxed);
  return host;
}

Result<std::shared_ptr<Communicator>> Communicator::split(int32_t color, int32_t key, Use use) {
  DT_TRY(check_ungrouped("dt_comm_split"));
  const std::string name = format("%s/%d.%d", options_.name.c_str(),
                                  splits_->fetch_add(1, std::memory_order_relaxed), color);
  record::Slot* slot = nullptr;
  if (track_ != nullptr && !over_.load(std::memory_order_relaxed)) {
    record::Call call;
    call.kind = record::kSplitKind;
    slot = options_.recorder->begin(*track_, call);
  }
  auto split = options_.backend->split(color, key, name, deadline());
  if (slot != nullptr) options_.recorder->complete(slot, split.status().code());
  if (!split.ok()) return split.status();
  backend::Backend::Split part = std::move(split).value();
  if (part.backend == nullptr) return std::shared_ptr<Communicator>();
  Options options;
  options.name = name;
  options.backend = std::move(part.backend);
  options.board = options_.board;
  options.use = use;
  if (use == Use::kForeground) options.recorder = options_.recorder;
  options.timeout_ms = options_.timeout_ms;
  options.first_timeout_ms = options_.first_timeout_ms;
  for (size_t i = 0; i < part.members.size(); ++i) {
    if (part.members[i] == options_.rank) options.rank = static_cast<int32_t>(i);
    options.world_ranks.push_back(world_rank(part.members[i]));
  }
  return create(std::move(options));
}

}  // namespace dt::comm
