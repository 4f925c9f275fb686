// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/run/fd.h"

namespace dt::cli {

/// What every rank of this node is told.
struct JobPlace {
  int local_size = 1;
  int first_rank = 0;  ///< of this node
  int world_size = 1;
  int node_rank = 0;
  int node_count = 1;
  int attempt = 0;
  int max_restarts = 0;
  std::string job_id;
  std::string store_host = "127.0.0.1";
  int store_port = 0;  ///< served by an agent
  std::string master_host = "127.0.0.1";
  int master_port = 0;        ///< for the ranks' own use: MASTER_PORT
  int relay_port = 0;         ///< of this node's relay to the store; 0: none
  std::string relay_address;  ///< where it found the store
  std::string token;          ///< what the ranks prove to each other; empty: none is used
  std::string error_folder;   ///< where ranks may say why they fail; empty: nowhere
  bool torch_store = false;   ///< the store answers PyTorch's clients; then both ports are one
  int64_t agent_pid = 0;
  bool terminal = false;             ///< the agent's stdout is one
  std::string around = "none";       ///< launch::launches_around() of the agent
  int omp_num_threads = 0;           ///< 0: leave the variable alone
  std::string omp_reason;            ///< where that number is from, for a message
  std::vector<std::string> servers;  ///< addresses of the parameter servers of all nodes, by index
  int first_server = 0;              ///< of this node
  int local_servers = 0;             ///< likewise
  /// More to set, by name: NCCL's.
  std::vector<std::pair<std::string, std::string>> variables;
};

/// The environment of one rank: `inherited` ("NAME=value") with dt's and torch's variables set.
std::vector<std::string> rank_environment(const JobPlace& place, int local_rank,
                                          const std::vector<std::string>& inherited);

/// The environment of one parameter server of this node, which is no rank: without what names a
/// rank's place. `listen_fd` is its socket.
std::vector<std::string> server_environment(const JobPlace& place, int local_server, int listen_fd,
                                            const std::vector<std::string>& inherited);

/// TORCHELASTIC_ERROR_FILE of a rank: where PyTorch's @record, and dt, write why it failed.
std::string error_file(const JobPlace& place, int local_rank);

/// This process's environment.
std::vector<std::string> current_environment();

/// 16 random hexadecimal digits.
Result<std::string> random_job_id();

/// A port that nobody else gets while the socket lives, but that a rank of this user can still
/// listen on over IPv4, because the socket does not listen and both set SO_REUSEADDR.
struct ReservedPort {
  Fd socket;
  int port = 0;
};
Result<ReservedPort> reserve_port();

/// How many cores this process may use.
struct UsableCores {
  int count = 1;
  bool by_quota = false;  ///< its control group allows less time than it has processors
};
/// `quota` as cpu_quota(). A part of a core counts for nothing: one thread more than the quota
/// stops all of them in each period.
UsableCores usable_cores(size_t allowed, double quota);
/// The same of this process.
UsableCores usable_cores();

/// OMP_NUM_THREADS of each rank.
struct Threads {
  int count = 1;
  std::string reason;
};
/// The cores that a rank has to itself (0: none), or its share of `usable` where that is less.
Threads threads_per_rank(int own_cores, const UsableCores& usable, int ranks);

}  // namespace dt::cli
