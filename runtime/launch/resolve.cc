// SPDX-License-Identifier: Apache-2.0
#include "launch/discover.h"
#include "launch/facts.h"
#include "launch/ps_place.h"

namespace dt::launch {
namespace {

/// A key that describes the place, and the fact that fills it.
struct NumberKey {
  const char* key;
  Field field;
};
constexpr NumberKey kNumberKeys[] = {
    {"job.rank", Field::kRank},
    {"job.world_size", Field::kWorldSize},
    {"job.local_rank", Field::kLocalRank},
    {"job.local_size", Field::kLocalSize},
    {"job.node_rank", Field::kNodeRank},
    {"job.node_count", Field::kNodeCount},
    {"job.master_port", Field::kMasterPort},
    {"job.attempt", Field::kAttempt},
};
constexpr const char* kOtherKeys[] = {"job.master_addr", "job.store_served", "job.id"};

/// Lets config speak for an own variable: it knows calls, files and locks too.
Status show_key(const Config& config, const char* name, Variables& variables) {
  const char* variable = config::find_key(config::keys(), name)->environment;
  variables.remove(variable);
  if (!config.given(name)) return {};
  DT_TRY_VALUE(const std::string value, config.value_text(name));
  if (value.empty()) return {};
  const ConfigSource& source = config.source_of(name);
  variables.replace(variable, value,
                    source.kind == SourceKind::kEnvironment
                        ? variable
                        : format("%s (%s)", name, source.where.c_str()));
  return {};
}

Status write_back(const Facts& facts, Config& config) {
  const std::string who = facts.launcher + ": ";
  for (const NumberKey& each : kNumberKeys) {
    const auto& fact = facts.at(each.field);
    if (!fact || fact->value < 0) continue;
    DT_TRY(config.set_discovered(each.key, std::to_string(fact->value), who + fact->variable));
  }
  if (facts.master_addr) {
    DT_TRY(config.set_discovered("job.master_addr", facts.master_addr->value,
                                 who + facts.master_addr->variable));
  }
  if (facts.job_id) {
    DT_TRY(config.set_discovered("job.id", facts.job_id->value, who + facts.job_id->variable));
  }
  return {};
}

}  // namespace

Result<Place> resolve_place(Config& config, const Environment& environment) {
  DT_TRY(check_not_a_server(config));
  Variables variables(environment);
  for (const NumberKey& each : kNumberKeys) DT_TRY(show_key(config, each.key, variables));
  for (const char* name : kOtherKeys) DT_TRY(show_key(config, name, variables));
  DT_TRY_VALUE(const Facts facts, discover_facts(variables));
  DT_TRY(write_back(facts, config));
  return make_place(facts, variables);
}

}  // namespace dt::launch
