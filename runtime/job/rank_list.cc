// SPDX-License-Identifier: Apache-2.0
#include "job/rank_list.h"

#include "base/status.h"
#include "base/xxh64.h"

namespace dt::job {
namespace {

// A key of the store holds 1024, with names next to the list.
constexpr size_t kMaxShownBytes = 200;

}  // namespace

std::string rank_list(const std::vector<int32_t>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    std::string range = format("%s%d", begin == 0 ? "" : ", ", ranks[begin]);
    if (end - begin > 1) range += format("-%d", ranks[end - 1]);
    if (text.size() + range.size() > kMaxShownBytes) {
      const uint64_t hash = xxh64(ranks.data(), ranks.size() * sizeof ranks[0]);
      return text + format(", ... (%zu ranks, hash %016llx)", ranks.size(),
                           static_cast<unsigned long long>(hash));
    }
    text += range;
    begin = end;
  }
  return text;
}

}  // namespace dt::job
