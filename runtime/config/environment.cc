// SPDX-License-Identifier: Apache-2.0
#include "config/environment.h"

#include <unistd.h>

#include <cstring>

namespace dt {

Environment process_environment() {
  Environment environment;
  if (environ == nullptr) return environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equals = strchr(*entry, '=');
    // The first of two equal names counts, as for getenv().
    if (equals != nullptr) {
      environment.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
    }
  }
  return environment;
}

}  // namespace dt
