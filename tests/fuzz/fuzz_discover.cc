// SPDX-License-Identifier: Apache-2.0
// An environment, one NAME=VALUE per line. Whatever it holds, the place is one in range or an
// error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launch/discover.h"

namespace {

dt::Environment environment_of(std::string_view text) {
  dt::Environment environment;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() < text.size() ? line.size() + 1 : line.size());
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    environment[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
  }
  return environment;
}

bool in_range(int32_t index, int32_t size) {
  return index >= -1 && (size == -1 || (size >= 1 && index < size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto environment =
      environment_of(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto found = dt::launch::discover(environment);
  if (!found.ok()) {
    const std::string message = found.status().message();
    if (message.find(": ") == std::string::npos) abort();  // each begins with its kind
    return 0;
  }
  const dt::launch::Place& place = found.value();
  // The rank of a process on node 1 or a later one follows when all have met, and only then.
  const bool met_later = place.settles_ranks && place.node_rank > 0;
  const bool good = (met_later ? place.rank == -1 && place.local_rank >= 0 : place.rank >= 0) &&
                    place.world_size >= 1 && place.rank < place.world_size &&
                    in_range(place.local_rank, place.local_size) &&
                    in_range(place.node_rank, place.node_count) &&
                    place.local_size <= place.world_size && place.node_count <= place.world_size;
  if (!good) abort();
  const bool known = !place.master_addr.empty() && place.master_port >= 1;
  if (place.world_size > 1 && !known && place.exchange == dt::launch::Exchange::kNone) abort();
  if (place.master_port < 0 || place.master_port > 65535) abort();
  return 0;
}
