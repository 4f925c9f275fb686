// SPDX-License-Identifier: Apache-2.0
#include "cli/run/lines.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using dt::cli::LineSplitter;
using Strings = std::vector<std::string>;

namespace {

// The lines of `bytes` when it arrives in two parts, the first of `first_bytes` bytes.
Strings split(const std::string& bytes, size_t first_bytes) {
  LineSplitter splitter;
  Strings lines;
  const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
  splitter.feed(std::string_view(bytes).substr(0, first_bytes), keep);
  splitter.feed(std::string_view(bytes).substr(first_bytes), keep);
  splitter.finish(keep);
  return lines;
}

}  // namespace

TEST_CASE("lines do not depend on where the bytes were cut") {
  const struct {
    std::string bytes;
    Strings lines;
  } cases[] = {
      {"", {}},
      {"\n", {""}},
      {"a\n\nb\n", {"a", "", "b"}},
      {"no end", {"no end"}},
      {"dos\r\nunix\n", {"dos", "unix"}},
      {"\r\n", {""}},
      {"1%\r2%\rdone\n", {"done"}},
      {"\r1%\r2%", {"2%"}},
      {"1%\r2%\r", {"2%"}},
      {"1%\r\r\n", {"1%"}},
      {std::string("a\0b\xff\n", 5), {std::string("a\0b\xff", 4)}},
  };
  for (const auto& expected : cases) {
    for (size_t cut = 0; cut <= expected.bytes.size(); ++cut) {
      CHECK(split(expected.bytes, cut) == expected.lines);
    }
  }
}

TEST_CASE("a line comes in pieces only above the limit") {
  const size_t limit = LineSplitter::kLimitBytes;
  for (const size_t bytes : {limit - 1, limit, limit + 1, 2 * limit, 2 * limit + 1}) {
    Strings expected;
    for (size_t left = bytes; left > 0; left -= std::min(left, limit)) {
      expected.emplace_back(std::min(left, limit), 'x');
    }
    for (const size_t cut : {size_t{0}, size_t{1}, limit - 1, bytes}) {
      CHECK(split(std::string(bytes, 'x') + "\n", cut) == expected);
    }
  }
}

TEST_CASE("the unfinished line is what a terminal would show") {
  LineSplitter splitter;
  const auto ignore = [](std::string_view) {};
  splitter.feed("line\n1%\r", ignore);
  CHECK(splitter.unfinished() == "1%");
  splitter.feed("2%", ignore);
  CHECK(splitter.unfinished() == "2%");
  splitter.feed("\n", ignore);
  CHECK(splitter.unfinished().empty());
}
