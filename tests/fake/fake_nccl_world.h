// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/nccl/api.h"

/// What ranks of the library behind fake_nccl.h exchange. Whoever calls holds the library's lock.
///
/// Words: a *world* is what the communicators of one unique id share. A *round* is one collective
/// of a world: each rank puts its *piece* in, and takes its result when all have.
namespace dt::test {

using Bytes = std::vector<char>;

enum class Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };

struct Task {
  const char* function = "";
  Kind kind = Kind::kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  nccl::Type type = nccl::Type::kInt8;
  nccl::Op op = nccl::Op::kSum;
  int root = 0;  // or the peer
  cuda::Stream stream = nullptr;
  int64_t sequence = 0;  // of a collective on its communicator
  bool spin = false;
  bool done = false;
  std::shared_ptr<bool> taken;  // of a send
};

struct Round {
  Task first;  // of the rank that came first
  int first_rank = -1;
  bool broken = false;  // ranks disagree: never ends
  int arrived = 0;
  int left = 0;
  std::vector<Bytes> pieces;  // by rank
};

struct Message {
  Bytes bytes;
  std::shared_ptr<bool> taken;
};

struct World {
  int size = 0;
  std::set<int> joined;
  std::set<int> ended;  // ranks that finalized or aborted
  std::map<int64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<Message>> mail;  // by source and destination
  std::vector<std::string>* misuses = nullptr;              // gets what ranks do wrong

  /// Puts in what the rank gives.
  void arrive(int rank, const Task& task);
  /// Whether the task's result is there, now in its buffer. A message that is taken ends its send.
  bool take(int rank, const Task& task);

 private:
  bool take_message(int rank, const Task& task);
};

size_t type_bytes(nccl::Type type);
/// "ncclAllReduce of 3 elements ..."
std::string shown(const Task& task);

std::string text(const char* pattern, auto... values) {
  char buffer[512];
  snprintf(buffer, sizeof buffer, pattern, values...);
  return buffer;
}

}  // namespace dt::test
