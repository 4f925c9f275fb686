// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Sends and receives of one process group, by its own ranks.
 */
#include <array>

#include "messages.h"
#include "tensors.h"

namespace dt::torch {

class GroupMessages {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /** @param messages of the job; null: there is only this rank. @param ranks of the job, by rank
   * of the group. @param number of this group alone, the same on its ranks; even. */
  GroupMessages(std::shared_ptr<Messages> messages, std::vector<int> ranks, int rank,
                std::string name, int64_t number)
      : messages_(std::move(messages)),
        ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))),
        rank_(rank),
        name_(std::move(name)),
        number_(static_cast<uint64_t>(number)) {}

  /** Whose tags are those of a message. */
  enum Kind : uint64_t { kUser, kBarrier };

  c10::intrusive_ptr<Message> send(Call& call, const std::vector<at::Tensor>& tensors, int peer,
                                   int64_t tag, Milliseconds timeout, Kind kind = kUser);
  /** @param peer < 0: any other rank. */
  c10::intrusive_ptr<Message> receive(Call& call, const std::vector<at::Tensor>& tensors, int peer,
                                      int64_t tag, Milliseconds timeout, Kind kind = kUser);
  /** Rank 0 waits until all others are in a call, then lets them pass. So it can name those that
   * are missing, and the group stays usable. The texts are gloo's, which programs look for. */
  void monitored_barrier(Milliseconds timeout, bool wait_for_all);

 private:
  using Clock = std::chrono::steady_clock;

  int member(const Call& call, int peer) const;
  std::string describe(const char* verb, const std::string& peer, int64_t tag) const;
  c10::intrusive_ptr<Message> message_of(Call& call, const std::vector<at::Tensor>& tensors);
  struct Signal;
  Signal send_signal(int peer, std::array<int64_t, 3> says, Milliseconds timeout);
  Signal receive_signal(int peer, Clock::time_point end);
  void watch_barrier(Clock::time_point end, Milliseconds timeout, bool wait_for_all);
  /** Rank 0 asks all, and waits until all have said that they are in a call. @return why a peer is
   * missing; "": it is in a call. */
  std::vector<std::string> hear_all(Clock::time_point end);
  /** Takes what has come from a peer, and awaits more. @return whether it is in a call, as it has
   * said when it was asked with `number`. */
  bool hear(int peer, Signal* signal, int64_t number, Clock::time_point end);

  const std::shared_ptr<Messages> messages_;
  const std::shared_ptr<const std::vector<int>> ranks_;
  const int rank_;
  const std::string name_;
  const uint64_t number_;
  /** Monitored ones that this rank has called; on rank 0: how often it has asked the others. */
  std::atomic<int64_t> barriers_ = 0;
  std::vector<int64_t> calls_;  ///< on rank 0: in which each peer waits, 0: in none
};

}  // namespace dt::torch
