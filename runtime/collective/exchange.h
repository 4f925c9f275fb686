// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace dt::collective {

/// How the hosts of a communicator exchange the parts of a buffer, of which each of the H hosts
/// owns one. In all of them a host sends and receives H - 1 parts for a reduce-scatter, and as many
/// for an allgather; they differ in how many messages and delays of the network that takes.
enum class Way : uint8_t {
  kDirect,   ///< with all others at once: one delay, H - 1 messages
  kHalving,  ///< half of the parts, then a quarter, ...: log2(H) delays and messages, rounded up
  kRing,     ///< part by part with the two neighbours: H - 1 delays and messages
};

/// To or from another host: parts first, first + 1, ..., modulo the number of hosts.
struct Move {
  int32_t host = 0;
  int32_t first = 0;
  int32_t parts = 0;
};

/// What moves at the same time. The next step needs what this one brings.
struct ExchangeStep {
  std::vector<Move> sends;
  std::vector<Move> receives;
};

/// What `host` does so that it ends with the sum of part `host`: what it receives is to be added to
/// its own before the next step. Each contribution reaches each part once.
std::vector<ExchangeStep> reduce_scatter_steps(Way way, int32_t hosts, int32_t host);
/// What `host` does so that it ends with all parts; at first it has part `host`.
std::vector<ExchangeStep> allgather_steps(Way way, int32_t hosts, int32_t host);

}  // namespace dt::collective
