// SPDX-License-Identifier: Apache-2.0
// Hooks that fail, and what they may not do. That they work: steps_test.cc.
#include <atomic>
#include <chrono>
#include <dt/dt.hpp>
#include <stdexcept>

#include "thread_ranks.h"

namespace dt_test::hook_test {

namespace {

constexpr dt_param kHooked[] = {{3, "weight", DT_F32, 0}, {5, "bias", DT_F32, 0}};

struct Place {
  Rank rank;
  dt_reducer* reducer = nullptr;
  std::string own;  // of its own call's error
  dt_comm* node = nullptr;
  int step = 0;
  std::atomic<bool>* failing = nullptr;  // of all ranks: one's hook fails
};

dt_status fail_on_one(void* place, const dt_bucket* bucket, int32_t, dt_work** out_work) {
  const auto& at = *static_cast<const Place*>(place);
  if (at.rank.rank == 1) return dt_comm_rank(nullptr, nullptr);
  return dt_allreduce(at.rank.world, bucket->data, bucket->data, bucket->count, bucket->dtype,
                      DT_SUM, nullptr, out_work);
}

dt_status within_the_node(void* place, const dt_bucket* bucket, int32_t stage, dt_work** out_work) {
  const auto& at = *static_cast<const Place*>(place);
  if (stage > 0) return DT_OK;
  if (at.rank.rank == 1) return dt_comm_rank(nullptr, nullptr);
  return dt_allreduce(at.node, bucket->data, bucket->data, bucket->count, bucket->dtype, DT_AVG,
                      nullptr, out_work);
}

/// Rank 1 fails in its second step, while rank 2 is still inside its first one.
dt_status fail_while_one_is_late(void* place, const dt_bucket* bucket, int32_t stage,
                                 dt_work** out_work) {
  const auto& at = *static_cast<const Place*>(place);
  if (stage == 1) {
    if (at.rank.rank != 2 || bucket->index != 0 || at.step != 0) return DT_OK;
    while (!at.failing->load()) std::this_thread::yield();
    // Gives the failure time to arrive here, which it must not.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (dt_comm_check(at.rank.world) == DT_OK && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    return DT_OK;
  }
  if (at.rank.rank == 1 && at.step == 1) {
    at.failing->store(true);
    return dt_comm_rank(nullptr, nullptr);
  }
  return dt_allreduce(at.rank.world, bucket->data, bucket->data, bucket->count, bucket->dtype,
                      DT_SUM, nullptr, out_work);
}

/// Its works are those of a communicator that breaks on ranks 0 and 1 alone.
dt_status break_the_node(void* place, const dt_bucket* bucket, int32_t stage, dt_work** out_work) {
  const auto& at = *static_cast<const Place*>(place);
  if (stage > 0) return DT_OK;
  const int64_t count = at.rank.rank == 1 ? 1 : bucket->count;
  return dt_allreduce(at.node, bucket->data, bucket->data, count, bucket->dtype, DT_SUM, nullptr,
                      out_work);
}

dt_status call_ready(void* place, const dt_bucket*, int32_t, dt_work**) {
  auto& at = *static_cast<Place*>(place);
  if (dt_reducer_ready(at.reducer, 0, nullptr, nullptr) != DT_ERR_INVALID_STATE) return DT_OK;
  at.own = dt_last_error();
  return DT_OK;
}

}  // namespace

TEST_CASE("hook: one that fails on one rank ends the step on all, and names it") {
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{0, 0, 0}, {0, 1, 1}}) {
    CAPTURE(hosts.back());
    const auto body = [](const Rank& rank) -> dt_status {
      Place place{rank, nullptr, "", nullptr, 0, nullptr};
      RANK_TRY(dt_reducer_create(rank.world, kHooked, 2, nullptr, &place.reducer));
      RANK_TRY(dt_reducer_set_hook(place.reducer, fail_on_one, &place));
      dt_status status = DT_OK;
      for (int32_t i = 0; i < 2 && status == DT_OK; ++i) {
        status = dt_reducer_ready(place.reducer, i, nullptr, nullptr);
      }
      const dt_status end = dt_reducer_finish(place.reducer, nullptr);
      dt_reducer_destroy(place.reducer);
      return end;
    };
    const auto outcomes = run_ranks(3, body, {}, [&](int rank) -> Settings {
      return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
    });
    for (int r = 0; r < 3; ++r) {
      const Outcome& outcome = outcomes[static_cast<size_t>(r)];
      CAPTURE(r);
      CHECK((outcome.status == DT_ERR_INVALID_ARGUMENT ||
             (r != 1 && outcome.status == DT_ERR_MISMATCH)));
      CHECK_MESSAGE(contains(outcome.message.c_str(),
                             "the hook failed on rank 1, bucket 0, stage 0: it returned"),
                    outcome.message);
    }
  }
}

TEST_CASE("hook: one that fails takes no step back that another rank has not ended yet") {
  for (const bool over_hosts : {false, true}) {
    CAPTURE(over_hosts);
    std::atomic<bool> failing{false};
    const auto body = [&failing](const Rank& rank) -> dt_status {
      dt_reducer_options options;
      dt_reducer_options_init(&options);
      options.bucket_cap_bytes = options.first_bucket_bytes = 4;  // a bucket for each
      options.keep_plan = 1;
      Place place{rank, nullptr, "", nullptr, 0, &failing};
      RANK_TRY(dt_reducer_create(rank.world, kHooked, 2, &options, &place.reducer));
      RANK_TRY(dt_reducer_set_hook(place.reducer, fail_while_one_is_late, &place));
      dt_status status = DT_OK;
      for (place.step = 0; place.step < 2; ++place.step) {
        for (int32_t i = 0; i < 2; ++i) (void)dt_reducer_ready(place.reducer, i, nullptr, nullptr);
        status = dt_reducer_finish(place.reducer, nullptr);
        if (place.step == 0) RANK_TRY(status);
      }
      dt_reducer_destroy(place.reducer);
      return status == DT_OK ? DT_ERR_INTERNAL : DT_OK;  // the second step has failed
    };
    require_all_ok(run_ranks(3, body, {}, [over_hosts](int rank) -> Settings {
      return {{"job.host_id", over_hosts && rank > 1 ? "other" : "one"}};
    }));
  }
}

TEST_CASE("hook: what fails over another communicator on one rank ends the steps of all") {
  struct Way {
    dt_bucket_hook hook;
    bool over_hosts;
    dt_status status;
    const char* text;
  };
  for (const Way& way : {Way{within_the_node, false, DT_ERR_INVALID_ARGUMENT, "failed on rank 1"},
                         Way{within_the_node, true, DT_ERR_INVALID_ARGUMENT, "failed on rank 1"},
                         Way{break_the_node, false, DT_ERR_MISMATCH, "allreduce"}}) {
    CAPTURE(way.over_hosts);
    CAPTURE(way.text);
    const auto body = [&way](const Rank& rank) -> dt_status {
      Place place{rank, nullptr, "", nullptr, 0, nullptr};
      RANK_TRY(dt_comm_split(rank.world, rank.rank / 2, rank.rank, &place.node));
      RANK_TRY(dt_reducer_create(rank.world, kHooked, 2, nullptr, &place.reducer));
      RANK_TRY(dt_reducer_set_hook(place.reducer, way.hook, &place));
      dt_status status = DT_OK;
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      // Ranks 2 and 3 wait for nobody outside their node, and may have ended some steps before.
      while (status == DT_OK && std::chrono::steady_clock::now() < give_up) {
        for (int32_t i = 0; i < 2 && status == DT_OK; ++i) {
          status = dt_reducer_ready(place.reducer, i, nullptr, nullptr);
        }
        status = dt_reducer_finish(place.reducer, nullptr);
      }
      dt_reducer_destroy(place.reducer);
      dt_comm_destroy(place.node);
      return status;
    };
    const auto outcomes = run_ranks(4, body, {}, [&way](int rank) -> Settings {
      return {{"job.host_id", way.over_hosts && rank > 1 ? "other" : "one"}};
    });
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.status == way.status);
      CHECK_MESSAGE(contains(outcome.message.c_str(), way.text), outcome.message);
    }
  }
}

TEST_CASE("hook: one that fails while several threads bring gradients is named on all ranks") {
  constexpr int32_t kParams = 8;
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    std::vector<dt_param> params(kParams, dt_param{3, "weight", DT_F32, 0});
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.bucket_cap_bytes = options.first_bucket_bytes = 16;  // a bucket for each
    Place place{rank, nullptr, "", nullptr, 0, nullptr};
    RANK_TRY(dt_reducer_create(rank.world, params.data(), kParams, &options, &place.reducer));
    RANK_TRY(dt_reducer_set_hook(place.reducer, fail_on_one, &place));
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < kParams; ++i) {
      threads.emplace_back([&, i] { (void)dt_reducer_ready(place.reducer, i, nullptr, nullptr); });
    }
    for (std::thread& thread : threads) thread.join();
    const dt_status end = dt_reducer_finish(place.reducer, nullptr);
    dt_reducer_destroy(place.reducer);
    return end;
  });
  CHECK(outcomes[1].status == DT_ERR_INVALID_ARGUMENT);
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status != DT_OK);
    CHECK_MESSAGE(contains(outcome.message, "the hook failed on rank 1, bucket 0, stage 0"),
                  outcome.message);
  }
}

TEST_CASE("hook: a gradient that is missing breaks the communicator, and is named on all ranks") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    Place place{rank, nullptr, "", nullptr, 0, nullptr};
    place.rank.rank = 0;  // the hook works on all
    RANK_TRY(dt_reducer_create(rank.world, kHooked, 2, nullptr, &place.reducer));
    RANK_TRY(dt_reducer_set_hook(place.reducer, fail_on_one, &place));
    RANK_TRY(dt_reducer_ready(place.reducer, 1, nullptr, nullptr));
    if (rank.rank == 0) (void)dt_reducer_ready(place.reducer, 0, nullptr, nullptr);
    const dt_status end = dt_reducer_finish(place.reducer, nullptr);
    dt_reducer_destroy(place.reducer);
    return end;
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status != DT_OK);
    CHECK_MESSAGE(contains(outcome.message.c_str(), "no gradient for #0 \"weight\""),
                  outcome.message);
  }
}

TEST_CASE("hook: what it may not call, when it may be set, and with which options") {
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    Place place{rank, nullptr, "", nullptr, 0, nullptr};
    RANK_TRY(dt_reducer_create(rank.world, kHooked, 2, nullptr, &place.reducer));
    RANK_TRY(dt_reducer_set_hook(place.reducer, call_ready, &place));
    RANK_TRY(dt_reducer_ready(place.reducer, 0, nullptr, nullptr));
    const bool inside =
        dt_reducer_set_hook(place.reducer, nullptr, nullptr) == DT_ERR_INVALID_STATE;
    RANK_TRY(dt_reducer_ready(place.reducer, 1, nullptr, nullptr));
    RANK_TRY(dt_reducer_finish(place.reducer, nullptr));
    const bool refused = contains(place.own.c_str(), "called by the reducer's own hook");
    RANK_TRY(dt_reducer_set_hook(place.reducer, nullptr, nullptr));
    RANK_TRY(dt_reducer_ready(place.reducer, 0, nullptr, nullptr));
    RANK_TRY(dt_reducer_ready(place.reducer, 1, nullptr, nullptr));
    RANK_TRY(dt_reducer_finish(place.reducer, nullptr));
    dt_reducer_destroy(place.reducer);
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.wire = DT_WIRE_BF16;
    RANK_TRY(dt_reducer_create(rank.world, kHooked, 2, &options, &place.reducer));
    const bool other =
        dt_reducer_set_hook(place.reducer, call_ready, &place) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "made with wire");
    dt_reducer_destroy(place.reducer);
    return inside && refused && other ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("hook: the other ranks hear what failed in it, and no error of before") {
  for (const bool in_dt : {false, true}) {
    CAPTURE(in_dt);
    std::vector<std::string> heard(2);
    require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
      dt_comm* same = nullptr;
      RANK_TRY(dt_comm_split(rank.world, 0, rank.rank, &same));
      dt::Comm comm(same);
      dt::Reducer reducer(comm, {{4, DT_F32, "weight"}});
      reducer.set_hook([&](const dt_bucket& bucket, int32_t stage) -> dt::Work {
        if (rank.rank == 0 && !in_dt) throw std::runtime_error("no more");
        if (rank.rank == 0) comm.broadcast(dt::View(bucket.data, 1, bucket.dtype), 7);
        return stage == 1 ? dt::Work(nullptr)
                          : comm.allreduce_async(dt::View(bucket.data, bucket.count, bucket.dtype));
      });
      if (dt_work_test(nullptr, nullptr) == DT_OK) return DT_ERR_INTERNAL;  // an error of before
      float weight[] = {1, 2, 3, 4};
      std::string& text = heard[static_cast<size_t>(rank.rank)];
      for (const bool ends : {false, true}) {  // the step ends on all ranks
        try {
          ends ? reducer.finish() : reducer.ready(0, weight);
        } catch (const std::exception& error) {
          if (text.empty()) text = error.what();
        }
      }
      return DT_OK;
    }));
    CAPTURE(heard[0]);
    CAPTURE(heard[1]);
    CHECK(contains(heard[0].c_str(), in_dt ? "root is 7" : "no more"));
    CHECK(contains(heard[1].c_str(),
                   in_dt ? "it returned DT_ERR_INVALID_ARGUMENT" : "it returned DT_ERR_ABORTED"));
    CHECK(contains(heard[1].c_str(), in_dt ? "root is 7" : "no call of dt failed in it"));
    CHECK(!contains(heard[1].c_str(), "work is NULL"));
  }
}

TEST_CASE("hook: in C++ a function, whose exception comes out of the call that ran it") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_comm* same = nullptr;
    RANK_TRY(dt_comm_split(rank.world, 0, rank.rank, &same));
    dt::Comm comm(same);
    dt::Reducer reducer(comm, {{4, DT_F32, "weight"}});
    int calls = 0;
    reducer.set_hook([&](const dt_bucket& bucket, int32_t stage) -> dt::Work {
      ++calls;
      if (stage == 1) return dt::Work(nullptr);
      if (calls == 3) throw std::runtime_error("no more");
      return comm.allreduce_async(dt::View(bucket.data, bucket.count, bucket.dtype));
    });
    dt::Reducer moved = std::move(reducer);
    float weight[] = {1, 2, 3, static_cast<float>(rank.rank)};
    moved.ready(0, weight);
    moved.finish();
    if (calls != 2 || weight[2] != 6 || weight[3] != 1) return DT_ERR_INTERNAL;
    try {
      moved.ready(0, weight);
    } catch (const std::runtime_error& error) {
      return std::string(error.what()) == "no more" ? DT_OK : DT_ERR_INTERNAL;
    }
    return DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::hook_test
