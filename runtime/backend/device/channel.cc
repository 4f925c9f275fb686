// SPDX-License-Identifier: Apache-2.0
#include "backend/device/channel.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

namespace dt::backend {
namespace {

constexpr int64_t kCloseMs = 30'000;  // for a communicator to end in peace
constexpr int64_t kLeaveMs = 1'000;   // when the job ends, memory in use after this is left behind
// The device thread keeps deadlines, and ends what was broken. Who still waits this much later
// knows that it hangs.
constexpr int64_t kHangingMs = 5'000;
constexpr int64_t kGateGraceMs = 2'000;
constexpr int64_t kTakenCallMs = 60'000;
constexpr int64_t kUnusedMs =
    1'000;                           // an aborted operation may use its buffers no longer than this
constexpr size_t kTogetherMax = 64;  // sends and receives that were not grouped by the caller
constexpr int64_t kReleaseLookNs = 1'000'000;  // how often an ending thread tries again

}  // namespace

// ---- callers ----

Status DeviceChannel::open(const Wait& wait) {
  device_->watch(weak_from_this());
  const auto opening = std::make_shared<Event>();
  lists_.with([&](Lists& lists) {
    lists.opening = opening;
    lists.opening_deadline = wait.deadline;
  });
  device_->wake(shared_from_this());
  // The device thread keeps the deadline and knows more; unless it hangs.
  if (!opening->wait(Wait{wait.deadline.plus_ms(kHangingMs), wait.interrupt})) {
    const Status status =
        wait.interrupted()
            ? wait.interrupt->status()
            : Status(
                  Code::kTimeout,
                  format("%s: making communicator \"%s\" on %s timed out: the thread dt-device "
                         "hangs in a call; it waits for %s",
                         options_.self.c_str(), options_.name.c_str(),
                         device_->runtime().device().name.c_str(), options_.carrier->waits_for()));
    interrupt(status);
    return status;
  }
  return lists_.with([](const Lists& lists) { return lists.opened; });
}

Status DeviceChannel::refused(const Lists& lists) const {
  if (interrupt_.fired()) return interrupt_.status();
  if (!lists.retiring) return {};
  return Status(Code::kInvalidState,
                format("communicator \"%s\" was destroyed", options_.name.c_str()));
}

Status DeviceChannel::check_not_capturing(const char* call, cuda::Stream stream) const {
  DT_TRY_VALUE(const bool capturing, device_->runtime().is_capturing(stream));
  if (!capturing) return {};
  return Status(Code::kInvalidArgument,
                format("%s on comm \"%s\": the stream records a CUDA graph, and dt cannot be part "
                       "of one; end the capture before, or give another stream",
                       call, options_.name.c_str()));
}

Status DeviceChannel::submit(const Collective& collective, std::shared_ptr<Work> work) {
  DT_TRY(interrupt_.status());
  cuda::Runtime& runtime = device_->runtime();
  if (collective.steps == nullptr) {
    DT_TRY(check_not_capturing(kind_name(collective.kind), collective.stream));
  }
  auto operation = operations_.make();
  DT_TRY_VALUE(operation->launch, device_->take_launch());
  if (collective.steps == nullptr) {
    DT_TRY(runtime.record(operation->launch->ready, collective.stream));
  }
  operation->collective = collective;
  work->set_launch(operation->launch);
  operation->work = std::move(work);
  return lists_.with([&](Lists& lists) {
    // Whoever breaks the communicator empties the lists after it fired the interrupt.
    DT_TRY(refused(lists));
    operation->sequence = ++lists.sequence;
    lists.last_kind = collective.kind;
    if (options_.note_last) {
      options_.note_last(collective.kind, operation->sequence, collective.name);
    }
    if (options_.ledger != nullptr && !collective.is_transfer()) {
      operation->entry = options_.ledger->add(collective, operation->sequence);
    }
    device_->operation_began();
    lists.earliest = lists.earliest.earlier(collective.deadline);
    if (lists.grouping) {
      operation->group = lists.groups;
      lists.grouped.push_back(std::move(operation));
      return Status();
    }
    lists.queued.push_back(std::move(operation));
    device_->enlist(shared_from_this(), 1);
    return Status();
  });
}

void DeviceChannel::peer_left(int32_t peer) {
  if (!options_.departed_error) return;
  lists_.with([&](Lists& lists) { lists.departed.push_back(peer); });
  any_departed_.store(true, std::memory_order_relaxed);  // the lists order the rest
}

Status DeviceChannel::begin_group() {
  return lists_.with([&](Lists& lists) {
    DT_TRY(refused(lists));
    lists.grouping = true;
    ++lists.groups;
    return Status();
  });
}

Status DeviceChannel::end_group() {
  return lists_.with([&](Lists& lists) {
    lists.grouping = false;
    DT_TRY(refused(lists));
    if (lists.grouped.empty()) return Status();
    const size_t count = lists.grouped.size();
    for (OperationPtr& each : lists.grouped) {
      lists.earliest = lists.earliest.earlier(each->collective.deadline);
      lists.queued.push_back(std::move(each));
    }
    lists.grouped.clear();
    device_->enlist(shared_from_this(), count);
    return Status();
  });
}

Status DeviceChannel::call(std::function<Status()> task, Deadline deadline) {
  const auto asked = std::make_shared<Call>();
  asked->task = std::move(task);
  lists_.with([&](Lists& lists) { lists.calls.push_back(asked); });
  device_->wake(shared_from_this());
  if (asked->done.wait({deadline})) return asked->status;
  const bool taken = lists_.with([&](Lists& lists) { return std::erase(lists.calls, asked) == 0; });
  // It runs, or comes next: what it does cannot be taken back.
  if (taken && asked->done.wait({Deadline::after_ms(kTakenCallMs)})) return asked->status;
  return Status(Code::kTimeout, format("communicator \"%s\": the thread dt-device is busy or hangs",
                                       options_.name.c_str()));
}

void DeviceChannel::interrupt(Status status) {
  told_.store(true);  // whoever calls this knows already
  interrupt_.fire(std::move(status));
  fail_unlaunched();
  device_->wake(shared_from_this());
}

void DeviceChannel::look_after() {
  if (interrupt_.fired()) {
    const bool late = lists_.with([](const Lists& lists) { return lists.told_by.passed(); });
    if (late) fail_all();
    return;
  }
  const OperationPtr late = lists_.with([this](const Lists& lists) -> OperationPtr {
    const auto hangs = [this](const OperationPtr& each) {
      return excuse_.apply(each->collective.deadline).plus_ms(kHangingMs).passed();
    };
    if (!lists.earliest.plus_ms(kHangingMs).passed()) return nullptr;
    for (const auto& each : lists.under_way) {
      if (hangs(each)) return each;
    }
    for (const auto& each : lists.enqueuing) {
      if (hangs(each)) return each;
    }
    for (const auto& each : lists.queued) {
      if (hangs(each)) return each;
    }
    for (const auto& each : lists.grouped) {
      if (hangs(each)) return each;
    }
    return nullptr;
  });
  if (late == nullptr) return;
  break_with(
      failure(*late, Code::kTimeout,
              format("timed out: the thread dt-device hangs in a call; it waits for %s; look "
                     "at the network between the ranks, then end this process",
                     options_.carrier->waits_for())));
  fail_all();
}

void DeviceChannel::retire(std::vector<std::shared_ptr<void>> used) {
  std::vector<OperationPtr> ungrouped;
  lists_.with([&](Lists& lists) {
    lists.retiring = true;
    lists.grouping = false;
    lists.used = std::move(used);
    ungrouped.swap(lists.grouped);
  });
  for (const OperationPtr& each : ungrouped) {
    complete(*each,
             failure(*each, Code::kAborted, "its communicator was destroyed inside a group"));
  }
  device_->wake(shared_from_this());
}

// ---- the device thread: launching ----

DeviceChannel::Launched DeviceChannel::launch(size_t places) {
  Launched out;
  const bool went_on = !batch_.empty();
  Status status = interrupt_.status();
  if (status.ok()) {
    const Result<bool> passes = suspicion_.ok() ? passes_gate(places) : Result<bool>(false);
    if (passes.ok() && !passes.value()) {
      out.under_way = true;  // it stays at the head of the order
      return out;
    }
    status = passes.status();
    if (status.ok()) status = begin_some(places, &out);
    if (status.ok()) status = end_some(&out);
    if (!status.ok()) {
      suspect(batch_.empty() ? status : failure(*batch_[0], status));
      if (!interrupt_.fired()) {
        out.under_way = true;
        return out;
      }
    }
  }
  if (!status.ok()) {  // nothing of it is launched any more
    batch_.clear();
    return {places, false, true};
  }
  if (!went_on && out.begun == 0) out.begun = places;  // their operations are not there any more
  out.under_way = !batch_.empty();
  return out;
}

/// Whether `next` belongs to what has begun.
bool DeviceChannel::joins(const Operation& next, const std::vector<OperationPtr>& begun) const {
  const OperationPtr* last = !begun.empty()    ? &begun.back()
                             : !batch_.empty() ? &batch_.back()
                                               : nullptr;
  if (last == nullptr) return true;
  if (next.group != 0 || (*last)->group != 0) {
    return next.group == (*last)->group && batch_.empty();
  }
  if (!next.collective.is_transfer() || !(*last)->collective.is_transfer()) return false;
  if (begun.size() >= kTogetherMax) return false;
  return batch_.empty() || options_.carrier->takes(next.collective);
}

/// Of what begin_some() would take now. Sends and receives pass.
Result<bool> DeviceChannel::passes_gate(size_t places) {
  if (options_.gate == nullptr || !batch_.empty()) return true;
  OperationPtr first;
  OperationPtr last;
  lists_.with([&](const Lists& lists) {
    size_t looked = 0;
    for (const OperationPtr& each : lists.queued) {
      const auto group = lists.queued.front()->group;
      if (looked == places || (looked > 0 && (group == 0 || each->group != group))) break;
      ++looked;
      if (each->entry.position == 0) continue;
      if (first == nullptr) first = each;
      last = each;
    }
  });
  if (first == nullptr) return true;
  const auto passes = options_.gate->passes(first->entry, last->entry, first->collective.deadline);
  if (passes.ok()) return passes;
  return failure(*first, passes.status());
}

Status DeviceChannel::begin_some(size_t places, Launched* out) {
  if (places == 0) return {};
  std::vector<OperationPtr> begun;
  lists_.with([&](Lists& lists) {
    while (begun.size() < places && !lists.queued.empty() && joins(*lists.queued.front(), begun)) {
      begun.push_back(std::move(lists.queued.front()));
      lists.queued.pop_front();
      lists.enqueuing.push_back(begun.back());
    }
  });
  if (begun.empty()) return {};
  out->begun = begun.size();
  out->progressed = true;
  if (batch_.empty()) ++batches_;
  batch_.insert(batch_.end(), begun.begin(), begun.end());
  std::vector<const Collective*> collectives;
  for (const OperationPtr& each : begun) {
    each->batch = batches_;
    if (each->collective.is_transfer()) each->before = device_->last_enqueued();
    each->collective.mark.started();
    DT_TRY(prepare_inputs(*each));
    collectives.push_back(&each->collective);
  }
  return options_.carrier->begin(collectives);
}

Status DeviceChannel::end_some(Launched* out) {
  if (batch_.empty()) return {};
  ended_.clear();
  DT_TRY(options_.carrier->progress(&ended_));
  for (const Collective* collective : ended_) {
    const auto found = std::find_if(batch_.begin(), batch_.end(), [&](const OperationPtr& each) {
      return &each->collective == collective;
    });
    const OperationPtr operation = *found;
    DT_TRY(mark_done(*operation));
    batch_.erase(found);
    lists_.with([&](Lists& lists) {
      if (std::erase(lists.enqueuing, operation) == 0) return;  // it was completed
      operation->launch->enqueued.store(true);
      lists.under_way.push_back(operation);
    });
    operation->launch->bell.ring();
    out->progressed = true;
  }
  return {};
}

Status DeviceChannel::prepare_inputs(const Operation& operation) {
  cuda::Runtime& runtime = device_->runtime();
  const cuda::Stream stream = device_->stream();
  const auto& steps = operation.collective.steps;
  if (steps == nullptr) return runtime.wait(stream, operation.launch->ready);
  for (const cuda::Event event : steps->after) DT_TRY(runtime.wait(stream, event));
  if (steps->began != nullptr) DT_TRY(runtime.record(steps->began, stream));
  if (steps->before) DT_TRY(steps->before(stream));
  return {};
}

Status DeviceChannel::mark_done(const Operation& operation) {
  cuda::Runtime& runtime = device_->runtime();
  const cuda::Stream stream = device_->stream();
  const auto& steps = operation.collective.steps;
  if (steps != nullptr && steps->behind) DT_TRY(steps->behind(stream));
  if (steps != nullptr && steps->ended != nullptr) DT_TRY(runtime.record(steps->ended, stream));
  DT_TRY(runtime.record(operation.launch->done, stream));
  device_->note_enqueued(operation.launch);
  return {};
}

// ---- the device thread: what was launched ----

DeviceChannel::Turn DeviceChannel::advance() {
  bool progressed = false;
  if (!interrupt_.fired() && !suspicion_.ok()) {
    if (!suspicion_ends_.passed()) return run_calls() ? Turn::kProgressed : Turn::kBusy;
    break_with(suspicion_);
  }
  if (!interrupt_.fired()) {
    const int64_t now_ns = monotonic_ns();
    progressed |= advance_opening();
    progressed |= complete_some();
    keep_deadlines(now_ns);
    look_at_departed();
  }
  progressed |= run_calls();
  const Turn ending = end();
  if (interrupt_.fired()) return aborted_ || closed_ ? ending : Turn::kBusy;
  const bool busy = lists_.with([](const Lists& lists) {
    return !lists.queued.empty() || !lists.enqueuing.empty() || !lists.under_way.empty() ||
           !lists.calls.empty() || (lists.opening != nullptr && !lists.opening->is_set());
  });
  if (progressed) return Turn::kProgressed;
  return busy ? Turn::kBusy : ending;
}

bool DeviceChannel::advance_opening() {
  const auto [opening, deadline] = lists_.with(
      [](const Lists& lists) { return std::pair(lists.opening, lists.opening_deadline); });
  if (opening == nullptr || opening->is_set()) return false;
  Status status;
  bool open = false;
  if (!std::exchange(opening_begun_, true)) status = options_.carrier->begin_open(deadline);
  if (status.ok()) {
    const auto answer = options_.carrier->is_open();
    status = answer.status();
    open = answer.ok() && answer.value();
  }
  if (status.ok() && !open) {
    if (!deadline.passed()) return false;
    status =
        Status(Code::kTimeout,
               format("%s: making communicator \"%s\" on %s timed out: it waits for %s",
                      options_.self.c_str(), options_.name.c_str(),
                      device_->runtime().device().name.c_str(), options_.carrier->waits_for()));
  }
  lists_.with([&](Lists& lists) { lists.opened = status; });
  if (!status.ok()) {
    told_.store(true);  // whoever opens it tells the others
    break_with(status);
  }
  opening->set();
  return true;
}

bool DeviceChannel::run_calls() {
  if (!batch_.empty() || wants_abort() || ending_ != nullptr) return false;
  const auto calls = lists_.with([](Lists& lists) { return std::exchange(lists.calls, {}); });
  for (const auto& each : calls) {
    each->status = each->task();
    each->done.set();
  }
  return !calls.empty();
}

bool DeviceChannel::complete_some() {
  bool progressed = false;
  for (;;) {
    const OperationPtr first = lists_.with([](const Lists& lists) {
      return lists.under_way.empty() ? nullptr : lists.under_way.front();
    });
    if (first == nullptr) return progressed;
    const auto passed = device_->runtime().passed(first->launch->done);
    if (!passed.ok()) {
      suspect(failure(*first, passed.status()));
      return true;
    }
    if (!passed.value()) {
      const Status status = options_.carrier->check();
      if (status.ok()) return progressed;
      suspect(failure(*first, status));
      return true;
    }
    const bool ours = lists_.with([&](Lists& lists) {
      if (lists.under_way.empty() || lists.under_way.front() != first) return false;
      lists.under_way.pop_front();
      return true;
    });
    if (ours) {
      // What these hold may be freed by whoever is told, on his thread and not on this one.
      first->collective.steps = nullptr;
      complete(*first, Status());
    }
    progressed = true;
  }
}

/// As of the beginning of this turn: a carrier that keeps deadlines itself has looked since.
void DeviceChannel::keep_deadlines(int64_t now_ns) {
  if (!excuse_.over()) return;
  OperationPtr late;
  bool queued = false;
  // The gate keeps the deadline, too, and knows who has not come.
  const bool asks = options_.gate != nullptr && options_.gate->is_asking();
  const int64_t grace_ms = std::max(options_.carrier->grace_ms(), asks ? kGateGraceMs : 0);
  lists_.with([&](Lists& lists) {
    if (!lists.earliest.is_at_or_before(now_ns)) return;
    lists.earliest = Deadline::never();
    const auto look = [&](const auto& list, int64_t grace, bool is_queued) {
      for (const OperationPtr& each : list) {
        const Deadline own = excuse_.apply(each->collective.deadline);
        const Deadline deadline = own.plus_ms(grace);
        lists.earliest = lists.earliest.earlier(own);
        if (late != nullptr || !deadline.is_at_or_before(now_ns)) continue;
        late = each;
        queued = is_queued;
      }
    };
    look(lists.under_way, 0, false);
    look(lists.enqueuing, grace_ms, false);
    look(lists.queued, grace_ms, true);
    look(lists.grouped, grace_ms, true);
  });
  if (late != nullptr && suspicion_.ok()) suspect(timed_out(*late, queued));
}

// ---- the device thread: the end ----

bool DeviceChannel::abort() {
  batch_.clear();
  if (options_.gate != nullptr) options_.gate->close(interrupt_.status());
  options_.carrier->abort();
  aborted_ = true;
  // Its operations fail when the GPU has passed them.
  told_ended_ = Deadline::after_ms(kUnusedMs);
  const bool has_end = options_.carrier->has_end();
  if (!has_end) mark_last();
  return has_end;
}

bool DeviceChannel::is_under_way() const {
  return lists_.with([](const Lists& lists) {
    return !lists.under_way.empty() || !lists.enqueuing.empty() ||
           (lists.opening != nullptr && !lists.opening->is_set());
  });
}

void DeviceChannel::add_awaited(std::vector<Question>* awaited) const {
  const auto add = [&](const OperationPtr& each) {
    // The events of steps may go with them, once the caller knows that the operation failed.
    const auto& steps = each->collective.steps;
    awaited->push_back([device = device_, launch = each->launch, has_steps = steps != nullptr,
                        held = std::weak_ptr(steps)] {
      const auto is_ahead = [&](cuda::Event event) {
        const auto passed = device->runtime().passed(event);
        return passed.ok() && !passed.value();
      };
      if (!has_steps) return is_ahead(launch->ready);
      const auto inputs = held.lock();
      return inputs != nullptr && std::any_of(inputs->after.begin(), inputs->after.end(), is_ahead);
    });
  };
  lists_.with([&](const Lists& lists) {
    for (const OperationPtr& each : lists.under_way) add(each);
    for (const OperationPtr& each : lists.enqueuing) add(each);
  });
}

void DeviceChannel::mark_last() {
  const auto taken = device_->take_launch();
  last_ = nullptr;
  if (!taken.ok()) return;
  cuda::Runtime& runtime = device_->runtime();
  const Launch& mark = *taken.value();
  if (runtime.record(mark.done, device_->stream()).ok() &&
      runtime.record(mark.ready, device_->side_stream()).ok()) {
    last_ = taken.value();
    device_->note_enqueued(last_);
  }
}

/// Whether the GPU has passed the mark on both streams; without one, that is not known.
bool DeviceChannel::passed_last() const {
  if (last_ == nullptr) return false;
  for (const cuda::Event event : {last_->done, last_->ready}) {
    const auto passed = device_->runtime().passed(event);
    if (!passed.ok() || !passed.value()) return false;
  }
  return true;
}

/// A broken communicator is aborted before; a retiring one ends when nothing of it is under way.
DeviceChannel::Turn DeviceChannel::end() {
  if (wants_abort()) return Turn::kBusy;
  const bool ending = !await_ending();
  if (aborted_ && !all_failed_) {
    const bool passed = !ending && (last_ == nullptr || passed_last());
    if (!passed && !told_ended_.passed()) return Turn::kBusy;
    all_failed_ = true;
    fail_all();
  }
  if (ending) {
    // While one is aborted, it is looked at whether that hangs.
    if (!has_waited()) return aborted_ ? Turn::kBusy : Turn::kEnding;
    leave_behind();
    return Turn::kIdle;
  }
  const bool retires = lists_.with([&](Lists& lists) {
    if (!lists.retiring) return false;
    if (!aborted_ &&
        !(lists.queued.empty() && lists.enqueuing.empty() && lists.under_way.empty())) {
      return false;
    }
    used_.insert(used_.end(), lists.used.begin(), lists.used.end());
    lists.used.clear();
    return true;
  });
  if (retires && !aborted_ && !closed_) {
    closes_ = Deadline::after_ms(kCloseMs);
    if (options_.carrier->has_end()) {
      start_ending([this] { end_now(); });
      closed_ = ending_ != nullptr;  // otherwise again in the next turn
      return Turn::kBusy;
    }
    closed_ = true;
  }
  return (aborted_ || closed_) && !left() ? Turn::kBusy : Turn::kIdle;
}

void DeviceChannel::start_ending(std::function<void()> body) {
  ending_over_.store(false);
  auto thread = device_->start_ending([self = shared_from_this(), body = std::move(body)] {
    body();
    self->ending_is_over();
  });
  if (thread.ok()) ending_ = std::move(thread).value();
}

void DeviceChannel::ending_is_over() {
  ending_over_.store(true);
  device_->look_again();
}

/// Whether no ending thread is at work, or no longer.
bool DeviceChannel::await_ending() {
  if (ending_ == nullptr) return true;
  if (!ending_over_.exchange(false)) return false;
  (void)ending_->join({});  // within a few instructions
  ending_ = nullptr;
  if (!carrier_released_) mark_last();  // NCCL enqueues until then
  return true;
}

/// Gives back what the GPU may have used until now. Freeing waits for the whole device (cudaFree
/// does so itself, before ncclMemFree dt does), so an ending thread does it; where that takes long
/// at the end of the job it is left behind instead.
bool DeviceChannel::left() {
  if (carrier_released_ && used_.empty()) {
    last_ = nullptr;
    return true;
  }
  if (last_ == nullptr) mark_last();
  if (passed_last()) start_ending([this] { give_back(); });
  if (last_ != nullptr && !has_waited()) return false;
  leave_behind();
  return true;
}

void DeviceChannel::give_back() {
  while (!carrier_released_) {
    carrier_released_ = options_.carrier->release();
    if (carrier_released_) break;
    if (left_behind_.load()) return;
    (void)Event().wait({Deadline::after_ns(kReleaseLookNs)});
  }
  used_.clear();
}

/// The job is at its end, and has waited for this communicator.
bool DeviceChannel::has_waited() {
  if (device_->is_ending() && leaves_behind_.is_never()) {
    leaves_behind_ = Deadline::after_ms(kLeaveMs);
  }
  return leaves_behind_.passed();
}

/// An ending thread holds the channel, and frees what it can when it comes to its end.
void DeviceChannel::leave_behind() {
  left_behind_.store(true);
  const auto keep = [](std::vector<std::shared_ptr<void>>* used) {
    if (!used->empty()) static_cast<void>(new auto(std::exchange(*used, {})));
  };
  lists_.with([&](Lists& lists) { keep(&lists.used); });
  if (ending_ != nullptr) return device_->end_left_behind();
  keep(&used_);
  carrier_released_ = true;
  last_ = nullptr;
}

// ---- completion ----

/// First done, then counted: who is woken by the eventfd finds the work done.
void DeviceChannel::complete(const Operation& operation, const Status& status) {
  completing_.fetch_add(1, std::memory_order_relaxed);  // published by done()
  operation.work->complete(status);
  operation.launch->bell.ring();
  completion_fd_.with([](int fd) {
    if (fd >= 0) (void)eventfd_write(fd, 1);
  });
  completed_.fetch_add(1, std::memory_order_release);
  device_->operation_ended();
}

/// Inside is what the device has not passed: a rank whose GPU is late is late itself.
Pulse DeviceChannel::pulse() const {
  return lists_.with([this](const Lists& lists) {
    Pulse pulse;
    const OperationPtr* first = nullptr;
    if (!lists.under_way.empty()) {
      first = &lists.under_way.front();
    } else if (!lists.enqueuing.empty()) {
      first = &lists.enqueuing.front();
    } else if (!lists.queued.empty()) {
      first = &lists.queued.front();
    }
    pulse.inside = first != nullptr;
    pulse.sequence = pulse.inside ? (*first)->sequence : lists.sequence > 0 ? lists.sequence : -1;
    if (pulse.inside) {
      pulse.kind = (*first)->collective.kind;
      pulse.label = (*first)->collective.name;
    } else {
      pulse.kind = lists.last_kind;
    }
    pulse.stamp = 2 * completed_.load(std::memory_order_relaxed) + (pulse.inside ? 1 : 0);
    return pulse;
  });
}

void DeviceChannel::await_count() const {
  const uint64_t begun = completing_.load(std::memory_order_relaxed);
  while (completed_.load(std::memory_order_acquire) < begun) sched_yield();
}

}  // namespace dt::backend
