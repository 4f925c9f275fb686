// SPDX-License-Identifier: Apache-2.0
// Gradients of which a step has some rows only.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "drawn.h"
#include "thread_ranks.h"

namespace dt_test::rows_test {

namespace {

struct Table {
  int64_t rows;
  int64_t row_elements;
};

/// What a rank gives in a step, for every rank to work out. A row may come twice.
struct Given {
  std::vector<int64_t> rows;
  std::vector<float> values;

  Given(const Table& table, unsigned seed, int step, int rank, int most) {
    Draws draws{seed, static_cast<unsigned>(step), static_cast<unsigned>(rank)};
    for (int i = draws.below(most + 1); i > 0; --i) {
      rows.push_back(draws.below(static_cast<int>(table.rows)));
      for (int64_t c = 0; c < table.row_elements; ++c) {
        values.push_back(static_cast<float>(draws.below(9) - 4));
      }
    }
  }
};

using Sums = std::map<int64_t, std::vector<float>>;

void add(const Table& table, const Given& given, Sums* sums) {
  for (size_t i = 0; i < given.rows.size(); ++i) {
    auto& sum = (*sums)[given.rows[i]];
    sum.resize(static_cast<size_t>(table.row_elements));
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += given.values[i * sum.size() + c];
  }
}

dt_status give(dt_reducer* reducer, int32_t index, const Given& given, size_t parts) {
  const auto columns = given.rows.empty() ? 0 : given.values.size() / given.rows.size();
  const size_t half = parts == 1 ? given.rows.size() : given.rows.size() / 2;
  RANK_TRY(dt_reducer_ready_rows(reducer, index, given.rows.data(), static_cast<int64_t>(half),
                                 given.values.data()));
  if (parts == 1) return DT_OK;
  return dt_reducer_ready_rows(reducer, index, given.rows.data() + half,
                               static_cast<int64_t>(given.rows.size() - half),
                               given.values.data() + half * columns);
}

bool same(dt_reducer* reducer, int32_t index, const Table& table, const Sums& wanted,
          float divisor) {
  const int64_t* rows = nullptr;
  void* values = nullptr;
  int64_t count = 0;
  if (dt_reducer_rows(reducer, index, &rows, &values, &count) != DT_OK) return false;
  size_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && rows[i] <= rows[i - 1]) return false;
    const auto sum = wanted.find(rows[i]);
    found += sum != wanted.end() ? 1 : 0;
    for (int64_t c = 0; c < table.row_elements; ++c) {
      const float value = static_cast<const float*>(values)[i * table.row_elements + c];
      const float expected =
          sum != wanted.end() ? sum->second[static_cast<size_t>(c)] / divisor : 0;
      if (std::abs(value - expected) > 1e-5F) return false;
    }
  }
  return found == wanted.size();  // where all rows were summed there are others, which are zero
}

/// A hook sees dense gradients only.
dt_status average(void* comm, const dt_bucket* bucket, int32_t, dt_work**) {
  if (bucket->param_count != 1 || bucket->params[0] != 1) return DT_ERR_INTERNAL;
  return dt_allreduce(static_cast<dt_comm*>(comm), bucket->data, bucket->data, bucket->count,
                      bucket->dtype, DT_AVG, nullptr, nullptr);
}

}  // namespace

TEST_CASE("rows: random rows, sums and averages, few and many, on one host and over several") {
  const std::vector<std::vector<int>> layouts = {{0}, {0, 0, 0}, {0, 1}, {0, 0, 1, 1}};
  for (const auto& hosts : layouts) {
    CAPTURE(hosts.size());
    CAPTURE(hosts.back());
    require_all_ok(run_ranks(
        static_cast<int>(hosts.size()),
        [](const Rank& rank) -> dt_status {
          for (unsigned seed = 0; seed < 12; ++seed) {
            const Table tables[] = {{40, 3}, {1 + seed, 1 + 7 * seed}};
            const dt_param params[] = {
                {120, "few", DT_F32, 0},
                {5, "dense", DT_F32, 0},
                {tables[1].rows * tables[1].row_elements, "many", DT_F32, 0}};
            const int64_t row_elements[] = {3, 0, tables[1].row_elements};
            dt_reducer_options options;
            dt_reducer_options_init(&options);
            options.row_elements = row_elements;
            options.sum = seed % 3 == 0;
            options.find_unused = seed % 4 == 1;
            options.static_graph = seed % 4 == 2;
            if (seed % 5 == 3) options.wire = DT_WIRE_8BIT;
            options.divide_by_users = options.find_unused != 0 && options.sum == 0;
            dt_reducer* reducer = nullptr;
            RANK_TRY(dt_reducer_create(rank.world, params, 3, &options, &reducer));
            int32_t bucket = 0;
            RANK_TRY(dt_reducer_bucket(reducer, 2, &bucket));
            if (bucket != -1) return DT_ERR_INTERNAL;
            if (seed == 7) RANK_TRY(dt_reducer_set_hook(reducer, &average, rank.world));
            for (int step = 0; step < 4; ++step) {
              const bool accumulates = (seed + static_cast<unsigned>(step)) % 3 == 0;
              float dense[] = {1, 2, 3, 4, 5};
              Sums wanted[2];
              int users[2] = {0, 0};
              for (int r = 0; r < rank.world_size; ++r) {
                for (int t = 0; t < 2; ++t) {
                  const Given given(tables[t], seed * 2 + static_cast<unsigned>(t), step, r,
                                    t == 0 ? 6 : 12);
                  add(tables[t], given, &wanted[t]);
                  users[t] += given.rows.empty() ? 0 : 1;
                  if (r != rank.rank) continue;
                  if (accumulates) RANK_TRY(dt_reducer_accumulate(reducer, 1));
                  RANK_TRY(give(reducer, 2 * t, given, accumulates ? 2 : 1));
                  if (accumulates) RANK_TRY(dt_reducer_accumulate(reducer, 0));
                }
              }
              RANK_TRY(dt_reducer_ready(reducer, 1, dense, nullptr));
              RANK_TRY(dt_reducer_finish(reducer, nullptr));
              for (int t = 0; t < 2; ++t) {
                const int divisor = options.sum != 0               ? 1
                                    : options.divide_by_users != 0 ? std::max(users[t], 1)
                                                                   : rank.world_size;
                if (same(reducer, 2 * t, tables[t], wanted[t], static_cast<float>(divisor)))
                  continue;
                MESSAGE("rank ", rank.rank, ", seed ", seed, ", step ", step, ", table ", t);
                return DT_ERR_INTERNAL;
              }
              if (options.sum == 0 && std::abs(dense[4] - 5) > 0.1F) return DT_ERR_INTERNAL;
            }
            dt_reducer_destroy(reducer);
          }
          return DT_OK;
        },
        {},
        [&](int rank) -> Settings {
          return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
        }));
  }
}

TEST_CASE("rows: they count in the norm, and what is wrong is refused by name") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{8, "embedding", DT_F32, 0}, {1, "bias", DT_F32, 0}};
    const int64_t row_elements[] = {2, 0};
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.row_elements = row_elements;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 2, &options, &reducer));
    const int64_t row = 2;
    float values[] = {6, 0};
    float bias = 4;
    RANK_TRY(dt_reducer_ready_rows(reducer, 0, &row, 1, values));
    RANK_TRY(dt_reducer_ready_rows(reducer, 0, &row, 1, values));
    RANK_TRY(dt_reducer_ready(reducer, 1, &bias, nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    float norm = 0;
    RANK_TRY(dt_reducer_clip_norm(reducer, 1, 2, nullptr, &norm));
    const int64_t* rows = nullptr;
    void* result = nullptr;
    int64_t count = 0;
    RANK_TRY(dt_reducer_rows(reducer, 0, &rows, &result, &count));
    const float first = *static_cast<const float*>(result);
    bool right = count == 1 && rows[0] == 2 && std::abs(norm - std::sqrt(160.0F)) < 1e-4F &&
                 std::abs(first - 12 / norm) < 1e-5F && std::abs(bias - 4 / norm) < 1e-5F;

    const int64_t outside = 4;
    void* pointer = nullptr;
    right = right &&
            dt_reducer_ready_rows(reducer, 0, &outside, 1, values) == DT_ERR_INVALID_ARGUMENT &&
            contains(dt_last_error(), "rows[0] is 4; parameter #0 \"embedding\" has rows 0 to 3") &&
            dt_reducer_ready_rows(reducer, 1, &row, 1, values) == DT_ERR_INVALID_STATE &&
            contains(dt_last_error(), "#1 \"bias\" was made without row_elements") &&
            dt_reducer_ready(reducer, 0, values, nullptr) == DT_ERR_INVALID_STATE &&
            contains(dt_last_error(), "#0 \"embedding\" comes as rows") &&
            dt_reducer_grad(reducer, 0, nullptr, &pointer) == DT_ERR_INVALID_STATE &&
            dt_reducer_rows(reducer, 1, &rows, &result, &count) == DT_ERR_INVALID_STATE;
    // Rank 1 says nothing about its rows.
    if (rank.rank == 0) RANK_TRY(dt_reducer_ready_rows(reducer, 0, nullptr, 0, nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 1, &bias, nullptr));
    right = right && dt_reducer_finish(reducer, nullptr) == DT_ERR_INVALID_STATE &&
            contains(dt_last_error(), "rank 1") &&
            contains(dt_last_error(), "no rows for #0 \"embedding\"") &&
            dt_reducer_rows(reducer, 0, &rows, &result, &count) == DT_ERR_INVALID_STATE;
    RANK_TRY(dt_reducer_ready_rows(reducer, 0, nullptr, 0, nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 1, &bias, nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));  // the communicator is whole
    RANK_TRY(dt_reducer_rows(reducer, 0, &rows, &result, &count));
    dt_reducer_destroy(reducer);
    return right && count == 0 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("rows: ranks with matrices of different shapes") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{12, "embedding", DT_F32, 0}};
    const int64_t row_elements[] = {rank.rank == 0 ? 3 : 4};
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.row_elements = row_elements;
    dt_reducer* reducer = nullptr;
    return dt_reducer_create(rank.world, params, 1, &options, &reducer);
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(outcome.message, "in rows of 3"), outcome.message);
    CHECK_MESSAGE(contains(outcome.message, "in rows of 4"), outcome.message);
  }
}

TEST_CASE("rows: of a static graph may be other ones in each step, also none in the first") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{8, "embedding", DT_F32, 0}};
    const int64_t row_elements[] = {2};
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.row_elements = row_elements;
    options.static_graph = 1;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 1, &options, &reducer));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    int32_t used[] = {1, 0, 1};
    RANK_TRY(dt_reducer_used(reducer, 0, &used[0]));
    const int64_t row = 2;
    const float values[] = {6, 8};
    if (rank.rank == 1) RANK_TRY(dt_reducer_ready_rows(reducer, 0, &row, 1, values));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    RANK_TRY(dt_reducer_used(reducer, 0, &used[1]));
    float norm = 0;
    RANK_TRY(dt_reducer_clip_norm(reducer, 1, 2, nullptr, &norm));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    RANK_TRY(dt_reducer_used(reducer, 0, &used[2]));
    dt_reducer_destroy(reducer);
    return used[0] == 0 && used[1] == 1 && used[2] == 0 && norm == 5 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::rows_test
