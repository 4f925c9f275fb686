// SPDX-License-Identifier: Apache-2.0
// Jobs of the same ranks, one after the other, at one store.
#include <thread>

#include "fixture.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

void many_jobs(ServerOptions* options) { options->several_jobs = true; }

void leave(const std::vector<std::shared_ptr<Client>>& clients) {
  on_threads(static_cast<int32_t>(clients.size()), [&](int32_t rank) {
    CHECK(clients[static_cast<size_t>(rank)]->goodbye(patiently()).ok());
  });
}

}  // namespace

TEST_CASE("store: when all have left they may join again, and find nothing of the job before") {
  Job job(3, many_jobs);
  ClientOptions anybody = job.client_options(-1);
  anybody.world_size = 0;
  const auto tool = std::move(Client::connect(job.loop.get(), anybody, patiently())).value();
  std::vector<std::vector<std::shared_ptr<Client>>> jobs;
  std::set<uint64_t> sessions;
  Failures failures;
  for (int number = 0; number < 3; ++number) {
    std::vector<std::shared_ptr<Client>> clients;
    for (int32_t rank = 0; rank < 3; ++rank) {
      clients.push_back(job.connect(rank));
      failures.watch(clients.back().get());
    }
    CHECK(tool->list("", patiently()).value().empty());
    on_threads(3, [&](int32_t rank) {
      const auto verdict = clients[static_cast<size_t>(rank)]->join(job.record(rank), patiently());
      REQUIRE(verdict.ok());
      if (rank == 0) sessions.insert(verdict.value().session);
    });
    CHECK(clients[0]->add("sum", 1, patiently()).value() == 1);
    CHECK(clients[1]->set("torch/kept", std::to_string(number), patiently()).ok());
    leave(clients);
    CHECK(tool->get("sum", patiently()).value() == "1");  // until another job begins
    CHECK(tool->erase("torch/kept", patiently()).ok());
    jobs.push_back(std::move(clients));  // their connections stay open
  }
  CHECK(sessions.size() == 3);
  CHECK(failures.count() == 0);
  // A rank of an earlier job has no word in this one.
  CHECK_FALSE(jobs[0][0]->set("x", "y", patiently()).ok());
}

TEST_CASE("store: a rank that comes back before the others have left waits for them") {
  Job job(2, many_jobs);
  const auto clients = job.join_all();
  CHECK(clients[0]->goodbye(briefly(50)).code() == Code::kTimeout);
  const Status early =
      Client::connect(job.loop.get(), job.client_options(0), briefly(300)).status();
  CHECK(early.code() == Code::kTimeout);
  INFO(early.message());
  CHECK(early.message().find("the last: rank 0 (hostA pid 10) has left a job that others are still "
                             "in: rank 1 (hostB pid 11); the next one can begin when they have "
                             "said goodbye") != std::string::npos);
  std::shared_ptr<Client> again;
  std::thread comes_back([&] { again = job.connect(0); });
  CHECK(clients[1]->set("still", "there", patiently()).ok());
  CHECK(clients[1]->goodbye(patiently()).ok());
  comes_back.join();
  CHECK(again->ping(patiently()).ok());
  CHECK(again->list("", patiently()).value().empty());
}

TEST_CASE("store: after a death, an abort, or where several jobs are not meant, none follows") {
  enum class Kind { kDeath, kAbort, kOneJob };
  for (const Kind kind : {Kind::kDeath, Kind::kAbort, Kind::kOneJob}) {
    CAPTURE(static_cast<int>(kind));
    Job job(3, [&](ServerOptions* options) { options->several_jobs = kind != Kind::kOneJob; });
    auto clients = job.join_all();
    if (kind == Kind::kDeath) clients[1].reset();
    if (kind == Kind::kAbort) CHECK(clients[1]->abort("enough", patiently()).ok());
    for (const int32_t rank : {0, 1, 2}) {
      if (kind == Kind::kOneJob || rank != 1) {
        (void)clients[static_cast<size_t>(rank)]->goodbye(briefly(rank == 2 ? 1'000 : 50));
      }
    }
    const Status again =
        Client::connect(job.loop.get(), job.client_options(0), patiently()).status();
    CHECK(again.code() == Code::kConfig);
    CHECK(again.message() == std::string("rank 0 (hostA pid 10) has left attempt 2") +
                                 (kind == Kind::kDeath ? ", in which rank 1 died" : "") +
                                 "; (hostA pid 10) cannot take its place: start a new attempt");
  }
}

TEST_CASE("store: a foreign process does not end what a job has left in the store") {
  Job job(2, many_jobs);
  const auto clients = job.join_all();
  CHECK(clients[0]->set("result", "7", patiently()).ok());
  leave(clients);
  ClientOptions stale = job.client_options(0);
  stale.attempt = 1;
  CHECK(Client::connect(job.loop.get(), stale, patiently()).status().code() == Code::kConfig);
  ClientOptions larger = job.client_options(0);
  larger.world_size = 3;
  CHECK(Client::connect(job.loop.get(), larger, patiently()).status().code() == Code::kConfig);
  ClientOptions anybody = job.client_options(-1);
  const auto tool = std::move(Client::connect(job.loop.get(), anybody, patiently())).value();
  CHECK(tool->get("result", patiently()).value() == "7");
}
