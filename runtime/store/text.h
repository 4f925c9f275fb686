// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dt::store {

inline constexpr int64_t kNsPerMs = 1'000'000;

// How the texts of this folder name things, so that they agree.

/// "5.0 s"
std::string seconds_text(int64_t ms);
/// In double quotes, unprintable bytes as \xNN, cut when long.
std::string quoted(std::string_view bytes);
/// `key "a"` or `5 keys`.
std::string key_list(const std::vector<std::string>& keys);
/// "0-2, 5, 7" of ascending ranks.
std::string rank_list(const std::vector<int32_t>& ranks);
/// "rank 5" or "ranks 0-2, 5".
std::string ranks_text(const std::vector<int32_t>& ranks);
/// Joined by ", "; a long list ends in "and 12 more".
std::string item_list(const std::vector<std::string>& items);

/// What an errno of connecting or greeting means to someone who waits for a store; 0: its end.
std::string connection_problem(int error);
/// Whether a store that refuses for this reason will refuse the next time, too.
bool is_final_refusal(Code code);

}  // namespace dt::store
