// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_backend.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "backend/host/progress.h"
#include "base/fork.h"

namespace dt::backend {
namespace {

using collective::Step;

constexpr size_t kPooledMax = 64;  // operations kept for reuse

bool breaks(const Status& status) {
  // What a rank withholds, all ranks know of: the communicator stays in step.
  return !status.ok() && status.code() != Code::kInvalidState;
}

}  // namespace

HostBackend::HostBackend(std::shared_ptr<HostEngine> engine,
                         std::unique_ptr<collective::Group> group, HostWorldOptions options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      group_(std::move(group)),
      doorbell_(engine_->arena()->doorbell()),
      channel_(*group_),
      mailboxes_(*group_),
      lanes_(2 * static_cast<size_t>(group_->size())) {
  interrupt_.attach(&doorbell_);
}

HostBackend::~HostBackend() {
  if (pending()) {
    interrupt(Status(Code::kAborted,
                     format("communicator \"%s\" was destroyed while operations were queued",
                            options_.name.c_str())));
    turn_.take();
    take_inbox();
    fail_queue();
    (void)turn_.give();
  }
  const int fd = completion_fd_.load();
  release_fd_from_fork_guard(fd);
  if (fd >= 0) close(fd);
}

void HostBackend::excuse(int64_t until_ns) {
  excuse_.set(until_ns);
  doorbell_.ring();  // a waiting thread's deadline may be sooner now
  engine_->progress().notify();
}

Status HostBackend::submit(const Collective& collective, std::shared_ptr<Work> work) {
  DT_TRY(interrupt_.status());
  DT_TRY(engine_->progress().begin());
  enqueue(collective, std::move(work));
  (void)help();
  if (!helped()) {
    // A wait that ends before the operation wakes the thread, see leave_help().
    if (!collective.caller_waits) engine_->progress().notify();
    return {};
  }
  // In a group the caller sees to it, and begins at once; else some waiter does.
  Advance advance;
  if (groups_.load(std::memory_order_relaxed) > 0) (void)try_advance(&advance, false);
  doorbell_.ring();
  return {};
}

/// A helper from the begin of the group until the caller has waited for its operations: the
/// progress thread need not be woken for them.
Status HostBackend::begin_group() {
  helpers_.fetch_add(1, std::memory_order_seq_cst);
  groups_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

void HostBackend::leave_group() {
  groups_.fetch_sub(1, std::memory_order_relaxed);
  leave_help();
}

void HostBackend::enqueue(const Collective& collective, std::shared_ptr<Work> work) {
  inbox_.with([&](Inbox& inbox) {
    inbox.queue.push_back(make_operation(inbox, collective, std::move(work)));
  });
  // A caller that sleeps inside run() has the turn, and is to keep this deadline, too. It takes the
  // turn before it reads queued_, which was written before the turn is read here, all in one total
  // order: so either it is seen here, or it finds this operation and does not sleep in run().
  if (turn_.taken()) doorbell_.ring();
}

HostBackend::OperationPtr HostBackend::make_operation(Inbox& inbox, const Collective& collective,
                                                      std::shared_ptr<Work> work) {
  OperationPtr operation;
  if (inbox.pool.empty()) {
    operation = std::make_unique<Operation>();
  } else {
    operation = std::move(inbox.pool.back());
    inbox.pool.pop_back();
  }
  operation->collective = collective;
  operation->work = std::move(work);
  operation->started = false;
  operation->transfer = {};
  queued_.fetch_add(1, std::memory_order_seq_cst);
  if (engine_->progress().by_caller()) engine_->progress().count(1);
  return operation;
}

bool HostBackend::help() {
  if (!engine_->progress().by_caller()) return false;
  (void)engine_->progress().help(nullptr, false);
  return true;
}

bool HostBackend::help_others(bool before_sleep, Deadline* deadline) {
  if (!engine_->progress().by_caller()) return false;
  const auto round = engine_->progress().help(this, before_sleep);
  *deadline = deadline->earlier(round.deadline);
  return round.progressed;
}

Status HostBackend::run(const Collective& collective) {
  std::shared_ptr<Work> work;  // null: not queued
  if (!pending() && turn_.try_take()) {
    if (!pending()) {
      Status status;
      if (interrupt_.fired()) {
        status = interrupt_.status();
      } else {
        status = collective.is_transfer() ? transfer_here(collective, &work) : run_here(collective);
        if (work == nullptr) pulse_.leave();
      }
      if (turn_.give()) doorbell_.ring();
      if (work != nullptr) return finish_helping(*work);
      if (pending()) engine_->progress().notify();
      return status;
    }
    if (turn_.give()) doorbell_.ring();
  }
  DT_TRY(interrupt_.status());
  helpers_.fetch_add(1, std::memory_order_seq_cst);
  work = std::make_shared<Work>();
  enqueue(collective, work);
  return finish_helping(*work);
}

/// A helper from before the operation is queued until it is done: the progress thread keeps away,
/// so it need not be woken, which would cost more than a small message.
Status HostBackend::finish_helping(Work& work) {
  wait(work, Wait());
  leave_help();
  return work.status();
}

Status HostBackend::run_here(const Collective& collective) {
  channel_.start(collective);
  note_last(collective, channel_.sequence());
  SpinPolicy spin_policy = engine_->progress().spin_policy();
  for (;;) {
    const Step step = advance_channel();
    if (step == Step::kDone) break;
    if (interrupt_.fired()) return interrupt_.status();
    Deadline others = Deadline::never();
    if (step == Step::kProgressed || help_others(false, &others)) {
      spin_policy.renew();
      continue;
    }
    if (spin_policy.spin()) continue;
    const uint32_t ticket = doorbell_.prepare();
    const Step again = advance_channel();
    if (again != Step::kBlocked || interrupt_.fired() || help_others(true, &others)) {
      doorbell_.cancel();
      if (again == Step::kDone) break;
      spin_policy.renew();
      continue;
    }
    Deadline deadline = excuse_.apply(collective.deadline);
    if (deadline.passed()) {
      doorbell_.cancel();
      return break_with(channel_.timed_out());
    }
    // Other threads may have queued something meanwhile. Their ring comes after prepare(), or what
    // they queued is found here.
    if (pending()) {
      take_inbox();
      look_at_queued(&collective, &deadline);
      if (interrupt_.fired()) {
        doorbell_.cancel();
        return interrupt_.status();
      }
    }
    sleep(ticket, deadline.earlier(others), spin_policy.since_ns(), channel_.awaited());
    spin_policy.renew();
  }
  Status status = channel_.result();
  return breaks(status) ? break_with(std::move(status)) : status;
}

bool HostBackend::wait(Work& work, const Wait& wait) {
  if (work.done()) return true;
  const bool only_looks = wait.deadline.passed();
  helpers_.fetch_add(1, std::memory_order_seq_cst);
  SpinPolicy spin_policy = engine_->progress().spin_policy();
  bool sleepy = false;
  for (;;) {
    const uint32_t ticket = sleepy ? doorbell_.prepare() : 0;
    Advance advance;
    advance.step = Step::kBlocked;
    (void)try_advance(&advance, sleepy);
    const bool done = work.done();
    const bool others_moved = !done && help_others(sleepy, &advance.deadline);
    const bool progressed = advance.step == Step::kProgressed || others_moved;
    // Data that keeps flowing must not carry the waiter past its deadline.
    const bool give_up = !done && (only_looks || wait.interrupted() ||
                                   ((sleepy || progressed) && wait.deadline.passed()));
    const bool awake = done || give_up || progressed;
    if (sleepy && !awake) {
      Deadline deadline = wait.deadline.earlier(advance.deadline);
      if (wait.interrupt != nullptr) {
        deadline = deadline.earlier(Deadline::after_ms(kInterruptPollMs));
      }
      sleep(ticket, deadline, spin_policy.since_ns(), advance.awaited);
    } else if (sleepy) {
      doorbell_.cancel();
    }
    if (done || give_up) {
      leave_help();
      return done;
    }
    if (sleepy || awake) spin_policy.renew();
    sleepy = !sleepy && !awake && !spin_policy.spin();
  }
}

void HostBackend::leave_help() {
  const bool last = helpers_.fetch_sub(1, std::memory_order_seq_cst) == 1;
  if (!pending()) return;
  // Another waiter may have seen this one at work and gone to sleep: wake it. The thread is woken
  // by the last: of what is queued meanwhile, either that one knows, or submit() finds no helper.
  if (last) {
    engine_->progress().notify();
  } else {
    doorbell_.ring();
  }
}

bool HostBackend::try_advance(Advance* out, bool before_sleep) {
  if (!(before_sleep ? turn_.take_or_wish() : turn_.try_take())) return false;
  *out = advance_queue();
  if (before_sleep && out->step == Step::kBlocked) out->awaited = awaited();
  if (turn_.give()) doorbell_.ring();
  return true;
}

std::vector<int32_t> HostBackend::awaited() {
  std::vector<int32_t> peers;
  for (const size_t lane : busy_lanes_) {
    const auto peer = static_cast<int32_t>(lane / 2);
    if (!lanes_[lane].front()->started) continue;
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  }
  if (busy_lanes_.empty() && !active_.empty() && active_.front()->started) {
    return channel_.awaited();
  }
  return peers;
}

void HostBackend::sleep(uint32_t ticket, Deadline deadline, int64_t since_ns,
                        const std::vector<int32_t>& awaited) {
  if (since_ns == 0) since_ns = monotonic_ns();
  engine_->progress().rest();
  doorbell_.sleep(ticket, deadline);
  count_wait(awaited, monotonic_ns() - since_ns);
}

void HostBackend::count_wait(const std::vector<int32_t>& awaited, int64_t ns) const {
  const auto& meter = engine_->options().meter;
  if (meter == nullptr) return;
  for (const int32_t rank : awaited) {
    if (rank != group_->rank()) meter->waited(group_->options().members[rank].world_rank, ns);
  }
}

void HostBackend::count_wait(int64_t ns) {
  if (!turn_.try_take()) return;
  const std::vector<int32_t> late = awaited();
  if (turn_.give()) doorbell_.ring();
  // The progress thread may have found the turn taken, and sleeps until its holder leaves.
  if (pending()) engine_->progress().notify();
  count_wait(late, ns);
}

void HostBackend::take_inbox() {
  if (active_.empty() && busy_lanes_.empty()) soonest_ = Deadline::never();
  inbox_.with([&](Inbox& inbox) {
    for (OperationPtr& operation : inbox.queue) {
      soonest_ = soonest_.bound(operation->collective.deadline);
      active_.push_back(std::move(operation));
    }
    inbox.queue.clear();
  });
}

HostBackend::Advance HostBackend::advance_queue() {
  Advance result;
  if (!pending()) return result;
  take_inbox();
  for (;;) {
    if (interrupt_.fired()) {
      fail_queue();
      return result;
    }
    open_lanes();
    if (!busy_lanes_.empty()) {
      result.deadline = Deadline::never();
      result.step = advance_lanes(&result.deadline);
      if (result.step == Step::kBlocked) look_at_queued(nullptr, &result.deadline);
      if (interrupt_.fired()) continue;
      return result;
    }
    if (active_.empty()) return result;
    Operation& head = *active_.front();
    result.deadline = excuse_.apply(head.collective.deadline);
    result.step = advance_head(head);
    if (result.step == Step::kBlocked) look_at_queued(&head.collective, &result.deadline);
    if (interrupt_.fired()) continue;
    if (result.step != Step::kDone) return result;
    OperationPtr finished = std::move(active_.front());
    active_.pop_front();
    complete(std::move(finished), channel_.result());
  }
}

Step HostBackend::advance_head(Operation& operation) {
  if (!operation.started) {
    operation.started = true;
    operation.collective.mark.started();
    channel_.start(operation.collective);
    note_last(operation.collective, channel_.sequence());
  }
  const Step step = advance_channel();
  if (step == Step::kDone) {
    if (breaks(channel_.result())) (void)break_with(channel_.result());
  } else if (step == Step::kBlocked && excuse_.apply(operation.collective.deadline).passed()) {
    (void)break_with(channel_.timed_out());
  }
  return step;
}

bool HostBackend::has_left(int32_t rank) const {
  return rank != group_->rank() &&
         engine_->arena()->has_left(group_->options().members[rank].local_rank);
}

/// A rank sets its mark when its last operation has ended, so that everything it had for the others
/// is there when the mark is seen. What still waits for that rank after another look never ends.
Step HostBackend::advance_channel() {
  Step step = channel_.advance();
  if (step != Step::kBlocked || !engine_->arena()->anyone_left()) return step;
  for (const int32_t rank : channel_.awaited()) {
    if (!has_left(rank)) continue;
    step = channel_.advance();
    if (step != Step::kBlocked) return step;
    const std::vector<int32_t> still = channel_.awaited();
    if (std::find(still.begin(), still.end(), rank) == still.end()) return step;
    (void)break_with(channel_.left_behind(rank));
    return step;
  }
  return step;
}

void HostBackend::fail_queue() {
  for (const size_t lane : busy_lanes_) fail_all(lanes_[lane]);
  busy_lanes_.clear();
  fail_all(active_);
}

void HostBackend::fail_all(Fifo<OperationPtr>& operations) {
  while (!operations.empty()) {
    OperationPtr operation = std::move(operations.front());
    operations.pop_front();
    complete(std::move(operation), interrupt_.status());
  }
}

void HostBackend::complete(OperationPtr operation, Status status) {
  const std::shared_ptr<Work> work = std::move(operation->work);
  operation->collective.withheld.reset();
  operation->collective.blocks.reset();
  if (operation->started) pulse_.leave();
  inbox_.with([&](Inbox& inbox) {
    if (inbox.pool.size() < kPooledMax) inbox.pool.push_back(std::move(operation));
  });
  queued_.fetch_sub(1, std::memory_order_seq_cst);
  if (engine_->progress().by_caller()) engine_->progress().count(-1);
  work->complete(std::move(status));
  doorbell_.ring();  // the rank's other waiters
  const int fd = completion_fd_.load(std::memory_order_acquire);
  if (fd >= 0) (void)eventfd_write(fd, 1);
}

void HostBackend::note_last(const Collective& collective, int64_t sequence) {
  pulse_.enter(collective.kind, sequence, collective.name);
  if (options_.part) return;
  engine_->arena()->own_header().last.set(static_cast<int64_t>(collective.kind), sequence,
                                          collective.name);
}

Status HostBackend::break_with(Status status) {
  engine_->arena()->quarantine();
  // If two threads find a failure, none is visible here before the first is reported.
  std::lock_guard lock(breaking_);
  if (!broke_.exchange(true) && options_.on_broken && !options_.part) {
    options_.on_broken(options_.name, status);
  }
  interrupt_.fire(std::move(status));
  return interrupt_.status();
}

void HostBackend::interrupt(Status status) {
  broke_.store(true);
  engine_->arena()->quarantine();
  interrupt_.fire(std::move(status));
  if (pending()) engine_->progress().notify();
}

void HostBackend::fail(Status status) {
  (void)break_with(std::move(status));
  if (pending()) engine_->progress().notify();
}

bool HostBackend::quiesce(const Wait& wait) {
  // Whoever has the turn finds the interrupt; what it copies meanwhile ends first.
  while (!turn_.try_take()) {
    if (wait.interrupted() || wait.deadline.passed()) return false;
    sched_yield();
  }
  take_inbox();
  if (interrupt_.fired()) fail_queue();
  if (turn_.give()) doorbell_.ring();
  return true;
}

Result<int> HostBackend::completion_fd() {
  if (engine_->progress().by_caller()) {
    return Status(Code::kUnsupported,
                  format("communicator \"%s\" has no descriptor to wait on: with host.progress = "
                         "caller nothing completes while nobody calls; use dt_work_wait, or "
                         "host.progress = thread",
                         options_.name.c_str()));
  }
  int fd = completion_fd_.load(std::memory_order_acquire);
  if (fd >= 0) return fd;
  const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made < 0) {
    return Status(Code::kSystem, format("communicator \"%s\": eventfd: %s", options_.name.c_str(),
                                        errno_text(errno).c_str()));
  }
  guard_fd_from_fork(made);
  if (completion_fd_.compare_exchange_strong(fd, made)) return made;
  release_fd_from_fork_guard(made);
  close(made);
  return fd;
}

Result<void*> HostBackend::allocate(int64_t bytes) { return engine_->arena()->allocate(bytes); }

Status HostBackend::release(void* pointer) { return engine_->arena()->release(pointer); }

Result<std::vector<int64_t>> HostBackend::exchange(const std::vector<int64_t>& mine,
                                                   Deadline deadline, const char* what) {
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(group_->size()));
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.dtype = Dtype::kI64;
  gather.send = mine.data();
  gather.recv = all.data();
  gather.count = static_cast<int64_t>(mine.size());
  gather.deadline = deadline;
  gather.name = what;
  DT_TRY(run(gather));
  return all;
}

Result<Backend::Split> HostBackend::split_as(bool part, int32_t color, int32_t key,
                                             const std::string& name, Deadline deadline) {
  DT_TRY_VALUE(const std::vector<int64_t> colors, exchange({color, key}, deadline, "split"));
  Split result;
  for (int32_t rank = 0; rank < group_->size(); ++rank) {
    if (color >= 0 && colors[2 * rank] == color) result.members.push_back(rank);
  }
  std::stable_sort(result.members.begin(), result.members.end(),
                   [&](int32_t a, int32_t b) { return colors[2 * a + 1] < colors[2 * b + 1]; });
  Result<HostBlock> block =
      color >= 0 ? HostBlock::make(engine_, static_cast<int32_t>(result.members.size()))
                 : Status(Code::kInternal, "not a member");
  // Everybody takes part in this one and the last, so that a rank without memory leaves nobody
  // waiting, now or in the first operation.
  DT_TRY_VALUE(const std::vector<int64_t> offsets,
               exchange({block.ok() ? block.value().offset() : -1}, deadline, "split"));
  const auto all_have = [&](const std::vector<int64_t>& found) -> Status {
    for (const int32_t rank : result.members) {
      if (found[rank] >= 0) continue;
      return Status(Code::kOutOfMemory,
                    format("communicator \"%s\": %s has no memory for it; its own error says more",
                           name.c_str(), collective::member_text(*group_, rank).c_str()));
    }
    return {};
  };
  const auto open = [&]() -> Status {
    if (color < 0) return {};
    DT_TRY(block.status());
    DT_TRY(all_have(offsets));
    HostWorldOptions child = options_;
    child.name = name;
    child.part = part;
    child.whole_ranks.clear();
    std::vector<int32_t> places;
    std::vector<int64_t> member_offsets;
    for (const int32_t rank : result.members) {
      places.push_back(group_->options().members[rank].local_rank);
      child.whole_ranks.push_back(colors[2 * rank + 1]);
      member_offsets.push_back(offsets[rank]);
    }
    DT_TRY_VALUE(result.backend, std::move(block).value().open(child, places, member_offsets));
    return {};
  };
  const Status opened = open();
  DT_TRY_VALUE(const std::vector<int64_t> ended,
               exchange({opened.ok() ? 0 : -1}, deadline, "split"));
  DT_TRY(opened);
  DT_TRY(all_have(ended));
  return result;
}

}  // namespace dt::backend
