// SPDX-License-Identifier: Apache-2.0
#include "job/rank_list.h"

#include <doctest/doctest.h>

#include <set>

using dt::job::rank_list;

TEST_CASE("rank list: neighbours are one range, in the order of the list") {
  CHECK(rank_list({5}) == "5");
  CHECK(rank_list({0, 1, 2, 3, 8}) == "0-3, 8");
  CHECK(rank_list({3, 4, 1, 0}) == "3-4, 1, 0");
}

TEST_CASE("rank list: a long one stays short, and another list has another text") {
  std::vector<int32_t> strided;
  for (int32_t rank = 0; rank < 100'000; rank += 2) strided.push_back(rank);
  const std::string text = rank_list(strided);
  CHECK(text.size() <= 256);
  CHECK(text.compare(0, 14, "0, 2, 4, 6, 8,") == 0);
  CHECK(text.find(", ... (50000 ranks, hash ") != std::string::npos);
  std::set<std::string> texts{text};
  for (size_t at = 1000; at < 1100; ++at) {  // behind what is shown
    std::vector<int32_t> other = strided;
    ++other[at];
    texts.insert(rank_list(other));
    std::swap(other[at], other[at + 1]);
    texts.insert(rank_list(other));
  }
  CHECK(texts.size() == 201);
}
