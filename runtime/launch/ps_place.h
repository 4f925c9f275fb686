// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/config.h"
#include "config/environment.h"

namespace dt::launch {

enum class PsRole { kWorker, kServer, kEvaluator };

/// What this process is in a job with parameter servers.
struct PsPlace {
  PsRole role = PsRole::kWorker;
  int32_t index = 0;  ///< of the server, or of the worker (its rank), or of the evaluator
  std::vector<std::string> servers;  ///< "host:port" of each, by index
  int32_t workers = 0;               ///< how many there are; 0: not known
  /// Of a server: a socket that listens already, inherited from dt run; -1: none.
  int listen_fd = -1;
  std::string job_id;  ///< as in Place, like the next two
  int32_t attempt = 0;
  std::string launcher;  ///< "tf_config", "vertex", "dt run", "config", "env", or a worker's
};

/// The place that `config` and `environment` give together. ps.* goes before TF_CONFIG and
/// CLUSTER_SPEC. Without ps.index, a process that is no server or evaluator of such a cluster is a
/// worker, and its index is its rank: resolve_place(). What is found is written back as there.
/// CONFIG, the text begins with the kind: no_servers, out_of_range, bad_address, bad_json,
/// not_a_number, and those of discover().
Result<PsPlace> resolve_ps_place(Config& config, const Environment& environment);

/// Tells a parameter server that it cannot be a rank. Error: not_a_worker.
Status check_not_a_server(const Config& config);

}  // namespace dt::launch
