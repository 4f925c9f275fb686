// SPDX-License-Identifier: Apache-2.0
#include "backend/device/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>

#include "backend/device/channel.h"
#include "base/slice.h"
#include "base/thread.h"

namespace dt::backend {
namespace {

// While operations are under way the thread looks at their events: at once for as long as a small
// one takes, then more and more seldom.
constexpr int64_t kSpinNs = 60'000;
constexpr int64_t kShortestNapNs = 20'000;
constexpr int64_t kLongestNapNs = 200'000;
constexpr int64_t kDrainLookMs = 1'000;  // who waits looks after the thread so often
constexpr const char* kJobEnded = "the job has ended";
constexpr int64_t kFarewellMs = 1'000;  // for channels that end together with their peers'
constexpr int64_t kEndMs = 5'000;       // for a thread that does not hang
constexpr int64_t kAbortTogetherMs = 20;
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
  for (const cuda::Stream stream : {stream_, side_stream_}) {
    if (stream != nullptr) (void)runtime_->destroy_stream(stream);
  }
}

Status DeviceThread::prepare(cuda::StreamPriority priority) {
  DT_TRY_VALUE(stream_, runtime_->create_stream(priority));
  DT_TRY_VALUE(side_stream_, runtime_->create_stream(cuda::StreamPriority::kNormal));
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
  const auto loan = loans_.make();
  loan->from = shared_from_this();
  spare_.with([&](auto& all) {
    if (all.empty()) return;
    loan->launch = std::move(all.back());
    all.pop_back();
  });
  if (loan->launch == nullptr) {
    DT_TRY_VALUE(loan->launch, make_launch());
  }
  loan->launch->enqueued.store(false);
  return std::shared_ptr<Launch>(loan, loan->launch.get());
}

DeviceThread::Loan::~Loan() {
  if (launch == nullptr) return;
  // A stream that waits for its event keeps what was recorded when it was told to.
  from->spare_.with([this](auto& all) { all.push_back(std::move(launch)); });
}

Result<bool> DeviceThread::await(cuda::Event event, const Wait& wait) {
  for (;;) {
    DT_TRY_VALUE(const bool passed, runtime_->passed(event));
    if (passed) return true;
    if (wait.interrupted() || wait.deadline.passed()) return false;
    (void)Event().wait({Deadline::after_ns(kShortestNapNs)});
  }
}

void DeviceThread::enlist(std::shared_ptr<DeviceChannel> channel, size_t count) {
  mail_.with([&](Mail& mail) { mail.order.insert(mail.order.end(), count, channel); });
  look_again();
}

void DeviceThread::wake(std::shared_ptr<DeviceChannel> channel) {
  mail_.with([&](Mail& mail) { mail.woken.push_back(std::move(channel)); });
  look_again();
}

void DeviceThread::look_again() {
  has_mail_.store(true);
  bell_.ring();
}

void DeviceThread::stop() {
  mail_.with([](Mail& mail) { mail.stopping = true; });
  look_again();
}

void DeviceThread::operation_ended() {
  if (unended_.fetch_sub(1) == 1) drained_.ring();
}

void DeviceThread::watch(std::weak_ptr<DeviceChannel> channel) {
  watched_.with([&](auto& all) {
    std::erase_if(all, [](const auto& each) { return each.expired(); });
    all.push_back(std::move(channel));
  });
}

void DeviceThread::look_after() {
  const auto all = watched_.with([](const auto& channels) { return channels; });
  for (const auto& each : all) {
    if (const auto channel = each.lock()) channel->look_after();
  }
}

Status DeviceThread::hang(int64_t limit_ms) const {
  const auto is_late = [&](int64_t since_ns) {
    return since_ns != 0 && monotonic_ns() - since_ns >= limit_ms * 1'000'000;
  };
  if (!is_late(turn_since_ns_.load()) && !is_late(abort_since_ns_.load())) return {};
  const auto all = watched_.with([](const auto& channels) { return channels; });
  for (const auto& each : all) {
    const auto channel = each.lock();
    if (channel != nullptr && !channel->broken().ok()) return channel->broken();
  }
  return {};
}

bool DeviceThread::drain(const Wait& wait) {
  for (;;) {
    const uint32_t ticket = drained_.prepare();
    if (unended_.load() == 0 || wait.interrupted() || wait.deadline.passed()) {
      drained_.cancel();
      return unended_.load() == 0;
    }
    drained_.sleep(ticket, wait.deadline.earlier(Deadline::after_ms(kDrainLookMs)));
    look_after();
  }
}

void DeviceThread::run() {
  pthread_setname_np(pthread_self(), "dt-device");
  use_short_slices();
  selected_ = runtime_->select_for_thread();
  started_.set();
  if (!selected_.ok()) return;
  Channels live;
  int64_t idle_since_ns = monotonic_ns();
  Deadline farewell = Deadline::never();
  while (farewell.is_never() || !live.empty()) {
    turn_since_ns_.store(monotonic_ns());
    const bool told = has_mail_.exchange(false);
    if (told) take_mail(&live, &farewell);
    if (farewell.passed() && !std::exchange(ending_, true)) {
      for (const auto& channel : live) channel->interrupt(Status(Code::kAborted, kJobEnded));
    }
    bool progressed = launch_in_order();
    bool busy = launching_ != nullptr;
    abort_broken(live);
    watch_aborts(live);
    std::erase_if(live, [&](const std::shared_ptr<DeviceChannel>& channel) {
      const DeviceChannel::Turn turn = channel->advance();
      busy |= turn != DeviceChannel::Turn::kIdle && turn != DeviceChannel::Turn::kEnding;
      progressed |= turn == DeviceChannel::Turn::kProgressed;
      return turn == DeviceChannel::Turn::kIdle;
    });
    if (progressed || told) idle_since_ns = monotonic_ns();
    busy |= !farewell.is_never();
    if (!progressed && (farewell.is_never() || !live.empty())) nap(idle_since_ns, busy);
  }
  turn_since_ns_.store(0);
  abort_since_ns_.store(0);
  aborting_.clear();
  order_.clear();
  launching_ = nullptr;
  // What was woken since: it holds this thread's object, which would hold it.
  Mail late;
  mail_.with([&](Mail& mail) { std::swap(late, mail); });
}

void DeviceThread::take_mail(Channels* live, Deadline* farewell) {
  Channels woken;
  bool stopping = false;
  mail_.with([&](Mail& mail) {
    received_.swap(mail.order);
    woken.swap(mail.woken);
    stopping = mail.stopping;
  });
  if (stopping && farewell->is_never()) *farewell = Deadline::after_ms(kFarewellMs);
  for (const Channels* channels : {&received_, &woken}) {
    for (const auto& each : *channels) {
      if (std::find(live->begin(), live->end(), each) == live->end()) live->push_back(each);
    }
  }
  for (auto& each : received_) order_.push_back(std::move(each));
  received_.clear();
}

/// The head of the order, until it is wholly enqueued; only then the next.
bool DeviceThread::launch_in_order() {
  bool progressed = false;
  for (;;) {
    if (launching_ == nullptr) {
      if (order_.empty()) return progressed;
      launching_ = order_.front();
    }
    const auto other = std::find_if(order_.begin(), order_.end(),
                                    [&](const auto& each) { return each != launching_; });
    const DeviceChannel::Launched step =
        launching_->launch(static_cast<size_t>(other - order_.begin()));
    for (size_t i = 0; i < step.begun; ++i) order_.pop_front();
    progressed |= step.progressed;
    if (step.under_way) return progressed;
    launching_ = nullptr;
  }
}

/// Together, where several are broken: the kernel of one may wait for another's. What breaks one
/// often breaks all, one a little after the other.
void DeviceThread::abort_broken(const Channels& live) {
  Channels broken;
  for (const auto& channel : live) {
    if (channel->wants_abort()) broken.push_back(channel);
  }
  if (broken.empty()) return;
  if (aborts_.is_never()) aborts_ = Deadline::after_ms(kAbortTogetherMs);
  const bool others = std::any_of(live.begin(), live.end(),
                                  [](const auto& channel) { return channel->broken().ok(); });
  if (others && !aborts_.passed()) return;
  aborts_ = Deadline::never();
  // Their operations are told that they failed before the GPU has passed them, where that is late.
  Aborts aborts;
  for (const auto& channel : live) {
    if (!channel->broken().ok()) channel->add_awaited(&aborts.awaited);
  }
  for (const Aborts& earlier : aborting_) {
    aborts.awaited.insert(aborts.awaited.end(), earlier.awaited.begin(), earlier.awaited.end());
  }
  Channels ending;
  for (const auto& channel : broken) {
    if (channel->abort()) ending.push_back(channel);
  }
  if (ending.empty()) return;
  const auto end = [ending] {
    if (ending.size() > 1) ending[0]->group_aborts(true);
    for (const auto& channel : ending) channel->end_now();
    if (ending.size() > 1) ending[0]->group_aborts(false);
    for (const auto& channel : ending) channel->ending_is_over();
  };
  auto thread = start_ending(end);
  if (!thread.ok()) return end();
  aborts.thread = thread.value();
  for (const auto& channel : ending) channel->ends_on(aborts.thread);
  aborting_.push_back(std::move(aborts));
}

/// Sets since when an abort hangs, as hang() says.
void DeviceThread::watch_aborts(const Channels& live) {
  std::erase_if(aborting_, [](const Aborts& each) { return each.thread->ended(); });
  int64_t oldest_ns = 0;
  if (!aborting_.empty()) {
    const bool others = std::any_of(live.begin(), live.end(), [](const auto& channel) {
      return channel->broken().ok() && channel->is_under_way();
    });
    const int64_t now_ns = monotonic_ns();
    for (Aborts& each : aborting_) {
      while (!each.awaited.empty() && !each.awaited.back()()) each.awaited.pop_back();
      if (others || !each.awaited.empty()) {
        each.since_ns = 0;
        continue;
      }
      if (each.since_ns == 0) each.since_ns = now_ns;
      if (oldest_ns == 0 || each.since_ns < oldest_ns) oldest_ns = each.since_ns;
    }
  }
  abort_since_ns_.store(oldest_ns);
}

Result<std::shared_ptr<EndingThread>> DeviceThread::start_ending(std::function<void()> body) {
  return EndingThread::start("ends a communicator", [runtime = runtime_, body = std::move(body)] {
    pthread_setname_np(pthread_self(), "dt-end");
    (void)runtime->select_for_thread();
    body();
  });
}

void DeviceThread::nap(int64_t idle_since_ns, bool under_way) {
  const int64_t idle_ns = monotonic_ns() - idle_since_ns;
  // Also where nothing is under way: the next operation often follows at once, and waking up takes
  // longer than launching it.
  if (idle_ns < kSpinNs) {
    sched_yield();
    return;
  }
  const uint32_t ticket = bell_.prepare();
  if (has_mail_.load()) return bell_.cancel();
  turn_since_ns_.store(0);
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
  (void)device_thread->started_.wait({});
  DT_TRY(device_thread->selected_);
  return engine;
}

DeviceEngine::~DeviceEngine() {
  if (!thread_.joinable()) return;  // it could not start
  device_thread_->stop();
  const bool ended = device_thread_->ended_.wait({Deadline::after_ms(kEndMs)});
  ended ? thread_.join() : thread_.detach();
  if (logger_ && (!ended || device_thread_->ends_left_behind_)) {
    const char* const text =
        ended ? "a thread that ends a communicator still waits in CUDA or NCCL on %s and is left "
                "behind"
              : "the thread dt-device hangs in a call of CUDA or NCCL on %s and is left behind; "
                "end this process";
    logger_->log(LogLevel::kWarning, text, device_thread_->runtime().device().name.c_str());
  }
}

}  // namespace dt::backend
