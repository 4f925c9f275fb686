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
#include "base/pool.h"

namespace dt::backend {
namespace {

constexpr int64_t kLookMs = 1'000;   // and after the device thread this often
constexpr int64_t kAgreeMs = 8'000;  // more than a hanging device thread is late
constexpr int64_t kZeroMs = 60'000;
constexpr size_t kDeviceReasonBytes = 480;

/// What ranks tell each other after each has tried to make its part.
struct Outcome {
  int32_t code = 0;
  char reason[kDeviceReasonBytes] = {};
};

/// NCCL has neither integers of 16 bits nor operations on bits; of truth values these are the least
/// and the greatest.
bool nccl_has(Dtype dtype, ReduceOp op) {
  if (dtype == Dtype::kI16 || dtype == Dtype::kU16) return false;
  return dtype == Dtype::kBool ? op != ReduceOp::kBxor : !is_bitwise(op);
}

class DeviceBackend final : public Backend {
 public:
  /// `compares_on`: with Check::kStrict. `beside`: every backend on the host that this one uses.
  DeviceBackend(DeviceOptions options, std::shared_ptr<Carrier> carrier,
                std::shared_ptr<Backend> compares_on, std::vector<std::shared_ptr<Backend>> beside)
      : options_(std::move(options)), beside_(std::move(beside)) {
    DeviceChannel::Options channel;
    if (options_.check != Check::kOff) {
      channel.ledger = std::make_shared<Ledger>(options_.name, options_.size);
    }
    if (options_.order_book != nullptr && channel.ledger != nullptr) {
      options_.order_book->enlist(channel.ledger);
    }
    if (compares_on != nullptr) {
      channel.gate =
          std::make_unique<Gate>(Gate::Options{std::move(compares_on), options_.rank, options_.size,
                                               options_.world_rank, options_.host});
    }
    channel.name = options_.name;
    channel.self = options_.self;
    channel.on_broken = options_.on_broken;
    channel.note_last = options_.note_last;
    if (!options_.carries_on_host) {
      channel.departed_error = [on_host = options_.on_host](const Collective& collective,
                                                            int64_t sequence, int32_t peer) {
        return on_host->left_behind(collective, sequence, peer);
      };
    }
    channel.carrier = carrier;
    carrier_ = std::move(carrier);
    channel_ =
        std::make_shared<DeviceChannel>(options_.engine->device_thread(), std::move(channel));
  }

  ~DeviceBackend() override {
    auto used = kept_.with([](auto& all) { return std::move(all); });
    allocated_.with([&](const std::set<void*>& all) {
      for (void* const pointer : all) {
        used.emplace_back(
            pointer, [carrier = carrier_,
                      runtime = options_.engine->device_thread()->runtime_ptr()](void* memory) {
              if (carrier->has_memory()) {
                (void)runtime->synchronize();  // as in give_back()
                carrier->free(memory);
              } else {
                (void)runtime->release(memory);
              }
            });
      }
    });
    channel_->retire(std::move(used));
    const int fd = completion_fd_.load();
    channel_->set_completion_fd(-1);
    release_fd_from_fork_guard(fd);
    if (fd >= 0) close(fd);
  }

  Status open(const Wait& wait) { return channel_->open(wait); }

  const char* name() const override { return options_.backend_name; }
  Backend& on_host() override { return *options_.on_host; }
  bool idle() const override { return options_.on_host->idle(); }
  void leave() override {
    for (const auto& each : beside_) each->leave();
  }
  void peer_left(int32_t rank) override {
    for (const auto& each : beside_) each->peer_left(rank);
    channel_->peer_left(rank);
  }
  std::shared_ptr<cuda::Runtime> device() const override {
    return options_.engine->device_thread()->runtime_ptr();
  }
  std::shared_ptr<kernels::TensorKernels> kernels() const override { return options_.kernels; }
  bool has_reduction(Dtype dtype, ReduceOp op) const override {
    return options_.carries_on_host || nccl_has(dtype, op);
  }

  Status submit(const Collective& collective, std::shared_ptr<Work> work) override {
    return channel_->submit(collective, std::move(work));
  }

  /// Returns when the operation is enqueued and the caller's stream waits for it.
  Status run(const Collective& collective) override {
    const auto work = works_.make();
    DT_TRY(submit(collective, work));
    return order(*work, collective.stream);
  }

  Status wait_stream(Work& work, cuda::Stream stream) override {
    DT_TRY(channel_->check_not_capturing("dt_work_wait_stream", stream));
    return order(work, stream);
  }

  bool wait(Work& work, const Wait& wait) override {
    Doorbell bell;
    work.watch(&bell);
    Deadline look = Deadline::after_ms(kLookMs);
    while (!work.done() && !wait.interrupted() && !wait.deadline.passed()) {
      const uint32_t ticket = bell.prepare();
      if (work.done()) {
        bell.cancel();
        break;
      }
      Deadline until = wait.deadline.earlier(look);
      if (wait.interrupt != nullptr) until = until.earlier(Deadline::after_ms(kInterruptPollMs));
      bell.sleep(ticket, until);
      if (!look.passed()) continue;
      look_after();
      look = Deadline::after_ms(kLookMs);
    }
    work.unwatch(&bell);
    if (!work.done()) return false;
    channel_->await_count();
    return true;
  }

  Status begin_group() override { return channel_->begin_group(); }
  Status end_group() override { return channel_->end_group(); }
  bool drain(const Wait& wait) override { return options_.engine->device_thread()->drain(wait); }
  Status hang(int64_t limit_ms) const override {
    return options_.engine->device_thread()->hang(limit_ms);
  }
  void look_after() override { options_.engine->device_thread()->look_after(); }

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
    void* pointer = nullptr;
    if (carrier_->has_memory()) {
      DT_TRY_VALUE(pointer, allocate_by_carrier(bytes));
    } else {
      DT_TRY_VALUE(pointer, runtime.allocate(bytes));
    }
    keep_allocated(pointer);
    DT_TRY(zero(pointer, bytes));  // else the GPU may still write there: it stays
    return pointer;
  }
  Status release(void* pointer) override {
    if (pointer == nullptr) return {};
    if (allocated_.with([&](std::set<void*>& all) { return all.erase(pointer); }) == 0) {
      return Status(Code::kInvalidArgument,
                    format("%p is no memory that was allocated on communicator \"%s\"", pointer,
                           options_.name.c_str()));
    }
    return give_back(pointer);
  }
  void keep(std::shared_ptr<void> used) override {
    kept_.with([&](auto& all) { all.push_back(std::move(used)); });
  }

  Pulse pulse() const override { return channel_->pulse(); }
  void excuse(int64_t until_ns) override {
    for (const auto& each : beside_) each->excuse(until_ns);  // on_host is one of them
    channel_->excuse(until_ns);
  }
  void interrupt(Status status) override {
    // A failure of the host communicator happened earlier and may have caused this one.
    if (Status earlier = options_.on_host->broken(); !earlier.ok()) status = std::move(earlier);
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

  bool quiesce(const Wait& wait) override { return options_.on_host->quiesce(wait); }
  Result<std::shared_ptr<Backend>> among(std::shared_ptr<Backend> on_host, const std::string& name,
                                         int32_t rank, int32_t size, const Wait& wait) override {
    DeviceOptions child = options_;
    child.name = name;
    child.rank = rank;
    child.size = size;
    child.on_host = std::move(on_host);
    return create_device_backend(std::move(child), wait);
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
    // A peer that is lost meanwhile breaks this communicator; the new one is known to nobody yet.
    DT_TRY_VALUE(part.backend,
                 create_device_backend(std::move(child), Wait{deadline, &channel_->interrupted()}));
    return part;
  }

 private:
  /// `work` before later work of the stream.
  Status order(Work& work, cuda::Stream stream) {
    // Without a launch it was not submitted, or is that of a group.
    if (work.done() && work.launch() == nullptr) return work.status();
    if (!work.parts().empty()) {
      Status first;
      for (const auto& part : work.parts()) {
        const Status status = order(*part, stream);
        if (first.ok()) first = status;
      }
      return first;
    }
    Launch& launch = *work.launch();
    const auto settled = [&] { return launch.enqueued.load() || work.done(); };
    while (!settled()) {
      const uint32_t ticket = launch.bell.prepare();
      if (settled()) {
        launch.bell.cancel();
        break;
      }
      launch.bell.sleep(ticket, Deadline::after_ms(kLookMs));
      if (!settled()) look_after();
    }
    if (work.done()) return work.status();
    return options_.engine->device_thread()->runtime().wait(stream, launch.done);
  }

  Result<void*> allocate_by_carrier(int64_t bytes) {
    DT_TRY(channel_->broken());
    const auto pointer = std::make_shared<void*>(nullptr);
    DT_TRY(channel_->call(
        [carrier = carrier_, pointer, bytes]() -> Status {
          DT_TRY_VALUE(*pointer, carrier->allocate(bytes));
          return {};
        },
        Deadline::after_ms(kZeroMs)));
    return *pointer;
  }
  void keep_allocated(void* pointer) {
    allocated_.with([&](std::set<void*>& all) { all.insert(pointer); });
  }
  /// cudaFree() waits for the device, ncclMemFree() does not.
  Status give_back(void* pointer) {
    cuda::Runtime& runtime = options_.engine->device_thread()->runtime();
    if (!carrier_->has_memory()) return runtime.release(pointer);
    if (Status status = runtime.synchronize(); !status.ok()) {
      keep_allocated(pointer);
      return status;
    }
    const auto begun = std::make_shared<std::atomic<bool>>(false);
    Status status = channel_->call(
        [carrier = carrier_, pointer, begun] {
          begun->store(true);
          carrier->free(pointer);
          return Status();
        },
        Deadline::after_ms(kZeroMs));
    // It was not freed: the caller may try again.
    if (!status.ok() && !begun->load()) keep_allocated(pointer);
    return status;
  }

  /// The caller may use the memory on any stream, so it is waited for.
  Status zero(void* pointer, int64_t bytes) {
    cuda::Runtime& runtime = options_.engine->device_thread()->runtime();
    DT_TRY_VALUE(const auto launch, options_.engine->device_thread()->take_launch());
    // Not behind operations, which may wait for peers.
    const cuda::Stream side = options_.engine->device_thread()->side_stream();
    DT_TRY(runtime.fill_zero(pointer, bytes, side));
    DT_TRY(runtime.record(launch->done, side));
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
  const std::vector<std::shared_ptr<Backend>> beside_;
  std::shared_ptr<Carrier> carrier_;  ///< its memory is the channel's thread's
  std::shared_ptr<DeviceChannel> channel_;
  const Pool<Work> works_;  ///< of run()
  Guarded<std::set<void*>> allocated_;
  Guarded<std::vector<std::shared_ptr<void>>> kept_;
  std::atomic<int> completion_fd_{-1};
};

/// Everybody learns of the first rank that could not, and knows the reason of that one. A time-out
/// is often the consequence of another's error, so other reasons go before it.
Status agree(const DeviceOptions& options, const Status& mine, const Wait& wait) {
  Outcome own;
  own.code = static_cast<int32_t>(mine.code());
  strncpy(own.reason, mine.message().c_str(), kDeviceReasonBytes - 1);
  std::vector<Outcome> all(static_cast<size_t>(options.size));
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.send = &own;
  gather.recv = all.data();
  gather.count = sizeof own;
  // Some come here when their time is up.
  gather.deadline = wait.deadline.plus_ms(kAgreeMs);
  gather.name = "made?";
  const Status gathered = run_on_host(*options.on_host, gather, wait.interrupt);
  if (!gathered.ok()) return mine.ok() ? gathered : mine;
  constexpr auto kTimedOut = static_cast<int32_t>(Code::kTimeout);
  const Outcome* cause = nullptr;
  for (const Outcome& each : all) {
    if (each.code == 0) continue;
    if (cause == nullptr || (cause->code == kTimedOut && each.code != kTimedOut)) cause = &each;
  }
  if (cause == nullptr) return {};
  if (!mine.ok() && (mine.code() != Code::kTimeout || cause->code == kTimedOut)) return mine;
  return Status(
      static_cast<Code>(cause->code),
      format("rank %d could not make communicator \"%s\" on its GPU: %.*s",
             static_cast<int>(cause - all.data()), options.name.c_str(),
             static_cast<int>(strnlen(cause->reason, kDeviceReasonBytes)), cause->reason));
}

}  // namespace

Status run_on_host(Backend& on_host, const Collective& collective, const Interrupt* interrupt) {
  const auto work = std::make_shared<Work>();
  DT_TRY(on_host.submit(collective, work));
  if (!on_host.wait(*work, Wait{Deadline::never(), interrupt})) {
    on_host.interrupt(interrupt->status());
    (void)on_host.wait(*work, Wait());  // it is failed at once; until then it uses the memory
  }
  return work->status();
}

Result<std::shared_ptr<Backend>> create_device_backend(DeviceOptions options, const Wait& wait) {
  DeviceOptions::Seat seat{options.name, options.rank, options.size, options.on_host};
  std::vector<std::shared_ptr<Backend>> beside{options.on_host};
  if (options.carries_on_host && options.size > 1) {
    DT_TRY_VALUE(auto own, options.on_host->split(0, options.rank, options.name + " on the host",
                                                  wait.deadline));
    seat.on_host = std::move(own.backend);
    beside.push_back(seat.on_host);
  }
  if (options.carries_on_host || options.size == 1) options.check = Check::kOff;
  std::shared_ptr<Backend> compares_on;
  if (options.check == Check::kStrict) {
    DT_TRY_VALUE(auto own, options.on_host->split(0, options.rank, options.name + " compared",
                                                  wait.deadline));
    compares_on = std::move(own.backend);
    beside.push_back(compares_on);
  }
  const Wait limit{wait.deadline.earlier(Deadline::after_ms(options.open_timeout_ms)),
                   wait.interrupt};
  auto backend = std::make_shared<DeviceBackend>(options, options.make_carrier(seat),
                                                 std::move(compares_on), std::move(beside));
  DT_TRY(agree(options, backend->open(limit), limit));
  return std::shared_ptr<Backend>(std::move(backend));
}

}  // namespace dt::backend
