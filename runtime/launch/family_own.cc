// SPDX-License-Identifier: Apache-2.0
// DT_RANK, DT_WORLD_SIZE, ...: set by `dt run`, by hand, and by config for all job.* keys.
#include <cstdint>

#include "config/keys.h"
#include "config/value.h"
#include "launch/facts.h"

namespace dt::launch {
namespace {

// -1, and port 0, are the defaults of the keys and mean "not given".
constexpr NumberRow kOwnRows[] = {
    {Field::kRank, "DT_RANK", 0, INT32_MAX - 1, -1},
    {Field::kWorldSize, "DT_WORLD_SIZE", 1, INT32_MAX, -1},
    {Field::kLocalRank, "DT_LOCAL_RANK", 0, INT32_MAX - 1, -1},
    {Field::kLocalSize, "DT_LOCAL_SIZE", 1, INT32_MAX, -1},
    {Field::kNodeRank, "DT_NODE_RANK", 0, INT32_MAX - 1, -1},
    {Field::kNodeCount, "DT_NODE_COUNT", 1, INT32_MAX, -1},
    {Field::kMasterPort, "DT_MASTER_PORT", 1, 65535, 0},
    {Field::kAttempt, "DT_ATTEMPT", 0, INT32_MAX, kNoUnset},
};

Status check_positive(const Facts& facts, Field field) {
  if (!facts.at(field) || facts.at(field)->value > 0) return {};
  return launch_error("out_of_range", facts.at(field)->text() + "; expected at least 1");
}

}  // namespace

Result<Facts> read_own(Variables& variables) {
  Facts facts;
  DT_TRY(read_numbers(variables, kOwnRows, facts));
  for (const Field size : {Field::kWorldSize, Field::kLocalSize, Field::kNodeCount}) {
    DT_TRY(check_positive(facts, size));
  }
  DT_TRY(read_address(variables, "DT_MASTER_ADDR", facts));
  if (const std::string* id = variables.get("DT_JOB_ID")) {
    const config::Key* key = config::find_key(config::keys(), "job.id");
    if (!config::parse_value(*key, *id)) {
      return launch_error("out_of_range", variables.shown("DT_JOB_ID") + "=" + config::quoted(*id) +
                                              "; expected " + config::expectation(*key));
    }
    facts.job_id = TextFact{*id, variables.shown("DT_JOB_ID")};
  }
  if (const std::string* served = variables.get("DT_STORE_SERVED")) {
    const auto value =
        config::parse_value(*config::find_key(config::keys(), "job.store_served"), *served);
    if (!value) {
      return launch_error("out_of_range", variables.shown("DT_STORE_SERVED") + "=" +
                                              config::quoted(*served) + "; expected true or false");
    }
    facts.store_served = value->integer != 0;
    facts.port_taken = facts.store_served;
  }
  // The shown name differs when the rank came from a file or a call, not from a variable.
  const bool variable = variables.shown("DT_RANK") == "DT_RANK";
  facts.launcher = !variable                                     ? "config"
                   : variables.get("DT_LAUNCHER_PID") != nullptr ? "dt run"
                                                                 : "env";
  return facts;
}

}  // namespace dt::launch
