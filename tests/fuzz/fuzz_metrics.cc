// SPDX-License-Identifier: Apache-2.0
// What somebody sends to a rank's metrics port, and what a job's names do to the text. Properties:
// the pieces in which a request comes change nothing, nothing but GET /metrics is answered by 200,
// an answer says its own length, and no name leaves its quotes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "metrics/exposition.h"
#include "metrics/request.h"

namespace {

constexpr size_t kPageBytesMax = 16;  // a page takes longer than all the rest

void require_metrics(bool holds) {
  if (!holds) std::abort();
}

void check_request(std::string_view bytes, size_t step) {
  dt::metrics::RequestReader whole;
  const std::optional<int> status = whole.feed(bytes);
  dt::metrics::RequestReader reader;
  std::optional<int> last;
  for (size_t at = 0; at < bytes.size() && !last.has_value(); at += step) {
    last = reader.feed(bytes.substr(at, step));
  }
  require_metrics(last == status);
  if (!status.has_value()) return;
  if (*status == 200) require_metrics(bytes.substr(0, 12) == "GET /metrics");
  const std::string answer = dt::metrics::response(*status, "body\n");
  const size_t body = answer.find("\r\n\r\n") + 4;
  const std::string length = "Content-Length: " + std::to_string(answer.size() - body) + "\r\n";
  require_metrics(answer.find(length) < body);
}

void check_label(const std::string& text) {
  const std::string label = dt::metrics::label_text(text);
  bool escaped = false;
  for (const char c : label) {
    require_metrics(c != '\n' && (escaped || c != '"'));
    escaped = !escaped && c == '\\';
  }
  require_metrics(!escaped);
}

/// No name adds a line to the text.
void check_page(const std::string& job_id) {
  const auto lines_with = [](const std::string& name) {
    dt::metrics::Snapshot snapshot;
    snapshot.job_id = name;
    const std::string page = dt::metrics::exposition(snapshot);
    return std::count(page.begin(), page.end(), '\n');
  };
  static const auto kLines = lines_with({});
  require_metrics(lines_with(job_id) == kLines);
}

}  // namespace

/// The first byte says into how large pieces the rest is cut.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  check_request(input, size_t{1} + data[0]);
  check_label(std::string(input.substr(0, 256)));
  if (input.size() <= kPageBytesMax) check_page(std::string(input));
  return 0;
}
