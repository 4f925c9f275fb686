// SPDX-License-Identifier: Apache-2.0
#include "backend/device/engine.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "backend/device/channel.h"
#include "base/thread.h"

namespace dt::backend {
namespace {

// While operations are under way the thread looks at their events: at once for as long as a small
// one takes, then more and more seldom.
constexpr int64_t kSpinNs = 30'000;
constexpr int64_t kShortestNapNs = 20'000;
constexpr int64_t kLongestNapNs = 200'000;
constexpr int64_t kEndMs = 2'000;  // for a thread that does not hang
constexpr size_t kEventsAtStart = 64;

}  // namespace

/// Held by the engine, by its thread and by every launch, so that whatever a hanging call still
/// touches stays.
struct DeviceEngine::State : std::enable_shared_from_this<DeviceEngine::State> {
  std::shared_ptr<cuda::Runtime> runtime;
  LoggerPtr logger;
  cuda::Stream stream = nullptr;

  struct Mail {
    std::vector<std::shared_ptr<DeviceChannel>> channels;
    bool stopping = false;
  };
  Guarded<Mail> mail;
  std::atomic<bool> has_mail{false};
  Doorbell bell;
  Event ended;
  std::thread thread;
  Guarded<std::vector<std::unique_ptr<Launch>>> spare;

  ~State() {
    spare.with([&](auto& all) {
      for (const auto& launch : all) {
        (void)runtime->destroy_event(launch->ready);
        (void)runtime->destroy_event(launch->done);
      }
    });
    if (stream != nullptr) (void)runtime->destroy_stream(stream);
  }

  Result<std::unique_ptr<Launch>> make_launch() {
    auto launch = std::make_unique<Launch>();
    DT_TRY_VALUE(launch->ready, runtime->create_event(false));
    auto done = runtime->create_event(false);
    if (!done.ok()) {
      (void)runtime->destroy_event(launch->ready);
      return done.status();
    }
    launch->done = done.value();
    return launch;
  }

  void run();
  void nap(int64_t idle_since_ns, bool under_way);
};

Result<std::shared_ptr<DeviceEngine>> DeviceEngine::start(Options options) {
  auto state = std::make_shared<State>();
  state->runtime = std::move(options.runtime);
  state->logger = std::move(options.logger);
  DT_TRY_VALUE(state->stream, state->runtime->create_stream(options.priority));
  std::vector<std::unique_ptr<Launch>> launches;
  for (size_t i = 0; i < kEventsAtStart; ++i) {
    DT_TRY_VALUE(auto launch, state->make_launch());
    launches.push_back(std::move(launch));
  }
  state->spare.with([&](auto& all) { all = std::move(launches); });
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto thread = start_thread("enqueues work on the GPU", [state] { state->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  DT_TRY(thread.status());
  state->thread = std::move(thread).value();
  return std::shared_ptr<DeviceEngine>(new DeviceEngine(std::move(state)));
}

DeviceEngine::~DeviceEngine() {
  state_->mail.with([](State::Mail& mail) { mail.stopping = true; });
  state_->has_mail.store(true);
  state_->bell.ring();
  if (state_->ended.wait({Deadline::after_ms(kEndMs)})) {
    state_->thread.join();
    return;
  }
  if (state_->logger) {
    state_->logger->log(LogLevel::kWarning,
                        "the thread dt-device hangs in a call of CUDA or NCCL on %s and is left "
                        "behind; end this process",
                        state_->runtime->device().name.c_str());
  }
  state_->thread.detach();
}

cuda::Runtime& DeviceEngine::runtime() const { return *state_->runtime; }
std::shared_ptr<cuda::Runtime> DeviceEngine::runtime_ptr() const { return state_->runtime; }
cuda::Stream DeviceEngine::stream() const { return state_->stream; }

Result<std::shared_ptr<Launch>> DeviceEngine::take_launch() {
  std::unique_ptr<Launch> launch = state_->spare.with([](auto& all) -> std::unique_ptr<Launch> {
    if (all.empty()) return nullptr;
    std::unique_ptr<Launch> last = std::move(all.back());
    all.pop_back();
    return last;
  });
  if (launch == nullptr) {
    DT_TRY_VALUE(launch, state_->make_launch());
  }
  launch->enqueued.store(false);
  return std::shared_ptr<Launch>(launch.release(), [state = state_](Launch* used) {
    // A stream that waits for its event keeps what was recorded when it was told to.
    state->spare.with([used](auto& all) { all.emplace_back(used); });
  });
}

void DeviceEngine::wake(std::shared_ptr<DeviceChannel> channel) {
  state_->mail.with([&](State::Mail& mail) {
    if (std::find(mail.channels.begin(), mail.channels.end(), channel) == mail.channels.end()) {
      mail.channels.push_back(std::move(channel));
    }
  });
  state_->has_mail.store(true);
  state_->bell.ring();
}

void DeviceEngine::State::run() {
  pthread_setname_np(pthread_self(), "dt-device");
  const auto keep = shared_from_this();
  std::vector<std::shared_ptr<DeviceChannel>> channels;
  int64_t idle_since_ns = monotonic_ns();
  bool stopping = false;
  while (!stopping || !channels.empty()) {
    if (has_mail.exchange(false)) {
      mail.with([&](Mail& found) {
        stopping |= found.stopping;
        for (auto& each : found.channels) {
          if (std::find(channels.begin(), channels.end(), each) == channels.end()) {
            channels.push_back(std::move(each));
          }
        }
        found.channels.clear();
      });
    }
    bool busy = false;
    bool progressed = false;
    std::erase_if(channels, [&](const std::shared_ptr<DeviceChannel>& channel) {
      if (stopping) channel->interrupt(Status(Code::kAborted, "the job has ended"));
      const DeviceChannel::Turn turn = channel->advance();
      busy |= turn == DeviceChannel::Turn::kBusy || turn == DeviceChannel::Turn::kProgressed;
      progressed |= turn == DeviceChannel::Turn::kProgressed;
      return turn == DeviceChannel::Turn::kIdle || turn == DeviceChannel::Turn::kGone;
    });
    if (progressed) {
      idle_since_ns = monotonic_ns();
    } else {
      nap(idle_since_ns, busy);
    }
    if (!busy) idle_since_ns = monotonic_ns();
  }
  ended.set();
}

void DeviceEngine::State::nap(int64_t idle_since_ns, bool under_way) {
  const int64_t idle_ns = monotonic_ns() - idle_since_ns;
  if (under_way && idle_ns < kSpinNs) return;
  const uint32_t ticket = bell.prepare();
  if (has_mail.load()) return bell.cancel();
  // Deadlines are in milliseconds; a nap is shorter.
  bell.sleep(ticket, under_way ? Deadline::after_ns(std::clamp(idle_ns / 8, kShortestNapNs,
                                                               kLongestNapNs))
                               : Deadline::never());
}

}  // namespace dt::backend
