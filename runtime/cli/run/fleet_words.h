// SPDX-License-Identifier: Apache-2.0
// What the agents of a job tell each other, as bytes. Who reads it trusts none of it: each number
// is within the bounds that its use needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dt::cli {

/// Where the ranks of one attempt find each other; node 0 serves it and tells the others.
struct Endpoints {
  int attempt = 0;
  std::string job_id;
  std::string store_host;
  int store_port = 0;
  std::string master_host;  ///< for the ranks' own use: MASTER_ADDR, MASTER_PORT
  int master_port = 0;
};

std::string encode(const Endpoints& endpoints);
/// False: the bytes are no such thing, or no addresses.
bool decode(std::string_view bytes, Endpoints* out);

/// What the scope of a failure says: "end/ATTEMPT", "heed/ATTEMPT", "regroup/ATTEMPT",
/// "server/ATTEMPT", "gone/ATTEMPT", "ended/ATTEMPT/NODE", "silent/ATTEMPT/RANK" or
/// "stop/SIGNAL/COUNT".
struct Word {
  std::optional<int> failed_attempt;
  std::optional<int> heeding_attempt;
  std::optional<int> regroup_attempt;
  std::optional<int> server_attempt;  ///< in which a parameter server failed for good
  std::optional<int> gone_attempt;    ///< in which the rank that the failure names has ended
  std::optional<int> ended_attempt;   ///< in which all ranks of `ended_node` have ended
  int ended_node = -1;
  std::optional<int> silent_attempt;  ///< in which `silent_rank` was taken for lost
  int silent_rank = -1;
  int signal = 0;
  int count = 0;
};

/// Absent: the text is none of them.
std::optional<Word> parse_word(std::string_view scope);

}  // namespace dt::cli
