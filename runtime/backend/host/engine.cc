// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "backend/host/host.h"
#include "backend/host/host_backend.h"
#include "backend/host/progress.h"
#include "base/processors.h"
#include "base/slice.h"

namespace dt::backend {
namespace {

constexpr int64_t kSlotsMin = 4;
// Waiting for peers' blocks when the world is made: an interrupt rings no doorbell of ours.
constexpr int64_t kSlicesMs = 10;

collective::Shape shape_of(const HostEngine::Options& options) {
  const auto lines = [](int64_t bytes) {
    return std::max<int64_t>(bytes, 0) / shm::kLineBytes * shm::kLineBytes;
  };
  collective::Shape shape;
  shape.inline_bytes = lines(options.inline_bytes);
  // Where ranks share a sum, each reads a part of every slot: shorter pieces, and with more rings
  // than before less of each fits into a cache (measured with 4 and 8 ranks). A message of as many
  // segments as slots goes through without waiting for one to come free, so slots are rounded up.
  const int64_t sharing = options.thresholds.exchanges(options.local_size) ? 1 : 2;
  // A piece of reduce_scatter is at least a line for each rank.
  shape.slot_bytes =
      std::max(lines(options.slot_bytes) * sharing, int64_t{options.local_size} * shm::kLineBytes);
  shape.slots =
      std::max((options.ring_bytes / sharing + shape.slot_bytes - 1) / shape.slot_bytes, kSlotsMin);
  shape.thresholds = options.thresholds;
  shape.thresholds.segment_bytes =
      std::max(lines(options.thresholds.segment_bytes), shm::kLineBytes);
  shape.thresholds.push_bytes = std::max(lines(options.thresholds.push_bytes), shm::kLineBytes);
  return shape;
}

}  // namespace

void HostEngine::Progress::add(std::weak_ptr<HostBackend> backend) {
  state_.with([&](State& state) {
    auto backends = std::make_shared<Backends>(*state.backends);
    std::erase_if(*backends, [](const auto& old) { return old.expired(); });
    backends->push_back(std::move(backend));
    state.backends = std::move(backends);
  });
}

void* HostEngine::Progress::enter(void* self) {
  std::unique_ptr<std::shared_ptr<Progress>> owned(static_cast<std::shared_ptr<Progress>*>(self));
  (*owned)->loop();
  return nullptr;
}

Status HostEngine::Progress::start(State& state) {
  if (started_.load(std::memory_order_relaxed) || stopping_.load()) return {};
  auto self = std::make_unique<std::shared_ptr<Progress>>(shared_from_this());
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  int error = restrict_to(processors_, &attributes);
  if (error == 0) error = pthread_create(&state.thread, &attributes, &Progress::enter, self.get());
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return Status(Code::kSystem,
                  format("starting the progress thread: %s; look at %s", errno_text(error).c_str(),
                         error == EINVAL ? "host.progress_cpus, whose processors may be gone"
                                         : "the limit of processes (ulimit -u)"));
  }
  (void)self.release();  // the thread's
  pthread_setname_np(state.thread, "dt-host");
  state.joinable = true;
  started_.store(true, std::memory_order_release);
  return {};
}

Status HostEngine::Progress::begin() {
  if (by_caller_ || started_.load(std::memory_order_acquire)) return {};
  return state_.with([&](State& state) { return start(state); });
}

void HostEngine::Progress::notify() {
  if (!by_caller_) bell_.ring();
  // By caller, whoever waits in another communicator advances this one as well.
  arena_->doorbell().ring();
}

void HostEngine::Progress::stop() {
  stopping_.store(true, std::memory_order_seq_cst);
  bell_.ring();
  arena_->doorbell().ring();
  pthread_t thread{};
  const bool joinable = state_.with([&](State& state) {
    thread = state.thread;
    return std::exchange(state.joinable, false);
  });
  if (!joinable) return;
  // The last communicator may have been dropped by the thread itself.
  if (pthread_equal(thread, pthread_self()) != 0) {
    pthread_detach(thread);
  } else {
    pthread_join(thread, nullptr);
  }
}

void HostEngine::Progress::loop() {
  use_usual_slices();  // a caller that waits for other hosts may have started it
  // Where this thread runs is the matter of host.progress_cpus.
  SpinPolicy waiting = spin_policy(thread_contention_, nullptr);
  Round round;
  for (bool sleepy = false;;) {
    // Which doorbell to sleep on follows from the round before; the round after prepare() is what
    // counts, and submit() rings both.
    Doorbell& bell = round.pending ? arena_->doorbell() : bell_;
    const bool was_pending = round.pending;
    const uint32_t ticket = sleepy ? bell.prepare() : 0;
    if (stopping_.load(std::memory_order_seq_cst)) {
      if (sleepy) bell.cancel();
      return;
    }
    round = advance_all(nullptr, false);
    const bool sleeps = sleepy && !round.progressed && round.pending == was_pending;
    if (sleeps) {
      bell.sleep(ticket, round.deadline);
    } else if (sleepy) {
      bell.cancel();
    }
    if (sleepy || round.progressed) waiting.renew();
    sleepy = !sleepy && !round.progressed && (!round.pending || !waiting.spin());
  }
}

HostEngine::Progress::Round HostEngine::Progress::help(const HostBackend* except,
                                                       bool before_sleep) {
  return queued_.load(std::memory_order_seq_cst) == 0 ? Round() : advance_all(except, before_sleep);
}

HostEngine::Progress::Round HostEngine::Progress::advance_all(const HostBackend* except,
                                                              bool before_sleep) {
  const auto backends = state_.with([](const State& state) { return state.backends; });
  Round round;
  for (const auto& weak : *backends) {
    const std::shared_ptr<HostBackend> backend = weak.lock();
    if (backend == nullptr || backend.get() == except) continue;
    if (!backend->pending() || backend->helped()) continue;
    HostBackend::Advance advance;
    if (!backend->try_advance(&advance, before_sleep))
      continue;  // whoever holds it notifies when it leaves
    round.progressed |= advance.step == collective::Step::kProgressed;
    if (advance.step == collective::Step::kDone) continue;
    round.pending = true;
    round.deadline = round.deadline.earlier(advance.deadline);
  }
  return round;
}

Result<std::shared_ptr<HostEngine>> HostEngine::create(shm::ArenaListener listener,
                                                       const Options& options, const Wait& wait) {
  shm::HostArena::Options arena_options;
  arena_options.session = options.session;
  arena_options.local_rank = options.local_rank;
  arena_options.local_size = options.local_size;
  arena_options.home = options.home;
  arena_options.logger = options.logger;
  const bool ranks_known =
      options.local_rank >= 0 &&
      options.world_ranks.size() == static_cast<size_t>(std::max(options.local_size, 0)) &&
      options.local_rank < options.local_size &&
      (options.pids.empty() || options.pids.size() == options.world_ranks.size());
  if (!ranks_known) {
    return Status(
        Code::kInvalidArgument,
        format("local rank %d of %d with %zu world ranks and %zu pids", options.local_rank,
               options.local_size, options.world_ranks.size(), options.pids.size()));
  }
  arena_options.world_rank = options.world_ranks[options.local_rank];
  DT_TRY_VALUE(auto arena, shm::HostArena::create(std::move(listener), options.leader_name,
                                                  arena_options, wait));
  return std::shared_ptr<HostEngine>(new HostEngine(options, std::move(arena)));
}

HostEngine::HostEngine(const Options& options, std::shared_ptr<shm::HostArena> arena)
    : options_(options),
      arena_(std::move(arena)),
      progress_(std::make_shared<Progress>(arena_, options_)) {}

HostEngine::~HostEngine() { progress_->stop(); }

void HostEngine::say_goodbye() { arena_->leave(); }

void HostEngine::peers_left(const std::vector<int32_t>& world_ranks) {
  for (const int32_t rank : world_ranks) {
    const auto found = std::find(options_.world_ranks.begin(), options_.world_ranks.end(), rank);
    if (found == options_.world_ranks.end()) continue;
    arena_->peer_left(static_cast<int32_t>(found - options_.world_ranks.begin()));
  }
}

Result<HostBlock> HostBlock::make(std::shared_ptr<HostEngine> engine, int32_t members) {
  shm::HostArena& arena = *engine->arena();
  const collective::Shape shape = shape_of(engine->options());
  DT_TRY_VALUE(void* const memory, collective::Group::make_block(arena, shape, members));
  shm::Location at;
  if (!arena.locate(memory, 1, &at)) {
    return Status(Code::kInternal, "a block is not where it was allocated");
  }
  return HostBlock(std::move(engine), memory, at.offset);
}

HostBlock::~HostBlock() {
  if (memory_ != nullptr) (void)engine_->arena()->release(memory_);
}

Result<std::shared_ptr<Backend>> HostBlock::open(const HostWorldOptions& world,
                                                 const std::vector<int32_t>& places,
                                                 const std::vector<int64_t>& offsets) && {
  const HostEngine::Options& options = engine_->options();
  collective::Group::Options group_options;
  group_options.name = world.name;
  group_options.host = options.host;
  group_options.shape = shape_of(options);
  group_options.staging = options.staging;
  group_options.arena = engine_->arena();
  for (size_t i = 0; i < places.size(); ++i) {
    const int32_t place = places[i];
    if (place == options.local_rank) group_options.rank = static_cast<int32_t>(i);
    const int32_t world_rank = options.world_ranks[place];
    const int32_t whole = world.whole_ranks.empty() ? world_rank : world.whole_ranks[i];
    const int64_t pid =
        options.pids.empty() ? engine_->arena()->header(place).pid : options.pids[place];
    group_options.members.push_back({place, world_rank, pid, world.part ? whole : -1});
  }
  DT_TRY_VALUE(auto group, collective::Group::open(std::move(group_options),
                                                   std::exchange(memory_, nullptr), offsets));
  auto backend = std::make_shared<HostBackend>(engine_, std::move(group), world);
  engine_->progress().add(backend);
  return std::shared_ptr<Backend>(std::move(backend));
}

Result<std::shared_ptr<Backend>> create_host_world(std::shared_ptr<HostEngine> engine,
                                                   const HostWorldOptions& world,
                                                   const Wait& wait) {
  const HostEngine::Options& options = engine->options();
  shm::HostArena& arena = *engine->arena();
  if (arena.own_header().world_block.load() != 0) {
    return Status(Code::kInvalidState, format("communicator \"%s\": this engine has its world "
                                              "communicator already; split that one",
                                              world.name.c_str()));
  }
  DT_TRY_VALUE(HostBlock block, HostBlock::make(engine, options.local_size));
  arena.own_header().world_block.store(block.offset(), std::memory_order_seq_cst);
  std::vector<int32_t> places;
  std::vector<int64_t> offsets;
  for (int32_t rank = 0; rank < options.local_size; ++rank) arena.header(rank).doorbell.ring();
  for (int32_t rank = 0; rank < options.local_size; ++rank) {
    for (;;) {
      const uint32_t ticket = arena.doorbell().prepare();
      const int64_t offset = arena.header(rank).world_block.load(std::memory_order_seq_cst);
      if (offset != 0) {
        arena.doorbell().cancel();
        offsets.push_back(offset);
        break;
      }
      if (wait.interrupted() || wait.deadline.passed()) {
        arena.doorbell().cancel();
        if (wait.interrupted()) return wait.interrupt->status();
        return Status(Code::kTimeout,
                      format("communicator \"%s\": local rank %d (%s, pid %lld) did not join it in "
                             "time; look at what it does",
                             world.name.c_str(), rank, options.host.c_str(),
                             static_cast<long long>(arena.header(rank).pid)));
      }
      arena.doorbell().sleep(ticket, wait.deadline.earlier(Deadline::after_ms(kSlicesMs)));
    }
    places.push_back(rank);
  }
  DT_TRY_VALUE(auto backend, std::move(block).open(world, places, offsets));
  // Most programs use them: half a millisecond of a join of six.
  static_cast<HostBackend&>(*backend).map_slots();
  return backend;
}

}  // namespace dt::backend
