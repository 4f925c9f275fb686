// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace dt::store::test {

/// The bytes of a hexadecimal text; blanks between them do not count.
inline std::string bytes(std::string_view hex) {
  std::string result;
  int half = -1;
  for (const char digit : hex) {
    if (isxdigit(static_cast<unsigned char>(digit)) == 0) continue;
    const int value = isdigit(static_cast<unsigned char>(digit)) != 0
                          ? digit - '0'
                          : tolower(static_cast<unsigned char>(digit)) - 'a' + 10;
    if (half < 0) {
      half = value;
    } else {
      result.push_back(static_cast<char>(16 * half + value));
      half = -1;
    }
  }
  return result;
}

}  // namespace dt::store::test
