// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launch/hostlist.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kLimit = 1000;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto hosts = dt::launch::expand_hostlist(text, kLimit);
  if (!hosts.ok()) return 0;
  if (hosts.value().size() > kLimit) abort();
  for (const auto& host : hosts.value()) {
    if (host.empty() || host.find_first_of("[], ") != std::string::npos) abort();
  }
  return 0;
}
