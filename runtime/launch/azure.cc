// SPDX-License-Identifier: Apache-2.0
// Azure ML's MPI jobs name the first node in one of several variables, in the order in which hi-ml
// reads them. The port in AZ_BATCH_MASTER_NODE is Azure Batch's own and is not used.
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr int32_t kAzurePort = 6105;  // what Azure's documentation suggests

Status read_azure_address(Variables& variables, Facts& facts) {
  if (const std::string* node = variables.get("AZ_BATCH_MASTER_NODE")) {
    DT_TRY_VALUE(net::HostPort parsed,
                 parse_host_port(variables.shown("AZ_BATCH_MASTER_NODE"), *node));
    facts.master_addr = TextFact{std::move(parsed.host), variables.shown("AZ_BATCH_MASTER_NODE")};
    return {};
  }
  const std::string* node = variables.get("AZ_BATCHAI_MPI_MASTER_NODE");
  if (node != nullptr && *node != "localhost") {
    return read_address(variables, "AZ_BATCHAI_MPI_MASTER_NODE", facts);
  }
  // AKS, says hi-ml, which runs in jobs of Azure ML: they have AZUREML_RUN_ID. Without a name of
  // Azure's next to it this common name may mean anything.
  if (!variables.any_begins("AZUREML_") && !variables.any_begins("AZ_BATCH")) return {};
  return read_address(variables, "MASTER_IP", facts);
}

/// Azure writes mpirun's command line itself: every node gets equally many ranks, in blocks.
void derive_node_rank(Facts& facts) {
  const auto& nodes = facts.at(Field::kNodeCount);
  const auto& local = facts.at(Field::kLocalRank);
  const auto& local_size = facts.at(Field::kLocalSize);
  if (!nodes || !local || !local_size || facts.at(Field::kNodeRank)) return;
  const int32_t rank = facts.at(Field::kRank)->value;
  const bool blocks =
      int64_t{nodes->value} * local_size->value == facts.at(Field::kWorldSize)->value &&
      rank % local_size->value == local->value;
  if (!blocks) return;
  facts.at(Field::kNodeRank) = NumberFact{
      rank / local_size->value, facts.at(Field::kRank)->variable + " / " + local_size->variable};
}

}  // namespace

Status read_azure(Variables& variables, Facts& facts) {
  DT_TRY(read_azure_address(variables, facts));
  if (!facts.master_addr) return {};
  facts.at(Field::kMasterPort) = NumberFact{kAzurePort, facts.master_addr->variable};
  constexpr NumberRow kNodes[] = {size_row(Field::kNodeCount, "AZUREML_NODE_COUNT")};
  Facts azure;
  DT_TRY(read_numbers(variables, kNodes, azure));
  if (azure.at(Field::kNodeCount)) {
    facts.at(Field::kNodeCount) = azure.at(Field::kNodeCount);
    derive_node_rank(facts);
  }
  return {};
}

}  // namespace dt::launch
