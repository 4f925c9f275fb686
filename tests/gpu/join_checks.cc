// SPDX-License-Identifier: Apache-2.0
#include "join_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace dt::test {
namespace {

constexpr int64_t kJoinCounts[] = {70'003, 0, 129, 4097};
constexpr int32_t kJoinParams = sizeof kJoinCounts / sizeof *kJoinCounts;

float join_part(int step, int rank, int32_t param, int64_t i) {
  return static_cast<float>((2 * step + 3 * rank + 5 * param + i) % 61 - 30);
}

bool has_batch(int step, int rank) { return step < 1 + 2 * rank; }

float join_average(int step, int ranks, bool by_users, int32_t param, int64_t i) {
  float sum = 0;
  int users = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!has_batch(step, rank)) continue;
    sum += join_part(step, rank, param, i);
    ++users;
  }
  return sum / static_cast<float>(by_users ? std::max(users, 1) : ranks);
}

/// True: some rank had a batch. One that has none says so of every second parameter.
bool join_step(Session* session, dt_reducer* reducer, const std::vector<float*>& own, int step,
               bool by_users) {
  const dt_stream stream = session->stream();
  std::vector<const float*> results(own.begin(), own.end());
  for (int32_t p = kJoinParams; p-- > 0;) {
    float* const grad = own[static_cast<size_t>(p)];
    std::vector<float> values(static_cast<size_t>(kJoinCounts[p]));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = join_part(step, session->rank(), p, static_cast<int64_t>(i));
    }
    if (!values.empty()) session->write(grad, values.data(), kJoinCounts[p] * 4);
    if (has_batch(step, session->rank())) {
      need(dt_reducer_ready(reducer, p, grad, stream));
    } else if (p % 2 == 0) {
      need(dt_reducer_unused(reducer, p, grad, stream));
    } else {
      results[static_cast<size_t>(p)] = nullptr;
    }
  }
  need(dt_reducer_finish(reducer, stream));
  int32_t active = 0;
  need(dt_reducer_active(reducer, &active));
  int32_t wanted = 0;
  for (int rank = 0; rank < session->ranks(); ++rank) wanted += has_batch(step, rank) ? 1 : 0;
  if (active != wanted) {
    std::fprintf(stderr, "rank %d: join, step %d: %d ranks are active, not %d\n", session->rank(),
                 step, active, wanted);
    std::_Exit(1);
  }
  if (active == 0) return false;
  for (int32_t p = 0; p < kJoinParams; ++p) {
    const void* from = results[static_cast<size_t>(p)];
    if (from == nullptr) {
      void* inside = nullptr;
      need(dt_reducer_grad(reducer, p, stream, &inside));
      from = inside;
    }
    need(session->finish());
    std::vector<float> found(static_cast<size_t>(kJoinCounts[p]));
    if (!found.empty()) session->read(found.data(), from, kJoinCounts[p] * 4);
    for (size_t i = 0; i < found.size(); ++i) {
      const float right =
          join_average(step, session->ranks(), by_users, p, static_cast<int64_t>(i));
      if (std::fabs(found[i] - right) <= 1e-4F) continue;
      std::fprintf(stderr, "rank %d: join, step %d: element %zu of gradient %d is %g, not %g\n",
                   session->rank(), step, i, p, static_cast<double>(found[i]),
                   static_cast<double>(right));
      std::_Exit(1);
    }
  }
  return true;
}

}  // namespace

void check_join(Session* session) {
  std::vector<dt_param> params(kJoinParams, dt_param{});
  std::vector<float*> own;
  for (int32_t p = 0; p < kJoinParams; ++p) {
    params[static_cast<size_t>(p)].count = kJoinCounts[p];
    params[static_cast<size_t>(p)].dtype = DT_F32;
    own.push_back(static_cast<float*>(session->memory(kJoinCounts[p] * 4 + 4)));
  }
  for (const bool by_users : {false, true}) {
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.find_unused = 1;
    options.divide_by_users = by_users ? 1 : 0;
    options.first_bucket_bytes = 1 << 14;
    options.bucket_cap_bytes = 1 << 16;
    dt_reducer* reducer = nullptr;
    need(dt_reducer_create(session->comm(), params.data(), kJoinParams, &options, &reducer));
    int steps = 0;
    while (join_step(session, reducer, own, steps, by_users)) ++steps;
    need(session->finish());
    dt_reducer_destroy(reducer);
  }
}

}  // namespace dt::test
