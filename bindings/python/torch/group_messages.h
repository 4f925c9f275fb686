// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Sends and receives of one process group, by its own ranks.
 */
#include "messages.h"
#include "tensors.h"

namespace dt::torch {

class GroupMessages {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /** @param messages of the job; null: there is only this rank. @param ranks of the job, by rank
   * of the group. */
  GroupMessages(std::shared_ptr<Messages> messages, std::vector<int> ranks, int rank,
                std::string name)
      : messages_(std::move(messages)),
        ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))),
        rank_(rank),
        name_(std::move(name)),
        hash_(hash_of(name_)) {}

  /** Whose tags are those of a message. */
  enum Kind : uint64_t { kUser, kBarrier };

  c10::intrusive_ptr<Message> send(Call& call, const std::vector<at::Tensor>& tensors, int peer,
                                   int64_t tag, Milliseconds timeout, Kind kind = kUser);
  /** @param peer < 0: any other rank. */
  c10::intrusive_ptr<Message> receive(Call& call, const std::vector<at::Tensor>& tensors, int peer,
                                      int64_t tag, Milliseconds timeout, Kind kind = kUser);
  /** Rank 0 hears from all others, then answers them. So it can name those that are missing. A rank
   * that gives up says so, and the group stays usable. The texts are gloo's, which programs look
   * for.
   */
  void monitored_barrier(Milliseconds timeout, bool wait_for_all);

 private:
  using Clock = std::chrono::steady_clock;

  int member(const Call& call, int peer) const;
  std::string describe(const char* verb, const std::string& peer, int64_t tag) const;
  c10::intrusive_ptr<Message> message_of(Call& call, const std::vector<at::Tensor>& tensors);
  struct Signal;
  Signal send_signal(int peer, int64_t call, bool has_left, Milliseconds timeout);
  Signal receive_signal(int peer, Clock::time_point end);
  void watch_barrier(Clock::time_point end, Milliseconds timeout, bool wait_for_all);
  /** Rank 0 waits for the peer. @return the number of its call. */
  int64_t hear(int peer, Signal signal, Clock::time_point end);

  const std::shared_ptr<Messages> messages_;
  const std::shared_ptr<const std::vector<int>> ranks_;
  const int rank_;
  const std::string name_;
  const uint64_t hash_;
  std::atomic<int64_t> barriers_ = 0;  ///< monitored ones that this rank has called
};

}  // namespace dt::torch
