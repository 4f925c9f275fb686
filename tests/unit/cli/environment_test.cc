// SPDX-License-Identifier: Apache-2.0
#include "cli/run/environment.h"

#include <doctest/doctest.h>

#include <algorithm>

using dt::cli::JobPlace;
using dt::cli::rank_environment;
using Strings = std::vector<std::string>;

namespace {

/// How often "NAME=value" is there; with "NAME=" alone, any value.
long count(const Strings& environment, const std::string& beginning, bool whole = true) {
  return std::count_if(environment.begin(), environment.end(), [&](const std::string& variable) {
    return whole ? variable == beginning : variable.rfind(beginning, 0) == 0;
  });
}

}  // namespace

TEST_CASE("what torchrun around dt run has set does not reach the ranks") {
  const Strings inherited = {"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=outer",
                             "RANK=7", "MASTER_PORT=1", "HOME=/root"};
  JobPlace place;
  place.world_size = place.local_size = 2;
  place.master_port = 4711;
  Strings environment = rank_environment(place, 1, inherited);
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=False") == 1);
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=", false) == 1);
  CHECK(count(environment, "TORCHELASTIC_RUN_ID=", false) == 0);
  CHECK(count(environment, "RANK=1") == 1);
  CHECK(count(environment, "RANK=", false) == 1);
  CHECK(count(environment, "MASTER_PORT=4711") == 1);
  CHECK(count(environment, "HOME=/root") == 1);
  place.torch_store = true;
  environment = rank_environment(place, 0, {});
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=True") == 1);
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=", false) == 1);
}

TEST_CASE("further variables replace what is inherited") {
  JobPlace place;
  place.variables = {{"NCCL_ALGO", "Ring"}, {"NCCL_DEBUG", "WARN"}};
  const Strings environment = rank_environment(place, 0, {"NCCL_ALGO=Tree", "NCCL_PROTO=LL"});
  CHECK(count(environment, "NCCL_ALGO=Ring") == 1);
  CHECK(count(environment, "NCCL_ALGO=", false) == 1);
  CHECK(count(environment, "NCCL_DEBUG=WARN") == 1);
  CHECK(count(environment, "NCCL_PROTO=LL") == 1);
}
