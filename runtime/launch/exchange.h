// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/wait.h"
#include "config/environment.h"
#include "launch/credentials.h"
#include "launch/discover.h"
#include "net/security.h"

namespace dt::launch {

struct StoreAddress {
  std::string host;  ///< numeric
  uint16_t port = 0;
  std::optional<net::Token> token =
      {};  ///< made by rank 0 for this job; absent: the ranks have one
};

/// Where rank 0 lets the kernel choose the port of its store, the launcher's own service carries
/// the address to the others: PMI-1 or PMIx, as place.exchange says. All ranks of the launch call
/// it once; rank 0 gives `mine`, and all get that. The service is left again before it returns.
///
/// Such a service knows one client per process: a program that also calls MPI_Init sets MASTER_ADDR
/// and MASTER_PORT instead. Errors: CONFIG no_rendezvous (the service cannot be reached), TIMEOUT.
Result<StoreAddress> exchange_address(const Place& place, const Environment& environment,
                                      const StoreAddress& mine, const Wait& wait);

/// Where the ranks know the address but this one has no token, and others come from other hosts:
/// rank 0 makes one, and place.token_exchange carries it to the others, into `credentials`. All
/// ranks of the launch call it; it does nothing where a token is there or nobody needs one. Errors
/// as of exchange_address(): the service says why it carries nothing.
Status exchange_token(const Place& place, const Environment& environment, Credentials* credentials,
                      const Wait& wait);
/// Whether that would be done.
bool exchanges_token(const Place& place, const Credentials& credentials);

/// The numeric address on which rank 0 serves the others: that of `interface`, the value of
/// network.interface, if there is one; else what place.master_addr or the launcher's name for this
/// host resolves to, if it belongs to this host; else the one from which it would reach the
/// outside. Looks names up; ends with TIMEOUT at the deadline. CONFIG: no such interface.
Result<std::string> own_address(const Place& place, const Environment& environment,
                                const std::string& interface, const Wait& wait);

}  // namespace dt::launch
