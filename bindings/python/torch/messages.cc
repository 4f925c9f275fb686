// SPDX-License-Identifier: Apache-2.0
#include "messages.h"

#include <algorithm>
#include <array>

namespace dt::torch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kFirstTick{100}, kLastTick{5000};
constexpr const char* kDestroyed = ": the process group was destroyed while this receive waited";
constexpr int kIdleTicks = 20;  ///< then the thread sleeps until it is woken
/** Elements of the allreduce by which ranks leave; a vote of the program has fewer, so dt tells the
 * two apart. */
constexpr int kVotes = 61;

dt_collective transfer(dt_kind kind, int peer, void* memory, int64_t count, dt_dtype dtype,
                       int64_t timeout_ms) {
  dt_collective one;
  dt_collective_init(&one);
  one.kind = kind;
  one.dtype = dtype;
  one.peer = peer;
  one.count = count;
  one.timeout_ms = timeout_ms;
  (kind == DT_KIND_SEND ? const_cast<void*&>(one.send) : one.recv) = memory;
  return one;
}

bool matches(const Receive& receive, const Header& header, int source) {
  return receive.group == header.group && receive.tag == header.tag &&
         std::find(receive.sources.begin(), receive.sources.end(), source) != receive.sources.end();
}

/** Whether the message has the size that the receive wants; otherwise that is its error. */
bool fits(Receive& receive, const Header& header) {
  if (receive.bytes == header.bytes) return true;
  receive.done = true;
  receive.error =
      error_of(DT_ERR_MISMATCH, receive.what + ": room for " + std::to_string(receive.bytes) +
                                    " bytes, but the message has " + std::to_string(header.bytes));
  return false;
}

void fill(Receive& receive, const void* bytes) {
  if (receive.bytes > 0) std::memcpy(receive.memory, bytes, static_cast<size_t>(receive.bytes));
  receive.done = true;
}

}  // namespace

Messages::Messages(dt_comm* comm, int rank, int size) : comm_(comm), rank_(rank), peers_(size) {}

void Messages::send(Message& message, const Header& header, const void* memory, int peer) {
  const std::lock_guard lock(sending_);
  message.launch(
      comm_, transfer(DT_KIND_SEND, peer, const_cast<Header*>(&header), sizeof(Header), DT_U8, -1));
  if (header.bytes <= Header::kInlineBytes) return;
  message.launch(comm_, transfer(DT_KIND_SEND, peer, const_cast<void*>(memory), header.count,
                                 static_cast<dt_dtype>(header.dtype), -1));
}

void Messages::post(const std::shared_ptr<Receive>& receive) {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  for (auto each = arrived_.begin(); each != arrived_.end(); ++each) {
    const std::shared_ptr<Arrived> message = *each;
    if (!matches(*receive, message->header, message->source)) continue;
    arrived_.erase(each);
    receive->source = message->source;
    if (!fits(*receive, message->header)) return;
    if (message->whole) {
      fill(*receive, message->bytes.data());
    } else {
      message->wanted_by = receive;
    }
    return;
  }
  start(receive->what);  // throws before anything has begun
  waiting_.push_back(receive);
  for (const int peer : receive->sources) listen(peer);
  if (error_) std::rethrow_exception(error_);
  if (asleep_) changed_.notify_one();
}

void Messages::start(const std::string& what) {
  if (running_) return;
  start_thread(what, [self = shared_from_this()] { self->serve(); });
  running_ = true;
}

std::string Messages::failure() {
  const std::lock_guard lock(mutex_);
  try {
    if (error_) std::rethrow_exception(error_);
    check(dt_comm_check(comm_));
    return "";
  } catch (const std::exception& error) {
    return text_of(error);
  }
}

void Messages::listen(int peer) {
  if (peer == rank_ || peers_[peer].work != nullptr || error_) return;
  const dt_collective one =
      transfer(DT_KIND_RECV, peer, peers_[peer].header.get(), sizeof(Header), DT_U8, -1);
  const dt_status status = dt_collective_launch(comm_, &one, &peers_[peer].work);
  if (status != DT_OK) {
    fail(error_of(status, dt_last_error()));
  } else {
    listening_.push_back(peer);
  }
}

bool Messages::wanted(int peer) const {
  return peers_[peer].parting ||
         std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& receive) {
           const auto& sources = receive->sources;
           return std::find(sources.begin(), sources.end(), peer) != sources.end();
         });
}

bool Messages::take_in() {
  bool moved = false;
  std::exception_ptr error;
  for (size_t i = 0; i < listening_.size() && !error_;) {
    const int peer = listening_[i];
    if (!is_done(peers_[peer].work, error)) {
      ++i;
      continue;
    }
    moved = true;
    dt_work_destroy(std::exchange(peers_[peer].work, nullptr));
    listening_.erase(listening_.begin() + static_cast<std::ptrdiff_t>(i));
    if (error) {
      fail(error);
    } else {
      take(peer);
    }
  }
  for (size_t i = 0; i < incoming_.size();) {
    error = nullptr;
    if (!is_done(incoming_[i].work, error)) {
      ++i;
      continue;
    }
    moved = true;
    const Incoming ended = incoming_[i];
    incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(i));
    dt_work_destroy(ended.work);
    end(ended, error);
  }
  if (waiting_.empty()) return moved;
  const auto now = Clock::now();
  waiting_.remove_if([&](const auto& receive) {
    if (now < receive->end) return false;
    receive->error = error_of(DT_ERR_TIMEOUT, receive->what + ": no message came in time");
    receive->done = true;
    return true;
  });
  return moved;
}

void Messages::take(int peer) {
  const Header header = *peers_[peer].header;
  if (header.is_farewell != 0) {
    peers_[peer].parting = false;
    peers_[peer].parted = true;
    return;
  }
  const bool small = header.bytes <= Header::kInlineBytes;
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& each) { return matches(*each, header, peer); });
  std::shared_ptr<Receive> receive;
  if (found != waiting_.end()) {
    receive = *found;
    waiting_.erase(found);
    receive->source = peer;
  }
  if (receive && fits(*receive, header)) {
    if (small) {
      fill(*receive, header.data);
    } else {
      receive_rest(header, peer, receive->memory, {receive, nullptr});
    }
  } else {
    auto message = std::make_shared<Arrived>();
    message->source = peer;
    message->header = header;
    message->bytes.assign(header.data, header.data + (small ? header.bytes : 0));
    message->whole = small;
    if (!small) {
      try {
        message->bytes.resize(static_cast<size_t>(header.bytes));
      } catch (const std::exception&) {  // and without the message no later one can be told apart
        fail(error_of(DT_ERR_OUT_OF_MEMORY,
                      "a message of " + std::to_string(header.bytes) + " bytes from rank " +
                          std::to_string(peer) + " has no room in the memory of rank " +
                          std::to_string(rank_) + "; post its receive before it is sent"));
        return;
      }
    }
    if (!receive) arrived_.push_back(message);  // else it is lost
    if (!small) {
      receive_rest(header, peer, message->bytes.data(), {nullptr, message});
    }
  }
  if (wanted(peer)) listen(peer);
}

void Messages::receive_rest(const Header& header, int peer, char* memory, Incoming incoming) {
  const dt_collective one =
      transfer(DT_KIND_RECV, peer, memory, header.count, static_cast<dt_dtype>(header.dtype), 0);
  const dt_status status = dt_collective_launch(comm_, &one, &incoming.work);
  if (status == DT_OK) {
    incoming_.push_back(std::move(incoming));
  } else {
    const std::exception_ptr error = error_of(status, dt_last_error());
    end(incoming, error);
    fail(error);
  }
}

void Messages::end(const Incoming& incoming, const std::exception_ptr& error) {
  if (incoming.receive) {
    incoming.receive->error = error;
    incoming.receive->done = true;
    return;
  }
  Arrived& message = *incoming.arrived;
  message.whole = error == nullptr;
  if (error) fail(error);
  if (!message.wanted_by) return;
  if (error) {
    message.wanted_by->error = error;
    message.wanted_by->done = true;
  } else {
    fill(*message.wanted_by, message.bytes.data());
  }
}

/** The communicator is broken, and dt no longer uses any memory of it. */
void Messages::fail(const std::exception_ptr& error) {
  if (error_) return;
  error_ = error;
  for (const auto& receive : waiting_) {
    receive->error = error;
    receive->done = true;
  }
  waiting_.clear();
}

bool Messages::advance(const Receive* receive) {
  const std::lock_guard lock(mutex_);
  if (receive != nullptr && receive->done) return true;
  take_in();
  return receive != nullptr && receive->done;
}

void Messages::wait(std::vector<dt_work*> others, int64_t timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    for (const int peer : listening_) others.push_back(peers_[peer].work);
    for (const Incoming& each : incoming_) others.push_back(each.work);
  }
  timeout_ms = std::min(timeout_ms, kLookMs);
  if (others.empty()) {  // another thread has just taken it in
    std::this_thread::yield();
    return;
  }
  // A work that another thread destroys meanwhile has moved, too.
  ++waiters_;
  if (others.size() == 1) {
    int32_t done = 0;
    (void)dt_work_wait(others[0], timeout_ms, &done);
  } else {
    int32_t index = 0;
    (void)dt_work_wait_any(others.data(), static_cast<int32_t>(others.size()), timeout_ms, &index);
  }
  --waiters_;
}

void Messages::keep(c10::intrusive_ptr<Message> message) {
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    const Message* const key = message.get();
    kept_.emplace(key, std::move(message));
    full = kept_.size() >= sweep_at_;
  }
  if (full) sweep();
}

void Messages::forget(const Message* message) {
  c10::intrusive_ptr<Message> held;  // destroyed without the lock, like tensors of a Work
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(message);
  if (found == kept_.end()) return;
  held = std::move(found->second);
  kept_.erase(found);
}

/** Forgets works that are done and that nobody waits for. */
void Messages::sweep() {
  std::vector<c10::intrusive_ptr<Message>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : kept_) all.push_back(each.second);
  }
  for (const auto& each : all) {  // without the lock: their callbacks may use the process group
    if (each->isCompleted() && each->receiver() < 0) forget(each.get());
  }
  const std::lock_guard lock(mutex_);
  sweep_at_ = std::max<size_t>(16, 2 * kept_.size());
}

void Messages::watch(c10::intrusive_ptr<Message> message) {
  const std::lock_guard lock(mutex_);
  if (closed_) return completions_->add(message);
  start("a future of torch.distributed");
  watched_.push_back(std::move(message));
  if (asleep_) changed_.notify_one();
}

/** The thread: receives messages while no caller waits, at growing intervals. */
void Messages::serve() {
  std::unique_lock lock(mutex_);
  microseconds tick = kFirstTick;
  const auto busy = [this] {
    return closed_ || !waiting_.empty() || !incoming_.empty() || !watched_.empty();
  };
  for (int idle = 0; !closed_;) {
    if (idle == kIdleTicks) {
      asleep_ = true;
      changed_.wait(lock, busy);
      asleep_ = false;
      tick = kFirstTick;
    }
    changed_.wait_for(lock, tick, [this] { return closed_; });
    idle = busy() ? 0 : idle + 1;
    const bool moved = waiters_ == 0 && take_in();
    tick = moved ? kFirstTick : std::min(2 * tick, kLastTick);
    if (watched_.empty()) continue;
    auto all = std::move(watched_);
    watched_.clear();
    lock.unlock();
    all.remove_if([this](const auto& each) {
      std::exception_ptr error;
      return each->poll(0, error) && complete(each);
    });
    lock.lock();
    watched_.splice(watched_.begin(), all);
  }
  auto all = std::move(watched_);
  watched_.clear();
  lock.unlock();
  for (const auto& each : all) {
    if (complete(each)) continue;
    std::exception_ptr error;
    while (!each->poll(-1, error)) {
    }
    each->settle(error);
  }
}

/** On a thread of its own, because callbacks may block. @return false: there can be none now. */
bool Messages::complete(const c10::intrusive_ptr<Message>& message) {
  try {
    completions_->add(message);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Messages::end_waiting() {
  for (const auto& receive : waiting_) {
    receive->error = error_of(DT_ERR_INVALID_STATE, receive->what + kDestroyed);
    receive->done = true;
  }
  waiting_.clear();
}

/** By rank: 1 where this rank listens, or a send of its is not done. */
std::vector<char> Messages::open_pairs() {
  sweep();
  const std::lock_guard lock(mutex_);
  std::vector<char> open(peers_.size(), 0);
  if (error_) return open;  // all operations of the communicator end by themselves
  for (const int peer : listening_) open[static_cast<size_t>(peer)] = 1;
  for (const auto& each : kept_) {
    if (const int peer = each.second->receiver(); peer >= 0) open[static_cast<size_t>(peer)] = 1;
  }
  return open;
}

void Messages::leave(dt_comm* world, int64_t timeout_ms, const std::string& why) {
  try {
    say_farewell(world, timeout_ms, why);
  } catch (const std::exception&) {  // the communicator is broken: its operations end by themselves
  }
  const std::lock_guard lock(mutex_);
  end_waiting();
}

void Messages::say_farewell(dt_comm* world, int64_t timeout_ms, const std::string& why) {
  const auto end = end_after(milliseconds(timeout_ms));
  const std::vector<char> mine = open_pairs();
  std::array<char, kVotes> any{};
  any[0] = std::find(mine.begin(), mine.end(), 1) != mine.end() ? 1 : 0;
  dt_collective one;
  dt_collective_init(&one);
  one.name = why.c_str();
  one.timeout_ms = timeout_ms;
  one.kind = DT_KIND_ALLREDUCE;
  one.dtype = DT_BOOL;
  one.op = DT_BOR;
  one.count = kVotes;
  one.send = one.recv = any.data();
  if (dt_collective_launch(world, &one, nullptr) != DT_OK || any[0] == 0) return;
  std::vector<char> all(mine.size() * mine.size());
  one.kind = DT_KIND_ALLGATHER;
  one.dtype = DT_U8;
  one.count = static_cast<int64_t>(mine.size());
  one.send = mine.data();
  one.recv = all.data();
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
  one.timeout_ms = std::max<int64_t>(left.count(), 1000);
  if (dt_collective_launch(world, &one, nullptr) != DT_OK) return;
  auto farewells =
      c10::make_intrusive<Message>(rank_, c10d::OpType::SEND, "dt:leaving",
                                   std::vector<at::Tensor>(), Tensors(), shared_from_this());
  for (int peer = 0; peer < static_cast<int>(mine.size()); ++peer) {
    if (mine[peer] == 0 && all[peer * mine.size() + rank_] == 0) continue;
    send(*farewells, farewell_, nullptr, peer);
    const std::lock_guard lock(mutex_);
    if (peers_[peer].parted) continue;  // a thread that waits for a message has heard it
    peers_[peer].parting = true;
    listen(peer);
  }
  const auto parted = [&] {
    const std::lock_guard lock(mutex_);
    return error_ || listening_.empty();
  };
  while ((!parted() || !farewells->isCompleted()) && Clock::now() < end) {
    wait({}, 1);
    advance(nullptr);
  }
  sweep();
}

void Messages::close() {
  const std::lock_guard lock(mutex_);
  take_in();
  end_waiting();
  if (!error_) error_ = error_of(DT_ERR_INVALID_STATE, "the process group was destroyed");
  closed_ = true;  // the thread completes what is watched
  changed_.notify_all();
  completions_->close();
  // dt still uses the memory of those that are not done: they stay.
  for (auto& each : kept_) (void)each.second.release();
  kept_.clear();
  const auto under_way = [](dt_work* work) {
    std::exception_ptr error;
    return !is_done(work, error);
  };
  if (std::any_of(listening_.begin(), listening_.end(),
                  [&](int peer) { return under_way(peers_[peer].work); }) ||
      std::any_of(incoming_.begin(), incoming_.end(),
                  [&](const Incoming& each) { return under_way(each.work); })) {
    stays_ = shared_from_this();
  }
}

}  // namespace dt::torch
