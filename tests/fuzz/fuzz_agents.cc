// SPDX-License-Identifier: Apache-2.0
// What the agents of `dt run`, and the ranks of `dt doctor`, read from each other, and what they
// make of it. Properties: no crash, what is read is written to bytes that read the same, nothing
// outgrows what was sent, and the others can read what one of them decides.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/checks.h"
#include "cli/doctor/report.h"
#include "cli/run/fleet_words.h"
#include "cli/run/outcome.h"
#include "cli/run/roster.h"
#include "store/messages.h"

namespace {

using namespace dt::cli;

constexpr size_t kFactBytes = 8;

void require_agent(bool holds) {
  if (!holds) std::abort();
}

template <class Message>
bool reads_the_same(std::string_view bytes, Message* message) {
  if (!decode(bytes, message)) return false;
  const std::string written = encode(*message);
  Message again;
  require_agent(decode(written, &again) && encode(again) == written);
  return true;
}

/// The reports of two nodes, and what else node 0 knows.
void check_ends(std::string_view bytes) {
  if (bytes.size() < kFactBytes) return;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  OutcomeFacts facts;
  facts.node_count = 1 + byte(0) % 4;
  facts.attempt = byte(1) % 3;
  facts.max_restarts = byte(2) % 3;
  facts.first_told = static_cast<int8_t>(byte(3));
  facts.first_recorded = static_cast<int8_t>(byte(4));
  facts.stopped_first = byte(5) % 2 == 1;
  facts.told_silent = byte(5) % 4 > 1;
  facts.others_go_on = byte(5) % 8 > 3;
  if (byte(5) > 250) facts.lost_node = "node 1 is gone";
  const size_t cut = byte(6) | size_t{byte(7)} << 8;
  bytes.remove_prefix(kFactBytes);
  std::vector<NodeEnds> nodes;
  for (const std::string_view part :
       {bytes.substr(0, cut), bytes.substr(bytes.size() < cut ? bytes.size() : cut)}) {
    NodeEnds ends;
    if (!reads_the_same(part, &ends)) continue;
    require_agent(ends.first_rank + ends.ends.size() <= size_t{dt::kMaxWorldSize});
    nodes.push_back(std::move(ends));
  }
  const Outcome outcome = decide(nodes, facts);
  Outcome told;
  require_agent(decode(encode(outcome), &told) && encode(told) == encode(outcome));
  require_agent(!outcome.headline.empty() || outcome.exit_code == 0);
}

void check_reports(std::string_view bytes) {
  doctor::Report report;
  if (!reads_the_same(bytes, &report)) return;
  doctor::Report whole = report;
  whole.findings.resize(doctor::checks().size());
  (void)doctor::differences_text({report, whole});
  (void)doctor::differences_json({report, whole});
}

void check_words(std::string_view bytes) {
  Endpoints endpoints;
  if (reads_the_same(bytes, &endpoints)) {
    require_agent(endpoints.store_port >= 0 && endpoints.store_port <= 65535);
  }
  const auto word = parse_word(bytes);
  if (!word) return;
  // One of the seven, and the numbers are those that stand there.
  std::string written;
  if (word->failed_attempt) written += "end/" + std::to_string(*word->failed_attempt);
  if (word->heeding_attempt) written += "heed/" + std::to_string(*word->heeding_attempt);
  if (word->regroup_attempt) written += "regroup/" + std::to_string(*word->regroup_attempt);
  if (word->server_attempt) written += "server/" + std::to_string(*word->server_attempt);
  if (word->gone_attempt) written += "gone/" + std::to_string(*word->gone_attempt);
  if (word->ended_attempt) {
    written +=
        "ended/" + std::to_string(*word->ended_attempt) + "/" + std::to_string(word->ended_node);
  }
  if (word->silent_attempt) {
    written +=
        "silent/" + std::to_string(*word->silent_attempt) + "/" + std::to_string(word->silent_rank);
  }
  if (word->signal != 0) {
    written += "stop/" + std::to_string(word->signal) + "/" + std::to_string(word->count);
  }
  const auto again = parse_word(written);
  require_agent(
      again && again->failed_attempt == word->failed_attempt &&
      again->heeding_attempt == word->heeding_attempt &&
      again->regroup_attempt == word->regroup_attempt && again->signal == word->signal &&
      again->count == word->count && again->silent_attempt == word->silent_attempt &&
      again->silent_rank == word->silent_rank && again->server_attempt == word->server_attempt &&
      again->gone_attempt == word->gone_attempt && again->ended_attempt == word->ended_attempt &&
      again->ended_node == word->ended_node);
}

/// What agents say that wait for an attempt, and what they are told.
void check_rosters(std::string_view bytes) {
  Offer offer;
  (void)reads_the_same(bytes, &offer);
  Presence presence;
  if (!reads_the_same(bytes, &presence)) return;
  std::vector<Presence> there{presence, presence};
  require_agent(take_doubles(&there).size() == 1 && there.size() == 1);
  RosterRules rules;
  const Judgement judged = judge(rules, there, {}, false);
  require_agent(judged.go == judged.why.empty());
  require_agent(next_roster(there, presence.seat.node).seats.size() == 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  Outcome outcome;
  switch (data[0] % 4) {
    case 0: check_ends(rest); break;
    case 1:
      (void)reads_the_same(rest, &outcome);
      check_rosters(rest);
      break;
    case 2: check_reports(rest); break;
    default: check_words(rest); break;
  }
  return 0;
}
