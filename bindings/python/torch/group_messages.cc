// SPDX-License-Identifier: Apache-2.0
#include "group_messages.h"

#include <functional>

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
  header.group = hash_ + kind;
  header.tag = tag;
  header.dtype = elements.dtype;
  header.count = tensors[0].numel() * elements.factor;
  header.bytes = header.count * dt_dtype_bytes(elements.dtype);
  const void* const memory = call.memory(tensors[0], elements.type, true, false);
  const MessagePtr message = message_of(call, tensors);
  try {
    message->send(header, memory, receiver, Clock::now() + timeout,
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
  wanted->group = hash_ + kind;
  wanted->tag = tag;
  wanted->sources = any ? *ranks_ : std::vector<int>{member(call, peer)};
  wanted->memory = static_cast<char*>(call.memory(tensors[0], elements.type, false, true));
  wanted->bytes = tensors[0].numel() * elements.factor * dt_dtype_bytes(elements.dtype);
  wanted->end = Clock::now() + timeout;
  wanted->what = describe("recv from ", any ? "any rank" : "rank " + std::to_string(peer), tag);
  const MessagePtr message = message_of(call, tensors);
  message->receive(std::move(wanted), ranks_);
  messages_->keep(message);
  return message;
}

namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}
[[noreturn]] void fail(const std::string& message) { C10_THROW_ERROR(DistBackendError, message); }

}  // namespace

/** One call of monitored_barrier, of which ranks tell rank 0, and it tells them. */
struct GroupMessages::Signal {
  at::Tensor memory = at::zeros({2}, at::kLong);
  MessagePtr message;

  int64_t& call() { return memory.mutable_data_ptr<int64_t>()[0]; }
  int64_t& has_left() { return memory.mutable_data_ptr<int64_t>()[1]; }
};

GroupMessages::Signal GroupMessages::send_signal(int peer, int64_t call, bool has_left,
                                                 Milliseconds timeout) {
  Call sending(c10d::OpType::BARRIER, "dt:monitored_barrier");
  Signal signal;
  signal.call() = call;
  signal.has_left() = has_left ? 1 : 0;
  signal.message = send(sending, {signal.memory}, peer, 0, timeout, kBarrier);
  return signal;
}

GroupMessages::Signal GroupMessages::receive_signal(int peer, Clock::time_point end) {
  Call receiving(c10d::OpType::BARRIER, "dt:monitored_barrier");
  Signal signal;
  const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
  signal.message =
      receive(receiving, {signal.memory}, peer, 0, std::max(left, Milliseconds(0)), kBarrier);
  return signal;
}

void GroupMessages::monitored_barrier(Milliseconds timeout, bool wait_for_all) {
  if (ranks_->size() == 1) return;
  const auto end = Clock::now() + timeout;
  if (rank_ == 0) {
    watch_barrier(end, timeout, wait_for_all);
    return;
  }
  const int64_t number = ++barriers_;
  try {
    send_signal(0, number, false, timeout).message->wait(kNoTimeout);
    Signal answer;
    do {  // one to an earlier call comes too late
      answer = receive_signal(0, end);
      answer.message->wait(kNoTimeout);
    } while (answer.call() != number);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    try {
      send_signal(0, number, true, timeout);
    } catch (const std::exception&) {  // the job has failed, as `why` says
    }
    fail("Rank " + std::to_string(rank_) +
         " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
         "from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n" +
         why);
  }
}

int64_t GroupMessages::hear(int peer, Signal signal, Clock::time_point end) {
  int64_t call = 0;
  for (;;) {
    // What it has sent last counts: it may have left an earlier call.
    if (call != 0 && (signal.message->cancel() || !signal.message->isSuccess())) return call;
    signal.message->wait(kNoTimeout);
    call = signal.has_left() != 0 ? 0 : signal.call();
    signal = receive_signal(peer, end);
  }
}

void GroupMessages::watch_barrier(Clock::time_point end, Milliseconds timeout, bool wait_for_all) {
  const auto size = static_cast<int>(ranks_->size());
  const std::string limit = std::to_string(timeout.count()) + " ms";
  std::vector<int> passed, missing;
  const auto each = [&](const std::function<void(int)>& pass) {
    passed.clear();
    for (int peer = 1; peer < size; ++peer) {
      if (!wait_for_all && Clock::now() >= end) {
        fail("Rank 0 timed out in monitoredBarrier after " + limit + ".\n" +
             (passed.empty() ? "No ranks successfully processed in monitoredBarrier."
                             : "Successfully processed ranks: " + list_of(passed)));
      }
      try {
        pass(peer);
        passed.push_back(peer);
      } catch (const std::exception& error) {
        missing.push_back(peer);
        if (!wait_for_all) {
          fail("[Rank 0]: Rank " + std::to_string(peer) + " failed to pass monitoredBarrier in " +
               limit + "\n Original exception: \n" + error.what());
        }
      }
    }
    if (!missing.empty()) {
      fail("[Rank 0]: Ranks " + list_of(missing) + " failed to pass monitoredBarrier in " + limit);
    }
  };
  std::vector<Signal> signals(1);
  for (int peer = 1; peer < size; ++peer) signals.push_back(receive_signal(peer, end));
  std::vector<int64_t> calls(ranks_->size());
  each([&](int peer) { calls[peer] = hear(peer, signals[peer], end); });
  for (int peer = 1; peer < size; ++peer) {
    signals[peer] = send_signal(peer, calls[peer], false, timeout);
  }
  each([&](int peer) { signals[peer].message->wait(kNoTimeout); });
}

}  // namespace dt::torch
