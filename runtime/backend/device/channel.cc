// SPDX-License-Identifier: Apache-2.0
#include "backend/device/channel.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

namespace dt::backend {
namespace {

constexpr int64_t kGraceMs = 1'000;
constexpr int64_t kCloseMs = 30'000;  // other ranks may let go of a communicator much later
constexpr int64_t kQuietNapNs = 20'000;
constexpr size_t kTogetherMax = 64;  // sends and receives in one group

bool is_transfer(const Collective& collective) {
  return collective.kind == Kind::kSend || collective.kind == Kind::kRecv;
}

}  // namespace

Status DeviceChannel::open(const Wait& wait) {
  const auto opening = std::make_shared<Event>();
  lists_.with([&](Lists& lists) {
    lists.opening = opening;
    lists.opening_wait = wait;
  });
  device_->wake(shared_from_this());
  // The device thread keeps the deadline and knows more; unless it hangs.
  const Deadline late = wait.deadline.is_never()
                            ? wait.deadline
                            : Deadline::after_ms(wait.deadline.remaining_ms() + kGraceMs);
  if (!opening->wait(Wait{late, wait.interrupt})) {
    const Status status =
        wait.interrupted()
            ? wait.interrupt->status()
            : Status(
                  Code::kTimeout,
                  format("%s: making communicator \"%s\" on %s timed out: it waits for %s",
                         options_.self.c_str(), options_.name.c_str(),
                         device_->runtime().device().name.c_str(), options_.carrier->waits_for()));
    interrupt(status);
    return status;
  }
  return lists_.with([](const Lists& lists) { return lists.opened; });
}

Status DeviceChannel::submit(const Collective& collective, std::shared_ptr<Work> work) {
  DT_TRY(interrupt_.status());
  cuda::Runtime& runtime = device_->runtime();
  Operation operation;
  if (collective.steps == nullptr) {
    DT_TRY_VALUE(const bool capturing, runtime.is_capturing(collective.stream));
    if (capturing) {
      return Status(
          Code::kInvalidArgument,
          format("%s on comm \"%s\": the stream records a CUDA graph, and dt cannot be part "
                 "of one; end the capture before, or give another stream",
                 collective::kind_name(collective.kind), options_.name.c_str()));
    }
  }
  DT_TRY_VALUE(operation.launch, device_->take_launch());
  if (collective.steps == nullptr) {
    DT_TRY(runtime.record(operation.launch->ready, collective.stream));
  }
  operation.launch->deadline = collective.deadline;
  operation.collective = collective;
  work->set_launch(operation.launch);
  operation.work = std::move(work);
  const bool queued = lists_.with([&](Lists& lists) {
    // Whoever breaks the communicator empties the lists after it fired the interrupt.
    if (interrupt_.fired() || lists.retiring) return false;
    operation.sequence = ++lists.sequence;
    lists.queued.push_back(std::move(operation));
    return true;
  });
  if (!queued) {
    return interrupt_.fired() ? interrupt_.status()
                              : Status(Code::kInvalidState, "the communicator was destroyed");
  }
  device_->wake(shared_from_this());
  return {};
}

void DeviceChannel::interrupt(Status status) {
  told_.store(true);  // whoever calls this knows already
  interrupt_.fire(std::move(status));
  fail_all();
  device_->wake(shared_from_this());
}

void DeviceChannel::give_up_on(const Work& work) {
  Operation late;
  bool found = false;
  lists_.with([&](const Lists& lists) {
    const auto look = [&](const auto& list) {
      for (const Operation& each : list) {
        if (each.work.get() != &work) continue;
        late = each;
        found = true;
      }
    };
    look(lists.queued);
    look(lists.enqueuing);
    look(lists.under_way);
  });
  if (!found) return;  // it is being completed
  break_with(
      failure(late, Code::kTimeout,
              format("timed out: the thread dt-device hangs in a call; it waits for %s; look "
                     "at the network between the ranks, then end this process",
                     options_.carrier->waits_for())));
}

void DeviceChannel::retire() {
  const bool under_way = lists_.with([](Lists& lists) {
    lists.retiring = true;
    return !lists.queued.empty() || !lists.enqueuing.empty() || !lists.under_way.empty();
  });
  if (under_way) {
    interrupt(Status(Code::kAborted,
                     format("communicator \"%s\" was destroyed while operations were queued",
                            options_.name.c_str())));
  }
  device_->wake(shared_from_this());
}

bool DeviceChannel::quiet(Deadline deadline) const {
  while (is_enqueuing_.load()) {
    if (deadline.passed()) return false;
    (void)Event().wait({Deadline::after_ns(kQuietNapNs)});
  }
  return true;
}

// ---- the device thread ----

DeviceChannel::Turn DeviceChannel::advance() {
  bool progressed = false;
  if (!interrupt_.fired()) {
    progressed |= open_if_asked();
    progressed |= enqueue_some();
    is_enqueuing_.store(false);
    progressed |= complete_some();
  }
  if (interrupt_.fired() && !std::exchange(aborted_, true)) {
    fail_all();
    options_.carrier->abort();
    progressed = true;
  }
  const Turn closing = close_if_retiring();
  if (closing != Turn::kIdle) return closing;
  const bool busy = lists_.with(
      [](const Lists& lists) { return !lists.queued.empty() || !lists.under_way.empty(); });
  return progressed ? Turn::kProgressed : busy ? Turn::kBusy : Turn::kIdle;
}

bool DeviceChannel::open_if_asked() {
  const auto [opening, wait] =
      lists_.with([](const Lists& lists) { return std::pair(lists.opening, lists.opening_wait); });
  if (opening == nullptr || opening->is_set()) return false;
  const Status status = options_.carrier->open(Wait{wait.deadline, &interrupt_});
  lists_.with([&](Lists& lists) { lists.opened = status; });
  if (!status.ok()) {
    told_.store(true);  // whoever opens it tells the others
    break_with(status);
  }
  opening->set();
  return true;
}

bool DeviceChannel::enqueue_some() {
  std::vector<Operation> batch;
  lists_.with([&](Lists& lists) {
    while (!lists.queued.empty() && batch.size() < kTogetherMax) {
      const bool joins = batch.empty() || (is_transfer(batch.back().collective) &&
                                           is_transfer(lists.queued.front().collective));
      if (!joins) break;
      batch.push_back(std::move(lists.queued.front()));
      lists.queued.pop_front();
    }
    lists.enqueuing = batch;
    is_enqueuing_.store(!batch.empty());
  });
  if (batch.empty()) return false;
  Status status;
  Deadline deadline = Deadline::never();
  std::vector<const Collective*> operations;
  for (const Operation& each : batch) {
    if (status.ok()) status = prepare_inputs(each);
    deadline = deadline.earlier(each.collective.deadline);
    operations.push_back(&each.collective);
  }
  if (status.ok()) status = options_.carrier->enqueue(operations, Wait{deadline, &interrupt_});
  for (const Operation& each : batch) {
    if (status.ok()) status = mark_done(each);
  }
  if (!status.ok()) {
    break_with(status.code() == Code::kTimeout
                   ? timed_out(batch.front())
                   : failure(batch.front(), status.code(), status.message()));
    return true;
  }
  lists_.with([&](Lists& lists) {
    if (interrupt_.fired()) return;  // whoever broke it completes them
    lists.enqueuing.clear();
    for (Operation& each : batch) {
      each.launch->enqueued.store(true);
      lists.under_way.push_back(each);
    }
  });
  for (const Operation& each : batch) each.launch->bell.ring();
  return true;
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
  return runtime.record(operation.launch->done, stream);
}

bool DeviceChannel::complete_some() {
  bool progressed = false;
  for (;;) {
    Operation first;
    const bool any = lists_.with([&](const Lists& lists) {
      if (lists.under_way.empty()) return false;
      first = lists.under_way.front();
      return true;
    });
    if (!any) return progressed;
    const auto passed = device_->runtime().passed(first.launch->done);
    if (!passed.ok()) {
      break_with(failure(first, passed.status().code(), passed.status().message()));
      return true;
    }
    if (!passed.value()) {
      Status status = options_.carrier->check();
      if (!status.ok()) {
        status = failure(first, status.code(), status.message());
      } else if (first.collective.deadline.passed()) {
        status = timed_out(first);
      }
      if (!status.ok()) break_with(status);
      return progressed || !status.ok();
    }
    const bool ours = lists_.with([&](Lists& lists) {
      if (lists.under_way.empty()) return false;
      lists.under_way.pop_front();
      return true;
    });
    if (ours) complete(first, Status());
    progressed = true;
  }
}

DeviceChannel::Turn DeviceChannel::close_if_retiring() {
  if (!lists_.with([](const Lists& lists) { return lists.retiring; })) return Turn::kIdle;
  if (aborted_) return Turn::kGone;
  if (closes_.is_never()) closes_ = Deadline::after_ms(kCloseMs);
  const auto closed = options_.carrier->close();
  if (closed.ok() && closed.value()) return Turn::kGone;
  if (closed.ok() && !closes_.passed()) return Turn::kBusy;
  options_.carrier->abort();
  aborted_ = true;
  return Turn::kGone;
}

// ---- failure ----

/// The first to break it tells the control plane, before callers hear of it.
void DeviceChannel::break_with(const Status& status) {
  interrupt_.fire(status);
  if (!told_.exchange(true) && options_.on_broken) {
    options_.on_broken(options_.name, interrupt_.status());
  }
  fail_all();
  device_->wake(shared_from_this());
}

void DeviceChannel::fail_all() {
  std::vector<Operation> all;
  lists_.with([&](Lists& lists) {
    for (auto* list : {&lists.under_way, &lists.queued}) {
      for (Operation& each : *list) all.push_back(std::move(each));
      list->clear();
    }
    for (Operation& each : lists.enqueuing) all.push_back(std::move(each));
    lists.enqueuing.clear();
  });
  for (const Operation& each : all) complete(each, interrupt_.status());
}

Status DeviceChannel::failure(const Operation& operation, Code code,
                              const std::string& message) const {
  ErrorInfo info;
  info.code = code;
  info.operation = collective::kind_name(operation.collective.kind);
  info.sequence = operation.sequence;
  const std::string& label = operation.collective.name;
  info.message = format("%s%s #%lld on comm \"%s\", %s: %s", info.operation.c_str(),
                        label.empty() ? "" : (" \"" + label + "\"").c_str(),
                        static_cast<long long>(operation.sequence), options_.name.c_str(),
                        options_.self.c_str(), message.c_str());
  return Status(std::move(info));
}

Status DeviceChannel::timed_out(const Operation& operation) const {
  const auto passed = [&](cuda::Event event) {
    const auto answer = device_->runtime().passed(event);
    return !answer.ok() || answer.value();
  };
  const auto& steps = operation.collective.steps;
  const bool ready = steps == nullptr
                         ? passed(operation.launch->ready)
                         : std::all_of(steps->after.begin(), steps->after.end(), passed);
  const std::string why =
      !ready
          ? "the caller's stream has not come to it: earlier work of this program is still running "
            "on the GPU; look at that, or raise collective.timeout_ms"
          : format(
                "it waits for %s; look at what the other ranks do and at the network to them, or "
                "raise collective.timeout_ms",
                options_.carrier->waits_for());
  return failure(operation, Code::kTimeout, "timed out on the GPU: " + why);
}

/// First done, then counted: who is woken by the eventfd finds the work done.
void DeviceChannel::complete(const Operation& operation, const Status& status) {
  completing_.fetch_add(1, std::memory_order_relaxed);  // published by done()
  operation.work->complete(status);
  operation.launch->bell.ring();
  const int fd = completion_fd_.load(std::memory_order_acquire);
  if (fd >= 0) (void)eventfd_write(fd, 1);
  completed_.fetch_add(1, std::memory_order_release);
}

void DeviceChannel::await_count() const {
  const uint64_t begun = completing_.load(std::memory_order_relaxed);
  while (completed_.load(std::memory_order_acquire) < begun) sched_yield();
}

}  // namespace dt::backend
