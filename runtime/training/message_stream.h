// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace dt::training {

/// A message as it travels: its size and how it begins, in one transfer that a host's ranks hand
/// over with its announcement; then the rest, if there is one.
struct MessageHead {
  static constexpr size_t kBytes = 208;
  uint64_t size = 0;
  char begin[kBytes] = {};
};
static_assert(sizeof(MessageHead) == 216);

/// Messages of any size to one rank. One thread at a time; its doorbell rings when one has arrived.
class MessageSender {
 public:
  MessageSender(comm::Communicator& comm, int32_t peer, Doorbell* bell)
      : comm_(comm), peer_(peer), bell_(bell) {}
  ~MessageSender();
  MessageSender(const MessageSender&) = delete;
  MessageSender& operator=(const MessageSender&) = delete;

  Status send(std::string bytes);
  /// Everything that was sent has been taken by the peer; failed: some of it never will be.
  Result<bool> idle();

 private:
  struct Sending {
    MessageHead head;
    std::string bytes;
    std::shared_ptr<backend::Work> work;  // of the last part
  };

  comm::Communicator& comm_;
  const int32_t peer_;
  Doorbell* const bell_;
  std::deque<std::unique_ptr<Sending>> sending_;
};

/// The other end.
class MessageReceiver {
 public:
  MessageReceiver(comm::Communicator& comm, int32_t peer, Doorbell* bell)
      : comm_(comm), peer_(peer), bell_(bell) {}
  ~MessageReceiver();
  MessageReceiver(const MessageReceiver&) = delete;
  MessageReceiver& operator=(const MessageReceiver&) = delete;

  /// Takes a message, or waits for one from now on: true with `out`, false as long as there is
  /// none.
  Result<bool> receive(std::string* out);

 private:
  Status begin(void* buffer, size_t bytes);

  comm::Communicator& comm_;
  const int32_t peer_;
  Doorbell* const bell_;
  MessageHead head_;
  std::string bytes_;
  bool has_head_ = false;
  std::shared_ptr<backend::Work> work_;
};

}  // namespace dt::training
