// SPDX-License-Identifier: Apache-2.0
#include "net/loop.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <deque>
#include <system_error>
#include <utility>

#include "base/fork.h"
#include "base/guarded.h"
#include "base/slice.h"
#include "base/wait.h"
#include "net/handle.h"

namespace dt::net {
namespace {

// How long the loop's thread stays away after a visit. Until then nobody looks at the loop's
// sockets, so it is short; and longer than what a caller does between two operations that follow
// each other.
constexpr int64_t kAwayNs = 500'000;

}  // namespace

// Threads: `queue` is shared by everyone, the uv members belong to the loop's thread once it runs.
// uv_async_send() is called with the queue locked, so that it never meets a closed handle.
struct LoopState {
  struct Queue {
    std::deque<Loop::Task> tasks;
    bool accepting = true;  // post() works
    bool stopping = false;  // the thread is asked to end
  };
  Guarded<Queue> queue;
  uv_loop_t loop;
  uv_async_t wake;
  uv_timer_t alarm;  // ends a visitor's sleep
  uint32_t generation = 0;
  // Who runs the loop. Changes from kNobody by compare-and-swap, and to kNobody by whoever it is;
  // so all that one of them did to the loop happens before what the next one does. Who makes it
  // kNobody looks into the queue afterwards, who fills the queue looks here afterwards, both in the
  // one total order: a task is seen by the visitor, or the thread is called back.
  enum Runner : int { kThread, kNobody, kVisitor };
  std::atomic<int> runner{kThread};
  std::atomic<pthread_t> thread_id{};    // of the runner, zero while there is none
  std::atomic<int32_t> knocking{0};      // threads that want to visit
  std::atomic<uint32_t> visits{0};       // ended ones
  std::atomic<bool> called_back{false};  // the thread is to go on at once
  // The thread sleeps until it is rung, for a visitor was there: set before it looks for one, read
  // by visitors after they have left, in the one total order.
  std::atomic<bool> rests{false};
  Doorbell away;  // on which it sleeps
  bool visited_by_this() const {
    return runner.load(std::memory_order_relaxed) == kVisitor &&
           pthread_equal(pthread_self(), thread_id.load(std::memory_order_relaxed)) != 0;
  }
  std::unique_ptr<char[]> scratch{new char[Loop::kScratchBytes]};
};

namespace {

void call_back(LoopState* state) {
  state->called_back.store(true, std::memory_order_seq_cst);
  state->away.ring();
}

bool post_to(const std::shared_ptr<LoopState>& state, Loop::Task& task) {
  if (fork_generation() != state->generation) return false;
  const bool posted = state->queue.with([&](LoopState::Queue& queue) {
    if (!queue.accepting) return false;
    queue.tasks.push_back(std::move(task));
    if (!state->visited_by_this()) uv_async_send(&state->wake);
    return true;
  });
  if (posted && state->runner.load(std::memory_order_seq_cst) == LoopState::kNobody) {
    call_back(state.get());
  }
  return posted;
}

void run_tasks(LoopState* state) {
  std::deque<Loop::Task> tasks;
  state->queue.with([&](LoopState::Queue& queue) { tasks.swap(queue.tasks); });
  while (!tasks.empty()) {
    const Loop::Task task = std::move(tasks.front());
    tasks.pop_front();
    task();
  }
}

void close_all(LoopState* state) {
  release_fd_from_fork_guard(uv_backend_fd(&state->loop));
  uv_walk(
      &state->loop,
      [](uv_handle_t* handle, void*) {
        if (handle->data != nullptr) static_cast<Handle*>(handle->data)->close();
      },
      nullptr);
  uv_close(reinterpret_cast<uv_handle_t*>(&state->wake), nullptr);
  uv_close(reinterpret_cast<uv_handle_t*>(&state->alarm), nullptr);
}

void on_wake(uv_async_t* wake) {
  LoopState* state = static_cast<LoopState*>(wake->loop->data);
  run_tasks(state);
  const bool stop = state->queue.with([](LoopState::Queue& queue) {
    if (!queue.stopping || !queue.tasks.empty()) return false;
    queue.accepting = false;
    return true;
  });
  if (stop) {
    close_all(state);
  } else if (state->queue.with([](const LoopState::Queue& queue) { return queue.stopping; })) {
    uv_async_send(wake);  // a task posted another one while we are ending
  } else if (state->knocking.load(std::memory_order_seq_cst) > 0) {
    uv_stop(wake->loop);
  }
}

bool has_tasks(LoopState* state) {
  return state->queue.with([](const LoopState::Queue& queue) { return !queue.tasks.empty(); });
}

/// The loop's thread lets visitors in, until none came for a moment or it is called back. While
/// they come and go it looks once in a moment, so that few visits pay for waking it; during one
/// that lasts it sleeps to the end.
void stay_away(LoopState* state) {
  state->thread_id.store(pthread_t{}, std::memory_order_relaxed);
  state->runner.store(LoopState::kNobody, std::memory_order_seq_cst);
  const auto due = [&] {
    return state->called_back.load(std::memory_order_seq_cst) || has_tasks(state);
  };
  bool lasts = false;  // a visit, for a moment or longer
  for (uint32_t seen = state->visits.load(std::memory_order_relaxed);;) {
    const uint32_t ticket = state->away.prepare();
    bool rests = lasts || due();
    if (rests) {
      state->rests.store(true, std::memory_order_seq_cst);
      rests = state->runner.load(std::memory_order_seq_cst) == LoopState::kVisitor;
      if (!rests) state->rests.store(false, std::memory_order_relaxed);
    }
    if (!rests && due()) {
      state->away.cancel();
    } else {
      state->away.sleep(ticket, rests ? Deadline::never() : Deadline::after_ns(kAwayNs));
    }
    const uint32_t visits = state->visits.load(std::memory_order_relaxed);
    lasts = visits == std::exchange(seen, visits);
    if (!lasts && !due()) continue;
    int nobody = LoopState::kNobody;
    if (state->runner.compare_exchange_strong(nobody, LoopState::kThread)) break;
  }
  state->called_back.store(false, std::memory_order_seq_cst);
  state->thread_id.store(pthread_self(), std::memory_order_relaxed);
  // Who knocked and did not come in time: after what is due, once more. Whoever knocks from now on
  // sees that the thread is back.
  if (state->knocking.load(std::memory_order_seq_cst) > 0) uv_async_send(&state->wake);
}

}  // namespace

Result<std::unique_ptr<Loop>> Loop::start(const std::string& thread_name) {
  auto state = std::make_shared<LoopState>();
  state->generation = fork_generation();
  if (const int error = uv_loop_init(&state->loop); error != 0) {
    return Status(Code::kSystem,
                  format("cannot make an event loop: %s; raise the limit of open files (ulimit -n)",
                         errno_text(-error).c_str()));
  }
  state->loop.data = state.get();
  uv_async_init(&state->loop, &state->wake, on_wake);
  state->wake.data = nullptr;
  uv_timer_init(&state->loop, &state->alarm);
  state->alarm.data = nullptr;
  guard_fd_from_fork(uv_backend_fd(&state->loop));

  std::unique_ptr<Loop> loop(new Loop(state));
  // The mask is inherited: blocked here first, so that the new thread never runs with a signal
  // open.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto running = std::make_shared<Event>();  // on_thread() has nothing to compare until then
  std::string failure;
  try {
    loop->thread_ = std::thread([state, running, thread_name] {
      pthread_setname_np(pthread_self(), thread_name.substr(0, 15).c_str());
      use_short_slices();
      state->thread_id.store(pthread_self(), std::memory_order_relaxed);
      running->set();
      // Zero when close_all() closed the last handle; else a visitor has knocked.
      while (uv_run(&state->loop, UV_RUN_DEFAULT) != 0) stay_away(state.get());
      uv_loop_close(&state->loop);
    });
  } catch (const std::system_error& error) {
    failure = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!failure.empty()) {
    close_all(state.get());
    uv_run(&state->loop, UV_RUN_DEFAULT);
    uv_loop_close(&state->loop);
    return Status(Code::kSystem, format("cannot start the I/O thread: %s; raise the limit of "
                                        "processes (ulimit -u)",
                                        failure.c_str()));
  }
  running->wait({});
  return loop;
}

Loop::~Loop() {
  if (!check_not_forked().ok()) {
    // The parent's thread and its locks were copied in an unknown state: touch nothing, free
    // nothing. The descriptors were closed by the fork guard.
    thread_.detach();
    new std::shared_ptr<LoopState>(std::move(state_));
    return;
  }
  if (!thread_.joinable()) return;  // start() failed half-way
  state_->queue.with([&](LoopState::Queue& queue) {
    queue.stopping = true;
    uv_async_send(&state_->wake);
  });
  call_back(state_.get());
  thread_.join();
}

bool Loop::post(Task task) { return post_to(state_, task); }

Loop::Poster Loop::poster() const {
  return [state = state_](Task task) { return post_to(state, task); };
}

bool Loop::run(const Task& task) {
  if (on_thread()) {
    task();
    return true;
  }
  // Shared: set() still touches the event after the waiter may have returned.
  const auto ran = std::make_shared<Event>();
  if (!post([&task, ran] {
        task();
        ran->set();
      })) {
    return false;
  }
  ran->wait({});  // ends: an accepted task is always run
  return true;
}

bool Loop::on_thread() const {
  return pthread_equal(pthread_self(), state_->thread_id.load(std::memory_order_relaxed)) != 0;
}

Status Loop::check_not_forked() const {
  if (fork_generation() == state_->generation) return {};
  return Status(Code::kInvalidState,
                "this process was forked after the job was made, and its threads and connections "
                "stayed in the parent; make a new job here, or start workers by exec");
}

void Loop::knock() {
  state_->knocking.fetch_add(1, std::memory_order_seq_cst);
  if (state_->runner.load(std::memory_order_seq_cst) == LoopState::kThread) {
    uv_async_send(&state_->wake);
  }
}

void Loop::unknock() {
  state_->knocking.fetch_sub(1, std::memory_order_seq_cst);
  if (state_->runner.load(std::memory_order_seq_cst) == LoopState::kNobody) {
    call_back(state_.get());
  }
}

bool Loop::enter() {
  if (!check_not_forked().ok()) return false;
  int nobody = LoopState::kNobody;
  if (!state_->runner.compare_exchange_strong(nobody, LoopState::kVisitor)) return false;
  state_->thread_id.store(pthread_self(), std::memory_order_relaxed);
  return true;
}

void Loop::run_posted() { run_tasks(state_.get()); }

void Loop::turn(int64_t wait_ms) {
  run_tasks(state_.get());
  if (wait_ms <= 0 || has_tasks(state_.get())) {
    uv_run(&state_->loop, UV_RUN_NOWAIT);
    return;
  }
  uv_update_time(&state_->loop);  // else the delay counts from the last poll
  uv_timer_start(
      &state_->alarm, [](uv_timer_t*) {}, static_cast<uint64_t>(wait_ms), 0);
  uv_run(&state_->loop, UV_RUN_ONCE);
  uv_timer_stop(&state_->alarm);
}

void Loop::leave(bool busy) {
  state_->thread_id.store(pthread_t{}, std::memory_order_relaxed);
  state_->visits.fetch_add(1, std::memory_order_relaxed);
  state_->runner.store(LoopState::kNobody, std::memory_order_seq_cst);
  const bool tasks = has_tasks(state_.get());
  if (tasks) uv_async_send(&state_->wake);  // none was sent for the visitor's own
  if (busy || tasks) return call_back(state_.get());
  if (state_->rests.exchange(false, std::memory_order_seq_cst)) state_->away.ring();
}

uv_loop_s* Loop::uv() const { return &state_->loop; }
char* Loop::scratch() const { return state_->scratch.get(); }

// ---- Timer ----

struct TimerHandle final : Handle {
  uv_timer_t timer;
  std::function<void()> on_fire;
  uv_handle_t* raw() override { return reinterpret_cast<uv_handle_t*>(&timer); }
};

Timer::Timer(Loop* loop, std::function<void()> on_fire) : handle_(std::make_shared<TimerHandle>()) {
  uv_timer_init(loop->uv(), &handle_->timer);  // cannot fail
  handle_->on_fire = std::move(on_fire);
  handle_->adopt();
}

Timer::~Timer() { handle_->close(); }

void Timer::start(int64_t after_ms) {
  if (handle_->closing()) return;
  uv_update_time(handle_->timer.loop);  // else the delay counts from the last poll
  uv_timer_start(
      &handle_->timer,
      [](uv_timer_t* timer) {
        const auto keep = static_cast<Handle*>(timer->data)->shared_from_this();
        static_cast<TimerHandle*>(keep.get())->on_fire();
      },
      static_cast<uint64_t>(after_ms < 0 ? 0 : after_ms), 0);
}

void Timer::stop() {
  if (!handle_->closing()) uv_timer_stop(&handle_->timer);
}

// ---- FdWatcher ----

struct PollHandle final : Handle {
  uv_poll_t poll;
  std::function<void(bool, bool)> on_event;
  uv_handle_t* raw() override { return reinterpret_cast<uv_handle_t*>(&poll); }

  int start(int wanted) {
    return uv_poll_start(&poll, wanted, [](uv_poll_t* polled, int status, int events) {
      const auto keep = static_cast<Handle*>(polled->data)->shared_from_this();
      // An error stops libuv's watching: whoever reads or writes next learns what it is.
      const bool broken = status != 0 || (events & UV_DISCONNECT) != 0;
      static_cast<PollHandle*>(keep.get())
          ->on_event(broken || (events & UV_READABLE) != 0, broken || (events & UV_WRITABLE) != 0);
    });
  }
};

namespace {

Status cannot_watch(int fd, int error) {
  return Status(Code::kSystem,
                format("cannot watch descriptor %d: %s", fd, errno_text(-error).c_str()));
}

}  // namespace

Result<std::unique_ptr<FdWatcher>> FdWatcher::watch(Loop* loop, int fd,
                                                    std::function<void()> on_readable) {
  DT_TRY_VALUE(auto watcher,
               watch_socket(loop, fd,
                            [on_readable = std::move(on_readable)](bool, bool) { on_readable(); }));
  const int error = watcher->handle_->start(UV_READABLE | UV_DISCONNECT);
  if (error != 0) return cannot_watch(fd, error);
  return watcher;
}

Result<std::unique_ptr<FdWatcher>> FdWatcher::watch_socket(
    Loop* loop, int fd, std::function<void(bool, bool)> on_event) {
  auto handle = std::make_shared<PollHandle>();
  const int error = uv_poll_init(loop->uv(), &handle->poll, fd);
  if (error != 0) return cannot_watch(fd, error);
  handle->on_event = std::move(on_event);
  handle->adopt();
  return std::unique_ptr<FdWatcher>(new FdWatcher(std::move(handle)));
}

Status FdWatcher::set_interest(bool reads, bool writes) {
  if (handle_->closing()) return {};
  const int events = (reads ? UV_READABLE : 0) | (writes ? UV_WRITABLE : 0);
  const int error = events == 0 ? uv_poll_stop(&handle_->poll) : handle_->start(events);
  return error == 0 ? Status() : cannot_watch(-1, error);
}

FdWatcher::~FdWatcher() { handle_->close(); }

}  // namespace dt::net
