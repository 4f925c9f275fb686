// SPDX-License-Identifier: Apache-2.0
#include "backend/work.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

using dt::Code;
using dt::Status;
using dt::backend::Work;

namespace {

std::vector<std::shared_ptr<Work>> works(size_t count) {
  std::vector<std::shared_ptr<Work>> all(count);
  for (auto& each : all) each = std::make_shared<Work>();
  return all;
}

}  // namespace

TEST_CASE("Work: what comes behind it runs once, also if the work is done before it is given") {
  for (const bool done_before : {false, true}) {
    Work work;
    std::vector<Status> seen;
    const auto see = [&](const Status& status) { seen.push_back(status); };
    if (done_before) {
      work.complete(Status(Code::kTimeout, "late"));
      work.then(see);
    } else {
      work.then(see);
      CHECK(seen.empty());
      work.complete(Status(Code::kTimeout, "late"));
    }
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].message() == "late");
  }
}

TEST_CASE("Work: that of a group is done with the last part, whatever the order") {
  std::vector<size_t> order = {0, 1, 2};
  do {
    for (const size_t before : {size_t{0}, size_t{1}, size_t{3}}) {  // done before the group ends
      const auto whole = std::make_shared<Work>();
      const auto parts = works(3);
      for (size_t i = 0; i < before; ++i) parts[order[i]]->complete(Status());
      Work::stand_for(whole, parts);
      for (size_t i = before; i < 3; ++i) {
        CHECK_FALSE(whole->done());
        parts[order[i]]->complete(Status());
      }
      CHECK(whole->done());
      CHECK(whole->status().ok());
      CHECK(whole->parts() == parts);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("Work: that of a group fails with the first error in the order of its parts") {
  std::vector<size_t> order = {0, 1, 2, 3};
  do {
    const auto whole = std::make_shared<Work>();
    const auto parts = works(4);
    Work::stand_for(whole, parts);
    for (const size_t part : order) {
      CHECK(whole->status().ok());
      parts[part]->complete(part == 1   ? Status(Code::kMismatch, "first")
                            : part == 3 ? Status(Code::kTimeout, "second")
                                        : Status());
    }
    CHECK(whole->status().code() == Code::kMismatch);
    CHECK(whole->status().message() == "first");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("Work: that of a group without parts is done at once") {
  const auto whole = std::make_shared<Work>();
  Work::stand_for(whole, {});
  CHECK(whole->done());
  CHECK(whole->status().ok());
}

TEST_CASE("Work: that of a group lives until it is done, and rings and runs what is behind it") {
  auto whole = std::make_shared<Work>();
  const std::weak_ptr<Work> held = whole;
  auto parts = works(2);
  dt::Doorbell bell;
  int ran = 0;
  whole->watch(&bell);
  whole->then([&](const Status&) { ++ran; });
  Work::stand_for(whole, parts);
  whole.reset();
  const uint32_t ticket = bell.prepare();
  parts[1]->complete(Status());
  CHECK_FALSE(held.expired());
  parts[0]->complete(Status());
  bell.sleep(ticket, dt::Deadline::after_ms(20'000));
  CHECK(ran == 1);
  CHECK(held.expired());
  for (const auto& part : parts) CHECK(part.use_count() == 1);
}

TEST_CASE("Work: threads complete the parts of a group while it is made") {
  for (int round = 0; round < 200; ++round) {
    const auto whole = std::make_shared<Work>();
    const auto parts = works(8);
    std::thread first([&] {
      for (size_t i = 0; i < 8; i += 2) parts[i]->complete(Status());
    });
    std::thread second([&] {
      for (size_t i = 1; i < 8; i += 2) parts[i]->complete(Status(Code::kTimeout, "odd"));
    });
    Work::stand_for(whole, parts);
    first.join();
    second.join();
    CHECK(whole->done());
    CHECK(whole->status().message() == "odd");
  }
}
