// SPDX-License-Identifier: Apache-2.0
#include "group_messages.h"

#include <functional>
#include <map>

#include "shapes.h"

namespace dt::torch {

using MessagePtr = c10::intrusive_ptr<Message>;
using Tensors1 = std::vector<at::Tensor>;

int GroupMessages::member(const Call& call, int peer) const {
  const auto size = static_cast<int>(ranks_->size());
  if (peer >= 0 && peer < size && peer != rank_) return (*ranks_)[static_cast<size_t>(peer)];
  throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": rank " + std::to_string(peer) +
                                           " is no other rank of " + std::to_string(size));
}

std::string GroupMessages::describe(const char* verb, const std::string& peer, int64_t tag) const {
  return verb + peer + ", tag " + std::to_string(tag) + ", on rank " + std::to_string(rank_) +
         " of group \"" + name_ + "\"";
}

MessagePtr GroupMessages::message_of(Call& call, const Tensors1& tensors) {
  if (!messages_) throw_error(DT_ERR_INVALID_ARGUMENT, "a group of one rank has no messages");
  call.tensors.results = tensors;
  return c10::make_intrusive<Message>(rank_, call.type, call.title, tensors,
                                      std::move(call.tensors), messages_);
}

MessagePtr GroupMessages::send(Call& call, const Tensors1& tensors, int peer, int64_t tag,
                               Milliseconds timeout, Kind kind) {
  check_one(call.title, tensors.size() == 1);
  const int receiver = member(call, peer);
  const Elements elements = moved(tensors[0]);
  Header header;
  header.group = number_ + kind;
  header.tag = tag;
  header.dtype = elements.dtype;
  header.count = tensors[0].numel() * elements.factor;
  header.bytes = header.count * dt_dtype_bytes(elements.dtype);
  const void* const memory = call.memory(tensors[0], elements.type, true, false);
  const MessagePtr message = message_of(call, tensors);
  try {
    message->send(header, memory, receiver, end_after(timeout),
                  describe("send to rank ", std::to_string(peer), tag));
  } catch (...) {
    messages_->keep(message);
    throw;
  }
  messages_->keep(message);
  return message;
}

MessagePtr GroupMessages::receive(Call& call, const Tensors1& tensors, int peer, int64_t tag,
                                  Milliseconds timeout, Kind kind) {
  check_one(call.title, tensors.size() == 1);
  const bool any = peer < 0;
  const Elements elements = moved(tensors[0]);
  auto wanted = std::make_shared<Receive>();
  wanted->group = number_ + kind;
  wanted->tag = tag;
  wanted->sources = any ? *ranks_ : std::vector<int>{member(call, peer)};
  wanted->memory = static_cast<char*>(call.memory(tensors[0], elements.type, false, true));
  wanted->bytes = tensors[0].numel() * elements.factor * dt_dtype_bytes(elements.dtype);
  wanted->end = end_after(timeout);
  wanted->what = describe("recv from ", any ? "any rank" : "rank " + std::to_string(peer), tag);
  const MessagePtr message = message_of(call, tensors);
  message->receive(std::move(wanted), ranks_);
  messages_->keep(message);
  return message;
}

namespace {

/** For the last word, where the time is over. */
constexpr std::chrono::milliseconds kPassing{1000};

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}
[[noreturn]] void fail(const std::string& message) { C10_THROW_ERROR(DistBackendError, message); }
/** How long until then; 0 afterwards. */
std::chrono::milliseconds until(std::chrono::steady_clock::time_point end) {
  const auto left = end - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0));
}

}  // namespace

/**
 * What the ranks of a monitored barrier tell each other. A rank calls, and rank 0 asks whether it
 * is still in that call, because calls that were given up may lie before the current one. When all
 * are there, rank 0 asks again, since one may have given up while others came, and lets them pass.
 */
struct GroupMessages::Signal {
  enum What : int64_t { kCalls, kHasLeft, kIsHere, kAsks, kPasses };

  at::Tensor memory = at::zeros({3}, at::kLong);
  MessagePtr message;

  int64_t& at(int64_t index) { return memory.data_ptr<int64_t>()[index]; }
  bool is(What what, int64_t call) { return at(0) == what && at(1) == call; }
};

GroupMessages::Signal GroupMessages::send_signal(int peer, std::array<int64_t, 3> says,
                                                 Milliseconds timeout) {
  Call sending(c10d::OpType::BARRIER, "dt:monitored_barrier");
  Signal signal;
  for (int64_t i = 0; i < 3; ++i) signal.at(i) = says[static_cast<size_t>(i)];
  signal.message = send(sending, {signal.memory}, peer, 0, timeout, kBarrier);
  return signal;
}

GroupMessages::Signal GroupMessages::receive_signal(int peer, Clock::time_point end) {
  Call receiving(c10d::OpType::BARRIER, "dt:monitored_barrier");
  Signal signal;
  signal.message = receive(receiving, {signal.memory}, peer, 0, until(end), kBarrier);
  return signal;
}

void GroupMessages::monitored_barrier(Milliseconds timeout, bool wait_for_all) {
  if (ranks_->size() == 1) return;
  const auto end = end_after(timeout);
  if (rank_ == 0) {
    watch_barrier(end, timeout, wait_for_all);
    return;
  }
  const int64_t number = ++barriers_;
  try {
    send_signal(0, {Signal::kCalls, number, 0}, timeout).message->wait(kNoTimeout);
    for (;;) {
      Signal signal = receive_signal(0, end);
      signal.message->wait(kNoTimeout);
      if (signal.is(Signal::kPasses, number)) return;
      if (!signal.is(Signal::kAsks, number)) continue;  // to an earlier call
      send_signal(0, {Signal::kIsHere, number, signal.at(2)}, until(end)).message->wait(kNoTimeout);
    }
  } catch (const std::exception& error) {
    const std::string why = text_of(error);
    try {
      send_signal(0, {Signal::kHasLeft, number, 0}, timeout);
    } catch (const std::exception&) {  // the job has failed, as `why` says
    }
    fail("Rank " + std::to_string(rank_) +
         " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
         "from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n" +
         why);
  }
}

bool GroupMessages::hear(int peer, Signal* signal, int64_t number, Clock::time_point end) {
  auto& call = calls_[static_cast<size_t>(peer)];
  bool asks = signal->message == nullptr && call != 0;  // it may wait since an earlier call of ours
  if (signal->message != nullptr) {
    signal->message->wait(kNoTimeout);
    if (signal->is(Signal::kIsHere, call) && signal->at(2) == number) return true;
    if (signal->is(Signal::kHasLeft, call)) call = 0;
    asks = signal->at(0) == Signal::kCalls;
    if (asks) call = signal->at(1);
  }
  if (asks) send_signal(peer, {Signal::kAsks, call, number}, until(end));
  *signal = receive_signal(peer, end);
  return false;
}

std::vector<std::string> GroupMessages::hear_all(Clock::time_point end) {
  const auto size = static_cast<int>(ranks_->size());
  const int64_t number = ++barriers_;
  calls_.resize(ranks_->size());
  std::vector<std::string> missing(ranks_->size());
  std::map<int, Signal> awaited;
  const auto next = [&](int peer) {
    try {
      if (hear(peer, &awaited[peer], number, end)) awaited.erase(peer);
    } catch (const std::exception& error) {
      missing[static_cast<size_t>(peer)] = text_of(error);
      awaited.erase(peer);
    }
  };
  for (int peer = 1; peer < size; ++peer) next(peer);
  while (!awaited.empty()) {
    bool moved = false;
    for (int peer = 1; peer < size; ++peer) {
      const auto found = awaited.find(peer);
      if (found == awaited.end() || !found->second.message->isCompleted()) continue;
      moved = true;
      next(peer);
    }
    std::exception_ptr error;  // which next() raises
    if (!moved) (void)awaited.begin()->second.message->poll(Messages::kLookMs, error);
  }
  return missing;
}

void GroupMessages::watch_barrier(Clock::time_point end, Milliseconds timeout, bool wait_for_all) {
  const auto size = static_cast<int>(ranks_->size());
  const std::string limit = std::to_string(timeout.count()) + " ms";
  if (!wait_for_all && Clock::now() >= end) {
    fail("Rank 0 timed out in monitoredBarrier after " + limit +
         ".\nNo ranks successfully processed in monitoredBarrier.");
  }
  const auto check_all = [&](const std::vector<std::string>& missing) {
    std::vector<int> peers;
    for (int peer = 1; peer < size; ++peer) {
      if (!missing[static_cast<size_t>(peer)].empty()) peers.push_back(peer);
    }
    if (peers.empty()) return;
    if (const std::string why = messages_->failure(); !why.empty()) {
      fail("[Rank 0]: monitoredBarrier failed with the job\n Original exception: \n" + why);
    }
    fail((wait_for_all ? "[Rank 0]: Ranks " + list_of(peers)
                       : "[Rank 0]: Rank " + std::to_string(peers[0])) +
         " failed to pass monitoredBarrier in " + limit + "\n Original exception: \n" +
         missing[static_cast<size_t>(peers[0])]);
  };
  std::vector<int64_t> asked;
  do {  // until all have said it again of the same calls
    asked = calls_;
    check_all(hear_all(end));
  } while (asked != calls_);
  std::vector<Signal> answers(ranks_->size());
  std::vector<std::string> missing(ranks_->size());
  const auto each = [&](const std::function<void(int)>& step) {
    for (int peer = 1; peer < size; ++peer) {
      try {
        step(peer);
      } catch (const std::exception& error) {
        missing[static_cast<size_t>(peer)] = text_of(error);
      }
    }
    check_all(missing);
  };
  each([&](int peer) {
    const int64_t call = std::exchange(calls_[static_cast<size_t>(peer)], 0);
    answers[static_cast<size_t>(peer)] =
        send_signal(peer, {Signal::kPasses, call, 0}, std::max(until(end), kPassing));
  });
  each([&](int peer) { answers[static_cast<size_t>(peer)].message->wait(kNoTimeout); });
}

}  // namespace dt::torch
