// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "record/trace.h"

namespace dt::cli::trace {

/// One rank's part of a communicator.
struct Member {
  const record::Trace* trace = nullptr;
  const record::CommunicatorRecord* record = nullptr;
  std::map<int64_t, const record::Entry*> collectives;  ///< by position
  /// By peer (rank of the communicator) and whether it is a send; positions ascend.
  std::map<std::pair<int32_t, bool>, std::map<int64_t, const record::Entry*>> transfers;
};

/// One communicator as its ranks recorded it.
struct Team {
  std::string name;
  std::vector<int32_t> world_ranks;
  bool on_device = false;
  std::map<int32_t, Member> members;  ///< by world rank, those with a trace

  std::vector<int32_t> absent() const;  ///< world ranks without a trace
};

/// By name. Borrows the traces. A rank that calls another set of ranks by the same name is left
/// out.
std::vector<Team> teams_of(const std::vector<record::Trace>& traces);

/// An operation that did not come to its end.
struct Stuck {
  const Team* team = nullptr;
  const record::Entry* entry = nullptr;  ///< of a rank inside
  const record::Trace* trace = nullptr;  ///< of that rank
  std::map<int32_t, const record::Entry*>
      inside;                    ///< world ranks that called it and did not end it
  std::vector<int32_t> missing;  ///< world ranks that did not call it
  std::vector<int32_t> absent;   ///< world ranks of which nothing is known
  int64_t since_ns = 0;          ///< the first one's call, since 1970
  int64_t until_ns = 0;          ///< when a rank inside first gave up or wrote, since 1970
  int64_t waited_ns = 0;         ///< at least, when those that are missing wrote
};

/// The first one of each communicator, and the first of each pair of sender and receiver; those
/// that began first come first.
std::vector<Stuck> stuck_in(const std::vector<Team>& teams);

}  // namespace dt::cli::trace
