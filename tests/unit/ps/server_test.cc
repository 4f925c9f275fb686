// SPDX-License-Identifier: Apache-2.0
// What workers push to parameter servers and pull, clocks, and who is refused.
#include "ps/server.h"

#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../contains.h"
#include "servers.h"

using namespace dt;
using namespace dt::ps;
using namespace dt::test;

TEST_CASE("rows and whole variables go to their servers and come back") {
  for (const int count : {1, 2, 3}) {
    const auto servers = serve(count);
    const auto client = join(*servers, 0);
    for (const int32_t columns : {1, 7, 2000}) {
      Variable variable = matrix(format("x%d", columns).c_str(), 700, columns);
      variable.initial = Initial::kUniform;
      variable.initial_value = 1;
      const auto number = client->open(variable, patient());
      REQUIRE_MESSAGE(number.ok(), number.status().message());
      const int32_t x = number.value();
      std::vector<float> plain;
      for (int64_t row = 0; row < variable.rows; ++row) {
        for (int32_t i = 0; i < columns; ++i) plain.push_back(initial_value(variable, row, i));
      }
      CHECK(pull_all(*client, x) == plain);
      std::mt19937 random(static_cast<uint32_t>(columns));
      for (int step = 0; step < 6; ++step) {
        std::vector<int64_t> rows;
        std::vector<float> gradients;
        for (int i = 0; i < 50; ++i) {
          rows.push_back(static_cast<int64_t>(random() % 700));
          for (int32_t c = 0; c < columns; ++c) {
            gradients.push_back(static_cast<float>(random() % 8));  // sums are exact
          }
        }
        REQUIRE(push(*client, x, rows, gradients, 0.5).ok());
        std::vector<float> sums(plain.size());
        for (size_t i = 0; i < rows.size(); ++i) {
          for (size_t c = 0; c < static_cast<size_t>(columns); ++c) {
            sums[static_cast<size_t>(rows[i]) * static_cast<size_t>(columns) + c] +=
                gradients[i * static_cast<size_t>(columns) + c];
          }
        }
        for (size_t i = 0; i < plain.size(); ++i) plain[i] -= static_cast<float>(0.5 * sums[i]);
        const std::vector<float> found = pull(*client, x, rows);
        for (size_t i = 0; i < rows.size(); ++i) {
          const size_t at = static_cast<size_t>(rows[i]) * static_cast<size_t>(columns);
          REQUIRE(found[i * static_cast<size_t>(columns)] == doctest::Approx(plain[at]));
        }
      }
      std::vector<float> values(plain.size());
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
      REQUIRE(finish([&](const auto& work) {
                return client->set(x, nullptr, -1, values.data(), work);
              }).ok());
      CHECK(pull_all(*client, x) == values);
      REQUIRE(push_all(*client, x, values).ok());
      CHECK(pull_all(*client, x) == std::vector<float>(values.size(), 0));
    }
    CHECK(client->leave(patient()).ok());
  }
}

TEST_CASE("workers see each other's updates, and find a variable that is there") {
  const auto servers = serve(2);
  const auto first = join(*servers, 0);
  const auto second = join(*servers, 1);
  const int32_t mine = first->open(matrix("x", 10, 4), patient()).value();
  CHECK(first->open(matrix("x", 10, 4), patient()).value() == mine);
  (void)second->open(matrix("other", 3, 3), patient()).value();
  const int32_t theirs = second->open(matrix("x", 10, 4), patient()).value();
  REQUIRE(push(*first, mine, {3}, {1, 2, 3, 4}).ok());
  CHECK(pull(*second, theirs, {3, 2}) == std::vector<float>{-1, -2, -3, -4, 0, 0, 0, 0});

  const Status differs = second->open(matrix("y", 10, 4), patient()).status();
  CHECK(differs.ok());
  const Status refused = first->open(matrix("y", 11, 4), patient()).status();
  CHECK(refused.code() == Code::kMismatch);
  CHECK(contains(refused.message(), "has variable \"y\" already: rows is 10 there and 11 here"));
  CHECK(first->open(matrix("x", 10, 5), patient()).status().code() == Code::kMismatch);
}

TEST_CASE("what a worker gives wrongly") {
  const auto servers = serve(1);
  const auto client = join(*servers, 0);
  const int32_t x = client->open(matrix("x", 10, 1), patient()).value();
  const Status outside = push(*client, x, {1, 10}, {0, 0});
  CHECK(outside.code() == Code::kInvalidArgument);
  CHECK(contains(outside.message(), "rows[1] is 10; variable \"x\" has 10 rows"));
  CHECK(push(*client, x, {-1}, {0}).code() == Code::kInvalidArgument);
  CHECK(push(*client, 7, {1}, {0}).code() == Code::kInvalidArgument);
  CHECK(push(*client, x, {}, {}).ok());
  CHECK(client->leave(patient()).ok());
  CHECK(client->leave(patient()).ok());
  CHECK(push(*client, x, {1}, {0}).code() == Code::kInvalidState);
}

TEST_CASE("no worker is further ahead than it may") {
  constexpr int kWorkers = 3;
  constexpr int64_t kAhead = 2;
  constexpr int64_t kSteps = 60;
  const auto servers = serve(2);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kWorkers; ++i) clients.push_back(join(*servers, i));
  std::atomic<int64_t> steps[kWorkers] = {};
  std::atomic<int64_t> most{0};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      for (int64_t step = 1; step <= kSteps; ++step) {
        steps[i] = step;  // before the others may hear of it
        if (!clients[static_cast<size_t>(i)]->clock(kAhead, patient()).ok()) ++failures;
        int64_t slowest = INT64_MAX;
        for (const auto& each : steps) slowest = std::min<int64_t>(slowest, each);
        int64_t before = most;
        while (before < step - slowest && !most.compare_exchange_weak(before, step - slowest)) {
        }
        for (unsigned spin = random() % 20'000; spin > 0; --spin) std::atomic_signal_fence({});
      }
    });
  }
  for (auto& each : threads) each.join();
  CHECK(failures == 0);
  CHECK(most <= kAhead);
  for (const auto& client : clients) {
    CHECK(client->statistics().most_ahead <= kAhead);
    CHECK(client->statistics().clock == kSteps);
  }
}

TEST_CASE("who holds a clock up is named, and does so no more when it is lost") {
  const auto servers = serve(2);
  const auto fast = join(*servers, 0);
  auto slow = join(*servers, 1);
  REQUIRE(fast->clock(1, patient()).ok());
  Status late;
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  do {  // until it has heard of whom it waits for
    late = fast->clock(1, Wait{Deadline::after_ms(100), nullptr});
  } while (late.code() == Code::kTimeout && late.info().rank < 0 && !deadline.passed());
  REQUIRE(late.code() == Code::kTimeout);
  CHECK(contains(late.message(),
                 "worker 1 (there pid 1001) is at step 0 and this one at 2, and may be 1 ahead"));
  CHECK(late.info().rank == 1);
  CHECK(late.info().pid == 1001);
  std::thread waits([&] { CHECK(fast->clock(1, patient()).ok()); });
  slow = nullptr;  // without a goodbye
  waits.join();
  // A new one begins where the others are.
  const auto again = join(*servers, 1);
  CHECK(again->clock(1, patient()).ok());
  CHECK(again->statistics().clock == 3);
}

TEST_CASE("an evaluator reads, and holds nobody up") {
  Server::Options base;
  base.workers = 1;
  const auto servers = serve(1, base);
  const auto worker = join(*servers, 0);
  const auto evaluator = join(*servers, -1);
  const int32_t x = worker->open(matrix("x", 5, 2), patient()).value();
  const int32_t y = evaluator->open(matrix("x", 5, 2), patient()).value();
  REQUIRE(push(*worker, x, {4}, {1, 1}).ok());
  CHECK(pull(*evaluator, y, {4}) == std::vector<float>{-1, -1});
  CHECK(push(*evaluator, y, {4}, {1, 1}).code() == Code::kUnsupported);
  CHECK(evaluator->clock(0, patient()).code() == Code::kUnsupported);
  for (int i = 0; i < 5; ++i) CHECK(worker->clock(0, patient()).ok());
}

TEST_CASE("who does not belong here is refused with the reason") {
  const auto servers = serve(2);
  const auto refused = [&](const std::string& text, auto&& change) {
    Client::Options options = worker_options(servers->addresses, 0);
    change(options);
    std::string why;
    for (int64_t limit_ms = 200; limit_ms < kPatienceMs && !contains(why, text); limit_ms *= 4) {
      const auto made = Client::connect(options, Wait{Deadline::after_ms(limit_ms), nullptr});
      REQUIRE_FALSE(made.ok());
      why = made.status().message();
    }
    INFO(why);
    CHECK(contains(why, text));
  };
  refused(
      " belongs to job \"job\", and the worker to another; set job.id (DT_JOB_ID) alike on workers "
      "and servers, or leave it out; this process belongs to job \"another\"",
      [](auto& options) { options.job_id = "another"; });
  refused("give all processes the same list of servers",
          [](auto& options) { std::swap(options.servers[0], options.servers[1]); });
  refused("this is parameter server 0 of 2, not 0 of 1",
          [](auto& options) { options.servers.pop_back(); });
  refused("do not accept each other", [](auto& options) {
    options.security.mode = net::SecurityMode::kAuth;
    options.security.token = std::move(net::Token::from_text(std::string(64, 'a'))).value();
  });
  const auto first = join(*servers, 0);
  refused("worker 0 (there pid 1000) is connected; only one process can be worker 0", [](auto&) {});
}

TEST_CASE("tokens and encryption") {
  for (const auto mode : {net::SecurityMode::kAuth, net::SecurityMode::kEncrypt}) {
    Server::Options base;
    base.security.mode = mode;
    base.security.token = std::move(net::Token::from_text(std::string(64, 'a'))).value();
    const auto servers = serve(2, base);
    Client::Options options = worker_options(servers->addresses, 0);
    options.security = base.security;
    auto client = Client::connect(options, patient());
    REQUIRE_MESSAGE(client.ok(), client.status().message());
    const int32_t x = client.value()->open(matrix("x", 4000, 100), patient()).value();
    REQUIRE(push_all(*client.value(), x, std::vector<float>(400'000, 1)).ok());
    CHECK(pull_all(*client.value(), x) == std::vector<float>(400'000, -1));
    CHECK(client.value()->leave(patient()).ok());
  }
}

TEST_CASE("a worker that has left holds nobody up, although it keeps its handle") {
  Server::Options base;
  base.workers = 2;
  const auto servers = serve(1, base);
  const auto first = join(*servers, 0);
  const auto second = join(*servers, 1);
  REQUIRE(second->leave(patient()).ok());
  for (int i = 0; i < 3; ++i) CHECK(first->clock(0, patient()).ok());
  CHECK(second->clock(0, patient()).code() == Code::kInvalidState);
  CHECK(second->save(patient()).code() == Code::kInvalidState);
  CHECK(second->open(matrix("x", 1, 1), patient()).status().code() == Code::kInvalidState);
  REQUIRE(first->leave(patient()).ok());
  CHECK(servers->servers[0]->wait(patient()).value());
}

TEST_CASE("abort ends calls of other threads") {
  const auto servers = serve(1);
  const auto fast = join(*servers, 0);
  const auto slow = join(*servers, 1);
  const int32_t x = fast->open(matrix("x", 1, 1), patient()).value();
  std::thread waits([&] { CHECK(fast->clock(0, patient()).code() == Code::kAborted); });
  fast->abort();
  waits.join();
  CHECK(push(*fast, x, {0}, {1}).code() == Code::kAborted);
}

TEST_CASE("a clock that failed is tried again") {
  const auto servers = serve(2);
  const auto fast = join(*servers, 0);
  const auto slow = join(*servers, 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(fast->clock(0, Wait{Deadline::after_ms(60), nullptr}).code() == Code::kTimeout);
  }
  CHECK(slow->clock(0, patient()).ok());
  CHECK(fast->clock(0, patient()).ok());
  CHECK(fast->statistics().clock == 1);
}

TEST_CASE("of two calls of clock the later one counts") {
  const auto servers = serve(2);
  const auto fast = join(*servers, 0);
  const auto slow = join(*servers, 1);
  std::atomic<bool> ended{false};
  Status first;
  std::thread waits([&] {
    first = fast->clock(0, patient());
    ended = true;
  });
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!ended && !deadline.passed()) {
    (void)fast->clock(0, Wait{Deadline::after_ms(20), nullptr});
  }
  waits.join();
  CHECK(first.code() == Code::kAborted);
  CHECK(contains(first.message(), "a later call took its place"));
  CHECK(slow->clock(0, patient()).ok());
  CHECK(fast->clock(0, patient()).ok());
  CHECK(fast->statistics().clock == 1);
}
