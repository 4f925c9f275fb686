// SPDX-License-Identifier: Apache-2.0
// What ranks tell counts against the memory of the store as long as it is kept.
#include <algorithm>
#include <mutex>
#include <thread>

#include "fixture.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

constexpr int32_t kRanks = 8;

/// A server with little memory, and what it logs.
struct Tight {
  explicit Tight(int64_t bytes) : budget(bytes) {}

  const int64_t budget;
  std::mutex mutex;
  std::vector<std::string> log;
  Job job{kRanks, [this](ServerOptions* options) {
            options->memory_bytes = budget;
            options->logger =
                std::make_shared<Logger>(LogLevel::kWarning, [this](LogLevel, const char* text) {
                  const std::scoped_lock lock(mutex);
                  log.emplace_back(text);
                });
          }};

  void check_let_go() {
    const std::scoped_lock lock(mutex);
    REQUIRE_FALSE(log.empty());
    CHECK(log[0].find("store: closed the connection of rank ") == 0);
    CHECK(log[0].find(": all connections may make the store keep " + std::to_string(budget) +
                      " bytes of ") != std::string::npos);
  }
};

}  // namespace

TEST_CASE("store: records of ranks that join count until the verdict") {
  Tight tight(512 << 10);
  // Short on the wire: an entry of empty texts takes eight times as much when it is read.
  JoinRecord record = tight.job.record(0);
  record.equal_config.resize(2'000);
  CHECK(kept_bytes(record) > 8 * encode(record).size() * 9 / 10);
  std::vector<std::shared_ptr<Client>> clients;
  for (int32_t rank = 0; rank < kRanks; ++rank) clients.push_back(tight.job.connect(rank));
  std::vector<std::thread> joining;
  std::vector<Status> ends(kRanks - 1);
  for (int32_t rank = 0; rank < kRanks - 1; ++rank) {
    joining.emplace_back([&, rank] {
      JoinRecord mine = record;
      mine.rank = rank;
      ends[static_cast<size_t>(rank)] =
          clients[static_cast<size_t>(rank)]->join(mine, briefly(2'000)).status();
    });
  }
  for (std::thread& thread : joining) thread.join();
  int let_go = 0;
  for (const Status& end : ends) let_go += end.code() == Code::kPeerLost ? 1 : 0;
  CHECK(let_go >= 3);  // 128,000 bytes each
  CHECK(let_go < kRanks - 1);
  tight.check_let_go();
}

TEST_CASE("store: a job whose records fit is not concerned, nor are they counted for ever") {
  Tight tight(512 << 10);
  const auto clients = tight.job.join_all();
  for (const auto& client : clients) CHECK(client->ping(patiently()).ok());
  CHECK(tight.log.empty());
}

TEST_CASE("store: what ranks say when they gather counts until all have come") {
  Tight tight(256 << 10);
  const auto clients = tight.job.join_all();
  std::vector<int32_t> all(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) all[static_cast<size_t>(rank)] = rank;
  std::vector<std::thread> coming;
  std::vector<Status> ends(kRanks - 1);
  for (int32_t rank = 0; rank < kRanks - 1; ++rank) {
    coming.emplace_back([&, rank] {
      ends[static_cast<size_t>(rank)] =
          clients[static_cast<size_t>(rank)]
              ->gather("all", all, std::string(32 << 10, 'x'), briefly(2'000))
              .status();
    });
  }
  for (std::thread& thread : coming) thread.join();
  CHECK(std::any_of(ends.begin(), ends.end(),
                    [](const Status& end) { return end.code() == Code::kPeerLost; }));
  tight.check_let_go();
}
