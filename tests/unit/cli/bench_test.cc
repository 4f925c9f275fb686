// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "cli/bench/method.h"
#include "cli/bench/options.h"
#include "cli/bench/report.h"

using namespace dt::cli::bench;
using dt::Code;

namespace {

ParsedOptions parse(std::vector<std::string> words) {
  words.insert(words.begin(), "bench");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

int64_t bytes_of(const std::string& text) {
  const dt::Result<int64_t> bytes = parse_size(text);
  return bytes.ok() ? bytes.value() : -1;
}

// Enough for 3 ranks and 100 elements of 8 bytes.
struct Areas {
  std::vector<int64_t> a = std::vector<int64_t>(300);
  std::vector<int64_t> b = std::vector<int64_t>(300);
};

bench_case make_case(int collective, int dtype, int op, int in_place, Areas* areas) {
  bench_case c{};
  c.collective = collective;
  c.dtype = dtype;
  c.op = op;
  c.in_place = in_place;
  c.ranks = 1;
  c.count = 100;
  c.a = reinterpret_cast<char*>(areas->a.data());
  c.b = reinterpret_cast<char*>(areas->b.data());
  return c;
}

}  // namespace

TEST_CASE("bench: sizes are bytes, K, M or G") {
  CHECK(bytes_of("0") == 0);
  CHECK(bytes_of("8") == 8);
  CHECK(bytes_of("1K") == 1024);
  CHECK(bytes_of("25m") == 25 * 1024 * 1024);
  CHECK(bytes_of("1G") == 1024 * 1024 * 1024);
  for (const char* text : {"", "K", "8B", "1Q", "-8", "1.5M", "0x10", "8 ", "1KK"}) {
    CAPTURE(std::string(text));
    const dt::Result<int64_t> bytes = parse_size(text);
    REQUIRE(!bytes.ok());
    CHECK(bytes.status().message() ==
          "\"" + std::string(text) + "\" is no size; write bytes, or 64K, 25M, 1G");
  }
  for (const char* text : {"1025G", "99999999999999999999", "99999999999G"}) {
    CAPTURE(std::string(text));
    CHECK(bytes_of(text) == -1);
  }
}

TEST_CASE("bench: a sweep multiplies, a list is taken as it is") {
  const ParsedOptions sweep = parse({"allreduce", "-b", "8", "-e", "1K", "-f", "4"});
  REQUIRE(!sweep.exit_code);
  CHECK(sweep.options.sizes_bytes == std::vector<int64_t>{8, 32, 128, 512});
  const ParsedOptions list = parse({"reduce", "--sizes", "1M,8"});
  REQUIRE(!list.exit_code);
  CHECK(list.options.sizes_bytes == std::vector<int64_t>{1 << 20, 8});
}

TEST_CASE("bench: the worker's words mean the same options") {
  const ParsedOptions first = parse({"reduce_scatter",
                                     "--sizes",
                                     "8,1K",
                                     "--dtype",
                                     "half",
                                     "--op",
                                     "max",
                                     "--memory",
                                     "private",
                                     "--iters",
                                     "7",
                                     "-w",
                                     "3",
                                     "--rounds",
                                     "2",
                                     "--timeout",
                                     "9",
                                     "--csv",
                                     "a b.csv",
                                     "--budget-ms",
                                     "4",
                                     "--device",
                                     "cuda"});
  REQUIRE(!first.exit_code);
  const ParsedOptions second = parse(worker_arguments(first.options));
  REQUIRE(!second.exit_code);
  CHECK(worker_arguments(second.options) == worker_arguments(first.options));
  CHECK(second.options.dtype == BENCH_F16);
  CHECK(second.options.op == BENCH_MAX);
  CHECK(second.options.shared == false);
  CHECK(second.options.cuda);
  CHECK(std::string(memory_name(second.options)) == "cudaMalloc");
  CHECK(second.options.iterations == 7);
  CHECK(second.options.csv == "a b.csv");
}

TEST_CASE("bench: GPU memory is not compared with MPI in host memory") {
  CHECK(*parse({"allreduce", "--device", "cuda", "--compare", "mpich"}).exit_code == 2);
  CHECK(*parse({"allreduce", "--device", "tpu"}).exit_code == 2);
  CHECK_FALSE(parse({"allreduce", "--device", "host", "--compare", "mpich"}).exit_code);
}

TEST_CASE("bench: the host's clock is set beside the events") {
  Row row;
  row.places[0].us = {10, 12, 11};
  row.places[0].wall_us = {12, 13, 13};
  row.places[1].us = {5};
  row.places[1].wall_us = {5.5};
  CHECK(clock_line({row}) ==
        "# host's clock beyond the events, per operation: 1.25 us [0.50 to 2.00]\n");
}

TEST_CASE("bench: the bus bandwidth factors are those of nccl-tests") {
  Options options;
  // On 4 ranks: allreduce, allgather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter,
  // barrier, alltoallv, allgatherv, sendrecv, pingpong.
  const double wanted[] = {1.5, 0.75, 0.75, 1, 1, 0.75, 0.75, 0.75, 1, 0.875, 0.75, 1, 1};
  static_assert(std::size(wanted) == BENCH_COLLECTIVE_COUNT);
  for (int collective = 0; collective < BENCH_COLLECTIVE_COUNT; ++collective) {
    options.collective = collective;
    CHECK(bus_factor(options, 4) == doctest::Approx(wanted[collective]));
  }
  options.collective = BENCH_ALLREDUCE;
  CHECK(bus_factor(options, 1) == 0);
}

TEST_CASE("bench: a row has the columns and widths of nccl-tests") {
  Options options;
  options.dtype = BENCH_F32;
  Row row;
  row.bytes = 1'000'000;
  row.count = 250'000;
  row.places[0].us = {900, 100, 200};  // median 200 us: 5 GB/s
  row.places[1].us = {10, 30};         // median 20 us: 50 GB/s
  row.places[1].wrong = 3;
  CHECK(table_row(options, 4, row) ==
        "     1000000        250000     float     sum      -1    200.0    5.00    7.50      0"
        "    20.00   50.00   75.00      3\n");
  CHECK(table_footer(options, 4, {row}) ==
        "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 41.25\n#\n");
}

TEST_CASE("bench: one rank's own data verify, and one wrong element is seen") {
  for (int collective = 0; collective < BENCH_COLLECTIVE_COUNT; ++collective) {
    for (int dtype = 0; dtype < BENCH_DTYPE_COUNT; ++dtype) {
      for (int op = 0; op < BENCH_OP_COUNT; ++op) {
        for (int in_place = 0; in_place < 2; ++in_place) {
          CAPTURE(collective);
          CAPTURE(dtype);
          CAPTURE(op);
          CAPTURE(in_place);
          Areas areas;
          const bench_case c = make_case(collective, dtype, op, in_place, &areas);
          const size_t bytes = static_cast<size_t>(c.count * bench_dtype_bytes[dtype]);
          bench_prepare(&c);
          if (bench_recv(&c) != bench_send(&c)) memcpy(bench_recv(&c), bench_send(&c), bytes);
          CHECK(bench_wrong(&c) == 0);
          bench_recv(&c)[bytes - 1] ^= 0x40;
          CHECK(bench_wrong(&c) == 1);
        }
      }
    }
  }
}

TEST_CASE("bench: the closed form is the plain loop over ranks") {
  Areas areas;
  bench_case c = make_case(BENCH_ALLREDUCE, BENCH_F32, BENCH_SUM, 0, &areas);
  c.ranks = 3;
  std::vector<float> sum(static_cast<size_t>(c.count), 0);
  bool differs = false;
  for (c.rank = 0; c.rank < 3; ++c.rank) {
    bench_prepare(&c);
    const auto* const mine = reinterpret_cast<const float*>(c.a);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += mine[i];
      differs = differs || mine[i] != mine[0];
    }
  }
  CHECK(differs);
  c.rank = 1;
  memcpy(c.b, sum.data(), sum.size() * sizeof(float));
  CHECK(bench_wrong(&c) == 0);
  memmove(c.b, sum.data() + 1, (sum.size() - 1) * sizeof(float));
  CHECK(bench_wrong(&c) > 10);  // a shifted buffer
}

TEST_CASE("bench: blocks of unlike size fill the buffers, and pairs agree about theirs") {
  for (const int collective : {BENCH_ALLTOALLV, BENCH_ALLGATHERV}) {
    for (const int ranks : {1, 2, 3, 4, 7, 8}) {
      for (const int64_t count : {0, 1, 7, 100}) {
        CAPTURE(collective);
        CAPTURE(ranks);
        CAPTURE(count);
        std::vector<std::vector<int64_t>> counts(ranks, std::vector<int64_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank) {
          Areas areas;
          bench_case c = make_case(collective, BENCH_F32, BENCH_SUM, 0, &areas);
          c.rank = rank;
          c.ranks = ranks;
          c.count = count;
          c.counts = counts[rank].data();
          bench_set_counts(&c);
          int64_t begin = 0;
          for (int peer = 0; peer < ranks; ++peer) {
            const int64_t size = c.counts[peer];
            CHECK(size >= count / 2);
            CHECK(size <= count + (count + 1) / 2);
            for (int64_t i = begin; i < begin + size; ++i) CHECK(bench_block_of(&c, i) == peer);
            CHECK(bench_block_begin(&c, rank, peer) == begin);
            begin += size;
          }
          CHECK(begin == ranks * count);
          CHECK(bench_recv_count(&c) == begin);
          CHECK(bench_send_count(&c) == (collective == BENCH_ALLTOALLV ? begin : c.counts[rank]));
          for (int peer = 0; peer < rank; ++peer) {
            CHECK(c.counts[peer] == counts[peer][collective == BENCH_ALLTOALLV ? rank : peer]);
          }
        }
      }
    }
  }
}

TEST_CASE("bench: of a ping-pong the mean over the ranks is one message") {
  bench_case c{};
  c.collective = BENCH_PINGPONG;
  c.ranks = 4;
  CHECK(bench_per_operation_us(&c, 80, 10) == 8);  // four messages
  c.rank = 3;
  CHECK(bench_per_operation_us(&c, 80, 10) == 0);
  c.collective = BENCH_SENDRECV;
  CHECK(bench_per_operation_us(&c, 80, 10) == 8);
}

TEST_CASE("bench: spread") {
  CHECK(spread({}).median == 0);
  CHECK(spread({3, 1, 2}).median == 2);
  CHECK(spread({4, 1, 2, 3}).median == 2.5);
  CHECK(spread({4, 1, 2, 3}).min == 1);
  CHECK(spread({4, 1, 2, 3}).max == 4);
}
