// SPDX-License-Identifier: Apache-2.0
#include "launch/mpi.h"

namespace dt::launch {

bool is_mpi_singleton(Variables& variables) {
  const std::string* how = variables.get("OMPI_MCA_ess");
  return how != nullptr && *how == "singleton";
}

bool offers_pmix(Variables& variables) {
  if (variables.get("PMIX_NAMESPACE") == nullptr) return false;
  if (is_mpi_singleton(variables)) return false;  // that server is its own
  // The name of the server's address carries the version of the protocol.
  for (const char* server : {"PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3",
                             "PMIX_SERVER_URI21", "PMIX_SERVER_URI2"}) {
    if (variables.get(server) != nullptr) return true;
  }
  return false;
}

void read_exchange(Variables& variables, Facts& facts) {
  const bool pmi = variables.get("PMI_FD") != nullptr;
  // Where Hydra's variables count, a server of PMIx belongs to a launcher around it.
  const bool pmi_first = pmi && facts.launcher == "hydra";
  if (!pmi_first && offers_pmix(variables)) {
    facts.exchange = Exchange::kPmix;
    facts.exchange_reachable = true;
    return;
  }
  if (!pmi) return;
  facts.exchange = Exchange::kPmi;
  facts.exchange_reachable = true;
}

Status read_mpi_surroundings(Variables& variables, Facts& facts) {
  if (!facts.complete()) return {};
  DT_TRY(read_azure(variables, facts));
  const bool one_node = facts.at(Field::kLocalSize) &&
                        facts.at(Field::kLocalSize)->value == facts.at(Field::kWorldSize)->value;
  if (!facts.master_addr && !one_node) DT_TRY(read_slurm_job(variables, facts));
  read_exchange(variables, facts);
  return {};
}

}  // namespace dt::launch
