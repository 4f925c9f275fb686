// SPDX-License-Identifier: Apache-2.0
// AWS Batch, multi-node parallel jobs: one process per node. The main node, which may have any
// index, is rank 0; the others count on from there. Only they are told its address, so the main
// node listens on all of its own.
#include "launch/facts.h"

namespace dt::launch {
namespace {

constexpr int32_t kAwsBatchPort = 29500;  // as torch.distributed's launchers
constexpr NumberRow kAwsBatchRows[] = {
    rank_row(Field::kRank, "AWS_BATCH_JOB_NODE_INDEX"),
    size_row(Field::kWorldSize, "AWS_BATCH_JOB_NUM_NODES"),
};

}  // namespace

Result<Facts> read_aws_batch(Variables& variables) {
  Facts facts;
  facts.launcher = "aws-batch";
  DT_TRY(read_numbers(variables, kAwsBatchRows, facts));
  if (!facts.complete()) return facts;
  DT_TRY(check_ranges(facts));
  DT_TRY_VALUE(const auto main,
               variables.integer("AWS_BATCH_JOB_MAIN_NODE_INDEX", 0, INT32_MAX - 1));
  const int64_t nodes = facts.at(Field::kWorldSize)->value;
  int64_t rank = facts.at(Field::kRank)->value - int64_t{main.value_or(0)} % nodes;
  if (rank < 0) rank += nodes;
  facts.at(Field::kRank)->value = static_cast<int32_t>(rank);
  set_one_per_node(facts);
  DT_TRY(read_address(variables, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", facts));
  if (!facts.master_addr && rank == 0) {
    facts.master_addr = TextFact{"0.0.0.0", "AWS_BATCH_JOB_MAIN_NODE_INDEX"};
  }
  facts.at(Field::kMasterPort) = NumberFact{kAwsBatchPort, "AWS Batch"};
  return facts;
}

}  // namespace dt::launch
