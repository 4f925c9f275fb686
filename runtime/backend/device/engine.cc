// SPDX-License-Identifier: Apache-2.0
#include "backend/device/engine.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "backend/device/channel.h"
#include "base/thread.h"

namespace dt::backend {
namespace {

// While operations are under way the thread looks at their events: at once for as long as a small
// one takes, then more and more seldom.
constexpr int64_t kSpinNs = 30'000;
constexpr int64_t kShortestNapNs = 20'000;
constexpr int64_t kLongestNapNs = 200'000;
constexpr int64_t kFarewellMs = 1'000;  // for channels that end together with their peers'
constexpr int64_t kEndMs = 3'000;       // for a thread that does not hang
constexpr size_t kEventsAtStart = 64;

}  // namespace

// ---- DeviceThread ----

DeviceThread::~DeviceThread() {
  spare_.with([&](auto& all) {
    for (const auto& launch : all) {
      (void)runtime_->destroy_event(launch->ready);
      (void)runtime_->destroy_event(launch->done);
    }
  });
  if (stream_ != nullptr) (void)runtime_->destroy_stream(stream_);
}

Status DeviceThread::prepare(cuda::StreamPriority priority) {
  DT_TRY_VALUE(stream_, runtime_->create_stream(priority));
  for (size_t i = 0; i < kEventsAtStart; ++i) {
    DT_TRY_VALUE(auto launch, make_launch());
    spare_.with([&](auto& all) { all.push_back(std::move(launch)); });
  }
  return {};
}

Result<std::unique_ptr<Launch>> DeviceThread::make_launch() {
  auto launch = std::make_unique<Launch>();
  DT_TRY_VALUE(launch->ready, runtime_->create_event(false));
  auto done = runtime_->create_event(false);
  if (!done.ok()) {
    (void)runtime_->destroy_event(launch->ready);
    return done.status();
  }
  launch->done = done.value();
  return launch;
}

Result<std::shared_ptr<Launch>> DeviceThread::take_launch() {
  std::unique_ptr<Launch> launch = spare_.with([](auto& all) -> std::unique_ptr<Launch> {
    if (all.empty()) return nullptr;
    std::unique_ptr<Launch> last = std::move(all.back());
    all.pop_back();
    return last;
  });
  if (launch == nullptr) {
    DT_TRY_VALUE(launch, make_launch());
  }
  launch->enqueued.store(false);
  return std::shared_ptr<Launch>(launch.release(), [self = shared_from_this()](Launch* used) {
    // A stream that waits for its event keeps what was recorded when it was told to.
    self->spare_.with([used](auto& all) { all.emplace_back(used); });
  });
}

Result<bool> DeviceThread::await(cuda::Event event, const Wait& wait) {
  for (;;) {
    DT_TRY_VALUE(const bool passed, runtime_->passed(event));
    if (passed) return true;
    if (wait.interrupted() || wait.deadline.passed()) return false;
    (void)Event().wait({Deadline::after_ns(kShortestNapNs)});
  }
}

bool DeviceThread::drained(Deadline deadline) {
  const auto launch = take_launch();
  if (!launch.ok() || !runtime_->record(launch.value()->done, stream_).ok()) return false;
  const auto passed = await(launch.value()->done, Wait{deadline, nullptr});
  return passed.ok() && passed.value();
}

void DeviceThread::wake(std::shared_ptr<DeviceChannel> channel) {
  mail_.with([&](Mail& mail) {
    if (std::find(mail.channels.begin(), mail.channels.end(), channel) == mail.channels.end()) {
      mail.channels.push_back(std::move(channel));
    }
  });
  has_mail_.store(true);
  bell_.ring();
}

void DeviceThread::stop() {
  mail_.with([](Mail& mail) { mail.stopping = true; });
  has_mail_.store(true);
  bell_.ring();
}

void DeviceThread::run() {
  pthread_setname_np(pthread_self(), "dt-device");
  std::vector<std::shared_ptr<DeviceChannel>> channels;
  int64_t idle_since_ns = monotonic_ns();
  bool stopping = false;
  Deadline farewell = Deadline::never();
  while (!stopping || !channels.empty()) {
    if (has_mail_.exchange(false)) {
      mail_.with([&](Mail& mail) {
        if (mail.stopping && !std::exchange(stopping, true)) {
          farewell = Deadline::after_ms(kFarewellMs);
        }
        for (auto& each : mail.channels) {
          if (std::find(channels.begin(), channels.end(), each) == channels.end()) {
            channels.push_back(std::move(each));
          }
        }
        mail.channels.clear();
      });
    }
    bool busy = false;
    bool progressed = false;
    std::erase_if(channels, [&](const std::shared_ptr<DeviceChannel>& channel) {
      if (farewell.passed()) channel->interrupt(Status(Code::kAborted, "the job has ended"));
      const DeviceChannel::Turn turn = channel->advance();
      busy |= turn == DeviceChannel::Turn::kBusy || turn == DeviceChannel::Turn::kProgressed;
      progressed |= turn == DeviceChannel::Turn::kProgressed;
      return turn == DeviceChannel::Turn::kIdle || turn == DeviceChannel::Turn::kGone;
    });
    if (progressed) idle_since_ns = monotonic_ns();
    if (!progressed && !(stopping && channels.empty())) nap(idle_since_ns, busy);
    if (!busy) idle_since_ns = monotonic_ns();
  }
  // What was woken since: it holds this thread's object, which would hold it.
  std::vector<std::shared_ptr<DeviceChannel>> late;
  mail_.with([&](Mail& mail) { late.swap(mail.channels); });
}

void DeviceThread::nap(int64_t idle_since_ns, bool under_way) {
  const int64_t idle_ns = monotonic_ns() - idle_since_ns;
  if (under_way && idle_ns < kSpinNs) return;
  const uint32_t ticket = bell_.prepare();
  if (has_mail_.load()) return bell_.cancel();
  bell_.sleep(ticket,
              under_way ? Deadline::after_ns(std::clamp(idle_ns / 8, kShortestNapNs, kLongestNapNs))
                        : Deadline::never());
}

// ---- DeviceEngine ----

Result<std::shared_ptr<DeviceEngine>> DeviceEngine::start(const Options& options) {
  std::shared_ptr<DeviceThread> device_thread(new DeviceThread(options.runtime));
  DT_TRY(device_thread->prepare(options.priority));
  std::shared_ptr<DeviceEngine> engine(new DeviceEngine(device_thread, options.logger));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto thread = start_thread("enqueues work on the GPU", [device_thread] {
    device_thread->run();
    device_thread->ended_.set();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  DT_TRY(thread.status());
  engine->thread_ = std::move(thread).value();
  return engine;
}

DeviceEngine::~DeviceEngine() {
  if (!thread_.joinable()) return;  // it could not start
  device_thread_->stop();
  if (device_thread_->ended_.wait({Deadline::after_ms(kEndMs)})) {
    thread_.join();
    return;
  }
  if (logger_) {
    logger_->log(LogLevel::kWarning,
                 "the thread dt-device hangs in a call of CUDA or NCCL on %s and is left behind; "
                 "end this process",
                 device_thread_->runtime().device().name.c_str());
  }
  thread_.detach();
}

}  // namespace dt::backend
