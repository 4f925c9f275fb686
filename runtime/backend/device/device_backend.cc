// SPDX-License-Identifier: Apache-2.0
#include "backend/device/device_backend.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>

#include "backend/device/channel.h"
#include "base/fork.h"

namespace dt::backend {
namespace {

// A caller's interrupt rings no doorbell of ours; a waiter that has one looks this often.
constexpr int64_t kInterruptPollMs = 20;
// The device thread keeps the deadlines. Who still waits this much later knows that it hangs.
constexpr int64_t kHangingMs = 5'000;
constexpr int64_t kAgreeMs = 5'000;
constexpr int64_t kDrainMs = 5'000;
constexpr int64_t kZeroMs = 60'000;
constexpr size_t kReasonBytes = 480;

/// What ranks tell each other after each has tried to make its part.
struct Outcome {
  int32_t code = 0;
  char reason[kReasonBytes] = {};
};

class DeviceBackend final : public Backend {
 public:
  explicit DeviceBackend(DeviceOptions options) : options_(std::move(options)) {
    DeviceChannel::Options channel;
    channel.name = options_.name;
    channel.self = options_.self;
    channel.on_broken = options_.on_broken;
    channel.carrier =
        options_.make_carrier({options_.name, options_.rank, options_.size, options_.on_host});
    channel_ =
        std::make_shared<DeviceChannel>(options_.engine->device_thread(), std::move(channel));
  }

  ~DeviceBackend() override {
    channel_->retire();
    give_memory_back();
    const int fd = completion_fd_.load();
    channel_->set_completion_fd(-1);
    release_fd_from_fork_guard(fd);
    if (fd >= 0) close(fd);
  }

  Status open(const Wait& wait) { return channel_->open(wait); }

  const char* name() const override { return options_.backend_name; }
  Backend& on_host() override { return *options_.on_host; }
  std::shared_ptr<cuda::Runtime> device() const override {
    return options_.engine->device_thread()->runtime_ptr();
  }
  std::shared_ptr<kernels::TensorKernels> kernels() const override { return options_.kernels; }

  Status submit(const Collective& collective, std::shared_ptr<Work> work) override {
    return channel_->submit(collective, std::move(work));
  }

  /// Returns when the operation is enqueued and the caller's stream waits for it.
  Status run(const Collective& collective) override {
    auto work = std::make_shared<Work>();
    DT_TRY(submit(collective, work));
    return wait_stream(*work, collective.stream);
  }

  Status wait_stream(Work& work, cuda::Stream stream) override {
    Launch& launch = *work.launch();
    const auto settled = [&] { return launch.enqueued.load() || work.done(); };
    const Deadline hanging = hanging_after(launch);
    while (!settled()) {
      const uint32_t ticket = launch.bell.prepare();
      if (settled()) {
        launch.bell.cancel();
        break;
      }
      launch.bell.sleep(ticket, hanging);
      if (!settled() && hanging.passed()) channel_->give_up_on(work);
    }
    if (work.done()) return work.status();
    return options_.engine->device_thread()->runtime().wait(stream, launch.done);
  }

  bool wait(Work& work, const Wait& wait) override {
    Doorbell bell;
    work.watch(&bell);
    const Deadline hanging = hanging_after(*work.launch());
    while (!work.done() && !wait.interrupted() && !wait.deadline.passed()) {
      const uint32_t ticket = bell.prepare();
      if (work.done()) {
        bell.cancel();
        break;
      }
      Deadline until = wait.deadline.earlier(hanging);
      if (wait.interrupt != nullptr) until = until.earlier(Deadline::after_ms(kInterruptPollMs));
      bell.sleep(ticket, until);
      if (!work.done() && hanging.passed()) channel_->give_up_on(work);
    }
    work.unwatch(&bell);
    if (!work.done()) return false;
    channel_->await_count();
    return true;
  }

  Result<int> completion_fd() override {
    int fd = completion_fd_.load(std::memory_order_acquire);
    if (fd >= 0) return fd;
    const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made < 0) {
      return Status(Code::kSystem, format("communicator \"%s\": eventfd: %s", options_.name.c_str(),
                                          errno_text(errno).c_str()));
    }
    guard_fd_from_fork(made);
    if (completion_fd_.compare_exchange_strong(fd, made)) {
      channel_->set_completion_fd(made);
      return made;
    }
    release_fd_from_fork_guard(made);
    close(made);
    return fd;
  }

  Result<void*> allocate(int64_t bytes) override {
    if (bytes <= 0) {
      return Status(Code::kInvalidArgument,
                    format("cannot allocate %lld bytes", static_cast<long long>(bytes)));
    }
    cuda::Runtime& runtime = options_.engine->device_thread()->runtime();
    DT_TRY_VALUE(void* const pointer, runtime.allocate(bytes));
    if (const Status status = zero(pointer, bytes); !status.ok()) {
      (void)runtime.release(pointer);
      return status;
    }
    allocated_.with([&](std::set<void*>& all) { all.insert(pointer); });
    return pointer;
  }
  Status release(void* pointer) override {
    if (pointer == nullptr) return {};
    if (allocated_.with([&](std::set<void*>& all) { return all.erase(pointer); }) == 0) {
      return Status(Code::kInvalidArgument,
                    format("%p is no memory that was allocated on communicator \"%s\"", pointer,
                           options_.name.c_str()));
    }
    return options_.engine->device_thread()->runtime().release(pointer);
  }
  void keep(std::shared_ptr<void> used) override {
    kept_.with([&](auto& all) { all.push_back(std::move(used)); });
  }

  void interrupt(Status status) override {
    channel_->interrupt(status);  // first: what the carrier then meets on the host is no cause
    options_.on_host->interrupt(std::move(status));
  }
  void fail(Status status) override {
    channel_->fail(status);
    options_.on_host->interrupt(std::move(status));
  }
  Status broken() const override {
    const Status status = channel_->broken();
    return status.ok() ? options_.on_host->broken() : status;
  }

  Result<Split> split(int32_t color, int32_t key, const std::string& name,
                      Deadline deadline) override {
    DT_TRY_VALUE(Split part, options_.on_host->split(color, key, name, deadline));
    if (part.backend == nullptr) return part;
    DeviceOptions child = options_;
    child.name = name;
    child.size = static_cast<int32_t>(part.members.size());
    child.rank = static_cast<int32_t>(
        std::find(part.members.begin(), part.members.end(), options_.rank) - part.members.begin());
    child.on_host = std::move(part.backend);
    DT_TRY_VALUE(part.backend, create_device_backend(std::move(child), Wait{deadline, nullptr}));
    return part;
  }

 private:
  static Deadline hanging_after(const Launch& launch) {
    const Deadline deadline = launch.deadline;
    return deadline.is_never()
               ? deadline
               : Deadline::after_ms(std::max<int64_t>(deadline.remaining_ms(), 0) + kHangingMs);
  }

  void give_memory_back() {
    DeviceThread& device = *options_.engine->device_thread();
    const auto allocated = allocated_.with([](std::set<void*>& all) { return std::move(all); });
    auto kept = kept_.with([](auto& all) { return std::move(all); });
    if (allocated.empty() && kept.empty()) return;
    const Deadline deadline = Deadline::after_ms(kDrainMs);
    if (channel_->quiet(deadline) && device.drained(deadline)) {
      for (void* const pointer : allocated) (void)device.runtime().release(pointer);
    } else {  // what a stuck operation may touch is left behind
      static_cast<void>(new auto(std::move(kept)));
    }
  }

  /// The caller may use the memory on any stream, so it is waited for.
  Status zero(void* pointer, int64_t bytes) {
    cuda::Runtime& runtime = options_.engine->device_thread()->runtime();
    DT_TRY_VALUE(const auto launch, options_.engine->device_thread()->take_launch());
    DT_TRY(runtime.fill_zero(pointer, bytes, options_.engine->device_thread()->stream()));
    DT_TRY(runtime.record(launch->done, options_.engine->device_thread()->stream()));
    DT_TRY_VALUE(const bool zeroed,
                 options_.engine->device_thread()->await(
                     launch->done, Wait{Deadline::after_ms(kZeroMs), &channel_->interrupted()}));
    if (zeroed) return {};
    DT_TRY(channel_->broken());
    return Status(Code::kTimeout,
                  format("%s is still busy after %lld s with what was enqueued before",
                         runtime.device().name.c_str(), static_cast<long long>(kZeroMs / 1000)));
  }

  const DeviceOptions options_;
  std::shared_ptr<DeviceChannel> channel_;
  Guarded<std::set<void*>> allocated_;
  Guarded<std::vector<std::shared_ptr<void>>> kept_;
  std::atomic<int> completion_fd_{-1};
};

/// Everybody learns of the first rank that could not, and knows the reason of that one. A time-out
/// is often the consequence of another's error, so other reasons go before it.
Status agree(const DeviceOptions& options, const Status& mine, const Wait& wait) {
  Outcome own;
  own.code = static_cast<int32_t>(mine.code());
  strncpy(own.reason, mine.message().c_str(), kReasonBytes - 1);
  std::vector<Outcome> all(static_cast<size_t>(options.size));
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.send = &own;
  gather.recv = all.data();
  gather.count = sizeof own;
  // Some come here when their time is up.
  if (!wait.deadline.is_never()) {
    gather.deadline =
        Deadline::after_ms(std::max<int64_t>(wait.deadline.remaining_ms(), 0) + kAgreeMs);
  }
  gather.name = "made?";
  const Status gathered = options.on_host->run(gather);
  if (!gathered.ok()) return mine.ok() ? gathered : mine;
  constexpr auto kTimedOut = static_cast<int32_t>(Code::kTimeout);
  const Outcome* cause = nullptr;
  for (const Outcome& each : all) {
    if (each.code == 0) continue;
    if (cause == nullptr || (cause->code == kTimedOut && each.code != kTimedOut)) cause = &each;
  }
  if (cause == nullptr) return {};
  if (!mine.ok() && (mine.code() != Code::kTimeout || cause->code == kTimedOut)) return mine;
  return Status(static_cast<Code>(cause->code),
                format("rank %d could not make communicator \"%s\" on its GPU: %.*s",
                       static_cast<int>(cause - all.data()), options.name.c_str(),
                       static_cast<int>(strnlen(cause->reason, kReasonBytes)), cause->reason));
}

}  // namespace

Result<std::shared_ptr<Backend>> create_device_backend(DeviceOptions options, const Wait& wait) {
  auto backend = std::make_shared<DeviceBackend>(options);
  DT_TRY(agree(options, backend->open(wait), wait));
  return std::shared_ptr<Backend>(std::move(backend));
}

}  // namespace dt::backend
