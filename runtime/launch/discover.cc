// SPDX-License-Identifier: Apache-2.0
#include "launch/discover.h"

#include <optional>

#include "config/value.h"
#include "launch/facts.h"

namespace dt::launch {
namespace {

constexpr Family kFamilies[] = {
    {"own", nullptr, "DT_RANK", "DT_WORLD_SIZE",
     "start the program with dt run, or set both on every rank", read_own},
    {"torchrun", "env", "RANK", "WORLD_SIZE",
     "start the program with torchrun --no-python or dt run, or set both on every rank",
     read_torch},
};
constexpr const char* kAlone = "none";

struct Reading {
  const Family* family;
  Facts facts;
};

/// What DT_LAUNCHER asks for: a family, nobody (`alone`), or no choice at all.
struct Choice {
  const Family* family = nullptr;
  bool alone = false;
};

Result<Choice> read_choice(Variables& variables) {
  const std::string* name = variables.get("DT_LAUNCHER");
  if (name == nullptr) return Choice{};
  if (*name == kAlone || *name == "single") return Choice{nullptr, true};
  std::string known;
  for (const Family& family : kFamilies) {
    if (*name == family.name || (family.other_name != nullptr && *name == family.other_name)) {
      return Choice{&family, false};
    }
    known += std::string(family.name) + ", ";
    if (family.other_name != nullptr) known += std::string(family.other_name) + ", ";
  }
  return launch_error("unknown_launcher", variables.shown("DT_LAUNCHER") + "=" +
                                              config::quoted(*name) + "; expected one of " + known +
                                              kAlone);
}

std::string said(const Facts& facts) {
  std::string text;
  for (const Field field : {Field::kRank, Field::kWorldSize}) {
    if (facts.at(field)) text += (text.empty() ? "" : " ") + facts.at(field)->text();
  }
  return text;
}

Status partial_error(const Variables& variables, const Reading& reading) {
  const Facts& facts = reading.facts;
  const std::string rank = variables.shown(reading.family->rank_variable);
  const std::string size = variables.shown(reading.family->size_variable);
  std::string text = facts.intention;
  std::string missing = rank + " and " + size + " are not";
  if (facts.at(Field::kRank)) {
    text = facts.at(Field::kRank)->text() + " is set";
    missing = size + " is not";
  } else if (facts.at(Field::kWorldSize)) {
    text = facts.at(Field::kWorldSize)->text() + " is set";
    missing = rank + " is not";
  } else if (text.empty()) {
    text = std::string("DT_LAUNCHER asks for the variables of ") + reading.family->name;
  }
  return launch_error("partial", text + ", but " + missing + "; " + reading.family->how_to_launch);
}

/// A family that says only rank or only size must say the same as the complete one.
Status check_agreement(const Reading& partial, const Reading& chosen) {
  for (const Field field : {Field::kRank, Field::kWorldSize}) {
    const auto& one = partial.facts.at(field);
    const auto& other = chosen.facts.at(field);
    if (!one || one->value == other->value) continue;
    return launch_error("conflict",
                        format("%s, but %s; unset the stale one, or set DT_LAUNCHER=%s to use the "
                               "second",
                               one->text().c_str(), other->text().c_str(), chosen.family->name));
  }
  return {};
}

/// Facts of a process that nobody started as part of a job.
Facts alone() {
  Facts facts;
  const std::string variable = "no launcher";
  facts.at(Field::kRank) = NumberFact{0, variable};
  facts.at(Field::kWorldSize) = NumberFact{1, variable};
  facts.launcher = kAlone;
  return facts;
}

void fill_alone(Facts& facts) {
  if (facts.at(Field::kWorldSize)->value != 1) return;
  const std::string& variable = facts.at(Field::kWorldSize)->variable;
  for (const Field index : {Field::kLocalRank, Field::kNodeRank}) {
    if (!facts.at(index)) facts.at(index) = NumberFact{0, variable};
  }
  for (const Field size : {Field::kLocalSize, Field::kNodeCount}) {
    if (!facts.at(size)) facts.at(size) = NumberFact{1, variable};
  }
}

Status check_rendezvous(Facts& facts) {
  const NumberFact& world_size = *facts.at(Field::kWorldSize);
  if (world_size.value == 1) return {};
  constexpr const char* kNext =
      "set MASTER_ADDR and MASTER_PORT (or DT_MASTER_ADDR and DT_MASTER_PORT) to the host of rank "
      "0 "
      "and a free port there, the same on all ranks";
  if (!facts.master_addr && facts.value(Field::kLocalSize, -1) == world_size.value) {
    facts.master_addr = TextFact{"127.0.0.1", facts.at(Field::kLocalSize)->variable};
  }
  if (!facts.master_addr) {
    return launch_error("no_rendezvous", world_size.text() +
                                             ", but nobody names the address of "
                                             "rank 0; " +
                                             kNext);
  }
  if (!facts.at(Field::kMasterPort)) {
    return launch_error("no_rendezvous",
                        format("%s and the address %s are known, but not the port; "
                               "%s",
                               world_size.text().c_str(), facts.master_addr->value.c_str(), kNext));
  }
  return {};
}

void warn_loopback(const Facts& facts, Variables& variables) {
  if (!facts.master_addr || facts.value(Field::kNodeCount, 1) < 2) return;
  const std::string& host = facts.master_addr->value;
  if (host != "localhost" && host != "::1" && host.substr(0, 4) != "127.") return;
  variables.warn(format("loopback_master_multi_node: %s=%s with %s: other hosts cannot reach it",
                        facts.master_addr->variable.c_str(), host.c_str(),
                        facts.at(Field::kNodeCount)->text().c_str()));
}

/// The own variables are complete: they win, and the launcher around them fills blanks.
void complete_own(Facts& own, const std::vector<Reading>& others, Variables& variables) {
  for (const Reading& other : others) {
    if (!other.facts.complete() || own.same_launch(other.facts)) {
      own.fill_blanks(other.facts);
    } else if (own.launcher != "config") {  // a program that gives ranks to its threads means it
      variables.warn(
          format("other_launcher: %s count; %s (%s) say otherwise. If that one started "
                 "this process, set DT_LAUNCHER=%s or unset the first",
                 said(own).c_str(), said(other.facts).c_str(), other.facts.launcher.c_str(),
                 other.family->name));
    }
  }
}

Result<std::vector<Reading>> read_families(Variables& variables, const Choice& choice) {
  std::vector<Reading> readings;
  for (const Family& family : kFamilies) {
    const bool own = &family == &kFamilies[0];
    const bool wanted = !choice.alone && (choice.family == nullptr || choice.family == &family);
    if (!wanted && !own) continue;
    Result<Facts> facts = family.read(variables);
    if (!facts.ok()) {
      // The own variables are the way out of a broken environment.
      if (!own && readings.front().facts.complete()) continue;
      return facts.status();
    }
    if (!wanted) {
      facts.value().at(Field::kRank).reset();
      facts.value().at(Field::kWorldSize).reset();
    }
    readings.push_back({&family, std::move(facts).value()});
  }
  return readings;
}

Result<Facts> choose(std::vector<Reading> readings, const Choice& choice, Variables& variables) {
  Facts own = readings.front().facts;
  if (own.complete()) {
    readings.erase(readings.begin());
    complete_own(own, readings, variables);
    return own;
  }
  const Reading* partial = nullptr;
  for (const Reading& reading : readings) {
    if (reading.facts.complete()) {
      if (partial != nullptr) DT_TRY(check_agreement(*partial, reading));
      own.fill_blanks(reading.facts);
      own.launcher = reading.facts.launcher;
      return own;
    }
    const bool forced = choice.family == reading.family;
    if (partial == nullptr && (reading.facts.partial() || forced)) partial = &reading;
  }
  if (partial != nullptr) return partial_error(variables, *partial);
  Facts facts = alone();
  facts.job_id = own.job_id;
  facts.at(Field::kAttempt) = own.at(Field::kAttempt);
  for (const Reading& reading : readings) {  // kept for those who serve a store themselves
    if (!facts.master_addr) facts.master_addr = reading.facts.master_addr;
    const auto& port = reading.facts.at(Field::kMasterPort);
    if (!facts.at(Field::kMasterPort) && port) {
      facts.at(Field::kMasterPort) = port;
      facts.port_taken = reading.facts.port_taken;
      facts.store_served = reading.facts.store_served;
    }
  }
  return facts;
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

Result<Facts> discover_facts(Variables& variables) {
  DT_TRY_VALUE(const Choice choice, read_choice(variables));
  DT_TRY_VALUE(std::vector<Reading> readings, read_families(variables, choice));
  DT_TRY_VALUE(Facts facts, choose(std::move(readings), choice, variables));
  fill_alone(facts);
  DT_TRY(check_ranges(facts));
  DT_TRY(check_rendezvous(facts));
  warn_loopback(facts, variables);
  return facts;
}

Place make_place(const Facts& facts, const Variables& variables) {
  Place place;
  place.rank = facts.value(Field::kRank, 0);
  place.world_size = facts.value(Field::kWorldSize, 1);
  place.local_rank = facts.value(Field::kLocalRank, -1);
  place.local_size = facts.value(Field::kLocalSize, -1);
  place.node_rank = facts.value(Field::kNodeRank, -1);
  place.node_count = facts.value(Field::kNodeCount, -1);
  place.master_addr = facts.master_addr ? facts.master_addr->value : std::string();
  place.master_port = facts.value(Field::kMasterPort, 0);
  place.port_taken = facts.port_taken;
  place.store_served = facts.store_served;
  place.job_id = facts.job_id ? facts.job_id->value : std::string();
  place.attempt = facts.value(Field::kAttempt, 0);
  place.launcher = facts.launcher;
  place.warnings = variables.warnings();
  return place;
}

Result<Place> discover(const Environment& environment) {
  Variables variables(environment);
  DT_TRY_VALUE(const Facts facts, discover_facts(variables));
  return make_place(facts, variables);
}

int32_t store_port(const Place& place) {
  if (!place.port_taken || place.store_served) return place.master_port;
  constexpr uint32_t kFirst = 20000;
  constexpr uint32_t kCount = 12000;
  uint64_t hash = 14695981039346656037u;  // FNV-1a: equal on all machines, unlike std::hash
  const std::string key =
      place.master_addr + "\n" + std::to_string(place.master_port) + "\n" + place.job_id;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<int32_t>(kFirst + hash % kCount);
}

}  // namespace dt::launch
