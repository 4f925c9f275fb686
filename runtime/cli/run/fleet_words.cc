// SPDX-License-Identifier: Apache-2.0
#include "cli/run/fleet_words.h"

#include <csignal>
#include <cstdint>
#include <utility>

#include "base/number.h"
#include "store/protocol.h"

namespace dt::cli {
namespace {

constexpr size_t kMaxEndpointBytes = 1 << 10;

bool is_port(int number) { return number >= 0 && number <= UINT16_MAX; }

/// "PREFIX/7": 7. Absent: another prefix. A negative number: none that makes sense.
std::optional<int> attempt_behind(std::string_view prefix, std::string_view scope) {
  if (scope.substr(0, prefix.size()) != prefix) return std::nullopt;
  return parse_number<int>(scope.substr(prefix.size())).value_or(-1);
}

/// "PREFIX/7/8": 7 and 8. Absent: something else.
std::optional<std::pair<int, int>> two_numbers_behind(std::string_view prefix,
                                                      std::string_view scope) {
  const size_t slash = scope.rfind('/');
  if (scope.substr(0, prefix.size()) != prefix || slash < prefix.size()) return std::nullopt;
  const auto first = parse_number<int>(scope.substr(prefix.size(), slash - prefix.size()));
  const auto second = parse_number<int>(scope.substr(slash + 1));
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

}  // namespace

std::string encode(const Endpoints& endpoints) {
  store::Writer writer;
  writer.i32(endpoints.attempt).text(endpoints.job_id).text(endpoints.store_host);
  writer.i32(endpoints.store_port).text(endpoints.master_host).i32(endpoints.master_port);
  return writer.take();
}

bool decode(std::string_view bytes, Endpoints* out) {
  store::Reader reader(bytes);
  out->attempt = reader.i32();
  out->job_id = reader.text(kMaxEndpointBytes);
  out->store_host = reader.text(kMaxEndpointBytes);
  out->store_port = reader.i32();
  out->master_host = reader.text(kMaxEndpointBytes);
  out->master_port = reader.i32();
  return reader.done() && out->attempt >= 0 && is_port(out->store_port) &&
         is_port(out->master_port);
}

std::optional<Word> parse_word(std::string_view scope) {
  Word word;
  word.failed_attempt = attempt_behind("end/", scope);
  word.heeding_attempt = attempt_behind("heed/", scope);
  word.regroup_attempt = attempt_behind("regroup/", scope);
  word.server_attempt = attempt_behind("server/", scope);
  word.gone_attempt = attempt_behind("gone/", scope);
  for (const auto& attempt : {word.failed_attempt, word.heeding_attempt, word.regroup_attempt,
                              word.server_attempt, word.gone_attempt}) {
    if (attempt) return *attempt >= 0 ? std::optional(word) : std::nullopt;
  }
  if (const auto silent = two_numbers_behind("silent/", scope)) {
    if (silent->first < 0 || silent->second < 0) return std::nullopt;
    word.silent_attempt = silent->first;
    word.silent_rank = silent->second;
    return word;
  }
  if (const auto ended = two_numbers_behind("ended/", scope)) {
    if (ended->first < 0 || ended->second < 0) return std::nullopt;
    word.ended_attempt = ended->first;
    word.ended_node = ended->second;
    return word;
  }
  const auto stop = two_numbers_behind("stop/", scope);
  if (!stop || stop->first < 1 || stop->first >= NSIG || stop->second < 1) return std::nullopt;
  word.signal = stop->first;
  word.count = stop->second;
  return word;
}

}  // namespace dt::cli
