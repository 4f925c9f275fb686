// SPDX-License-Identifier: Apache-2.0
#include "backend/multihost/conductor.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "collective/blocks.h"
#include "collective/descriptor.h"
#include "kernels/host/reduce.h"

namespace dt::backend {
namespace {

// A step among the ranks of this host may wait for one that a leader is in with other hosts. The
// leader knows whom it waits for, so it is to fail first and tell the others.
constexpr int64_t kLocalGraceMs = 2000;

}  // namespace

Conductor::Conductor(const MultihostOptions& options, Interrupt* interrupt)
    : roster_(options.roster),
      local_(*options.local),
      mesh_(*options.mesh),
      loop_(options.mesh->loop()),
      options_(&options),
      interrupt_(interrupt),
      pid_(getpid()),
      local_works_(2 * static_cast<size_t>(roster_.local_size()) + 1),
      said_(static_cast<size_t>(roster_.local_size())),
      heard_(static_cast<size_t>(roster_.topology.host_count())),
      incoming_(static_cast<size_t>(roster_.topology.host_count())),
      payload_at_(static_cast<size_t>(roster_.topology.host_count()), -1) {}

Status Conductor::open() {
  timer_ = std::make_unique<net::Timer>(loop_, [this] { on_timer(); });
  grace_timer_ = std::make_unique<net::Timer>(loop_, [this] { on_grace(); });
  mesh_.expect(roster_.name);
  DT_TRY_VALUE(local_fd_, local_.completion_fd());
  DT_TRY_VALUE(local_watcher_,
               net::FdWatcher::watch(loop_, local_fd_, [this] { on_local_event(); }));
  return {};
}

void Conductor::enqueue(const Collective& collective, std::shared_ptr<Work> work) {
  auto operation = std::make_shared<Operation>();
  operation->collective = collective;
  operation->work = std::move(work);
  int32_t& divisor = operation->collective.divisor;
  if (divisor == 0) divisor = roster_.topology.size();
  operation->called_ns = monotonic_ns();
  if (left_) {
    complete(*operation,
             Status(Code::kInvalidState, "this rank has left the job with dt_finalize"));
    return;
  }
  soonest_ = soonest_.earlier(collective.deadline);
  queue_.push_back(std::move(operation));
  drive();
}

bool Conductor::poll() {
  const auto keep = shared_from_this();
  bool moved = false;
  for (const auto& [peer, known] : links_) {
    const std::shared_ptr<tcp::Link> link = known;
    if (link->receiving() || link->sending()) moved |= link->poll();
    if (broken_) return true;  // all links are gone
  }
  return moved;
}

void Conductor::fail() {
  broken_ = true;
  drive();
}

void Conductor::stop(std::shared_ptr<Event> ended) {
  ended_ = std::move(ended);
  if (!broken_) {
    const bool all_told = take_leave(false);
    if (present() != nullptr || local_count_ > 0) {
      const Status status = destroyed();
      if (!all_told) tell(status);
      interrupt_->fire(status);
      local_.interrupt(status);
    }
  }
  fail();
}

/// Callbacks of steps that end at once come back here: they only ask for another round.
void Conductor::drive() {
  if (std::exchange(driving_, true)) {
    again_ = true;
    return;
  }
  const auto keep = shared_from_this();
  do {
    again_ = false;
    while (!broken_ && step()) {
    }
    if (broken_) drain();
  } while (again_);
  driving_ = false;
  if (!broken_) set_timer();
  note_busy();
}

/// While this waits for something, somebody must look at the loop.
void Conductor::note_busy() {
  const bool busy =
      active_ != nullptr || !transfers_.empty() || !queue_.empty() || local_count_ > 0 || telling_;
  if (std::exchange(busy_, busy) != busy) mesh_.count_busy(busy ? 1 : -1);
}

bool Conductor::step() {
  if (active_ != nullptr) return pending_ == 0 && next_phase();
  if (queue_.empty() || (!queue_.front()->is_transfer() && !transfers_.empty())) return false;
  OperationPtr operation = std::move(queue_.front());
  queue_.pop_front();
  if (operation->is_transfer()) {
    start_transfer(operation);
  } else {
    begin(operation);
  }
  return true;
}

// ---- collectives ----

void Conductor::begin(const OperationPtr& operation) {
  active_ = operation;
  ++sequence_;
  phase_ = Phase::kSay;
  operation->collective.mark.started();
  note_begin(*operation, sequence_);
  own_statement_ = statement_of(operation->collective, roster_.rank, roster_.topology.size());
  own_statement_.pid = pid_;
  say();
}

/// `pending_` is zero: what was begun last is done. True: go on.
bool Conductor::next_phase() {
  switch (phase_) {
    case Phase::kSay: state(); return true;
    case Phase::kState: exchange(); return true;
    case Phase::kExchange: judge(); return true;
    case Phase::kPassOn: pass_on_more(); return true;
    case Phase::kPassOnMore: heard(); return true;
    case Phase::kMove: return move();
  }
  return false;
}

bool Conductor::move() {
  if (sums_due_ != nullptr) {
    for (const collective::SumStep& each : std::exchange(sums_due_, nullptr)->sums) sum(each);
  }
  while (stage_ == stages_.size()) {
    if (!schedule_ || round_ == schedule_->rounds()) {
      if (moving_ == &tables_call_) {
        break_with(unbalanced());
      } else {
        finish(Status());
      }
      return true;
    }
    stages_ = schedule_->round(round_++);
    stage_ = 0;
  }
  start_stage(stages_[stage_++]);
  return true;
}

void Conductor::start_stage(const collective::Stage& stage) {
  sums_due_ = &stage;
  // What waits for peers first, so that it goes on while this host is at work.
  for (const collective::NetworkStep& step : stage.receives) {
    ++pending_;
    link(step.peer).receive(
        [this, step](const tcp::Header& found) -> void* {
          return expect(step.peer, found, kData, step.bytes) ? address(step.at) : nullptr;
        },
        [this] { step_done(); });
  }
  for (const collective::NetworkStep& step : stage.sends) {
    send(step.peer, header(kData, step.bytes), address(step.at));
  }
  for (const collective::LocalStep& step : stage.local) {
    if (broken_) return;
    Collective collective;
    collective.kind = step.kind;
    collective.dtype = moving_->dtype;
    collective.op = step.op;
    if (moving_->op == ReduceOp::kCustom) {  // which says how large elements are, also of a copy
      collective.op = moving_->op;
      collective.custom = moving_->custom;
    }
    collective.divisor = step.divisor;
    collective.root = step.root;
    collective.send = address(step.send);
    collective.recv = address(step.recv);
    collective.count = step.count;
    collective.blocks = step.blocks;
    run_locally(std::move(collective));
  }
}

void Conductor::sum(const collective::SumStep& step) {
  std::vector<const void*> sources;
  for (const collective::Piece& piece : step.sources) sources.push_back(address(piece));
  const kernels::Reduction reduction{moving_->dtype, step.op, step.divisor, moving_->custom};
  kernels::reduce(reduction, address(step.target), sources.data(),
                  static_cast<int32_t>(sources.size()), step.count);
}

void Conductor::finish(Status status) {
  const OperationPtr operation = std::move(active_);
  active_ = nullptr;
  schedule_.reset();
  skew_ms_ = 0;
  complete(*operation, status);
}

char* Conductor::address(const collective::Piece& piece) const {
  const Collective& collective = *moving_;
  char* base = scratch_.get();
  if (piece.space == collective::Space::kSend) {
    base = const_cast<char*>(static_cast<const char*>(collective.send));
  } else if (piece.space == collective::Space::kRecv) {
    base = static_cast<char*>(collective.recv);
  }
  return base == nullptr ? nullptr : base + piece.offset_bytes;
}

// ---- steps ----

void Conductor::run_locally(Collective collective) {
  if (broken_) return;
  if (roster_.local_size() == 1) {
    // Nobody to wait for: done at once, without the progress thread.
    const Status status = local_.run(collective);
    if (!status.ok()) break_with(status);
    return;
  }
  if (phase_ != Phase::kSay) {
    const int64_t grace_ms = kLocalGraceMs + skew_ms_;
    collective.deadline = active_->collective.deadline.plus_ms(grace_ms);
  }
  auto work = std::make_shared<Work>();
  if (const Status status = local_.submit(collective, work); !status.ok()) {
    return break_with(status);
  }
  put_local(local_works_.size() - 1, {std::move(work), {}});
  ++pending_;
}

void Conductor::on_local_event() {
  const auto keep = shared_from_this();
  eventfd_t completions = 0;
  (void)eventfd_read(local_fd_, &completions);
  for (std::deque<LocalWork>& queue : local_works_) {
    while (!queue.empty() && queue.front().work->done()) {
      const LocalWork ended = std::move(queue.front());
      queue.pop_front();
      --local_count_;
      end_local(ended);
    }
  }
  drive();
}

void Conductor::end_local(const LocalWork& ended) {
  const Status status = ended.work->status();
  if (!ended.transfer) --pending_;
  if (broken_) return;
  if (status.ok()) {
    if (ended.transfer) end_transfer(*ended.transfer);
    return;
  }
  // The local backend names its own operation; the user knows the one that this is a step of.
  ErrorInfo info = status.info();
  if (!ended.transfer && active_ != nullptr) {
    const Status whole = failure(info.code, -1, "among the ranks of this host: " + info.message);
    info.message = whole.message();
    info.operation = whole.info().operation;
    info.sequence = whole.info().sequence;
  }
  break_with(Status(std::move(info)));
}

void Conductor::put_local(size_t queue, LocalWork work) {
  local_works_[queue].push_back(std::move(work));
  ++local_count_;
}

void Conductor::step_done() {
  --pending_;
  drive();
}

tcp::Header Conductor::header(What what, int64_t bytes) const {
  tcp::Header header;
  header.what = what;
  header.sequence = static_cast<uint64_t>(sequence_);
  header.signature = own_statement_.said.signature;
  header.count = own_statement_.said.count;
  header.bytes = bytes;
  return header;
}

void Conductor::send(int32_t peer, const tcp::Header& header, const void* data) {
  ++pending_;
  link(peer).send(header, data, [this] { step_done(); });
}

bool Conductor::expect(int32_t peer, const tcp::Header& found, What what, int64_t bytes) {
  const bool agreement = what == kAgreement;
  const bool fits = agreement ? fits_agreement(found) : found.what == what && found.bytes == bytes;
  if (fits && found.sequence == static_cast<uint64_t>(sequence_)) return true;
  if (agreement && found.what == kMessage) {
    break_with(failure(
        Code::kMismatch, peer,
        format("ranks disagree: %s: %s, %s: %s; make all ranks issue the same operations in the "
               "same order, then go on with dt_comm_shrink",
               peer_text(peer).c_str(),
               collective::describe(found.signature, found.count, "").c_str(),
               roster_.member_text(roster_.rank, own_statement_.pid).c_str(),
               collective::describe(own_statement_.said.signature & ~collective::flag::kAll,
                                    own_statement_.said.count, active_->collective.name)
                   .c_str())));
    return false;
  }
  break_with(failure(
      Code::kInternal, peer,
      format("%s sent message %u of operation %llu where %u of %lld was due; report "
             "this",
             peer_text(peer).c_str(), found.what, static_cast<unsigned long long>(found.sequence),
             what, static_cast<long long>(sequence_))));
  return false;
}

tcp::Link& Conductor::link(int32_t peer) {
  std::shared_ptr<tcp::Link>& known = links_[peer];
  if (known != nullptr) return *known;
  const int32_t connections = mesh_.options().connections;
  const auto link = std::make_shared<tcp::Link>(
      loop_, [this, peer](const std::string& reason) { broke(peer, reason); },
      [this, peer](bool finalized) { left(peer, finalized); }, static_cast<size_t>(connections));
  known = link;
  for (int32_t each = 0; each < connections; ++each) {
    mesh_.connect(roster_.name, roster_.world_ranks[peer], each,
                  [weak = std::weak_ptr<Conductor>(shared_from_this()), link, peer,
                   each](Result<tcp::Socket> socket) {
                    if (socket.ok()) {
                      return link->open(std::move(socket).value(), static_cast<size_t>(each));
                    }
                    link->close();
                    const auto self = weak.lock();
                    if (self == nullptr) return;
                    if (socket.status().code() == Code::kAborted) {
                      return self->left(peer, socket.status().message() == tcp::kPeerFinalized);
                    }
                    self->unreachable(peer, socket.status());
                  });
  }
  if (will_not_dial(peer)) left(peer, true);
  return *link;
}

/// First done, then counted: who is woken by the eventfd finds the work done.
void Conductor::note_begin(Operation& operation, int64_t number) {
  const Collective& collective = operation.collective;
  operation.begun = true;
  pulse_.enter(collective.kind, number, collective.name);
  if (options_->note_last) options_->note_last(collective.kind, number, collective.name);
}

void Conductor::complete(Operation& operation, const Status& status) {
  if (operation.begun) pulse_.leave();
  completing_.fetch_add(1, std::memory_order_relaxed);  // published by done()
  operation.work->complete(status);
  const int fd = completion_fd_.load(std::memory_order_acquire);
  if (fd >= 0) (void)eventfd_write(fd, 1);
  completed_.fetch_add(1, std::memory_order_release);
}

void Conductor::await_count() const {
  const uint64_t begun = completing_.load(std::memory_order_relaxed);
  while (completed_.load(std::memory_order_acquire) < begun) sched_yield();
}

}  // namespace dt::backend
