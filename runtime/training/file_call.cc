// SPDX-License-Identifier: Apache-2.0
#include "training/file_call.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "training/equality.h"

namespace dt::training {
namespace {

/// This rank's failure, as it shows it to the others.
struct FailureRow {
  int32_t code = 0;  ///< 0: it has not failed
  int32_t lacks_file = 0;
  int64_t pid = 0;
  int64_t word = 0;  ///< what all ranks should have the same of
  char host[64] = {};
  char text[1400] = {};  ///< cut
};
static_assert(sizeof(FailureRow) == 1488);

std::string text_of_member(const comm::Communicator& comm, const std::vector<FailureRow>& rows,
                           size_t rank) {
  const int32_t world_rank = comm.world_rank(static_cast<int32_t>(rank));
  std::string text = format("rank %zu (", rank);
  if (world_rank != static_cast<int32_t>(rank)) text += format("world rank %d, ", world_rank);
  return text + format("%s, pid %lld)", rows[rank].host, static_cast<long long>(rows[rank].pid));
}

}  // namespace

Status FileCall::agree(const FileOutcome& mine, int64_t* word) {
  int64_t words[] = {mine.status.ok() ? 1 : 0, word != nullptr ? *word : 0};
  DT_TRY(reduce(words, ReduceOp::kMin));
  if (word != nullptr) *word = words[1];
  return words[0] == 1 ? Status() : explain(mine, 0, "");
}

Status FileCall::agree_on(const FileOutcome& mine, int64_t word, const char* difference) {
  int64_t words[] = {mine.status.ok() ? 1 : 0, word, ~word};
  DT_TRY(reduce(words, ReduceOp::kMin));
  const bool equal = words[1] == ~words[2];  // the smallest and the largest
  return words[0] == 1 && equal ? Status() : explain(mine, word, difference);
}

Status FileCall::reduce(std::span<int64_t> words, ReduceOp op) {
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = Dtype::kI64;
  collective.op = op;
  collective.send = collective.recv = words.data();
  collective.count = static_cast<int64_t>(words.size());
  collective.name = operation_;
  return comm_.run_on_host(collective);
}

/// Collective. Rows travel only when there is a failure.
Status FileCall::explain(const FileOutcome& mine, int64_t word, const char* difference) {
  const Exhibit self = own_exhibit({});
  FailureRow row;
  row.code = static_cast<int32_t>(mine.status.code());
  row.lacks_file = mine.lacks_file ? 1 : 0;
  row.pid = self.pid;
  row.word = word;
  std::memcpy(row.host, self.host, sizeof row.host);
  const std::string& text = mine.status.message();
  std::memcpy(row.text, text.data(), std::min(text.size(), sizeof row.text - 1));
  DT_TRY_VALUE(const std::vector<char> bytes, gather_rows(comm_, &row, sizeof row, operation_));
  std::vector<FailureRow> rows(static_cast<size_t>(comm_.size()));
  std::memcpy(rows.data(), bytes.data(), bytes.size());

  const auto failed =
      std::find_if(rows.begin(), rows.end(), [](const FailureRow& each) { return each.code != 0; });
  const auto differs = std::find_if(
      rows.begin(), rows.end(), [&](const FailureRow& each) { return each.word != rows[0].word; });
  const bool has_failed = failed != rows.end();
  const auto culprit = static_cast<size_t>((has_failed ? failed : differs) - rows.begin());
  ErrorInfo info;
  info.code = has_failed ? static_cast<Code>(rows[culprit].code) : Code::kMismatch;
  info.rank = comm_.world_rank(static_cast<int32_t>(culprit));
  info.host = rows[culprit].host;
  info.pid = rows[culprit].pid;
  info.operation = operation_;
  info.message = format("dt_%s on comm \"%s\": ", operation_, comm_.name().c_str()) +
                 text_of_member(comm_, rows, culprit);
  if (!has_failed) {
    info.message += format(" and %s %s", text_of_member(comm_, rows, 0).c_str(), difference);
  } else if (rows[culprit].lacks_file != 0) {
    info.message += format(" does not find %s, which %s made; give a path that all hosts share",
                           rows[culprit].text, text_of_member(comm_, rows, 0).c_str());
  } else {
    info.message += format(": %s", rows[culprit].text);
  }
  return Status(std::move(info));
}

}  // namespace dt::training
