// SPDX-License-Identifier: Apache-2.0
// Our declarations of PMIx's ABI against its header, where that is installed.
#include "launch/pmix_abi.h"

#include <doctest/doctest.h>

#if __has_include(<pmix.h>)
#include <pmix.h>

#include <cstring>
#include <type_traits>

namespace abi = dt::launch::pmix;

static_assert(sizeof(abi::Proc) == sizeof(pmix_proc_t));
static_assert(offsetof(abi::Proc, rank) == offsetof(pmix_proc_t, rank));
static_assert(sizeof(abi::Value) == sizeof(pmix_value_t));
static_assert(offsetof(abi::Value, type) == offsetof(pmix_value_t, type));
static_assert(offsetof(abi::Value, data) == offsetof(pmix_value_t, data));
static_assert(sizeof(abi::Info) == sizeof(pmix_info_t));
static_assert(offsetof(abi::Info, flags) == offsetof(pmix_info_t, flags));
static_assert(offsetof(abi::Info, value) == offsetof(pmix_info_t, value));
static_assert(std::is_same_v<decltype(pmix_value_t::type), uint16_t>);
static_assert(std::is_same_v<decltype(pmix_info_t::flags), uint32_t>);
static_assert(std::is_same_v<decltype(pmix_proc_t::rank), uint32_t>);
static_assert(abi::kSuccess == PMIX_SUCCESS && abi::kBool == PMIX_BOOL);
static_assert(abi::kString == PMIX_STRING && abi::kGlobal == PMIX_GLOBAL);
static_assert(PMIX_RANK_WILDCARD == UINT32_MAX - 1);

TEST_CASE("pmix: the key of a fence that collects") {
  CHECK(std::strcmp(abi::kCollect, PMIX_COLLECT_DATA) == 0);
}
#endif
