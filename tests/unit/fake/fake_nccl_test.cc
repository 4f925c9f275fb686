// SPDX-License-Identifier: Apache-2.0
#include "fake_nccl.h"

#include <doctest/doctest.h>

#include <numeric>

#include "backend/nccl/library.h"
#include "elements.h"
#include "fake_cuda.h"
#include "ranks.h"

using dt::Deadline;
using dt::Wait;
using dt::nccl::Answer;
using dt::nccl::Comm;
using dt::nccl::Config;
using dt::nccl::Functions;
using dt::nccl::Library;
using dt::nccl::Op;
using dt::nccl::Type;
using dt::nccl::UniqueId;
using dt::test::FakeCuda;
using dt::test::FakeNccl;
using dt::test::on_ranks;
using Fault = FakeNccl::Fault;

namespace {

std::shared_ptr<const Library> open_library(const char* path = DT_FAKE_NCCL) {
  const auto library = Library::open(path);
  REQUIRE(library.ok());
  return library.value();
}

/// One rank: a GPU, a stream and a communicator.
struct Rank {
  Rank(const Functions& functions, int rank, int size, UniqueId id, bool blocking)
      : nccl(functions), cuda(rank) {
    stream = cuda.create_stream(dt::cuda::StreamPriority::kHigh).value();
    Config config;
    config.blocking = blocking ? 1 : 0;
    const Answer answer = nccl.comm_init_rank_config(&comm, size, id, rank, &config);
    CHECK(answer == (blocking ? Answer::kSuccess : Answer::kInProgress));
    if (!blocking) CHECK(settle() == Answer::kSuccess);
  }
  /// Until the last call has ended.
  Answer settle() {
    const Deadline deadline = Deadline::after_ms(30'000);
    Answer answer = Answer::kInProgress;
    while (answer == Answer::kInProgress && !deadline.passed()) {
      CHECK(nccl.comm_get_async_error(comm, &answer) == Answer::kSuccess);
    }
    return answer;
  }
  void end() {
    CHECK(nccl.comm_finalize(comm) != Answer::kInvalidUsage);
    CHECK(settle() == Answer::kSuccess);
    CHECK(nccl.comm_destroy(comm) == Answer::kSuccess);
  }

  const Functions& nccl;
  FakeCuda cuda;
  dt::cuda::Stream stream = nullptr;
  Comm comm = nullptr;
};

/// Runs `body` on ranks with communicators, and checks that nothing was misused.
void with_ranks(int size, bool blocking, const std::function<void(Rank&, int)>& body) {
  FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  fake->reset();
  fake->set_enqueue(FakeCuda::enqueue);
  const auto library = open_library();
  const Functions& nccl = library->functions();
  UniqueId id;
  REQUIRE(nccl.get_unique_id(&id) == Answer::kSuccess);
  on_ranks(size, [&](int rank) {
    Rank own(nccl, rank, size, id, blocking);
    body(own, rank);
    own.end();
  });
  CHECK(fake->misuses().empty());
  CHECK(fake->communicators() == 0);
}

template <class T>
void check_reductions(Type type) {
  CAPTURE(static_cast<int>(type));
  with_ranks(3, false, [&](Rank& rank, int index) {
    constexpr int64_t kCount = 5;
    std::vector<T> send(kCount);
    std::vector<T> recv(kCount);
    const auto value = [](int of, int64_t i) { return 1 + of + static_cast<int>(i); };
    for (int64_t i = 0; i < kCount; ++i) {
      dt::test::store<T>(send.data(), i, static_cast<dt::test::Arithmetic<T>>(value(index, i)));
    }
    for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin}) {
      CHECK(rank.nccl.all_reduce(send.data(), recv.data(), kCount, type, op, rank.comm,
                                 rank.stream) == Answer::kInProgress);
      CHECK(rank.settle() == Answer::kSuccess);
      REQUIRE(rank.cuda.finish(rank.stream));
      for (int64_t i = 0; i < kCount; ++i) {
        const int a = value(0, i), b = value(1, i), c = value(2, i);
        const int expected = op == Op::kSum    ? a + b + c
                             : op == Op::kProd ? a * b * c
                             : op == Op::kMax  ? c
                                               : a;
        // 8 bits wrap
        const auto wrapped = static_cast<dt::test::Arithmetic<T>>(expected);
        CHECK(dt::test::load<T>(recv.data(), i) == wrapped);
      }
    }
  });
}

}  // namespace

TEST_CASE("reductions of every type, in the order of the stream") {
  check_reductions<int8_t>(Type::kInt8);
  check_reductions<uint8_t>(Type::kUint8);
  check_reductions<int32_t>(Type::kInt32);
  check_reductions<uint32_t>(Type::kUint32);
  check_reductions<int64_t>(Type::kInt64);
  check_reductions<uint64_t>(Type::kUint64);
  check_reductions<dt::test::F16>(Type::kFloat16);
  check_reductions<dt::test::Bf16>(Type::kBfloat16);
  check_reductions<float>(Type::kFloat32);
  check_reductions<double>(Type::kFloat64);
}

TEST_CASE("the other collectives, in place and not") {
  with_ranks(3, true, [](Rank& rank, int index) {
    std::vector<int32_t> all(6);
    std::vector<int32_t> two = {10 * index, 10 * index + 1};
    const auto& nccl = rank.nccl;
    CHECK(nccl.all_gather(two.data(), all.data(), 2, Type::kInt32, rank.comm, rank.stream) ==
          Answer::kSuccess);
    REQUIRE(rank.cuda.finish(rank.stream));
    CHECK(all == std::vector<int32_t>{0, 1, 10, 11, 20, 21});
    // In place: the result lies where this rank's part was.
    CHECK(nccl.reduce_scatter(all.data(), all.data() + 2 * index, 2, Type::kInt32, Op::kSum,
                              rank.comm, rank.stream) == Answer::kSuccess);
    REQUIRE(rank.cuda.finish(rank.stream));
    CHECK(all[static_cast<size_t>(2 * index)] == 3 * 10 * index);
    CHECK(all[static_cast<size_t>(2 * index + 1)] == 3 * (10 * index + 1));
    CHECK(nccl.broadcast(two.data(), two.data(), 2, Type::kInt32, 2, rank.comm, rank.stream) ==
          Answer::kSuccess);
    REQUIRE(rank.cuda.finish(rank.stream));
    CHECK(two == std::vector<int32_t>{20, 21});
    std::vector<int32_t> sum = {-1, -1};
    CHECK(nccl.reduce(two.data(), sum.data(), 2, Type::kInt32, Op::kSum, 1, rank.comm,
                      rank.stream) == Answer::kSuccess);
    CHECK(nccl.all_reduce(nullptr, nullptr, 0, Type::kInt32, Op::kSum, rank.comm, rank.stream) ==
          Answer::kSuccess);
    REQUIRE(rank.cuda.finish(rank.stream));
    CHECK(sum == (index == 1 ? std::vector<int32_t>{60, 63} : std::vector<int32_t>{-1, -1}));
  });
}

TEST_CASE("a group is one operation: all send and receive at once") {
  for (const bool blocking : {true, false}) {
    with_ranks(4, blocking, [](Rank& rank, int index) {
      std::vector<int32_t> send(4);
      std::vector<int32_t> recv(4);
      std::iota(send.begin(), send.end(), 100 * index);
      const int64_t operations = rank.cuda.counters().operations;
      CHECK(rank.nccl.group_start() == Answer::kSuccess);
      for (int peer = 0; peer < 4; ++peer) {
        CHECK(rank.nccl.send(&send[static_cast<size_t>(peer)], 1, Type::kInt32, peer, rank.comm,
                             rank.stream) == Answer::kSuccess);
        CHECK(rank.nccl.recv(&recv[static_cast<size_t>(peer)], 1, Type::kInt32, peer, rank.comm,
                             rank.stream) == Answer::kSuccess);
      }
      rank.nccl.group_end();
      CHECK(rank.settle() == Answer::kSuccess);
      REQUIRE(rank.cuda.finish(rank.stream));
      for (int peer = 0; peer < 4; ++peer) {
        CHECK(recv[static_cast<size_t>(peer)] == 100 * peer + index);
      }
      CHECK(rank.cuda.counters().operations == operations + 1);
    });
  }
}

TEST_CASE("a non-blocking communicator enqueues late and refuses the next call before") {
  FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL_TWIN);
  fake->reset();
  fake->set_enqueue(FakeCuda::enqueue);
  fake->set_polls(3);
  const auto library = open_library(DT_FAKE_NCCL_TWIN);
  UniqueId id;
  REQUIRE(library->functions().get_unique_id(&id) == Answer::kSuccess);
  Rank rank(library->functions(), 0, 1, id, false);
  float value = 1;
  const auto reduce = [&] {
    return rank.nccl.all_reduce(&value, &value, 1, Type::kFloat32, Op::kSum, rank.comm,
                                rank.stream);
  };
  CHECK(reduce() == Answer::kInProgress);
  CHECK(rank.cuda.counters().operations == 0);
  CHECK(fake->misuses().empty());
  CHECK(reduce() == Answer::kInvalidArgument);
  CHECK(fake->misuses() == std::vector<std::string>{
                               "ncclAllReduce before the previous operation returned ncclSuccess"});
  CHECK(std::string(rank.nccl.get_last_error(nullptr)) == fake->misuses()[0]);
  Answer answer = Answer::kSuccess;
  for (int i = 0; i < 4; ++i) {
    CHECK(rank.nccl.comm_get_async_error(rank.comm, &answer) == Answer::kSuccess);
    CHECK((answer == Answer::kInProgress) == (i < 3));
  }
  CHECK(rank.cuda.counters().operations == 1);
  rank.end();
  CHECK(fake->calls("ncclAllReduce") == 2);
  CHECK(fake->threads() == 1);
  CHECK(dt::test::fake_nccl(DT_FAKE_NCCL) != fake);  // a library of its own
}

TEST_CASE("orders: answers, states, calls that hang, operations that spin") {
  FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  with_ranks(2, false, [&](Rank& rank, int index) {
    float value = 1;
    const auto reduce = [&] {
      return rank.nccl.all_reduce(&value, &value, 1, Type::kFloat32, Op::kSum, rank.comm,
                                  rank.stream);
    };
    if (index == 1) {
      fake->order({"ncclAllReduce", Fault::kAnswer, Answer::kSystemError, 1, 0, 1});
      CHECK(reduce() == Answer::kSystemError);
    }
    CHECK(reduce() == Answer::kInProgress);
    CHECK(rank.settle() == Answer::kSuccess);
    REQUIRE(rank.cuda.finish(rank.stream));
    CHECK(value == 2);
  });
  // A rank whose GPU is stuck: the other's operation does not end either, before an abort.
  UniqueId id;
  const auto library = open_library();
  REQUIRE(library->functions().get_unique_id(&id) == Answer::kSuccess);
  fake->set_peers_notice_abort(true);
  fake->order({"ncclBroadcast", Fault::kSpin, Answer::kSuccess, 1, 0, 1});
  dt::Event looked[2];
  on_ranks(2, [&](int index) {
    Rank rank(library->functions(), index, 2, id, false);
    float value = 5;
    CHECK(rank.nccl.broadcast(&value, &value, 1, Type::kFloat32, 0, rank.comm, rank.stream) ==
          Answer::kInProgress);
    CHECK(rank.settle() == Answer::kSuccess);
    CHECK_FALSE(rank.cuda.finish(rank.stream, Deadline::after_ms(0)));
    looked[index].set();
    CHECK(looked[1 - index].wait(Wait{Deadline::after_ms(30'000)}));
    if (index == 0) {
      const Deadline deadline = Deadline::after_ms(30'000);
      Answer answer = Answer::kSuccess;
      while (answer == Answer::kSuccess && !deadline.passed()) answer = rank.settle();
      CHECK(answer == Answer::kRemoteError);
    }
    CHECK(rank.nccl.comm_abort(rank.comm) == Answer::kSuccess);
    CHECK(rank.cuda.finish(rank.stream));
  });
  CHECK(fake->communicators() == 0);
  fake->reset();
}

TEST_CASE("init stays in progress for ever, or hangs; an abort hangs, too") {
  FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  const auto library = open_library();
  const Functions& nccl = library->functions();
  UniqueId id;
  REQUIRE(nccl.get_unique_id(&id) == Answer::kSuccess);
  Config config;
  config.blocking = 0;
  config.max_ctas = 8;
  config.net_name = "Socket";
  Comm comm = nullptr;
  fake->order({"ncclCommInitRankConfig", Fault::kStayInProgress, {}, -1, 0, 1});
  CHECK(nccl.comm_init_rank_config(&comm, 1, id, 0, &config) == Answer::kInProgress);
  Answer answer = Answer::kSuccess;
  for (int i = 0; i < 100; ++i) {
    CHECK(nccl.comm_get_async_error(comm, &answer) == Answer::kSuccess);
    CHECK(answer == Answer::kInProgress);
  }
  CHECK(fake->initialised().back().config.max_ctas == 8);
  CHECK(fake->initialised().back().net_name == "Socket");
  for (const char* function : {"ncclCommAbort", "ncclGetUniqueId"}) {
    fake->order({function, Fault::kHang, {}, -1, 0, 1});
    std::thread caller([&] {
      const bool abort = std::string(function) == "ncclCommAbort";
      CHECK((abort ? nccl.comm_abort(comm) : nccl.get_unique_id(&id)) == Answer::kSuccess);
    });
    const Deadline deadline = Deadline::after_ms(30'000);
    while (fake->hung() == 0 && !deadline.passed()) std::this_thread::yield();
    CHECK(fake->hung() == 1);
    CHECK(fake->communicators() == 0);  // the abort has taken effect
    fake->release();
    caller.join();
    CHECK(fake->hung() == 0);
  }
}

TEST_CASE("ranks that disagree, handles that are gone and bad configs are noted") {
  FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL_TWIN);
  fake->reset();
  fake->set_enqueue(FakeCuda::enqueue);
  const auto library = open_library(DT_FAKE_NCCL_TWIN);
  const Functions& nccl = library->functions();
  UniqueId id;
  REQUIRE(nccl.get_unique_id(&id) == Answer::kSuccess);
  on_ranks(2, [&](int index) {
    Rank rank(nccl, index, 2, id, true);
    float value[2] = {};
    CHECK(nccl.all_reduce(value, value, static_cast<size_t>(1 + index), Type::kFloat32, Op::kSum,
                          rank.comm, rank.stream) == Answer::kSuccess);
    const Deadline deadline = Deadline::after_ms(30'000);
    while (fake->misuses().empty() && !deadline.passed()) std::this_thread::yield();
    CHECK(nccl.comm_abort(rank.comm) == Answer::kSuccess);
  });
  REQUIRE(fake->misuses().size() == 1);
  CHECK(fake->misuses().back().find("of 2 elements") != std::string::npos);
  CHECK(nccl.comm_destroy(nullptr) == Answer::kInvalidArgument);
  Config config;
  config.min_ctas = 4;  // without max_ctas: NCCL refuses it
  Comm comm = nullptr;
  CHECK(nccl.comm_init_rank_config(&comm, 1, id, 0, &config) == Answer::kInvalidArgument);
  CHECK(nccl.comm_init_rank_config(&comm, 2, id, 2, nullptr) == Answer::kInvalidArgument);
  CHECK(comm == nullptr);
}

TEST_CASE("without streams an operation runs inside the call") {
  FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL_BARE);
  const auto library = open_library(DT_FAKE_NCCL_BARE);
  const Functions& nccl = library->functions();
  UniqueId id;
  REQUIRE(nccl.get_unique_id(&id) == Answer::kSuccess);
  on_ranks(3, [&](int index) {
    Comm comm = nullptr;
    CHECK(nccl.comm_init_rank_config(&comm, 3, id, index, nullptr) == Answer::kSuccess);
    int64_t value = index;
    CHECK(nccl.all_reduce(&value, &value, 1, Type::kInt64, Op::kSum, comm, nullptr) ==
          Answer::kSuccess);
    CHECK(value == 3);
    CHECK(nccl.comm_finalize(comm) == Answer::kSuccess);
    CHECK(nccl.comm_destroy(comm) == Answer::kSuccess);
  });
  CHECK(fake->misuses().empty());
}
