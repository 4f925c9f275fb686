// SPDX-License-Identifier: Apache-2.0
// Several jobs at one store: of the same ranks one after the other, attempts, and other names.
#include <set>
#include <thread>
#include <utility>

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

TEST_CASE("store: in each job all ranks hear of a time-out on a communicator") {
  Job job(2, [](ServerOptions* options) {
    many_jobs(options);
    options->heartbeat_ms = 50;
  });
  for (int number = 0; number < 2; ++number) {
    const auto clients = job.join_all();
    const auto told = std::make_shared<Guarded<std::string>>();
    clients[1]->on_failure([told](const Failure& failure) {
      told->with([&](std::string& text) { text = failure.info.message; });
    });
    for (int32_t rank = 0; rank < 2; ++rank) {
      Client::Observers observers;
      observers.activity = [rank] {
        Activity activity;
        activity.communicator = "world";
        activity.operation = "allreduce";
        activity.sequence = 7 - rank;
        activity.inside = rank == 0;
        return activity;
      };
      observers.orders = [rank, first = true](bool) mutable -> std::vector<Orders> {
        if (!std::exchange(first, false)) return {};
        std::vector<Order> news = {{1, 77, 6, "allreduce f32 sum x 3"}};
        if (rank == 0) news.push_back({2, 78, 7, "allreduce f32 sum x 3"});
        return {{"world", 2, std::move(news)}};
      };
      clients[static_cast<size_t>(rank)]->observe(std::move(observers));
    }
    ErrorInfo info;
    info.code = Code::kTimeout;
    info.message = "timed out";
    info.operation = "allreduce";
    info.sequence = 7;
    const std::string wanted = "not known to be called by rank 1";
    const Deadline deadline = Deadline::after_ms(kPatienceMs);
    std::string text;
    do {  // until the store has heard of both
      REQUIRE(clients[0]->report_failure("world", info, patiently()).ok());
      text = told->with([](const std::string& mine) { return mine; });
    } while (text.find(wanted) == std::string::npos && !deadline.passed());
    INFO(number, ": ", text);
    CHECK(text.find(wanted) != std::string::npos);
    leave(clients);
  }
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

namespace {

void any_job(ServerOptions* options) { options->several_jobs = options->any_job = true; }

Result<std::shared_ptr<Client>> dial(const Job& job, int32_t rank, const std::string& id,
                                     int32_t attempt = 2, int32_t world_size = 2) {
  ClientOptions options = job.client_options(rank);
  options.job_id = id;
  options.attempt = attempt;
  options.world_size = world_size;
  return Client::connect(job.loop.get(), options, patiently());
}

std::vector<std::shared_ptr<Client>> join_both(const Job& job, const std::string& id,
                                               int32_t attempt = 2) {
  std::vector<std::shared_ptr<Client>> clients(2);
  on_threads(2, [&](int32_t rank) {
    auto client = dial(job, rank, id, attempt);
    REQUIRE_MESSAGE(client.ok(), client.status().message());
    clients[static_cast<size_t>(rank)] = std::move(client).value();
    REQUIRE(clients[static_cast<size_t>(rank)]->join(job.record(rank), patiently()).ok());
  });
  return clients;
}

}  // namespace

TEST_CASE("store: jobs of other names are served next to the first one, each for itself") {
  Job job(2, any_job);
  auto own = join_both(job, "a");
  auto other = join_both(job, "b");
  Failures own_failures, other_failures;
  own_failures.watch(own[0].get());
  other_failures.watch(other[0].get());
  CHECK(own[0]->set("key", "of a", patiently()).ok());
  CHECK(other[0]->set("key", "of b", patiently()).ok());
  CHECK(own[1]->get("key", patiently()).value() == "of a");
  CHECK(other[1]->get("key", patiently()).value() == "of b");
  // A tool that names the job sees the job's keys; without a name it sees the first one's.
  for (const char* id : {"", "b"}) {
    const auto tool = dial(job, -1, id, -1, 0);
    REQUIRE(tool.ok());
    CHECK(tool.value()->get("key", patiently()).value() == (*id == 0 ? "of a" : "of b"));
  }
  other[1].reset();
  CHECK(other_failures.wait_first().info.rank == 1);
  CHECK(own[0]->ping(patiently()).ok());
  CHECK(own_failures.count() == 0);
  leave(own);
  // Nobody's job.
  const Status unknown = dial(job, -1, "c", -1, 0).status();
  CHECK(unknown.code() == Code::kConfig);
  CHECK(unknown.message().find("serves job \"a\" attempt 2; this process belongs to job \"c\"") !=
        std::string::npos);
}

TEST_CASE("store: a higher attempt ends the one before, which hears of it, and leaves nothing") {
  Job job(2, any_job);
  for (const char* id : {"a", "b"}) {
    CAPTURE(std::string(id));
    auto old = join_both(job, id);
    Failures failures;
    failures.watch(old[0].get());
    CHECK(old[0]->set("key", "old", patiently()).ok());
    auto next = join_both(job, id, 3);
    const Failure heard = failures.wait_first();
    CHECK(heard.info.code == Code::kAborted);
    CHECK(heard.info.message.find("attempt 2 of job \"" + std::string(id) + "\" is over: rank ") ==
          0);
    CHECK(heard.info.message.find(" has begun attempt 3; end this process") != std::string::npos);
    CHECK(next[0]->list("key", patiently()).value().empty());
    CHECK_FALSE(old[1]->set("x", "y", patiently()).ok());
    const Status late = dial(job, 1, id).status();
    CHECK(late.code() == Code::kConfig);
    CHECK(late.message().find(" attempt 2 (stale)") != std::string::npos);
    leave(next);
  }
}

TEST_CASE("store: a rank that is out of range begins no attempt and no job, and ends none") {
  Job job(2, any_job);
  const auto own = join_both(job, "a");
  const auto other = join_both(job, "b");
  Failures failures;
  failures.watch(own[0].get());
  failures.watch(other[0].get());
  for (const char* id : {"a", "b", "c"}) {
    CAPTURE(std::string(id));
    for (const int32_t rank : {-7, 2}) {
      const Status refused = dial(job, rank, id, 3).status();
      CHECK(refused.code() == Code::kConfig);
      CHECK(refused.message() ==
            format("rank %d (%s pid %d) is out of range: the job has world size 2, so ranks are 0 "
                   "to 1",
                   rank, job.host_of(rank).c_str(), 10 + rank));
    }
  }
  for (const auto& clients : {own, other}) CHECK(clients[0]->set("k", "v", patiently()).ok());
  CHECK(failures.count() == 0);
  CHECK(dial(job, -1, "c", -1, 0).status().code() == Code::kConfig);  // nobody's job still
  leave(own);
  leave(other);
}

TEST_CASE("store: a rank that joins when a higher attempt begins is answered, not left waiting") {
  Job job(2, any_job);
  const auto early = dial(job, 0, "a").value();
  Status joined;
  std::thread joins([&] { joined = early->join(job.record(0), patiently()).status(); });
  // Behind the join or before it: in both cases the rank hears of the end.
  const auto next = join_both(job, "a", 3);
  joins.join();
  CHECK_FALSE(joined.ok());
  CHECK(joined.code() != Code::kTimeout);
  CHECK(next[0]->ping(patiently()).ok());
}

TEST_CASE("store: at its limit of jobs it says so, and the oldest that has ended makes room") {
  Job job(2, any_job);
  std::vector<std::shared_ptr<Client>> held;
  for (int i = 0; i < 64; ++i) held.push_back(dial(job, 0, "job " + std::to_string(i)).value());
  const Status full = dial(job, 0, "one more").status();
  CHECK(full.code() == Code::kConfig);
  CHECK(full.message() ==
        "the store at " + job.address() +
            " serves 65 jobs already, its limit, and ranks of all of them are connected: job \"one "
            "more\" cannot begin; end one of them, or serve another store");
  held[7].reset();
  Result<std::shared_ptr<Client>> room = dial(job, 0, "one more");
  // Its end may be read after the hello of the next one.
  for (int tries = 0; !room.ok() && tries < 1000; ++tries) room = dial(job, 0, "one more");
  CHECK(room.ok());
}
