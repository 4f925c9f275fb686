// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dt::metrics {

/// Reads one HTTP request, as far as an answer needs it. Pure. The same bytes in other pieces give
/// the same answer.
class RequestReader {
 public:
  static constexpr size_t kMaxBytes = 8 << 10;  ///< of the request line and all fields

  /// The status to answer with, once that is known; what comes behind is not looked at. 200: it is
  /// GET /metrics.
  std::optional<int> feed(std::string_view bytes);

 private:
  std::string text_;
  std::optional<int> status_;
};

/// The whole answer. `body` of a status other than 200 is written here.
std::string response(int status, std::string body);

}  // namespace dt::metrics
