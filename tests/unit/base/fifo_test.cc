// SPDX-License-Identifier: Apache-2.0
#include "base/fifo.h"

#include <doctest/doctest.h>

#include <deque>
#include <memory>
#include <random>

using dt::Fifo;

TEST_CASE("fifo: behaves like a deque") {
  Fifo<int> fifo;
  std::deque<int> deque;
  std::mt19937 random(7);
  for (int step = 0; step < 20'000; ++step) {
    // Longer and shorter in turns.
    const auto dice = static_cast<int>(random() % 10) + (step / 1000 % 2 == 0 ? 1 : -1);
    if (deque.empty() || dice >= 5) {
      fifo.push_back(step);
      deque.push_back(step);
    } else if (dice == 4) {
      const auto index = static_cast<ptrdiff_t>(random() % deque.size());
      fifo.erase(fifo.begin() + index);
      deque.erase(deque.begin() + index);
    } else {
      REQUIRE(fifo.front() == deque.front());
      fifo.pop_front();
      deque.pop_front();
    }
    REQUIRE(fifo.size() == deque.size());
    REQUIRE(fifo.empty() == deque.empty());
    if (step % 50 == 0) {
      REQUIRE(std::equal(fifo.begin(), fifo.end(), deque.begin(), deque.end()));
    }
  }
  fifo.clear();
  CHECK(fifo.empty());
  CHECK(fifo.begin() == fifo.end());
}

TEST_CASE("fifo: what has left is gone at once") {
  Fifo<std::shared_ptr<int>> fifo;
  const auto first = std::make_shared<int>(1);
  const auto second = std::make_shared<int>(2);
  for (const auto& each : {first, second}) fifo.push_back(each);
  fifo.pop_front();
  CHECK(first.use_count() == 1);
  CHECK(fifo.front() == second);
  fifo.erase(fifo.begin());
  CHECK(second.use_count() == 1);
}

TEST_CASE("fifo: its memory stays as large as what it held at a time") {
  Fifo<int> fifo;
  for (int i = 0; i < 3; ++i) fifo.push_back(i);
  const auto pass = [&](int i) {
    fifo.push_back(i);
    fifo.pop_front();
  };
  for (int i = 0; i < 20; ++i) pass(i);
  const int* least = &fifo.front();
  const int* most = least;
  for (int i = 0; i < 1000; ++i) {
    pass(i);
    least = std::min(least, static_cast<const int*>(&fifo.front()));
    most = std::max(most, static_cast<const int*>(&fifo[fifo.size() - 1]));
  }
  CHECK(most - least < 16);
}
