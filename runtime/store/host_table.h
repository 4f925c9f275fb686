// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/messages.h"
#include "store/protocol.h"

namespace dt::store {

/// The table of hosts of a verdict, which every rank gets: at thousands of hosts it is nearly all
/// that a join costs, so it is written by what differs from the host before. Hosts that are
/// numbered on, as a cluster's are ("node07", "node08", ...), and whose ranks lie alike are one
/// entry of about 20 bytes, however many; any other host costs its name from the first differing
/// letter on and about 7 bytes.
void write_hosts(const std::vector<HostEntry>& hosts, Writer* writer);

/// False: no such table, or one that unfolds to more than `max_ranks` ranks (each host has one at
/// least) or to more bytes of names than a frame may hold; `out` is then unspecified.
bool read_hosts(Reader* reader, int64_t max_ranks, std::vector<HostEntry>* out);

}  // namespace dt::store
