// SPDX-License-Identifier: Apache-2.0
// Reductions of the caller's: elements of any size, of which the lexicographically greatest stays.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "../sanitizers.h"
#include "thread_ranks.h"

namespace dt_test::combine_test {

namespace {

using Bytes = std::vector<unsigned char>;

/// Cut anywhere but between two elements, the result is another one.
void keep_greatest(void* user_data, const void* in, void* inout, int64_t count) {
  const auto element = static_cast<size_t>(*static_cast<const int64_t*>(user_data));
  const auto* from = static_cast<const unsigned char*>(in);
  auto* to = static_cast<unsigned char*>(inout);
  for (int64_t i = 0; i < count; ++i, from += element, to += element) {
    if (memcmp(from, to, element) > 0) memcpy(to, from, element);
  }
}

/// What a rank brings: runs of equal bytes, so that elements often differ in a late byte only.
Bytes brought_by(int rank, int64_t bytes) {
  Bytes data(static_cast<size_t>(bytes));
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<unsigned char>((i * 7 + static_cast<size_t>(rank) * (i / 5)) % 3);
  }
  return data;
}

Bytes greatest(int ranks, int64_t element_bytes, int64_t count) {
  Bytes all = brought_by(0, element_bytes * count);
  for (int rank = 1; rank < ranks; ++rank) {
    const Bytes one = brought_by(rank, element_bytes * count);
    keep_greatest(&element_bytes, one.data(), all.data(), count);
  }
  return all;
}

Bytes part_of(const Bytes& all, int64_t begin, int64_t bytes) {
  return Bytes(all.begin() + begin, all.begin() + begin + bytes);
}

dt_collective reduction(dt_kind kind, int64_t* element_bytes, int64_t count) {
  dt_collective one;
  dt_collective_init(&one);
  one.kind = kind;
  one.count = count;
  one.combine = keep_greatest;
  one.combine_data = element_bytes;
  one.element_bytes = *element_bytes;
  return one;
}

/// All kinds, of `count` elements for each rank; the sums in ordinary and in shared memory.
dt_status reduce_all_kinds(const Rank& rank, int64_t element_bytes, int64_t count) {
  const int n = rank.world_size;
  const int64_t bytes = element_bytes * count;
  const Bytes expected = greatest(n, element_bytes, count * n);
  Bytes mine = brought_by(rank.rank, bytes * n);
  Bytes found(mine.size());
  const auto launch = [&](dt_collective one, void* recv) {
    one.send = one.send != nullptr ? one.send : mine.data();
    one.recv = recv;
    return dt_collective_launch(rank.world, &one, nullptr);
  };
  RANK_TRY(launch(reduction(DT_KIND_ALLREDUCE, &element_bytes, count * n), found.data()));
  if (found != expected) return DT_ERR_INTERNAL;
  for (int root = 0; root < n; ++root) {
    dt_collective one = reduction(DT_KIND_REDUCE, &element_bytes, count * n);
    one.peer = root;
    std::fill(found.begin(), found.end(), static_cast<unsigned char>(9));
    RANK_TRY(launch(one, found.data()));
    if (rank.rank == root && found != expected) return DT_ERR_INTERNAL;
  }
  Bytes piece(static_cast<size_t>(bytes));
  RANK_TRY(launch(reduction(DT_KIND_REDUCE_SCATTER, &element_bytes, count), piece.data()));
  if (piece != part_of(expected, bytes * rank.rank, bytes)) return DT_ERR_INTERNAL;
  std::vector<int64_t> counts(static_cast<size_t>(n), count);
  counts[0] = 0;
  dt_collective uneven = reduction(DT_KIND_REDUCE_SCATTERV, &element_bytes, 0);
  uneven.send_counts = counts.data();
  RANK_TRY(launch(uneven, piece.data()));
  if (rank.rank > 0 && piece != part_of(expected, bytes * (rank.rank - 1), bytes)) {
    return DT_ERR_INTERNAL;
  }
  void* shared = nullptr;
  RANK_TRY(dt_mem_alloc(rank.world, std::max<int64_t>(bytes * n, 1), &shared));
  std::copy(mine.begin(), mine.end(), static_cast<unsigned char*>(shared));
  dt_collective in_place = reduction(DT_KIND_ALLREDUCE, &element_bytes, count * n);
  in_place.send = shared;
  RANK_TRY(launch(in_place, shared));
  const bool right =
      std::equal(expected.begin(), expected.end(), static_cast<const unsigned char*>(shared));
  RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
  RANK_TRY(dt_mem_free(rank.world, shared));
  return right ? DT_OK : DT_ERR_INTERNAL;
}

}  // namespace

TEST_CASE("combine: elements of any size, on one host and over several") {
  for (const auto& hosts : std::vector<std::vector<int>>{
           {0}, {0, 0}, {0, 0, 0, 0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 2}, {0, 1, 2, 3, 4}}) {
    CAPTURE(hosts.size());
    CAPTURE(hosts.back());
    const auto host_of = [&](int rank) -> Settings {
      return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
    };
    require_all_ok(run_ranks(
        static_cast<int>(hosts.size()),
        [](const Rank& rank) -> dt_status {
          for (const int64_t element_bytes : {3, 24, 4095}) {
            for (const int64_t count : {0, 1, dt::test::kThreadSanitizer ? 40 : 150}) {
              RANK_TRY(reduce_all_kinds(rank, element_bytes, count));
            }
          }
          return reduce_all_kinds(rank, 12, dt::test::kThreadSanitizer ? 4'000 : 20'000);
        },
        {}, host_of));
  }
}

TEST_CASE("combine: elements of different sizes are a mismatch on all ranks") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    const auto outcomes = run_ranks(
        2,
        [](const Rank& rank) -> dt_status {
          int64_t element_bytes = rank.rank == 0 ? 8 : 16;
          Bytes data(64);
          dt_collective one = reduction(DT_KIND_ALLREDUCE, &element_bytes, 4);
          one.send = one.recv = data.data();
          return dt_collective_launch(rank.world, &one, nullptr);
        },
        {},
        [&](int rank) -> Settings {
          return {{"job.host_id", apart && rank == 1 ? "there" : "here"}};
        });
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.status == DT_ERR_MISMATCH);
      CHECK_MESSAGE(contains(outcome.message, "allreduce custom of 8 bytes x 4"), outcome.message);
      CHECK_MESSAGE(contains(outcome.message, "allreduce custom of 16 bytes x 4"), outcome.message);
    }
  }
}

TEST_CASE("combine: what cannot be is refused") {
  require_all_ok(run_ranks(
      2,
      [](const Rank& rank) -> dt_status {
        int64_t element_bytes = 8;
        Bytes data(16);
        const auto refuses = [&](dt_kind kind, int64_t bytes, const char* text) {
          dt_collective one = reduction(kind, &element_bytes, 1);
          one.send = one.recv = data.data();
          one.element_bytes = bytes;
          return dt_collective_launch(rank.world, &one, nullptr) == DT_ERR_INVALID_ARGUMENT &&
                 contains(dt_last_error(), text);
        };
        const bool all =
            refuses(DT_KIND_BROADCAST, 8, "combine is set, but broadcast reduces nothing") &&
            refuses(DT_KIND_ALLREDUCE, 0, "element_bytes is 0; it must be in [1, 4095]") &&
            refuses(DT_KIND_REDUCE, 4096, "element_bytes is 4096; it must be in [1, 4095]");
        return all ? DT_OK : DT_ERR_INTERNAL;
      },
      {{"host.slot_bytes", "4096"}}));
}

}  // namespace dt_test::combine_test
