// SPDX-License-Identifier: Apache-2.0
// Threads that are cancelled (pthread_cancel) before and inside calls.
#include <pthread.h>

#include <chrono>
#include <future>

#include "thread_ranks.h"

namespace dt_test::cancel_test {

namespace {

struct Cancelled {
  int rank = 0;
  int32_t port = 0;
  bool by_itself = false;  ///< before its first call, else by the test in front of the barrier
  std::promise<void> at_barrier;
  dt_status init = DT_ERR_INTERNAL, store = DT_ERR_INTERNAL, barrier = DT_ERR_INTERNAL;
  dt_status wait = DT_ERR_INTERNAL, split = DT_ERR_INTERNAL, finalize = DT_ERR_INTERNAL;
  int32_t waited = 0;
  bool destroyed = false;
};

void* be_a_rank(void* argument) {
  auto& of = *static_cast<Cancelled*>(argument);
  dt_job* job = nullptr;
  dt_comm *world = nullptr, *half = nullptr;
  dt_work* work = nullptr;
  dt_config* const config = rank_config(of.rank, 3, of.port, {});
  if (of.by_itself) pthread_cancel(pthread_self());
  of.init = dt_init(config, &job);
  dt_config_destroy(config);
  of.store = dt_store_set(job, "key", "value", 5, 20000);
  (void)dt_comm_world(job, &world);
  of.at_barrier.set_value();
  of.barrier = dt_barrier(world, nullptr, nullptr);
  (void)dt_barrier(world, nullptr, &work);
  of.wait = dt_work_wait(work, -1, &of.waited);
  of.split = dt_comm_split(world, 0, of.rank, &half);
  of.finalize = dt_finalize(job, 20000);
  dt_work_destroy(work);
  dt_comm_destroy(half);
  dt_comm_destroy(world);
  dt_job_destroy(job);
  of.destroyed = true;
  pthread_testcancel();
  return nullptr;
}

}  // namespace

TEST_CASE("cancellation: a thread that is cancelled inside a call ends after it") {
  const ServedStore store(3);
  Cancelled cancelled[2];
  pthread_t threads[2];
  for (int rank = 0; rank < 2; ++rank) {
    cancelled[rank].rank = rank;
    cancelled[rank].port = store.port();
    cancelled[rank].by_itself = rank == 0;
    REQUIRE(pthread_create(&threads[rank], nullptr, be_a_rank, &cancelled[rank]) == 0);
  }
  dt_config* const config = rank_config(2, 3, store.port(), {});
  dt_job* job = nullptr;
  dt_comm *world = nullptr, *half = nullptr;
  dt_work* work = nullptr;
  REQUIRE_OK(dt_init(config, &job));
  dt_config_destroy(config);
  REQUIRE_OK(dt_comm_world(job, &world));
  REQUIRE(cancelled[1].at_barrier.get_future().wait_for(std::chrono::seconds(20)) ==
          std::future_status::ready);
  REQUIRE(pthread_cancel(threads[1]) == 0);
  REQUIRE_OK(dt_barrier(world, nullptr, nullptr));
  REQUIRE_OK(dt_barrier(world, nullptr, &work));
  REQUIRE_OK(dt_work_wait(work, -1, nullptr));
  REQUIRE_OK(dt_comm_split(world, 0, 2, &half));
  REQUIRE_OK(dt_finalize(job, 20000));
  for (int rank = 0; rank < 2; ++rank) {
    CAPTURE(rank);
    void* end = nullptr;
    REQUIRE(pthread_join(threads[rank], &end) == 0);
    CHECK(end == PTHREAD_CANCELED);
    const Cancelled& of = cancelled[rank];
    for (const dt_status status : {of.init, of.store, of.barrier, of.wait, of.split, of.finalize}) {
      CHECK(status == DT_OK);
    }
    CHECK(of.waited == 1);
    CHECK(of.destroyed);
  }
  dt_work_destroy(work);
  dt_comm_destroy(half);
  dt_comm_destroy(world);
  dt_job_destroy(job);
}

TEST_CASE("cancellation: a call leaves the thread's state as it was") {
  for (const int state : {PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ENABLE}) {
    REQUIRE(pthread_setcancelstate(state, nullptr) == 0);
    dt_config* config = nullptr;
    REQUIRE_OK(dt_config_create(nullptr, &config));
    CHECK(dt_config_set(config, "no.key", "1") == DT_ERR_CONFIG);
    dt_config_destroy(config);
    int after = -1;
    REQUIRE(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &after) == 0);
    CHECK(after == state);
  }
}

}  // namespace dt_test::cancel_test
