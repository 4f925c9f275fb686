// SPDX-License-Identifier: Apache-2.0
// What happens when a communicator over devices fails, and which error its callers get.
#include <algorithm>
#include <set>
#include <utility>

#include "backend/device/channel.h"
#include "collective/descriptor.h"

namespace dt::backend {
namespace {

constexpr int64_t kAbortMs = 3'000;
constexpr int64_t kCulpritMs = 1'000;  // wait for the store to name the rank at fault
constexpr int64_t kDepartedMs = 3'000;
constexpr int64_t kStoppedNs = 1'000'000'000;  // between two looks: the process was stopped

}  // namespace

/// The device thread calls this when an operation fails. CUDA and NCCL do not know which rank is at
/// fault, but the store may: it reports a rank that died, and it answers the report of a time-out
/// with the ranks that have not called the operation. Both arrive by interrupt(). If one arrives
/// within kCulpritMs, callers get that error; otherwise they get `status`.
void DeviceChannel::suspect(const Status& status) {
  const ErrorInfo& info = status.info();
  // Ranks do not report their sends and receives. With a gate, all ranks have called the operation.
  const bool late = info.code == Code::kTimeout && options_.ledger != nullptr &&
                    options_.gate == nullptr && info.operation != kind_name(Kind::kSend) &&
                    info.operation != kind_name(Kind::kRecv);
  const bool lost = info.code == Code::kPeerLost || info.code == Code::kNccl;
  if (info.rank >= 0 || !options_.on_broken || !(late || lost)) return break_with(status);
  suspicion_ = status;
  suspicion_ends_ = Deadline::after_ms(kCulpritMs);
  std::lock_guard lock(breaking_);
  if (late && !told_.exchange(true)) options_.on_broken(options_.name, status);
}

/// The first to break it tells the control plane, before callers hear of it.
void DeviceChannel::break_with(const Status& status) {
  {
    // If two threads find a failure, none is visible here before the first is reported.
    std::lock_guard lock(breaking_);
    if (!told_.exchange(true) && options_.on_broken) options_.on_broken(options_.name, status);
    interrupt_.fire(status);
  }
  fail_unlaunched();
  device_->wake(shared_from_this());
}

void DeviceChannel::fail_unlaunched() {
  std::vector<OperationPtr> all;
  lists_.with([&](Lists& lists) {
    if (lists.told_by.is_never()) lists.told_by = Deadline::after_ms(kAbortMs);
    all.assign(lists.queued.begin(), lists.queued.end());
    all.insert(all.end(), lists.grouped.begin(), lists.grouped.end());
    lists.queued.clear();
    lists.grouped.clear();
  });
  for (const OperationPtr& each : all) complete(*each, interrupt_.status());
}

void DeviceChannel::fail_all() {
  std::vector<OperationPtr> all;
  lists_.with([&](Lists& lists) {
    all.assign(lists.under_way.begin(), lists.under_way.end());
    all.insert(all.end(), lists.enqueuing.begin(), lists.enqueuing.end());
    lists.under_way.clear();
    lists.enqueuing.clear();
  });
  for (const OperationPtr& each : all) complete(*each, interrupt_.status());
}

Status DeviceChannel::failure(const Operation& operation, Code code,
                              const std::string& message) const {
  ErrorInfo info;
  info.code = code;
  info.operation = kind_name(operation.collective.kind);
  info.sequence = operation.sequence;
  info.message = format("%s%s #%lld on comm \"%s\", %s: %s", info.operation.c_str(),
                        collective::label_text(operation.collective.name).c_str(),
                        static_cast<long long>(operation.sequence), options_.name.c_str(),
                        options_.self.c_str(), message.c_str());
  return Status(std::move(info));
}

/// Sends and receives that the GPU has come to, where all that was launched with them needs peers
/// that have left. NCCL does not know of those.
std::vector<DeviceChannel::OperationPtr> DeviceChannel::waiting_for_departed() const {
  std::vector<OperationPtr> batch;
  const bool all = lists_.with([&](const Lists& lists) {
    if (device_->is_aborting()) return false;
    const auto add = [&](const OperationPtr& each) {
      if (batch.empty() || each->batch == batch[0]->batch) batch.push_back(each);
    };
    for (const OperationPtr& each : lists.under_way) add(each);
    for (const OperationPtr& each : lists.enqueuing) add(each);
    return std::all_of(batch.begin(), batch.end(), [&](const OperationPtr& each) {
      return each->collective.is_transfer() &&
             std::find(lists.departed.begin(), lists.departed.end(), each->collective.root) !=
                 lists.departed.end();
    });
  });
  if (!all || batch.empty()) return {};
  const auto before = batch[0]->before.lock();
  if (before != nullptr) {
    const auto passed = device_->runtime().passed(before->done);
    if (passed.ok() && !passed.value()) return {};
  }
  const bool ready = std::all_of(batch.begin(), batch.end(),
                                 [&](const OperationPtr& each) { return inputs_ready(*each); });
  return ready ? batch : std::vector<OperationPtr>();
}

/// What a peer sent before it left is there within kDepartedMs, unless the GPU is busy with other
/// programs for as long. Of several peers, each may have done its part: then the error names all of
/// them, and blames none.
void DeviceChannel::look_at_departed() {
  if (!any_departed_.load(std::memory_order_relaxed)) return;
  const auto batch = waiting_for_departed();
  const int64_t number = batch.empty() ? 0 : batch[0]->batch;
  const int64_t now_ns = monotonic_ns();
  const bool stopped = now_ns - std::exchange(departed_looked_ns_, now_ns) > kStoppedNs;
  if (std::exchange(departed_batch_, number) != number || stopped) {
    departed_deadline_ = Deadline::after_ms(kDepartedMs);
  }
  if (number == 0 || !departed_deadline_.passed() || !suspicion_.ok()) return;
  const Operation& first = *batch[0];
  ErrorInfo info =
      options_.departed_error(first.collective, first.sequence, first.collective.root).info();
  std::string others;
  std::set<int32_t> ranks;
  for (const OperationPtr& each : batch) ranks.insert(each->collective.root);
  ranks.erase(first.collective.root);
  for (const int32_t rank : ranks) others += format("%s %d", others.empty() ? "" : ",", rank);
  if (!others.empty()) {
    info.rank = -1;
    info.host.clear();
    info.pid = 0;
    info.message +=
        "; it was launched together with operations that need other ranks, which have left as "
        "well:" +
        others;
  }
  break_with(Status(std::move(info)));
}

Status DeviceChannel::failure(const Operation& operation, const Status& status) const {
  const ErrorInfo& cause = status.info();
  const bool late = cause.code == Code::kTimeout && cause.operation.empty();
  ErrorInfo info =
      failure(operation, cause.code, (late ? "timed out: " : "") + cause.message).info();
  info.rank = cause.rank;
  info.host = cause.host;
  info.pid = cause.pid;
  return Status(std::move(info));
}

bool DeviceChannel::inputs_ready(const Operation& operation) const {
  const auto passed = [&](cuda::Event event) {
    const auto answer = device_->runtime().passed(event);
    return !answer.ok() || answer.value();
  };
  const auto& steps = operation.collective.steps;
  return steps == nullptr ? passed(operation.launch->ready)
                          : std::all_of(steps->after.begin(), steps->after.end(), passed);
}

Status DeviceChannel::timed_out(const Operation& operation, bool queued) const {
  std::string why;
  if (!inputs_ready(operation)) {
    why =
        "the caller's stream has not come to it: earlier work of this program is still running "
        "on the GPU; look at that, or raise collective.timeout_ms";
  } else if (queued) {
    why =
        "an earlier operation on this GPU, maybe of another communicator, is not launched yet; "
        "look at that one, or raise collective.timeout_ms";
  } else {
    why = format(
        "it waits for %s; look at what the other ranks do and at the network to them, or "
        "raise collective.timeout_ms",
        options_.carrier->waits_for());
  }
  return failure(operation, Code::kTimeout, "timed out on the GPU: " + why);
}

}  // namespace dt::backend
