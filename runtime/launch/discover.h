// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/config.h"
#include "config/environment.h"

namespace dt::launch {

/// How ranks whom nobody gave an address can tell each other one.
enum class Exchange : int32_t {
  kNone,
  kPmi,   ///< PMI-1, lines of text over the descriptor PMI_FD: MPICH's Hydra, srun --mpi=pmi2
  kPmix,  ///< PMIx, through its library: Open MPI, srun --mpi=pmix
};

/// "none", "pmi", "pmix".
const char* exchange_name(Exchange exchange);

/// Where this process stands in its job, as far as its launcher says.
struct Place {
  int32_t rank = 0;  ///< -1 unknown: settles_ranks
  int32_t world_size = 1;
  int32_t local_rank = -1;  ///< -1 unknown: the join settles it
  int32_t local_size = -1;  ///< likewise
  int32_t node_rank = -1;   ///< likewise
  int32_t node_count = -1;  ///< likewise
  std::string master_addr;  ///< host of rank 0 or of the store; empty: alone, or the exchange's
  int32_t master_port = 0;  ///< 0: alone, or the exchange's
  bool address_by_convention = false;  ///< nobody named it: it follows from the job's node list
  bool port_taken = false;    ///< the launcher listens on master_port: rank 0 must not bind it
  bool store_served = false;  ///< that listener is a store of dt: rank 0 connects to it
  std::string job_id;         ///< empty unknown
  /// Node rank and local rank are known, but not how many processes lower nodes have. The processes
  /// exchange their places in the store, and each computes its rank from them.
  bool settles_ranks = false;
  int32_t attempt = 0;                  ///< how often the job was started before
  Exchange exchange = Exchange::kNone;  ///< how the ranks learn the missing address or port
  /// Where both are known and other hosts take part: what could carry a token to them.
  Exchange token_exchange = Exchange::kNone;
  std::string launcher;  ///< "dt run", "config", "env", "single" or the name of a family
  std::vector<std::string> warnings;  ///< each "name_of_the_warning: text"

  bool may_span_hosts() const { return node_count != 1 && local_size != world_size; }
};

/// Reads who started this process. Pure: looks at `environment` only. Only a complete set (rank and
/// size) counts; DT_* variables come first, then the innermost launcher; DT_LAUNCHER=<family> or
/// single forces one.
/// CONFIG, the text begins with the kind: partial, conflict, no_rendezvous, out_of_range,
/// not_a_number, bad_address, unknown_launcher, bad_json, bad_nodelist, bad_tasks_per_node,
/// ambiguous_host_order, unknown_host, not_a_worker.
Result<Place> discover(const Environment& environment);

/// Where the store of dt listens, equal on all ranks: master_port, or, when somebody else's server
/// (torchrun's agent) holds that, one derived from address, port and job id in [20000, 32000),
/// which lies below Linux's ephemeral ports.
int32_t store_port(const Place& place);

/// The place that `config` and `environment` give together. What the call, a variable or a file
/// says about job.* counts as the own variables, so it wins; the rest is discovered and written
/// back with set_discovered(), so that a dump shows it. Errors: those of discover(), and
/// not_a_worker in a parameter server.
Result<Place> resolve_place(Config& config, const Environment& environment);

}  // namespace dt::launch
