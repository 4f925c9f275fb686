// SPDX-License-Identifier: Apache-2.0
#include "launch/nodes.h"

#include "config/value.h"

namespace dt::launch {
namespace {

/// Node rank and node count under the names of one platform.
struct NodeNames {
  const char* rank;
  const char* count;
  const char* address;
  const char* port;
};
constexpr NodeNames kPet = {"PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"};
constexpr NodeNames kAzure = {"NODE_RANK", "AZUREML_NODE_COUNT", "MASTER_ADDR", "MASTER_PORT"};

Result<Facts> read_node(Variables& variables, const NodeNames& names) {
  Facts facts;
  const NumberRow rows[] = {rank_row(Field::kNodeRank, names.rank),
                            size_row(Field::kNodeCount, names.count),
                            {Field::kMasterPort, names.port, 1, 65535, kNoUnset}};
  DT_TRY(read_numbers(variables, rows, facts));
  DT_TRY(read_address(variables, names.address, facts));
  return facts;
}

/// Part of one node's description is missing.
Status check_whole(const Facts& facts) {
  const auto& rank = facts.at(Field::kNodeRank);
  const auto& count = facts.at(Field::kNodeCount);
  if (count && count->value > 1 && !rank) {
    return Status(Code::kConfig, count->text() + ", but nobody says which of the nodes this is");
  }
  if (count || !rank || !facts.master_addr) return {};
  return Status(Code::kConfig,
                format("%s and %s are set, so this is one of several nodes, but nobody says of how "
                       "many",
                       rank->text().c_str(), facts.master_addr->variable.c_str()));
}

/// Kubeflow's variables: the arguments of torchrun, of which PyTorchJob's RANK and WORLD_SIZE are
/// another view.
Result<Facts> read_pet(Variables& variables) {
  const std::string* count = variables.get(kPet.count);
  if (count != nullptr && !variables.integer(kPet.count, 1, INT32_MAX).ok()) {
    return Status(Code::kConfig, variables.shown(kPet.count) + "=" + config::quoted(*count) +
                                     " is not the number of nodes");
  }
  DT_TRY_VALUE(Facts facts, read_node(variables, kPet));
  DT_TRY(check_whole(facts));
  return facts;
}

/// A PyTorch job of Azure ML that starts one process per node, or a script that sets the same
/// names. Nothing where RANK, LOCAL_RANK and WORLD_SIZE describe several processes on a node.
Result<Facts> read_azure_node(Variables& variables) {
  const bool named =
      variables.get(kAzure.count) != nullptr ||
      (variables.get(kAzure.rank) != nullptr && variables.get(kAzure.address) != nullptr);
  if (!named) return Facts();  // NODE_RANK alone may be anybody's
  DT_TRY_VALUE(Facts facts, read_node(variables, kAzure));
  const bool ranked = variables.get("RANK") != nullptr || variables.get("LOCAL_RANK") != nullptr;
  const auto size = variables.integer("WORLD_SIZE", 1, INT32_MAX);
  if (ranked && size.ok() && size.value() && *size.value() != facts.value(Field::kNodeCount, -1)) {
    return Facts();
  }
  DT_TRY(check_whole(facts));
  return facts;
}

bool is_node(const Facts& facts) {
  return facts.at(Field::kNodeRank) && facts.at(Field::kNodeCount);
}

/// A launcher of processes that started one on each node, as far as it says.
void mark_one_per_node(Facts& facts) {
  const auto size = facts.at(Field::kWorldSize);
  const bool each = facts.value(Field::kLocalSize, -1) == 1 &&
                    facts.value(Field::kNodeCount, size->value) == size->value;
  facts.at(Field::kNodeCount).reset();
  facts.at(Field::kNodeRank).reset();
  if (!each) return;
  facts.at(Field::kNodeRank) = facts.at(Field::kRank);
  facts.at(Field::kNodeCount) = size;
}

/// The innermost launcher of processes; `by_hand`: RANK, WORLD_SIZE and MASTER_ADDR, which may come
/// from anybody.
std::optional<Facts> find_launcher(Variables& variables, std::optional<Facts>* by_hand) {
  for (const Family& family : families()) {
    if (family.group == Group::kStep || family.group == Group::kNode) continue;
    Result<Facts> read = family.read(variables);
    if (!read.ok() || !read.value().complete()) continue;
    Facts facts = std::move(read).value();
    if (family.group == Group::kMpi) {
      mark_one_per_node(facts);
      return facts;
    }
    facts.at(Field::kNodeRank).reset();
    facts.at(Field::kNodeCount).reset();
    if (facts.launcher != "env") return facts;
    // Without an address they describe ranks, and are about to be overwritten.
    if (facts.master_addr) *by_hand = std::move(facts);
  }
  return std::nullopt;
}

Result<std::optional<Facts>> find_platform(Variables& variables) {
  for (const Family& family : families()) {
    if (family.group != Group::kNode) continue;
    DT_TRY_VALUE(Facts facts, family.read(variables));
    if (facts.complete()) return std::optional(std::move(facts));
    if (!facts.partial()) continue;
    if (!facts.intention.empty()) return Status(Code::kConfig, facts.intention);
    const bool rank = facts.at(Field::kRank).has_value();
    return Status(Code::kConfig,
                  format("%s is set, but %s is not",
                         facts.at(rank ? Field::kRank : Field::kWorldSize)->text().c_str(),
                         rank ? family.size_variable : family.rank_variable));
  }
  return std::optional<Facts>();
}

Result<std::optional<Facts>> find_any(Variables& variables) {
  std::optional<Facts> by_hand;
  if (auto launcher = find_launcher(variables, &by_hand)) return launcher;
  for (const auto read : {read_pet, read_azure_node}) {
    DT_TRY_VALUE(Facts facts, read(variables));
    if (is_node(facts)) return std::optional(std::move(facts));
  }
  if (by_hand) return by_hand;
  return find_platform(variables);
}

}  // namespace

Result<std::optional<Facts>> find_starter(Variables& variables) {
  DT_TRY_VALUE(std::optional<Facts> found, find_any(variables));
  if (!found) return found;
  const Field size = is_node(*found) ? Field::kNodeCount : Field::kWorldSize;
  if (found->value(size, 1) == 1) return std::optional<Facts>();
  Facts user;
  DT_TRY(read_user_rendezvous(variables, user));
  user.fill_rendezvous(*found);
  found->master_addr = user.master_addr;
  found->at(Field::kMasterPort) = user.at(Field::kMasterPort);
  return found;
}

}  // namespace dt::launch
