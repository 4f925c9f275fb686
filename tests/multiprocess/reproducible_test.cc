// SPDX-License-Identifier: Apache-2.0
// The same bits in every run, whoever comes when and wherever the buffers lie.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>

#include "thread_ranks.h"

namespace dt_test::reproducible_test {

namespace {

/// REPRODUCIBLE_RUNS=1000 makes more of them.
int runs() {
  const char* const given = getenv("REPRODUCIBLE_RUNS");
  return given == nullptr ? 66 : atoi(given);
}

using Bytes = std::vector<unsigned char>;

struct Case {
  dt_dtype dtype;
  dt_reduce_op op;
  int64_t count;
};

int64_t bytes_of(dt_dtype dtype) { return dtype == DT_BF16 ? 2 : dtype == DT_F64 ? 8 : 4; }

/// One that travels with its announcement, some in one piece, some in many.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t count :
       {int64_t{1}, int64_t{37}, int64_t{2'000}, int64_t{20'011}, int64_t{120'003}}) {
    for (const dt_dtype dtype : {DT_F32, DT_BF16, DT_F64, DT_I32}) {
      all.push_back({dtype, dtype != DT_I32 && count % 2 == 0 ? DT_AVG : DT_SUM, count});
    }
  }
  all.push_back({DT_F32, DT_AVG, 37});
  all.push_back({DT_BF16, DT_AVG, 20'011});
  return all;
}

float from_bf16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// To the nearest, of two to the even one. Finite values only.
uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// Magnitudes from 2^-20 to 2^20, so that another order of the sums gives other bits.
Bytes input_of(const Case& one, size_t number, int rank) {
  std::mt19937_64 random(1'000 * number + static_cast<uint64_t>(rank));
  Bytes data(static_cast<size_t>(one.count * bytes_of(one.dtype)));
  for (int64_t i = 0; i < one.count; ++i) {
    const uint64_t bits = random();
    const auto exponent = static_cast<int>(bits % 41) - 20;
    const double value =
        std::ldexp(static_cast<double>(static_cast<int64_t>(bits)) / 9.3e18, exponent);
    unsigned char* const at = data.data() + i * bytes_of(one.dtype);
    const auto put = [&](auto element) { memcpy(at, &element, sizeof element); };
    switch (one.dtype) {
      case DT_F32: put(static_cast<float>(value)); break;
      case DT_F64: put(value); break;
      case DT_BF16: put(to_bf16(static_cast<float>(value))); break;
      default: put(static_cast<uint32_t>(bits)); break;
    }
  }
  return data;
}

/// In the order of the ranks, by a plain loop. Acc: what is summed; `get`, `put`: an element.
template <class Element, class Acc, class Get, class Put>
Bytes sum_in_order(const std::vector<Bytes>& inputs, bool average, Get get, Put put) {
  Bytes sums(inputs[0].size());
  const Acc scale = static_cast<Acc>(1) / static_cast<Acc>(inputs.size());
  for (size_t at = 0; at < sums.size(); at += sizeof(Element)) {
    Acc sum{};
    for (size_t r = 0; r < inputs.size(); ++r) {
      Element element;
      memcpy(&element, inputs[r].data() + at, sizeof element);
      volatile Acc part = get(element);  // else the product may be fused with the sum
      if (average) part = part * scale;
      sum = r == 0 ? Acc(part) : sum + part;
    }
    const Element element = put(sum);
    memcpy(sums.data() + at, &element, sizeof element);
  }
  return sums;
}

Bytes expected(const Case& one, const std::vector<Bytes>& inputs) {
  const bool average = one.op == DT_AVG;
  const auto same = [](auto value) { return value; };
  switch (one.dtype) {
    case DT_F32: return sum_in_order<float, float>(inputs, average, same, same);
    case DT_F64: return sum_in_order<double, double>(inputs, average, same, same);
    case DT_BF16: return sum_in_order<uint16_t, float>(inputs, average, from_bf16, to_bf16);
    default: return sum_in_order<uint32_t, uint32_t>(inputs, false, same, same);
  }
}

/// Holds a rank up for a while of chance: not at all, among others, or busy.
void delay(std::mt19937& random) {
  const uint32_t kind = random() % 8;
  if (kind < 2) return;
  if (kind < 4) {
    for (uint32_t i = random() % 8; i > 0; --i) std::this_thread::yield();
    return;
  }
  using Clock = std::chrono::steady_clock;
  const auto limit = std::chrono::microseconds(random() % (kind == 7 ? 300 : 30));
  for (const auto begin = Clock::now(); Clock::now() - begin < limit;) {
  }
}

/// A rank's buffers, large enough for each case.
class Buffers {
 public:
  dt_status make(const Rank& rank, int64_t bytes) {
    bytes_ = bytes;
    ordinary_.resize(static_cast<size_t>(2 * bytes));
    RANK_TRY(dt_mem_alloc(rank.world, 2 * bytes, &memory_));
    return DT_OK;
  }
  /// Where to send from, with `input` in it, and where to receive, with something else in it.
  std::pair<unsigned char*, unsigned char*> place(const Bytes& input, bool shared, bool in_place) {
    unsigned char* const send = shared ? static_cast<unsigned char*>(memory_) : ordinary_.data();
    unsigned char* const recv = in_place ? send : send + bytes_;
    memset(recv, 0xcd, input.size());
    memcpy(send, input.data(), input.size());
    return {send, recv};
  }

 private:
  int64_t bytes_ = 0;
  Bytes ordinary_;
  void* memory_ = nullptr;  // goes with the communicator
};

/// One run: where its buffers lie and when it comes is up to chance. Gives where the result is.
dt_status run_once(const Rank& rank, const Case& one, const Bytes& input, int run,
                   std::mt19937& random, Buffers& buffers, const unsigned char** out) {
  // In turn: all ranks by shared memory, all by copies, each as it likes.
  const bool shared = run % 3 == 0 || (run % 3 == 2 && random() % 2 == 0);
  const auto [send, recv] = buffers.place(input, shared, random() % 2 == 0);
  *out = recv;
  delay(random);
  if (random() % 2 == 0)
    return dt_allreduce(rank.world, send, recv, one.count, one.dtype, one.op, nullptr, nullptr);
  dt_work* work = nullptr;
  RANK_TRY(dt_allreduce(rank.world, send, recv, one.count, one.dtype, one.op, nullptr, &work));
  delay(random);
  int32_t done = 0;
  const dt_status status = dt_work_wait(work, 60'000, &done);
  dt_work_destroy(work);
  return status == DT_OK && done != 1 ? DT_ERR_INTERNAL : status;
}

struct Problem {
  std::vector<Case> all = cases();
  std::vector<std::vector<Bytes>> inputs;  // of each case, by rank

  explicit Problem(int world_size) {
    for (size_t i = 0; i < all.size(); ++i) {
      inputs.emplace_back();
      for (int r = 0; r < world_size; ++r) inputs.back().push_back(input_of(all[i], i, r));
    }
  }
};

/// `good(rank, case, result)` judges each result; returns what it did not like, of the first few.
std::vector<std::string> run_many(
    int world_size, int count, const Problem& problem, const Settings& settings,
    const std::function<Settings(int)>& settings_of,
    const std::function<bool(int rank, size_t number, const unsigned char* result)>& good) {
  std::mutex guard;
  std::vector<std::string> wrong;
  const auto body = [&](const Rank& rank) -> dt_status {
    std::mt19937 random(static_cast<uint32_t>(100 * world_size + rank.rank));
    Buffers buffers;
    RANK_TRY(buffers.make(rank, 8 * 120'064));
    for (int run = 0; run < count; ++run) {
      const size_t number = static_cast<size_t>(run) % problem.all.size();
      const Bytes& input = problem.inputs[number][static_cast<size_t>(rank.rank)];
      const unsigned char* result = nullptr;
      RANK_TRY(run_once(rank, problem.all[number], input, run, random, buffers, &result));
      if (good(rank.rank, number, result)) continue;
      std::lock_guard lock(guard);
      if (wrong.size() >= 10) continue;
      wrong.push_back("run " + std::to_string(run) + " (case " + std::to_string(number) +
                      "): rank " + std::to_string(rank.rank) + " has other bits");
    }
    return DT_OK;
  };
  require_all_ok(run_ranks(world_size, body, settings, settings_of));
  return wrong;
}

void report(const std::vector<std::string>& wrong) {
  for (const std::string& each : wrong) FAIL_CHECK(each);
}

}  // namespace

TEST_CASE("reproducible: on one host each run has the bits of a plain loop over the ranks") {
  for (const int world_size : {2, 3, 4, 8}) {
    CAPTURE(world_size);
    const Problem problem(world_size);
    std::vector<Bytes> sums;
    for (size_t i = 0; i < problem.all.size(); ++i)
      sums.push_back(expected(problem.all[i], problem.inputs[i]));
    // As shipped, and with many small segments where a launcher has numbered the local ranks.
    const std::vector<int> one_host(static_cast<size_t>(world_size));
    for (const bool small : {false, true}) {
      CAPTURE(small);
      const Settings settings = {{"host.slot_bytes", "4096"}, {"host.inline_bytes", "256"}};
      report(run_many(world_size, runs(), problem, small ? settings : Settings{},
                      small ? numbered(one_host, 1) : nullptr,
                      [&](int, size_t number, const unsigned char* result) {
                        const Bytes& sum = sums[number];
                        return memcmp(result, sum.data(), sum.size()) == 0;
                      }));
    }
  }
}

TEST_CASE("reproducible: over several hosts each run and each rank has the same bits") {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 1}, {0, 0, 1}, {0, 1, 1, 0}, {0, 1, 2, 0, 1, 2}}) {
    const auto world_size = static_cast<int>(hosts.size());
    CAPTURE(world_size);
    const Problem problem(world_size);
    // What a rank got in its first run of each case. A rank writes and reads its own only.
    std::vector<std::vector<Bytes>> firsts(hosts.size(), std::vector<Bytes>(problem.all.size()));
    const int count = std::max(runs() / 2, static_cast<int>(problem.all.size()));
    report(run_many(world_size, count, problem, {}, numbered(hosts, 1),
                    [&](int rank, size_t number, const unsigned char* result) {
                      Bytes& first = firsts[static_cast<size_t>(rank)][number];
                      const size_t size = problem.inputs[number][0].size();
                      if (first.empty()) first.assign(result, result + size);
                      return memcmp(result, first.data(), size) == 0;
                    }));
    for (const auto& of_rank : firsts) CHECK(of_rank == firsts[0]);
  }
}

}  // namespace dt_test::reproducible_test
