// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "backend/host/contention.h"
#include "backend/multihost/conductor.h"
#include "base/fork.h"
#include "base/slice.h"
#include "collective/blocks.h"

namespace dt::backend {
namespace {

constexpr size_t kRefusalBytes = 256;
// Whom a call waits for is known on the loop's thread only, and asked there this often.
constexpr int64_t kCountWaitMs = 20;

// How long a caller polls after anything moved before it sleeps: some round trips of a fast
// network, and what the ranks of other hosts usually come later.
constexpr int64_t kPollNs = 200'000;

/// Whether callers do the work of the mesh's loop while they wait. Not with TLS: OpenSSL writes to
/// sockets without MSG_NOSIGNAL. Nor where those who would do what callers poll for need their
/// processors: with several ranks on a host, each has a progress thread at work, too.
bool may_visit(const MultihostOptions& options) {
  const int32_t local_size = options.roster.local_size();
  const auto processors = static_cast<int32_t>(std::thread::hardware_concurrency());
  return options.mesh->options().security.mode != net::SecurityMode::kEncrypt &&
         (local_size == 1 || 2 * local_size <= processors);
}

/// A caller's visit of the loop: it then carries out its operation itself. Null: none may be made.
class Visit {
 public:
  explicit Visit(net::Loop* loop) : loop_(loop) {
    if (loop_ == nullptr || try_enter()) return;
    knocked_ = true;
    loop_->knock();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  bool possible() const { return loop_ != nullptr; }
  bool try_enter() {
    entered_ = entered_ || loop_->enter();
    if (entered_) unknock();
    return entered_;
  }
  /// True: it was entered, and is to be left.
  bool end() {
    unknock();
    return std::exchange(entered_, false);
  }

 private:
  void unknock() {
    if (std::exchange(knocked_, false)) loop_->unknock();
  }

  net::Loop* const loop_;
  bool entered_ = false;
  bool knocked_ = false;
};

/// The face of a Conductor: any thread may call; operations are posted to the mesh's loop in the
/// order of the calls.
class MultihostBackend final : public Backend {
 public:
  explicit MultihostBackend(MultihostOptions options)
      : options_(std::move(options)),
        visited_(may_visit(options_) ? options_.mesh->loop() : nullptr),
        conductor_(std::make_shared<Conductor>(options_, &interrupt_)) {
    const std::set<int32_t> contacts = options_.roster.topology.contacts(options_.roster.rank);
    for (const int32_t rank : contacts) contacts_.push_back(options_.roster.world_ranks[rank]);
  }

  Status open() {
    Status status;
    loop()->run([&] { status = conductor_->open(); });
    return status;
  }

  ~MultihostBackend() override {
    const auto ended = std::make_shared<Event>();
    // False in a forked child, where nothing runs any more. Ends: the local operations were
    // interrupted, and nothing else is waited for.
    if (loop()->run([&] { conductor_->stop(ended); })) ended->wait({});
    const int fd = completion_fd_.load();
    release_fd_from_fork_guard(fd);
    if (fd >= 0) close(fd);
  }

  const char* name() const override { return "multihost"; }

  Status submit(const Collective& collective, std::shared_ptr<Work> work) override {
    DT_TRY(make_ready(collective));
    return enqueue(collective, std::move(work));
  }

  Status run(const Collective& collective) override {
    DT_TRY(make_ready(collective));
    auto work = std::make_shared<Work>();
    Visit visit(visited_);
    if (Status status = enqueue(collective, work); !status.ok()) {
      leave(visit);
      return status;
    }
    wait_in(visit, *work, Wait());  // ends: the loop keeps the operation's own deadline
    return work->status();
  }

  bool wait(Work& work, const Wait& wait) override {
    if (!work.done()) {
      Visit visit(visited_);
      return wait_in(visit, work, wait);
    }
    return ended(work);
  }

  Result<int> completion_fd() override {
    int fd = completion_fd_.load(std::memory_order_acquire);
    if (fd >= 0) return fd;
    const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made < 0) {
      return Status(Code::kSystem, format("communicator \"%s\": eventfd: %s",
                                          options_.roster.name.c_str(), errno_text(errno).c_str()));
    }
    guard_fd_from_fork(made);
    if (completion_fd_.compare_exchange_strong(fd, made)) {
      conductor_->set_completion_fd(made);
      return made;
    }
    release_fd_from_fork_guard(made);
    close(made);
    return fd;
  }

  Result<void*> allocate(int64_t bytes) override { return options_.local->allocate(bytes); }
  Status release(void* pointer) override { return options_.local->release(pointer); }

  Pulse pulse() const override { return conductor_->pulse(); }
  void excuse(int64_t until_ns) override {
    options_.local->excuse(until_ns);
    conductor_->excuse(until_ns);
    loop()->post([conductor = conductor_] { conductor->look_at_deadlines(); });
  }
  bool idle() const override { return conductor_->completed() == submitted_.load(); }
  void leave() override {
    loop()->run([&] { conductor_->leave(); });
  }
  void peer_left(int32_t rank) override {
    loop()->post([conductor = conductor_, rank] { conductor->peer_left(rank); });
  }
  Status left_behind(const Collective& collective, int64_t sequence, int32_t rank) const override {
    return conductor_->left_behind(collective.kind, sequence, rank, collective.name);
  }
  void interrupt(Status status) override {
    interrupt_.fire(std::move(status));
    options_.local->interrupt(interrupt_.status());
    loop()->post([conductor = conductor_] { conductor->fail(); });
  }

  void fail(Status status) override {
    loop()->run([&] { conductor_->break_with(status); });
  }
  Status broken() const override { return interrupt_.status(); }

  bool quiesce(const Wait& wait) override {
    if (!interrupt_.fired()) return true;
    loop()->run([&] { conductor_->fail(); });  // no link touches a buffer afterwards
    return options_.local->quiesce(wait);
  }

  Result<Split> split(int32_t color, int32_t key, const std::string& name,
                      Deadline deadline) override;

 private:
  /// Whom this rank exchanges blocks with: all, or the root.
  Status know_partners(const Collective& collective, const Wait& wait) {
    const Roster& roster = options_.roster;
    if (has_root(collective.kind) && collective.root != roster.rank) {
      if (roster.topology.host[collective.root] == roster.host()) return {};
      return options_.mesh->know({roster.world_ranks[collective.root]}, wait);
    }
    if (knows_all_.load(std::memory_order_relaxed)) return {};
    std::vector<int32_t> all;
    for (int32_t rank = 0; rank < roster.topology.size(); ++rank) {
      if (roster.topology.host[rank] != roster.host()) all.push_back(roster.world_ranks[rank]);
    }
    DT_TRY(options_.mesh->know(all, wait));
    knows_all_.store(true, std::memory_order_relaxed);
    return {};
  }
  net::Loop* loop() const { return options_.mesh->loop(); }
  /// What an operation needs and may wait for, before it is enqueued.
  Status make_ready(const Collective& collective) {
    DT_TRY(interrupt_.status());
    DT_TRY(loop()->check_not_forked());
    const Wait wait{collective.deadline, &interrupt_};
    if (collective.is_transfer()) {
      const Roster& roster = options_.roster;
      if (roster.topology.host[collective.root] == roster.host()) return {};
      return options_.mesh->know({roster.world_ranks[collective.root]}, wait);
    }
    // Whatever they do next, the leaders of the hosts agree on it first.
    if (!knows_contacts_.load(std::memory_order_relaxed)) {
      DT_TRY(options_.mesh->know(contacts_, wait));
      knows_contacts_.store(true, std::memory_order_relaxed);
    }
    return moves_blocks(collective.kind) ? know_partners(collective, wait) : Status();
  }
  Status enqueue(const Collective& collective, std::shared_ptr<Work> work) {
    submitted_.fetch_add(1);
    if (loop()->post([conductor = conductor_, collective, work = std::move(work)]() mutable {
          conductor->enqueue(collective, std::move(work));
        })) {
      return {};
    }
    submitted_.fetch_sub(1);
    return Status(Code::kInvalidState, "the thread dt-tcp has ended");
  }
  /// Waits as wait() does, and ends the visit.
  bool wait_in(Visit& visit, Work& work, const Wait& wait) {
    const int64_t begun_ns = monotonic_ns();
    ShortSlices slices(contention_.present(begun_ns));
    const auto yield = [&] {
      const int64_t before_ns = monotonic_ns();
      sched_yield();
      if (contention_.yielded(before_ns, monotonic_ns(), false)) slices.begin();
    };
    const auto goes_on = [&] {
      return !work.done() && !wait.interrupted() && !wait.deadline.passed();
    };
    int64_t moved_ns = begun_ns;
    const auto spins = [&] { return monotonic_ns() - moved_ns < kPollNs; };
    bool inside = false;
    while (visit.possible() && !(inside = visit.try_enter()) && !work.done() && spins()) {
      yield();
    }
    int64_t counted_ns = begun_ns;
    if (inside) loop()->run_posted();
    while (inside && goes_on()) {
      if (conductor_->turn_due()) loop()->turn(0);
      const bool moved = conductor_->poll();
      if (moved) moved_ns = monotonic_ns();
      if (work.done()) break;
      if (moved) continue;
      if (spins()) {
        yield();  // whom this waits for may have been put onto the same processor
        continue;
      }
      loop()->turn(std::min(kCountWaitMs, std::max<int64_t>(wait.deadline.remaining_ms(), 1)));
      counted_ns = count_wait(work, counted_ns);
    }
    leave(visit);
    if (!inside) sleep_for(work, wait, counted_ns, visit.possible() ? nullptr : &slices);
    return ended(work);
  }
  void leave(Visit& visit) {
    if (visit.end()) loop()->leave(options_.mesh->busy());
  }
  /// Until the loop's thread, or whoever visits it, has done the work.
  /// `slices`: to begin with the first sleep, where no visit shows whether the processors are busy.
  void sleep_for(Work& work, const Wait& wait, int64_t counted_ns, ShortSlices* slices) {
    static_assert(kCountWaitMs <= kInterruptPollMs);
    Doorbell bell;
    work.watch(&bell);
    while (!work.done() && !wait.interrupted() && !wait.deadline.passed()) {
      const uint32_t ticket = bell.prepare();
      if (work.done()) {
        bell.cancel();
      } else {
        if (slices != nullptr) slices->begin();
        bell.sleep(ticket, wait.deadline.earlier(Deadline::after_ms(kCountWaitMs)));
        counted_ns = count_wait(work, counted_ns);
      }
    }
    work.unwatch(&bell);
  }
  bool ended(const Work& work) {
    if (!work.done()) return false;
    conductor_->await_count();
    return true;
  }
  /// Since when the wait for `work` is still to be counted.
  int64_t count_wait(const Work& work, int64_t since_ns) {
    const int64_t now = monotonic_ns();
    if (options_.meter == nullptr || work.done()) return now;
    if (now - since_ns < kCountWaitMs * 1'000'000) return since_ns;
    // At most one task is posted at a time, because the loop's thread may be behind. `this`
    // outlives the task: the destructor runs its own task behind all that were posted.
    if (uncounted_ns_.fetch_add(now - since_ns) == 0) {
      loop()->post(
          [this, conductor = conductor_] { conductor->count_wait(uncounted_ns_.exchange(0)); });
    }
    return now;
  }
  template <class T>
  Result<std::vector<T>> gather(const T& mine, Deadline deadline);
  Status agree(const Status& made, const std::vector<int32_t>& members, const std::string& name,
               Deadline deadline);

  const MultihostOptions options_;
  net::Loop* const visited_;       ///< null: callers sleep
  Contention contention_;          ///< of callers that visit
  std::vector<int32_t> contacts_;  ///< world ranks
  std::atomic<bool> knows_contacts_{false};
  std::atomic<bool> knows_all_{false};
  std::atomic<int> completion_fd_{-1};
  std::atomic<uint64_t> submitted_{0};
  std::atomic<int64_t> uncounted_ns_{0};  ///< waited; not zero while a task is posted that takes it
  Interrupt interrupt_;                   ///< fired: broken, for good
  const std::shared_ptr<Conductor> conductor_;
};

/// What all ranks say, by rank.
template <class T>
Result<std::vector<T>> MultihostBackend::gather(const T& mine, Deadline deadline) {
  std::vector<T> all(static_cast<size_t>(options_.roster.topology.size()));
  Collective collective;
  collective.kind = Kind::kAllgather;
  collective.send = &mine;
  collective.recv = all.data();
  collective.count = sizeof(T);
  collective.deadline = deadline;
  collective.name = "split";
  DT_TRY(run(collective));
  return all;
}

/// Collective over this communicator. Ok where all of `members` made their part of the new one;
/// else each of them gets an error.
Status MultihostBackend::agree(const Status& made, const std::vector<int32_t>& members,
                               const std::string& name, Deadline deadline) {
  struct Reason {
    char text[kRefusalBytes];
  };
  const auto good = [](int32_t code) { return code == static_cast<int32_t>(Code::kOk); };
  DT_TRY_VALUE(const auto codes, gather(static_cast<int32_t>(made.code()), deadline));
  if (std::all_of(codes.begin(), codes.end(), good)) return {};
  Reason mine{};
  made.message().copy(mine.text, sizeof mine.text - 1);
  DT_TRY_VALUE(const auto reasons, gather(mine, deadline));
  DT_TRY(made);
  const Roster& parent = options_.roster;
  ErrorInfo info;
  std::string text;
  size_t listed = 0;
  for (const int32_t rank : members) {
    if (good(codes[rank]) || listed++ >= kListedMax) continue;
    const int64_t pid = options_.mesh->peer(parent.world_ranks[rank]).pid;
    if (listed == 1) {
      info.code = static_cast<Code>(codes[rank]);
      info.rank = parent.world_ranks[rank];
      info.host = parent.host_name(rank);
      info.pid = pid;
    }
    const char* reason = reasons[rank].text;
    text += format("%s%s: %.*s", listed == 1 ? "" : "; ", parent.member_text(rank, pid).c_str(),
                   static_cast<int>(strnlen(reason, kRefusalBytes)), reason);
  }
  if (listed == 0) return {};  // it was a rank of another color
  if (listed > kListedMax) text += format("; and %zu more ranks", listed - kListedMax);
  info.message = format("communicator \"%s\" was not made: %s", name.c_str(), text.c_str());
  return Status(std::move(info));
}

Result<Backend::Split> MultihostBackend::split(int32_t color, int32_t key, const std::string& name,
                                               Deadline deadline) {
  struct Wish {
    int32_t color;
    int32_t key;
  };
  const Roster& parent = options_.roster;
  const int32_t size = parent.topology.size();
  DT_TRY_VALUE(const auto all, gather(Wish{color, key}, deadline));

  Split result;
  for (int32_t rank = 0; rank < size; ++rank) {
    if (color >= 0 && all[rank].color == color) result.members.push_back(rank);
  }
  std::stable_sort(result.members.begin(), result.members.end(),
                   [&](int32_t a, int32_t b) { return all[a].key < all[b].key; });
  Roster roster;
  roster.name = name;
  std::vector<int32_t> hosts;
  for (const int32_t member : result.members) {
    if (member == parent.rank) roster.rank = static_cast<int32_t>(hosts.size());
    hosts.push_back(parent.topology.host[member]);
    roster.world_ranks.push_back(parent.world_ranks[member]);
  }
  roster.topology = collective::Topology::of(hosts);
  for (const auto& members : roster.topology.hosts) {
    roster.host_names.push_back(parent.host_name(result.members[members[0]]));
  }
  const bool spans_hosts = roster.topology.host_count() > 1;
  // The gathering came last in the queue, so on every rank of this host nothing else is under way.
  auto local = options_.local->split_as(spans_hosts, color, roster.rank, name, deadline);
  Status made = local.status();
  if (made.ok() && color >= 0) {
    result.backend = std::move(local.value().backend);
    if (spans_hosts) {
      MultihostOptions options = options_;
      options.roster = std::move(roster);
      options.local = std::static_pointer_cast<HostBackend>(result.backend);
      auto whole = create_multihost(std::move(options));
      made = whole.status();
      if (made.ok()) result.backend = std::move(whole).value();
    }
  }
  if (Status status = agree(made, result.members, name, deadline); !status.ok()) {
    // Others may believe that it was made.
    loop()->post(
        [mesh = options_.mesh.get(), name] { mesh->forget(name, tcp::Mesh::End::kBroken); });
    return made.ok() ? status : made;
  }
  return result;
}

}  // namespace

Result<std::shared_ptr<Backend>> create_multihost(MultihostOptions options) {
  const std::string& name = options.roster.name;
  if (name.size() > tcp::kMaxNameBytes) {
    return Status(
        Code::kInvalidArgument,
        format("the communicator's name has %zu bytes, more than the %zu that ranks of "
               "different hosts exchange: \"%.40s...\"; split from a communicator that is "
               "not itself the split of so many",
               name.size(), tcp::kMaxNameBytes, name.c_str()));
  }
  auto backend = std::make_shared<MultihostBackend>(std::move(options));
  DT_TRY(backend->open());
  return std::shared_ptr<Backend>(std::move(backend));
}

}  // namespace dt::backend
