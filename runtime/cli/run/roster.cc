// SPDX-License-Identifier: Apache-2.0
#include "cli/run/roster.h"

#include <algorithm>

#include "base/status.h"
#include "store/protocol.h"
#include "store/text.h"

namespace dt::cli {
namespace {

constexpr size_t kMaxText = 1 << 16;
constexpr int kMaxCount = 1 << 30;  // of attempts and restarts, which go on counting
constexpr size_t kSeatBytes = 4 + 8 + 4 + 8;
constexpr size_t kRosterBytes = 7 * 4;

void write_roster(store::Writer& writer, const Roster& roster) {
  writer.i32(roster.attempt).i32(roster.restarts).text(roster.job_id).i32(roster.max_restarts);
  writer.text(roster.host).i32(roster.port).u32(static_cast<uint32_t>(roster.seats.size()));
  for (const Seat& seat : roster.seats) {
    writer.i32(seat.node).u64(seat.nonce).text(seat.host).i64(seat.pid);
  }
}

Seat read_seat(store::Reader& reader) {
  Seat seat;
  seat.node = reader.i32();
  seat.nonce = reader.u64();
  seat.host = reader.text(kMaxText);
  seat.pid = reader.i64();
  return seat;
}

/// False: it makes no sense.
bool read_roster(store::Reader& reader, Roster* out) {
  out->attempt = reader.i32();
  out->restarts = reader.i32();
  out->job_id = reader.text(kMaxText);
  out->max_restarts = reader.i32();
  out->host = reader.text(kMaxText);
  out->port = reader.i32();
  out->seats.resize(reader.count(kSeatBytes));
  for (Seat& seat : out->seats) seat = read_seat(reader);
  const bool any = out->attempt >= 0;
  return reader.ok() && out->attempt >= -1 && out->attempt <= kMaxCount && out->restarts >= 0 &&
         out->restarts <= kMaxCount && out->port >= 0 && out->port <= UINT16_MAX &&
         any == !out->seats.empty();
}

const Presence& latest(const std::vector<Presence>& there) {
  return *std::max_element(there.begin(), there.end(), [](const Presence& a, const Presence& b) {
    return std::pair(a.last.attempt, a.last.restarts) < std::pair(b.last.attempt, b.last.restarts);
  });
}

/// The attempts of which the next one needs a majority: the last one that anybody saw begin, which
/// may be none, then those that may have begun since.
std::vector<const Roster*> deciding(const std::vector<Presence>& there) {
  const Presence& newest = *std::max_element(
      there.begin(), there.end(),
      [](const Presence& a, const Presence& b) { return a.begun.attempt < b.begun.attempt; });
  std::vector<const Roster*> attempts{&newest.begun};
  for (const Presence& each : there) {
    for (const Roster& joined : each.unsure) {
      if (joined.attempt > newest.begun.attempt) attempts.push_back(&joined);
    }
  }
  return attempts;
}

bool is_there(const std::vector<Presence>& there, uint64_t nonce) {
  return std::any_of(there.begin(), there.end(),
                     [&](const Presence& each) { return each.seat.nonce == nonce; });
}

bool is_replaced(const std::vector<Presence>& there, const Seat& seat) {
  return std::any_of(there.begin(), there.end(),
                     [&](const Presence& each) { return each.seat.node == seat.node; });
}

std::string present_text(const std::vector<Presence>& there) {
  std::vector<std::string> texts;
  for (const Presence& each : there) texts.push_back(each.seat.text());
  return store::item_list(texts);
}

std::string too_few_text(const RosterRules& rules, const std::vector<Presence>& there) {
  std::vector<int32_t> missing;
  for (int node = 0; node < rules.node_count; ++node) {
    Seat seat;
    seat.node = node;
    if (!is_replaced(there, seat)) missing.push_back(node);
  }
  const std::string enough =
      rules.min_nodes < rules.node_count ? format(" (--min-nodes %d)", rules.min_nodes) : "";
  return format("%zu of %d nodes %s there%s: %s; missing: %s %s", there.size(), rules.node_count,
                there.size() == 1 ? "is" : "are", enough.c_str(), present_text(there).c_str(),
                missing.size() == 1 ? "node" : "nodes", store::rank_list(missing).c_str());
}

}  // namespace

std::string Seat::text() const {
  return format("node %d (host %s, dt run pid %lld)", node, host.c_str(),
                static_cast<long long>(pid));
}

int Roster::rank_of(uint64_t nonce) const {
  for (size_t rank = 0; rank < seats.size(); ++rank) {
    if (seats[rank].nonce == nonce) return static_cast<int>(rank);
  }
  return -1;
}

std::set<uint64_t> Roster::nonces() const {
  std::set<uint64_t> all;
  for (const Seat& seat : seats) all.insert(seat.nonce);
  return all;
}

Judgement judge(const RosterRules& rules, const std::vector<Presence>& there,
                const std::set<uint64_t>& gone, bool patient) {
  Judgement judged;
  const int count = static_cast<int>(there.size());
  if (there.empty()) {
    judged.why = "nobody is there";
    return judged;
  }
  const std::vector<const Roster*> attempts = deciding(there);
  const int begun = attempts.front()->attempt;
  bool expects_more = begun < 0 && count < rules.node_count;
  for (const Roster* each : attempts) {
    std::vector<std::string> absent;
    for (const Seat& seat : each->seats) {
      if (is_there(there, seat.nonce)) continue;
      absent.push_back(seat.text());
      if (gone.count(seat.nonce) == 0 && !is_replaced(there, seat)) expects_more = true;
    }
    const size_t agents = each->seats.size();
    const size_t kept = agents - absent.size();
    if (rules.allow_minority || each->attempt < 0 || 2 * kept > agents) continue;
    if (judged.why.empty()) {
      judged.why = format(
          "%zu of the %zu agents of attempt %d%s %s there, and the next attempt needs %zu of them, "
          "so that two sides of a broken network never go on both; missing: %s",
          kept, agents, each->attempt, each->attempt == begun ? "" : ", which may have begun,",
          kept == 1 ? "is" : "are", agents / 2 + 1, store::item_list(absent).c_str());
    }
  }
  if (!judged.why.empty()) {
    judged.minority = !expects_more || !patient;
    return judged;
  }
  if (count < rules.min_nodes || (expects_more && patient)) {
    judged.why = too_few_text(rules, there);
    return judged;
  }
  judged.go = true;
  return judged;
}

std::vector<Presence> take_doubles(std::vector<Presence>* there) {
  std::vector<Presence> doubles;
  if (there->empty()) return doubles;
  std::set<uint64_t> known;
  for (const Roster* each : deciding(*there)) known.merge(each->nonces());
  std::stable_partition(there->begin(), there->end(),
                        [&](const Presence& each) { return known.count(each.seat.nonce) != 0; });
  std::set<int> taken;
  std::vector<Presence> kept;
  for (Presence& each : *there) {
    const bool is_first = taken.insert(each.seat.node).second;
    (is_first ? kept : doubles).push_back(std::move(each));
  }
  *there = std::move(kept);
  return doubles;
}

void note_joined(Presence* presence) {
  // Attempts of the same agents ask for the same majority: one of them is enough, as the latest.
  std::erase_if(presence->unsure, [agents = presence->last.nonces()](const Roster& each) {
    return each.nonces() == agents;
  });
  presence->unsure.push_back(presence->last);
}

void note_begun(Presence* presence) {
  presence->begun = presence->last;
  presence->unsure.clear();
}

Roster next_roster(const std::vector<Presence>& there, int lead) {
  Roster roster = latest(there).last;
  ++roster.attempt;
  roster.seats.clear();
  for (const Presence& each : there) roster.seats.push_back(each.seat);
  std::sort(roster.seats.begin(), roster.seats.end(), [lead](const Seat& a, const Seat& b) {
    return std::pair(a.node != lead, a.node) < std::pair(b.node != lead, b.node);
  });
  return roster;
}

std::vector<int> seek_order(int addresses, int preferred, int lost) {
  std::vector<int> order;
  if (preferred >= 0 && preferred < addresses) order.push_back(preferred);
  for (int index = 0; index < addresses; ++index) {
    if (index != preferred && index != lost) order.push_back(index);
  }
  if (lost >= 0 && lost < addresses && lost != preferred) order.push_back(lost);
  return order;
}

// ---- on the wire ----

std::string encode(const Roster& roster) {
  store::Writer writer;
  write_roster(writer, roster);
  return writer.take();
}

std::string encode(const Presence& presence) {
  store::Writer writer;
  writer.i32(presence.seat.node).u64(presence.seat.nonce).text(presence.seat.host);
  writer.i64(presence.seat.pid).i64(presence.serial);
  write_roster(writer, presence.last);
  write_roster(writer, presence.begun);
  writer.u32(static_cast<uint32_t>(presence.unsure.size()));
  for (const Roster& each : presence.unsure) write_roster(writer, each);
  return writer.take();
}

std::string encode(const Offer& offer) {
  store::Writer writer;
  write_roster(writer, offer.roster);
  return writer.i32(offer.end_code).text(offer.end_text).take();
}

bool decode(std::string_view bytes, Roster* out) {
  store::Reader reader(bytes);
  return read_roster(reader, out) && reader.done();
}

bool decode(std::string_view bytes, Presence* out) {
  store::Reader reader(bytes);
  out->seat = read_seat(reader);
  out->serial = reader.i64();
  bool good = read_roster(reader, &out->last);
  good = read_roster(reader, &out->begun) && good;
  out->unsure.resize(reader.count(kRosterBytes));
  for (Roster& each : out->unsure) good = read_roster(reader, &each) && each.attempt >= 0 && good;
  return good && reader.done();
}

bool decode(std::string_view bytes, Offer* out) {
  store::Reader reader(bytes);
  const bool good = read_roster(reader, &out->roster);
  out->end_code = reader.i32();
  out->end_text = reader.text(kMaxText);
  return good && reader.done();
}

}  // namespace dt::cli
