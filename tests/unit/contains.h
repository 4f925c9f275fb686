// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dt::test {

/// What a test asks of an error's text.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace dt::test
