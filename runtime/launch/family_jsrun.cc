// SPDX-License-Identifier: Apache-2.0
// LSF's jsrun. The first host of LSB_MCPU_HOSTS is the one the job script runs on; it holds no
// rank, so the second is the host of rank 0.
#include <algorithm>
#include <string_view>
#include <vector>

#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr NumberRow kJsrunRows[] = {
    rank_row(Field::kRank, "JSM_NAMESPACE_RANK"),
    size_row(Field::kWorldSize, "JSM_NAMESPACE_SIZE"),
    rank_row(Field::kLocalRank, "JSM_NAMESPACE_LOCAL_RANK"),
    size_row(Field::kLocalSize, "JSM_NAMESPACE_LOCAL_SIZE"),
};

/// "host count host count": the second host, or the only one; empty for any other text.
std::string first_compute_host(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  std::vector<std::string> words;
  while (words.size() < 3) {
    const size_t start = text.find_first_not_of(kBlank);
    if (start == std::string_view::npos) break;
    text.remove_prefix(start);
    const size_t end = std::min(text.find_first_of(kBlank), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  if (words.size() == 3) return words[2];
  return words.size() == 2 ? words[0] : std::string();
}

Status read_lsf_job(Variables& variables, Facts& facts) {
  const std::string* hosts = variables.get("LSB_MCPU_HOSTS");
  DT_TRY_VALUE(const auto job, variables.wide_integer("LSB_JOBID", 0, INT64_MAX));
  if (hosts == nullptr || !job) return {};
  const std::string host = first_compute_host(*hosts);
  if (host.empty()) return {};
  DT_TRY_VALUE(std::string address, parse_host(variables.shown("LSB_MCPU_HOSTS"), host));
  facts.master_addr = TextFact{std::move(address), variables.shown("LSB_MCPU_HOSTS")};
  facts.at(Field::kMasterPort) = NumberFact{port_of_job(*job), "LSB_JOBID"};
  facts.by_convention = facts.address_by_convention = true;
  return {};
}

}  // namespace

Result<Facts> read_jsrun(Variables& variables) {
  Facts facts;
  facts.launcher = "jsrun";
  DT_TRY(read_numbers(variables, kJsrunRows, facts));
  if (!facts.complete()) return facts;
  DT_TRY(read_lsf_job(variables, facts));
  read_exchange(variables, facts);
  return facts;
}

}  // namespace dt::launch
