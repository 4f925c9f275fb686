// SPDX-License-Identifier: Apache-2.0
#include "training/named_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/slice.h"

namespace dt::training {
namespace {

constexpr int64_t kGiveUpMs = 10'000;  // rank 0 answers what is overdue; behind an operation
constexpr int64_t kSkewMs = 1000;      // other ranks may end an answer so much later than this one
constexpr int64_t kHelpMs = 1;         // between looks where no thread advances transfers
constexpr int64_t kAwayMs = 100;       // between looks whether ranks are back that are away
constexpr size_t kWarnings = 16;       // of stalls at a time

bool is_supported(const backend::Collective& collective) {
  using backend::Kind;
  const Kind kind = collective.kind;
  return collective.op != ReduceOp::kCustom &&
         (kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kAllgather ||
          kind == Kind::kReduceScatter || kind == Kind::kAlltoall);
}

Deadline deadline_at(int64_t at_ns) {
  if (at_ns == std::numeric_limits<int64_t>::max()) return Deadline::never();
  return Deadline::after_ns(std::max<int64_t>(at_ns - monotonic_ns(), 0));
}

}  // namespace

NamedThread::NamedThread(Parts parts)
    : comm_(std::move(parts.comm)),
      control_(std::move(parts.control)),
      data_(std::move(parts.data)),
      options_(std::move(parts.options)),
      where_(parts.table.where),
      coordinator_(parts.table.members[0]) {
  for (int32_t peer = 0; peer < (coordinates() ? comm_->size() : 1); ++peer) {
    senders_.push_back(std::make_unique<MessageSender>(*control_, peer, &bell_));
    receivers_.push_back(std::make_unique<MessageReceiver>(*control_, peer, &bell_));
  }
  if (coordinates()) table_ = std::make_unique<NamedTable>(std::move(parts.table));
}

Result<std::shared_ptr<EndingThread>> NamedThread::start() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto thread = EndingThread::start("carries out named submissions",
                                    [self = shared_from_this()] { self->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  DT_TRY(thread.status());
  pthread_setname_np(thread.value()->native_handle(), "dt-named");
  return thread;
}

Status NamedThread::submit(std::vector<Named::Submission> submissions, bool group) {
  for (size_t i = 0; i < submissions.size(); ++i) {
    const std::string& name = submissions[i].name;
    if (!is_supported(submissions[i].collective)) {
      return Status(Code::kUnsupported,
                    format("%s: \"%s\" is %s; by name go allreduce, broadcast, allgather, "
                           "reduce_scatter and alltoall, with dt's own reductions",
                           where_.c_str(), name.c_str(),
                           submissions[i].collective.op == ReduceOp::kCustom
                               ? "a reduction of the caller's own"
                               : kind_name(submissions[i].collective.kind)));
    }
  }
  const std::string first = submissions[0].name;
  bool wakes = false;
  const Status status = state_.with([&](State& state) -> Status {
    if (!state.failed.ok()) return state.failed.within(where_ + " has failed before");
    if (state.closing) return Status(Code::kInvalidState, where_ + ": it was closed");
    if (state.join != Join::kNot) {
      return Status(Code::kInvalidState,
                    format("%s: rank %d has joined; submit nothing until dt_named_join gives the "
                           "last rank",
                           where_.c_str(), rank()));
    }
    for (const auto& each : submissions) {
      if (state.pending.count(each.name) == 0) continue;
      return Status(Code::kInvalidState,
                    format("%s: \"%s\" was submitted before on rank %d, and is not done; wait for "
                           "its work first",
                           where_.c_str(), each.name.c_str(), rank()));
    }
    // Otherwise it was woken for the others and has not taken them yet.
    wakes = state.untold.empty();
    for (size_t i = 0; i < submissions.size(); ++i) {
      Named::Submission& each = submissions[i];
      Pending pending;
      pending.call.kind = each.collective.kind;
      pending.call.dtype = each.collective.dtype;
      if (reduces(each.collective.kind)) pending.call.op = each.collective.op;
      if (has_root(each.collective.kind)) pending.call.root = each.collective.root;
      pending.call.count = each.collective.count;
      if (group) {
        pending.call.group_size = static_cast<int32_t>(submissions.size());
        pending.call.group_index = static_cast<int32_t>(i);
        pending.call.group = first;
      }
      pending.deadline = comm_->deadline_of(each.collective);
      state.earliest = state.earliest.earlier(pending.deadline);
      each.collective.name = each.name;
      pending.collective = std::move(each.collective);
      pending.work = std::move(each.work);
      state.untold.push_back(each.name);
      state.pending.emplace(std::move(each.name), std::move(pending));
    }
    return {};
  });
  if (status.ok() && wakes) bell_.ring();
  return status;
}

template <class F>
bool NamedThread::wait_until(const Wait& wait, F&& holds) {
  for (;;) {
    const uint32_t ticket = answered_.prepare();
    const bool over = state_.with([&](State& state) {
      return !state.failed.ok() || state.closing || state.ended || holds(state);
    });
    if (over || wait.deadline.passed()) {
      answered_.cancel();
      return over;
    }
    answered_.sleep(ticket, wait.deadline);
  }
}

Result<int32_t> NamedThread::join(const Wait& wait) {
  DT_TRY(state_.with([&](State& state) -> Status {
    if (!state.failed.ok()) return state.failed.within(where_ + " has failed before");
    if (state.closing) return Status(Code::kInvalidState, where_ + ": it was closed");
    if (state.join == Join::kNot) state.join = Join::kWanted;
    return {};
  }));
  bell_.ring();
  // Where several threads wait, one finds kOver, and the others find what it left.
  const auto over = [](const State& state) {
    return state.join == Join::kOver || state.join == Join::kNot;
  };
  (void)wait_until(wait, over);
  return state_.with([&](State& state) -> Result<int32_t> {
    if (over(state)) {
      state.join = Join::kNot;
      return state.last_joined;
    }
    DT_TRY(state.failed);
    if (state.closing) return Status(Code::kAborted, where_ + ": it was closed");
    return -1;
  });
}

Result<std::string> NamedThread::report(const Wait& wait) {
  uint32_t seen = 0;
  DT_TRY(state_.with([&](State& state) -> Status {
    if (!state.failed.ok()) return state.failed.within(where_ + " has failed before");
    if (state.closing) return Status(Code::kInvalidState, where_ + ": it was closed");
    // One that was asked for before this call may not know what this thread has submitted.
    seen = state.reports + (state.asked ? 1 : 0);
    state.wanted = seen + 1;
    return {};
  }));
  bell_.ring();
  (void)wait_until(wait, [&](const State& state) { return state.reports > seen; });
  return state_.with([&](State& state) -> Result<std::string> {
    if (state.reports > seen) return state.report;
    DT_TRY(state.failed);
    if (state.closing) return Status(Code::kAborted, where_ + ": it was closed");
    return Status(Code::kTimeout,
                  format("%s, rank %d: no report of %s within %lld ms; look at what that does",
                         where_.c_str(), rank(), coordinator_.c_str(),
                         static_cast<long long>(wait.deadline.limit_ms())));
  });
}

Named::Statistics NamedThread::statistics() const {
  return state_.with([](const State& state) { return state.statistics; });
}

void NamedThread::close() {
  const Status status(Code::kAborted, format("%s was closed on rank %d before this was carried out",
                                             where_.c_str(), rank()));
  // Under one lock: the thread tells rank 0 of the leave as soon as it sees `closing`, and rank 0
  // would answer with a reason of its own for what still waits here.
  const auto over = state_.with([&](State& state) -> std::optional<NamedWorks> {
    if (state.ended || std::exchange(state.closing, true)) return std::nullopt;
    control_->set_use(comm::Use::kUnfinished);  // dt_finalize waits until the other ranks know
    return take_waiting(state, status);
  });
  if (!over) return;
  fail_works(*over, status);
  bell_.ring();
}

/// Everything that is not being carried out ends, and nothing more begins.
void NamedThread::fail(const Status& status) {
  fail_works(state_.with([&](State& state) { return take_waiting(state, status); }), status);
}

NamedThread::NamedWorks NamedThread::take_waiting(State& state, const Status& status) {
  NamedWorks over;
  if (state.failed.ok()) state.failed = status;
  for (auto place = state.pending.begin(); place != state.pending.end();) {
    if (place->second.running) {
      ++place;
      continue;
    }
    over.emplace_back(place->first, std::move(place->second.work));
    place = state.pending.erase(place);
  }
  state.untold.clear();
  return over;
}

void NamedThread::fail_works(const NamedWorks& works, const Status& status) {
  for (const auto& [name, work] : works) finish(*work, status.within("\"" + name + "\""));
  answered_.ring();
}

void NamedThread::end(const Status& status) {
  fail(status);
  (void)data_->backend().release(memory_);
  state_.with([&](State& state) {
    state.ended = true;
    control_->set_use(comm::Use::kBackground);
  });
  answered_.ring();
}

void NamedThread::run() {
  use_short_slices();
  for (;;) {
    const uint32_t ticket = bell_.prepare();
    const Result<bool> moved = step();
    if (!moved.ok() || may_end_) {
      bell_.cancel();
      if (!moved.ok()) control_->interrupt(moved.status());
      return end(moved.ok() ? Status(Code::kAborted, where_ + " has ended") : moved.status());
    }
    Deadline until = next_deadline();
    if (control_->backend().help()) until = until.earlier(Deadline::after_ms(kHelpMs));
    if (moved.value()) {
      bell_.cancel();
    } else {
      bell_.sleep(ticket, until);
    }
  }
}

Result<bool> NamedThread::step() {
  DT_TRY(control_->broken());
  look_for_overdue();
  return coordinates() ? coordinate() : talk_to_coordinator();
}

Deadline NamedThread::next_deadline() {
  Deadline next = state_.with([&](State& state) {
    const Deadline sooner = state.earliest.earlier(state.give_up);
    if (state.earliest.is_never() || away_until_ns_ <= monotonic_ns()) return sooner;
    // The ranks that are away may be back before the time that they announced.
    return sooner.earlier(Deadline::after_ms(kAwayMs));
  });
  if (table_ == nullptr) return next;
  return next.earlier(deadline_at(table_->due_ns())).earlier(deadline_at(table_->next_stall_ns()));
}

/// Runs on every rank but rank 0.
Result<bool> NamedThread::talk_to_coordinator() {
  bool moved = false;
  // What comes while a message is on its way goes into the next one.
  DT_TRY_VALUE(const bool free, senders_[0]->idle());
  if (free) {
    const NamedNews news = take_news();
    if (!news.empty()) DT_TRY(senders_[0]->send(pack(news)));
  }
  if (!awaits_answer()) return false;
  std::string bytes;
  DT_TRY_VALUE(const bool arrived, receivers_[0]->receive(&bytes));
  if (arrived) {
    DT_TRY_VALUE(auto answer, unpack_answer(bytes));
    DT_TRY(heed(std::move(answer)));
    moved = true;
  }
  return moved;
}

/// After a failure of this rank, rank 0 may still list names that have ended here. It waits until
/// this rank withholds them, and reads nothing meanwhile, not even that this rank leaves.
bool NamedThread::awaits_answer() {
  return state_.with([](const State& state) {
    return !state.pending.empty() || state.join == Join::kTold || state.asked || state.closing ||
           !state.failed.ok();
  });
}

/// Of rank 0.
Result<bool> NamedThread::coordinate() {
  NamedNews news = take_news();
  // No rank is reported as missing while its message, or that of rank 0, is still to be read.
  NamedNews late;
  late.heard = news.heard;
  std::swap(late.overdue, news.overdue);
  if (!news.empty()) DT_TRY(table_->hear(0, news, monotonic_ns()));
  DT_TRY(listen_to_all());
  if (!late.empty()) DT_TRY(table_->hear(0, late, monotonic_ns()));
  const auto stalls = table_->stalls(monotonic_ns());
  if (!stalls.empty()) {
    state_.with(
        [&](State& state) { state.statistics.stalls += static_cast<int64_t>(stalls.size()); });
    for (size_t i = 0; i < std::min(stalls.size(), kWarnings) && options_.logger != nullptr; ++i) {
      options_.logger->log(LogLevel::kWarning, "%s", stalls[i].c_str());
    }
    if (stalls.size() > kWarnings && options_.logger != nullptr) {
      options_.logger->log(LogLevel::kWarning, "%s: %zu more names wait as these do",
                           where_.c_str(), stalls.size() - kWarnings);
    }
  }
  if (table_->due_ns() <= monotonic_ns()) {
    DT_TRY(answer());
    return true;
  }
  bool sent = true;
  for (const auto& sender : senders_) {
    DT_TRY_VALUE(const bool idle, sender->idle());
    sent = sent && idle;
  }
  may_end_ = table_->all_left() && sent;
  return false;
}

Status NamedThread::listen_to_all() {
  for (int32_t peer = 1; peer < comm_->size(); ++peer) {
    while (!table_->has_left(peer)) {
      std::string bytes;
      DT_TRY_VALUE(const bool arrived, receivers_[static_cast<size_t>(peer)]->receive(&bytes));
      if (!arrived) break;
      DT_TRY_VALUE(const NamedNews news, unpack_news(bytes));
      DT_TRY(table_->hear(peer, news, monotonic_ns()));
    }
  }
  return {};
}

Status NamedThread::answer() {
  std::vector<NamedAnswer> answers = table_->take();
  for (int32_t peer = 1; peer < comm_->size(); ++peer) {
    const NamedAnswer& answer = answers[static_cast<size_t>(peer)];
    if (!answer.empty()) DT_TRY(senders_[static_cast<size_t>(peer)]->send(pack(answer)));
  }
  // Rank 0 goes on until the others have left, too.
  answers[0].may_end = false;
  return heed(std::move(answers[0]));
}

NamedNews NamedThread::take_news() {
  NamedNews news;
  news.heard = heard_;
  std::vector<std::string> names;
  state_.with([&](State& state) {
    std::swap(names, state.untold);
    for (const std::string& name : names) {
      const auto found = state.pending.find(name);
      if (found == state.pending.end()) continue;
      Pending& pending = found->second;
      pending.told = true;
      const auto id = ids_.find(name);
      if (id != ids_.end() && known_.at(id->second).call == pending.call) {
        news.known.push_back(id->second);
        ++state.statistics.cache_hits;
      } else {
        news.fresh.push_back({name, pending.call});
      }
    }
    for (std::string& name : std::exchange(state.overdue, {})) {
      // Not of the next operation of that name. One that has ended here by giving up is still told.
      const auto found = state.pending.find(name);
      if (found != state.pending.end() && !found->second.overdue) continue;
      news.overdue.push_back(std::move(name));
    }
    news.joins = state.join == Join::kWanted;
    if (news.joins) state.join = Join::kTold;
    news.asks = state.reports < state.wanted && !std::exchange(state.asked, true);
    news.leaves = state.closing && !std::exchange(state.leave_told, true);
  });
  return news;
}

/// Rank 0 ends all with the ranks that are missing, once it hears of it. Also while a message to it
/// is under way, because a rank 0 that is stopped or stuck takes none. No deadline that has passed
/// remains, so the thread sleeps. A name has its whole time-out after a pause that some rank has
/// announced.
void NamedThread::look_for_overdue() {
  const int64_t away_until_ns = comm_->away_until_ns();
  const bool changed = std::exchange(away_until_ns_, away_until_ns) != away_until_ns;
  const bool gives_up = state_.with([&](State& state) {
    if (changed || state.earliest.passed()) {
      state.earliest = Deadline::never();
      for (auto& [name, pending] : state.pending) {
        if (pending.running || pending.overdue) continue;
        const Deadline deadline = pending.deadline.renewed_at(away_until_ns);
        if (deadline.passed()) {
          pending.overdue = true;
          state.overdue.push_back(name);
          state.give_up = state.give_up.earlier(Deadline::after_ms(kGiveUpMs));
        } else {
          state.earliest = state.earliest.earlier(deadline);
        }
      }
    }
    if (!state.give_up.passed()) return false;
    state.give_up = Deadline::never();
    return true;
  });
  if (!gives_up) return;
  fail(Status(Code::kTimeout,
              format("%s, rank %d: %s, which coordinates it, does not answer; look at what that "
                     "does",
                     where_.c_str(), rank(), coordinator_.c_str())));
}

/// After operations were carried out, during which no rank reported anything: a deadline limits the
/// wait for other ranks, not this time. For names that were submitted meanwhile the wait begins
/// now. Names that were reported before are extended once only, because other names may go on for
/// ever.
void NamedThread::extend_deadlines() {
  const int64_t now_ns = monotonic_ns();
  const Deadline least = Deadline::after_ms(kSkewMs);
  state_.with([&](State& state) {
    state.earliest = Deadline::never();
    for (auto& [name, pending] : state.pending) {
      if (pending.running || pending.overdue) continue;
      if (!pending.told) {
        pending.deadline = pending.deadline.renewed_at(now_ns);
      } else if (!pending.extended && pending.deadline.before(least)) {
        pending.deadline = pending.deadline.later_ns(now_ns + kSkewMs * 1'000'000);
        pending.extended = true;
      }
      state.earliest = state.earliest.earlier(pending.deadline);
    }
  });
}

Status NamedThread::resolve(NamedAnswer& answer) {
  for (auto& operation : answer.operations) {
    if (coordinates() && operation.known) continue;
    if (operation.known) {
      const auto found = known_.find(operation.id);
      if (found == known_.end()) {
        return Status(Code::kInternal, format("%s, rank %d: no call has id %u", where_.c_str(),
                                              rank(), operation.id));
      }
      operation.name = found->second.name;
      operation.call = found->second.call;
    } else if (operation.id != NamedAnswer::kNoId) {
      known_[operation.id] = {operation.name, operation.call};
      ids_[operation.name] = operation.id;
    }
  }
  for (const uint32_t id : answer.forgotten) {
    const auto found = known_.find(id);
    if (found == known_.end()) continue;
    if (const auto name = ids_.find(found->second.name); name != ids_.end() && name->second == id) {
      ids_.erase(name);
    }
    known_.erase(found);
  }
  return {};
}

Status NamedThread::heed(NamedAnswer answer) {
  DT_TRY(resolve(answer));
  if (!answer.operations.empty()) {
    ++heard_;
    state_.with([](State& state) { ++state.statistics.answers; });
  }
  for (const NamedBatch& batch : plan_batches(answer.operations, options_.fuse_bytes)) {
    run_batch(answer.operations, batch);
  }
  if (!answer.operations.empty()) extend_deadlines();
  for (const auto& failure : answer.failures) complete(failure.name, failure.status);
  if (!answer.broken.ok()) fail(answer.broken);
  state_.with([&](State& state) {
    // It answers; of what is still overdue it is to hear, or has an answer under way.
    if (!state.give_up.is_never()) {
      const bool more = std::any_of(state.pending.begin(), state.pending.end(),
                                    [](const auto& each) { return each.second.overdue; });
      state.give_up = more ? Deadline::after_ms(kGiveUpMs) : Deadline::never();
    }
    if (answer.report) {
      state.report = std::move(*answer.report);
      ++state.reports;
      state.asked = false;
    }
    if (answer.joined >= 0) {
      state.last_joined = answer.joined;
      state.join = Join::kOver;
    }
  });
  may_end_ = answer.may_end;
  answered_.ring();
  return {};
}

void NamedThread::complete(const std::string& name, const Status& status) {
  std::shared_ptr<backend::Work> work;
  state_.with([&](State& state) {
    const auto found = state.pending.find(name);
    if (found == state.pending.end() || !found->second.told) return;
    work = std::move(found->second.work);
    state.pending.erase(found);
  });
  if (work != nullptr) finish(*work, status);
}

/// First done, then counted: what waits for the eventfd of the communicator finds the work done.
void NamedThread::finish(backend::Work& work, const Status& status) {
  work.complete(status);
  const auto fd = comm_->backend().completion_fd();
  if (fd.ok()) (void)eventfd_write(fd.value(), 1);
}

}  // namespace dt::training
