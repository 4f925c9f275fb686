// SPDX-License-Identifier: Apache-2.0
// A child of Lightning's own launcher: LOCAL_RANK, NODE_RANK, WORLD_SIZE and MASTER_*, the rank
// left to Lightning. The rank follows if the number of nodes is known, and on the first node.
// Otherwise the processes exchange their places when they meet.
#include "launch/facts.h"

namespace dt::launch {
namespace {

constexpr NumberRow kLightningRows[] = {
    size_row(Field::kWorldSize, "WORLD_SIZE"),
    rank_row(Field::kLocalRank, "LOCAL_RANK"),
    rank_row(Field::kNodeRank, "NODE_RANK"),
    size_row(Field::kNodeCount, "AZUREML_NODE_COUNT"),
};

}  // namespace

Result<Facts> read_lightning(Variables& variables) {
  Facts facts;
  facts.launcher = "lightning";
  if (variables.get("RANK") != nullptr || variables.get("MASTER_ADDR") == nullptr) return facts;
  Facts read;
  // Other numbers are legal in LOCAL_RANK for other launchers, which have judged them.
  if (!read_numbers(variables, kLightningRows, read).ok()) return facts;
  const auto& size = read.at(Field::kWorldSize);
  const auto& local = read.at(Field::kLocalRank);
  const auto& node = read.at(Field::kNodeRank);
  const auto& nodes = read.at(Field::kNodeCount);
  if (!size || !local || !node) return facts;
  int64_t rank = local->value;
  if (nodes) {
    if (size->value % nodes->value != 0) return facts;
    rank += int64_t{node->value} * (size->value / nodes->value);
  }
  if (rank >= size->value) return facts;
  read.launcher = facts.launcher;
  read.settles_ranks = !nodes && size->value > 1;
  if (read.settles_ranks && node->value > 0) rank = -1;
  read.at(Field::kRank) = NumberFact{static_cast<int32_t>(rank), "NODE_RANK and LOCAL_RANK"};
  return read;
}

}  // namespace dt::launch
