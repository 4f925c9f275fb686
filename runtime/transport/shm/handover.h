// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"

namespace dt::shm {

/// How local rank 0 gives the arena's memfd to the other ranks of the host, over one Unix
/// SOCK_SEQPACKET connection per rank:
///
///     rank -> leader   Hello {session, local rank, local size}
///     leader -> rank   Reply {ok} and the memfd, or Reply {refused, why}
///     rank -> leader   Ready: its section is prepared
///     leader -> rank   Reply {go}, once every rank is ready; or {refused, why} when the leader
///                      gives up
///
/// Both sides check by SO_PEERCRED that the other has the same user.
struct HandoverTerms {
  uint64_t session = 0;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  LoggerPtr logger;
};

/// Maps the memfd and fills the rank's own section header; takes the descriptor in any case.
using PrepareSection = std::function<Status(int memfd)>;

Status lead_handover(int listener, int memfd, const HandoverTerms& terms, const Wait& wait,
                     const PrepareSection& prepare);
Status follow_handover(const std::string& leader_name, const HandoverTerms& terms, const Wait& wait,
                       const PrepareSection& prepare);

/// A listening socket with a name chosen by the kernel.
struct NamedListener {
  int fd = -1;
  std::string name;  ///< without the leading zero byte of abstract names
};
Result<NamedListener> open_named_listener();

}  // namespace dt::shm
