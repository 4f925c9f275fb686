// SPDX-License-Identifier: Apache-2.0
// SageMaker: one process per host. The hosts are sorted as texts ("algo-10" before "algo-2"), so
// the rank is the place in the list and never the number in the name.
#include <algorithm>

#include "config/value.h"
#include "launch/facts.h"
#include "launch/json.h"

namespace dt::launch {
namespace {

constexpr int32_t kSagemakerPort = 29500;  // as torch.distributed's launchers
constexpr NumberRow kPort[] = {{Field::kMasterPort, "SM_MASTER_PORT", 1, 65535, kNoUnset}};

Result<Resource> read_hosts(Variables& variables) {
  Resource resource;
  if (const std::string* text = variables.get("SM_RESOURCE_CONFIG")) {
    DT_TRY_VALUE(resource, parse_resource(variables.shown("SM_RESOURCE_CONFIG"), *text));
  }
  if (const std::string* text = variables.get("SM_HOSTS")) {
    DT_TRY_VALUE(resource.hosts, parse_texts(variables.shown("SM_HOSTS"), *text));
  }
  if (const std::string* host = variables.get("SM_CURRENT_HOST")) resource.current_host = *host;
  return resource;
}

}  // namespace

Result<Facts> read_sagemaker(Variables& variables) {
  Facts facts;
  facts.launcher = "sagemaker";
  DT_TRY_VALUE(const Resource resource, read_hosts(variables));
  const std::vector<std::string>& hosts = resource.hosts;
  if (hosts.empty()) return facts;
  if (resource.current_host.empty()) {
    facts.intention = "SM_HOSTS is set";
    return facts;
  }
  const auto found = std::find(hosts.begin(), hosts.end(), resource.current_host);
  if (found == hosts.end()) {
    return launch_error("unknown_host",
                        format("SM_CURRENT_HOST=%s is none of the %zu hosts in SM_HOSTS; set RANK, "
                               "WORLD_SIZE, MASTER_ADDR and MASTER_PORT instead",
                               config::quoted(resource.current_host).c_str(), hosts.size()));
  }
  facts.at(Field::kRank) =
      NumberFact{static_cast<int32_t>(found - hosts.begin()), "SM_CURRENT_HOST in SM_HOSTS"};
  facts.at(Field::kWorldSize) = NumberFact{static_cast<int32_t>(hosts.size()), "SM_HOSTS"};
  set_one_per_node(facts);
  DT_TRY(read_address(variables, "SM_MASTER_ADDR", facts));
  if (!facts.master_addr) {
    DT_TRY_VALUE(std::string host, parse_host("SM_HOSTS", hosts.front()));
    facts.master_addr = TextFact{std::move(host), "SM_HOSTS"};
  }
  DT_TRY(read_numbers(variables, kPort, facts));
  if (!facts.at(Field::kMasterPort)) {
    facts.at(Field::kMasterPort) = NumberFact{kSagemakerPort, "SageMaker"};
  }
  return facts;
}

}  // namespace dt::launch
