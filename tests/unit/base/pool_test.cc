// SPDX-License-Identifier: Apache-2.0
#include "base/pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>

using dt::Pool;

namespace {

/// Counts those that live.
struct Counted {
  static inline std::atomic<int> living{0};
  int64_t value = 0;

  explicit Counted(int64_t initial = 0) : value(initial) { ++living; }
  ~Counted() { --living; }
};

}  // namespace

TEST_CASE("pool: memory of what is gone serves the next, constructed anew") {
  const Pool<Counted> pool;
  std::set<const Counted*> places;
  for (int i = 0; i < 100; ++i) {
    const auto one = pool.make(i);
    CHECK(one->value == i);
    CHECK(Counted::living == 1);
    one->value = -1;
    places.insert(one.get());
  }
  CHECK(places.size() == 1);
  CHECK(pool.make()->value == 0);
  CHECK(Counted::living == 0);
}

TEST_CASE("pool: more than it keeps are made and given back") {
  const Pool<Counted> pool;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Counted>> all;
    std::set<const Counted*> places;
    for (size_t i = 0; i < 3 * Pool<Counted>::kKept; ++i) {
      places.insert(all.emplace_back(pool.make(int64_t(i))).get());
    }
    CHECK(places.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i) CHECK(all[i]->value == int64_t(i));
  }
  CHECK(Counted::living == 0);
}

TEST_CASE("pool: what it made may outlive it") {
  std::shared_ptr<Counted> last;
  std::weak_ptr<Counted> watched;
  {
    const Pool<Counted> pool;
    last = pool.make(7);
    watched = last;
  }
  CHECK(last->value == 7);
  last = nullptr;
  CHECK(Counted::living == 0);
  CHECK(watched.expired());  // and only now the memory goes
}

TEST_CASE("pool: one thread makes, another drops") {
  constexpr int kObjects = 5000;
  const Pool<Counted> pool;
  std::vector<dt::Guarded<std::shared_ptr<Counted>>> slots(8);
  const auto put = [&](int i, std::shared_ptr<Counted> object) {
    slots[static_cast<size_t>(i) % slots.size()].with([&](auto& slot) { slot.swap(object); });
    return object;  // what was there
  };
  std::atomic<int64_t> sum{0};
  std::thread dropping([&] {
    for (int i = 0; i < kObjects; ++i) {
      if (const auto taken = put(i, nullptr)) sum += taken->value;
    }
  });
  for (int i = 0; i < kObjects; ++i) {
    if (const auto left = put(i, pool.make(1))) sum += left->value;
  }
  dropping.join();
  for (int i = 0; i < int(slots.size()); ++i) {
    if (const auto left = put(i, nullptr)) sum += left->value;
  }
  CHECK(sum == kObjects);
  CHECK(Counted::living == 0);
}
