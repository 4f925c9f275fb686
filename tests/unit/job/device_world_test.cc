// SPDX-License-Identifier: Apache-2.0
#include "job/device_world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "backend/nccl/library.h"
#include "contains.h"
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "fake_nccl.h"
#include "job/job.h"
#include "ranks.h"

using namespace dt;
using namespace dt::job;
using dt::test::FakeCuda;
using dt::test::FakeNccl;

namespace {

DeviceCard card_of(int rank) {
  DeviceCard card;
  card.host = "host" + std::to_string(rank / 2);
  card.pid = 10 + rank;
  card.uuid = "GPU-" + std::to_string(rank);
  card.device = "NVIDIA H100 at 0000:0" + std::to_string(rank) + ":00.0";
  card.nccl_version = 22809;
  return card;
}

std::vector<DeviceCard> cards_of(int count) {
  std::vector<DeviceCard> cards;
  for (int rank = 0; rank < count; ++rank) cards.push_back(card_of(rank));
  return cards;
}

Config good_config(int rank, int size, uint16_t port) {
  Config config;
  const std::pair<const char*, std::string> settings[] = {
      {"job.rank", std::to_string(rank)}, {"job.world_size", std::to_string(size)},
      {"job.master_addr", "127.0.0.1"},   {"job.master_port", std::to_string(port)},
      {"job.store_served", "true"},       {"backend.name", "nccl"},
      {"nccl.library", DT_FAKE_NCCL},     {"rendezvous.timeout_ms", "30000"},
      {"collective.timeout_ms", "20000"},
  };
  for (const auto& [key, value] : settings) {
    if (const Status status = config.set(key, value); !status.ok()) FAIL(status.message());
  }
  return config;
}

cuda::Answers machine_with(int gpus) {
  cuda::Answers answers;
  answers.built = true;
  answers.runtime_version = answers.driver_version = 13000;
  answers.device_count = gpus;
  return answers;
}

/// A machine of threads: `gpus` devices of which each rank opens its own.
Devices devices_of(int gpus) {
  Devices devices;
  devices.ask = [gpus] { return machine_with(gpus); };
  devices.open = [](int32_t index) -> Result<std::shared_ptr<cuda::Runtime>> {
    return std::shared_ptr<cuda::Runtime>(std::make_shared<FakeCuda>(index));
  };
  devices.kernels = [](std::shared_ptr<cuda::Runtime> runtime) {
    return Result<std::shared_ptr<kernels::TensorKernels>>(
        dt::test::fake_tensor_kernels(std::static_pointer_cast<FakeCuda>(std::move(runtime))));
  };
  return devices;
}

/// A fake NCCL as just loaded, and the store of a job of threads.
class JobStore {
 public:
  explicit JobStore(int world_size, int64_t heartbeat_ms = 0) {
    FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
    fake->reset();
    fake->set_enqueue(FakeCuda::enqueue);
    store::ServerOptions serving;
    serving.world_size = world_size;
    serving.heartbeat_ms = heartbeat_ms;
    auto server = store::Server::start(loop_.get(), serving);
    REQUIRE(server.ok());
    server_ = std::move(server).value();
  }
  auto port() const { return server_->port(); }

 private:
  const std::unique_ptr<net::Loop> loop_ = std::move(net::Loop::start()).value();
  std::unique_ptr<store::Server> server_;
};

struct Outcome {
  Status status;
  std::string backend;
  float sum = 0;
};

/// Ranks as threads: each makes a job and sums once over its GPU.
std::vector<Outcome> run_jobs(int size, const std::function<Devices(int rank)>& devices,
                              const std::function<void(int rank, Config*)>& change = {},
                              const Logger::Sink& sink = {}) {
  const JobStore served(size);
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  dt::test::on_ranks(size, [&](int rank) {
    Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    Config config = good_config(rank, size, served.port());
    if (change) change(rank, &config);
    auto job = Job::start(config, sink, devices(rank));
    outcome.status = job.status();
    if (!job.ok()) return;
    auto world = job.value()->world();
    outcome.status = world.status();
    if (!world.ok()) return;
    outcome.backend = world.value()->backend().name();
    float value = static_cast<float>(rank + 1);
    backend::Collective collective;
    collective.kind = backend::Kind::kAllreduce;
    collective.dtype = Dtype::kF32;
    collective.send = collective.recv = &value;
    collective.count = 1;
    const auto work = std::make_shared<backend::Work>();
    outcome.status = world.value()->submit(collective, work);
    if (outcome.status.ok()) {
      world.value()->backend().wait(*work, Wait());
      outcome.status = work->status();
    }
    outcome.sum = value;
    if (outcome.status.ok()) outcome.status = job.value()->finalize(20'000);
  });
  return outcomes;
}

}  // namespace

TEST_CASE("judge: GPUs of their own and one NCCL make it nccl") {
  CHECK(judge(cards_of(4), false).value() == DeviceKind::kNccl);
  auto alone = cards_of(1);
  alone[0].nccl_problem = Status(Code::kNccl, "no NCCL");
  CHECK(judge(alone, false).value() == DeviceKind::kNccl);  // it is not asked
}

TEST_CASE("judge: the first rank without a GPU is the error of all") {
  auto cards = cards_of(4);
  cards[2].problem = Status(Code::kCuda, "there is no NVIDIA driver here");
  const Status status = judge(cards, false).status();
  CHECK(status.code() == Code::kCuda);
  CHECK(status.info().rank == 2);
  CHECK(status.message() ==
        "rank 2 (host1 pid 12): backend.name is nccl, but there is no NVIDIA driver here");
}

TEST_CASE("judge: one GPU for two ranks is an error with both, or shared through the host") {
  auto cards = cards_of(3);
  cards[2].uuid = cards[1].uuid;
  const Status status = judge(cards, false).status();
  CHECK(status.code() == Code::kConfig);
  CHECK(
      status.message() ==
      "rank 1 (host0 pid 11) and rank 2 (host1 pid 12) hold the same GPU (NVIDIA H100 at "
      "0000:02:00.0, GPU-1), which NCCL refuses; start one rank per GPU (each takes the GPU of its "
      "local rank), or set backend.shared_gpu = \"host\", where they exchange through host memory, "
      "slowly");
  CHECK(judge(cards, true).value() == DeviceKind::kStaged);
  cards[0].nccl_problem = Status(Code::kNccl, "no NCCL");
  CHECK(judge(cards, true).value() == DeviceKind::kStaged);  // it is not needed
}

TEST_CASE("judge: one GPU for ranks that NCCL takes for ranks of other hosts") {
  auto cards = cards_of(3);
  cards[2].uuid = cards[1].uuid;
  cards[1].nccl_host = "a";
  CHECK(judge(cards, false).value() == DeviceKind::kNccl);
  cards[2].nccl_host = "b";
  CHECK(judge(cards, false).value() == DeviceKind::kNccl);
  CHECK(judge(cards, true).value() == DeviceKind::kStaged);
  cards[2].nccl_host = "a";
  CHECK(judge(cards, false).status().code() == Code::kConfig);
}

TEST_CASE("judge: NCCL must be there, in one version") {
  auto cards = cards_of(3);
  cards[1].nccl_version = 22703;
  const Status versions = judge(cards, false).status();
  CHECK(versions.code() == Code::kVersion);
  CHECK(
      versions.message() ==
      "NCCL is 2.28.9 on rank 0 (host0 pid 10) and 2.27.3 on rank 1 (host0 pid 11), and all ranks "
      "need the same; install one version everywhere, or name its file by nccl.library");
  cards[2].nccl_problem = Status(Code::kNccl, "NCCL is not here");
  CHECK(judge(cards, false).status().message() == "rank 2 (host1 pid 12): NCCL is not here");
}

TEST_CASE("choose_device: by number, by local rank, or an error that counts") {
  CHECK(choose_device(3, 0, 1, 4, false).value() == 3);
  CHECK(choose_device(-1, 2, 4, 4, false).value() == 2);
  CHECK(choose_device(-1, 2, 4, 1, false).value() == 0);  // each rank is shown its own
  CHECK(choose_device(-1, 3, 4, 2, true).value() == 1);
  CHECK(choose_device(4, 0, 1, 4, false).status().message() ==
        "backend.device is 4, and this process sees 4 GPUs; count from 0, within "
        "CUDA_VISIBLE_DEVICES where that is set");
  CHECK(choose_device(-1, 2, 4, 2, false).status().message() ==
        "4 ranks on this host and 2 GPUs: start at most one rank per GPU, or set "
        "backend.shared_gpu = \"host\", where ranks share a GPU and exchange through host memory, "
        "slowly");
}

TEST_CASE("Job: four ranks over their GPUs") {
  for (const Outcome& outcome : run_jobs(4, [](int) { return devices_of(4); })) {
    if (!outcome.status.ok()) FAIL_CHECK(outcome.status.message());
    CHECK(outcome.backend == "nccl");
    CHECK(outcome.sum == 10);
  }
  FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  CHECK(fake->misuses().empty());
  CHECK(fake->communicators() == 0);
}

TEST_CASE("Job: at level info one rank of a host tells which NCCL it is, and what is known of it") {
  Guarded<std::vector<std::string>> lines;
  const auto sink = [&](LogLevel level, const char* line) {
    if (level == LogLevel::kInfo) lines.with([&](auto& all) { all.emplace_back(line); });
  };
  const auto talkative = [](int, Config* config) {
    REQUIRE(config->set("log.level", "info").ok());
  };
  for (const Outcome& outcome : run_jobs(
           2, [](int) { return devices_of(2); }, talkative, sink)) {
    if (!outcome.status.ok()) FAIL_CHECK(outcome.status.message());
  }
  const auto count = [&](const std::string& begin) {
    return lines.with([&](const auto& all) {
      return std::count_if(all.begin(), all.end(),
                           [&](const std::string& line) { return line.rfind(begin, 0) == 0; });
    });
  };
  CHECK(count("NCCL 2.28.9 (" DT_FAKE_NCCL ", nccl.library)") == 1);
  CHECK(count("NCCL 2.28.9: ") == static_cast<ptrdiff_t>(nccl::known_faults(22809).size()));
}

/// Sums rank + 1 over the ranks of `comm` on its GPUs.
Status sum_on(comm::Communicator& comm, int rank, float* value, bool group = false) {
  *value = static_cast<float>(rank + 1);
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = Dtype::kF32;
  collective.send = collective.recv = value;
  collective.count = 1;
  const auto work = std::make_shared<backend::Work>();
  if (group) DT_TRY(comm.begin_group());
  DT_TRY(comm.submit(collective, work));
  if (group) DT_TRY(comm.end_group());
  comm.backend().wait(*work, Wait());
  return work->status();
}

TEST_CASE("Job: survivors go on over their GPUs, with NCCL and staged") {
  FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    constexpr int kSize = 4;
    const JobStore served(kSize);
    std::vector<Status> outcomes(kSize);
    std::vector<float> sums(kSize);
    std::vector<std::string> names(kSize);
    // Set when all that are left have their sum; by their number.
    Event all_have[kSize + 1];
    std::atomic<int> have[kSize + 1] = {};
    const auto has_sum = [&](int left) {
      if (have[left].fetch_add(1) + 1 == left) all_have[left].set();
    };
    dt::test::on_ranks(kSize, [&](int rank) {
      const auto at = static_cast<size_t>(rank);
      outcomes[at] = [&]() -> Status {
        Config config = good_config(rank, kSize, served.port());
        if (shared) DT_TRY(config.set("backend.shared_gpu", "host"));
        DT_TRY_VALUE(auto job, Job::start(config, {}, devices_of(shared ? 1 : kSize)));
        DT_TRY_VALUE(auto comm, job->world());
        DT_TRY(sum_on(*comm, rank, &sums[at]));
        has_sum(kSize);
        // One after the other ends without a goodbye; the others go on, down to one.
        for (int left = kSize; left > 1; --left) {
          if (rank == left - 1) {
            (void)all_have[left].wait({Deadline::after_ms(20'000)});
            return {};
          }
          while (sum_on(*comm, rank, &sums[at]).ok()) {
          }
          DT_TRY_VALUE(comm, job->shrink(comm));
          DT_TRY(sum_on(*comm, rank, &sums[at]));
          if (comm->size() != left - 1) return Status(Code::kInternal, "another size");
          const auto expected = static_cast<float>(left * (left - 1) / 2);
          if (sums[at] != expected) return Status(Code::kInternal, format("sum %g", sums[at]));
          names[at] = comm->backend().name();
          has_sum(left - 1);
        }
        return job->finalize(20'000);
      }();
    });
    for (const Status& outcome : outcomes) {
      if (!outcome.ok()) FAIL_CHECK(outcome.message());
    }
    for (size_t rank = 0; rank + 1 < kSize; ++rank) {
      CHECK(names[rank] == (shared ? "staged" : "nccl"));
    }
    CHECK(fake->misuses().empty());
    CHECK(fake->communicators() == 0);
  }
}

TEST_CASE("Job: a rank that leaves is named to those that need it, over NCCL and staged") {
  FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  for (const bool shared : {false, true}) {
    for (const bool group : {false, true}) {
      CAPTURE(shared);
      CAPTURE(group);
      const JobStore served(3, 100);  // ranks tell by heartbeats what they have called
      Status outcomes[3];
      Status ends[3];
      Event all_have;
      std::atomic<int> have = 0;
      dt::test::on_ranks(3, [&](int rank) {
        outcomes[rank] = [&]() -> Status {
          Config config = good_config(rank, 3, served.port());
          if (shared) DT_TRY(config.set("backend.shared_gpu", "host"));
          DT_TRY_VALUE(auto job, Job::start(config, {}, devices_of(shared ? 1 : 3)));
          DT_TRY_VALUE(auto comm, job->world());
          float sum = 0;
          DT_TRY(sum_on(*comm, rank, &sum));
          if (have.fetch_add(1) + 1 == 3) all_have.set();
          (void)all_have.wait({Deadline::after_ms(20'000)});
          Status heard;
          if (rank != 1) heard = sum_on(*comm, rank, &sum, group);
          ends[rank] = job->finalize(20'000);
          return heard;
        }();
      });
      CHECK_MESSAGE(outcomes[1].ok(), outcomes[1].message());
      for (const Status& end : ends) CHECK_MESSAGE(end.ok(), end.message());
      for (const int rank : {0, 2}) {
        CAPTURE(outcomes[rank].message());
        CHECK(outcomes[rank].code() == Code::kPeerLost);
        CHECK(outcomes[rank].info().rank == 1);
        CHECK(dt::test::contains(outcomes[rank].message(),
                                 ") has left the job with dt_finalize, and this"));
      }
      CHECK(fake->misuses().empty());
      CHECK(fake->communicators() == 0);
    }
  }
}

TEST_CASE("Job: a receive over NCCL from a rank that has left ends, and names it") {
  FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  for (const int peers : {1, 2}) {  // received from alone, and together
    CAPTURE(peers);
    constexpr int kSize = 3;
    const JobStore served(kSize);
    Status outcomes[kSize];
    Status ends[kSize];
    dt::test::on_ranks(kSize, [&](int rank) {
      outcomes[rank] = [&]() -> Status {
        DT_TRY_VALUE(auto job,
                     Job::start(good_config(rank, kSize, served.port()), {}, devices_of(kSize)));
        DT_TRY_VALUE(auto world, job->world());
        DT_TRY_VALUE(const auto comm, world->split(0, -rank));  // other numbers
        float sum = 0;
        DT_TRY(sum_on(*comm, rank, &sum));
        Status heard;
        if (rank == 0) {
          float came[2] = {};
          std::shared_ptr<backend::Work> works[2];
          if (peers > 1) DT_TRY(comm->begin_group());
          for (int i = 0; i < peers; ++i) {
            backend::Collective receive;
            receive.kind = backend::Kind::kRecv;
            receive.dtype = Dtype::kF32;
            receive.recv = &came[i];
            receive.count = 1;
            receive.root = i;
            works[i] = std::make_shared<backend::Work>();
            DT_TRY(comm->submit(receive, works[i]));
          }
          if (peers > 1) DT_TRY(comm->end_group());
          for (int i = 0; i < peers; ++i) {
            comm->backend().wait(*works[i], Wait());
            heard = works[i]->status();
          }
        }
        ends[rank] = job->finalize(20'000);
        return heard;
      }();
    });
    const std::string text = outcomes[0].message();
    CAPTURE(text);
    CHECK(outcomes[0].code() == Code::kPeerLost);
    CHECK(text.rfind("recv #2 on comm \"", 0) == 0);
    CHECK(dt::test::contains(text, "\", rank 2: rank 0 (world rank 2, "));
    CHECK(dt::test::contains(text, ") has left the job with dt_finalize, and this operation"));
    CHECK(outcomes[0].info().rank == (peers == 1 ? 2 : -1));
    CHECK(dt::test::contains(text, "which have left as well: 1") == (peers > 1));
    for (const int rank : {1, 2}) CHECK_MESSAGE(outcomes[rank].ok(), outcomes[rank].message());
    for (const Status& end : ends) CHECK_MESSAGE(end.ok(), end.message());
    CHECK(fake->misuses().empty());
    CHECK(fake->communicators() == 0);
  }
}

TEST_CASE("Job: what a rank sent before it left is received behind a receive that fails") {
  FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  constexpr int kSize = 3;
  const JobStore served(kSize);
  fake->set_eager_sends(true);
  Status outcomes[kSize];
  Status failed;
  float came = 0;
  dt::test::on_ranks(kSize, [&](int rank) {
    outcomes[rank] = [&]() -> Status {
      DT_TRY_VALUE(auto job,
                   Job::start(good_config(rank, kSize, served.port()), {}, devices_of(kSize)));
      DT_TRY_VALUE(auto world, job->world());
      DT_TRY_VALUE(const auto with_sender, world->split(rank < 2 ? 0 : -1, rank));
      DT_TRY_VALUE(const auto with_other, world->split(rank != 1 ? 0 : -1, rank));
      float none = 0;
      const auto transfer = [&](comm::Communicator& comm, backend::Kind kind, float* value) {
        backend::Collective operation;
        operation.kind = kind;
        operation.dtype = Dtype::kF32;
        operation.send = operation.recv = value;
        operation.count = 1;
        operation.root = 1 - comm.rank();
        auto work = std::make_shared<backend::Work>();
        const Status status = comm.submit(operation, work);
        if (!status.ok()) work->complete(status);
        return work;
      };
      const auto wait = [](comm::Communicator& comm, backend::Work& work) {
        comm.backend().wait(work, Wait());
        return work.status();
      };
      if (rank == 0) {
        const auto never = transfer(*with_other, backend::Kind::kRecv, &none);
        const auto behind = transfer(*with_sender, backend::Kind::kRecv, &came);
        failed = wait(*with_other, *never);
        DT_TRY(wait(*with_sender, *behind));
      } else if (rank == 1) {
        none = 7;
        DT_TRY(wait(*with_sender, *transfer(*with_sender, backend::Kind::kSend, &none)));
      }
      return job->finalize(20'000);
    }();
  });
  for (const Status& outcome : outcomes) CHECK_MESSAGE(outcome.ok(), outcome.message());
  CAPTURE(failed.message());
  CHECK(failed.code() == Code::kPeerLost);
  CHECK(failed.info().rank == 2);
  CHECK(came == 7);
  CHECK(fake->misuses().empty());
  CHECK(fake->communicators() == 0);
}

TEST_CASE("Job: some ranks make a communicator over their GPUs, and have one over host memory") {
  FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  constexpr int kSize = 3;
  const JobStore served(kSize);
  std::vector<Status> outcomes(kSize);
  std::vector<float> sums(kSize);
  dt::test::on_ranks(kSize, [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    outcomes[at] = [&]() -> Status {
      const Config config = good_config(rank, kSize, served.port());
      DT_TRY_VALUE(auto job, Job::start(config, {}, devices_of(kSize)));
      DT_TRY_VALUE(const auto world, job->world());
      if (rank != 1) {
        DT_TRY_VALUE(const auto pair, job->create({2, 0}, "pair"));
        DT_TRY(sum_on(*pair, rank, &sums[at]));
      }
      const auto host = world->on_host();
      if (host == world || host->backend().device() != nullptr) {
        return Status(Code::kInternal, "it is not over host memory");
      }
      int64_t votes = 1;
      backend::Collective collective;
      collective.kind = backend::Kind::kAllreduce;
      collective.dtype = Dtype::kI64;
      collective.send = collective.recv = &votes;
      collective.count = 1;
      DT_TRY(host->run(collective));
      if (votes != kSize) return Status(Code::kInternal, "a wrong sum on the host");
      return job->finalize(20'000);
    }();
  });
  for (const Status& outcome : outcomes) {
    if (!outcome.ok()) FAIL_CHECK(outcome.message());
  }
  CHECK(sums[0] == 4);
  CHECK(sums[2] == 4);
  CHECK(fake->misuses().empty());
  CHECK(fake->communicators() == 0);
}

TEST_CASE("Job: one rank over its GPU") {
  const auto outcomes = run_jobs(1, [](int) { return devices_of(1); });
  if (!outcomes[0].status.ok()) FAIL_CHECK(outcomes[0].status.message());
  CHECK(outcomes[0].backend == "nccl");
  CHECK(outcomes[0].sum == 1);
}

TEST_CASE("Job: ranks that share a GPU are refused, or staged where that is wanted") {
  const auto one_gpu = [](int) { return devices_of(1); };
  for (const Outcome& outcome : run_jobs(2, one_gpu)) {
    CHECK(outcome.status.code() == Code::kConfig);
    CHECK(outcome.status.message().find("hold the same GPU") != std::string::npos);
  }
  const auto share = [](int, Config* config) {
    REQUIRE(config->set("backend.shared_gpu", "host").ok());
  };
  for (const Outcome& outcome : run_jobs(3, one_gpu, share)) {
    if (!outcome.status.ok()) FAIL_CHECK(outcome.status.message());
    CHECK(outcome.backend == "staged");
    CHECK(outcome.sum == 6);
  }
}

TEST_CASE("Job: a rank without a GPU ends dt_init of all with its reason") {
  const auto outcomes = run_jobs(3, [](int rank) {
    Devices devices = devices_of(3);
    if (rank == 1) {
      devices.ask = [] {
        cuda::Answers answers = machine_with(0);
        answers.driver_version = 12040;
        answers.count_error = 35;
        return answers;
      };
    }
    return devices;
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status.code() == Code::kCuda);
    CHECK(outcome.status.info().rank == 1);
    CHECK(outcome.status.message().find(
              "backend.name is nccl, but the NVIDIA driver is too old: it speaks CUDA 12.4") !=
          std::string::npos);
  }
}

TEST_CASE("Job: its sink is not called once it is gone, by whoever still has its logger") {
  int calls = 0;
  auto job = Job::start(Config(), [&](LogLevel, const char*) { ++calls; });
  REQUIRE(job.ok());
  const LoggerPtr logger = job.value()->logger();
  logger->tell("one");
  CHECK(calls == 1);
  job = Status(Code::kInvalidState, "gone");
  logger->tell("two");
  CHECK(calls == 1);
}

TEST_CASE("Job: a machine without a driver says so where a GPU was asked for") {
  Config config;
  REQUIRE(config.set("backend.name", "nccl").ok());
  if (cuda::judge(cuda::ask()) == cuda::State::kReady) return;
  const Status status = Job::start(config, {}).status();
  CHECK((status.code() == Code::kCuda || status.code() == Code::kUnsupported));
  CHECK(status.message().find("backend.name is nccl, but ") != std::string::npos);
}
