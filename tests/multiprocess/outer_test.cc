// SPDX-License-Identifier: Apache-2.0
// Ranks that train by themselves and come together now and then, against a plain loop in which
// every rank works out what each of them does.
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <dt/dt.hpp>
#include <fstream>
#include <future>
#include <stdexcept>

#include "../sanitizers.h"
#include "dt_run.h"
#include "thread_ranks.h"

namespace dt_test::outer_test {

using dt::test::TempFolder;

namespace {

constexpr int64_t kCounts[] = {700, 0, 3, 2'000, 130};
constexpr int64_t kTotal = 700 + 3 + 2'000 + 130;

using Floats = std::vector<float>;

/// What the inner optimizer of a rank adds in a step, in [-0.5, 0.5).
float inner_step(int step, int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(step * 16 + rank + 1) << 24 | static_cast<uint64_t>(i);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(x >> 57) / 128.0F - 0.5F;
}

Floats first_values() {
  Floats values;
  for (int64_t i = 0; i < kTotal; ++i) values.push_back(inner_step(0, 15, i));
  return values;
}

/// The parameters of one rank, one behind the other.
struct Local {
  Floats values = first_values();

  std::vector<dt::OuterParam> params() {
    std::vector<dt::OuterParam> result;
    int64_t at = 0;
    for (const int64_t count : kCounts) {
      result.push_back({&values[static_cast<size_t>(at)], count, DT_F32, ""});
      result.back().name = "p" + std::to_string(result.size());
      at += count;
    }
    return result;
  }
  void train(int step, int rank) {
    for (int64_t i = 0; i < kTotal; ++i) {
      values[static_cast<size_t>(i)] += inner_step(step, rank, i);
    }
  }
};

/// All ranks, in one loop.
class Reference {
 public:
  Reference(int world_size, const dt::OuterOptions& options) : options_(options) {
    const Floats first = first_values();
    global_.assign(first.begin(), first.end());
    momentum_.assign(first.size(), 0);
    local_.assign(static_cast<size_t>(world_size), global_);
    mean_ = global_;
  }
  void step(int number) {
    for (size_t r = 0; r < local_.size(); ++r) {
      for (size_t i = 0; i < global_.size(); ++i) {
        local_[r][i] +=
            static_cast<double>(inner_step(number, static_cast<int>(r), static_cast<int64_t>(i)));
      }
    }
    const int64_t interval = options_.sync_every / options_.fragments;
    if (pending_ >= 0 && number == due_) end(options_.alpha);
    if (number % interval != 0) return;
    begin(static_cast<int>((number / interval - 1) % options_.fragments));
    due_ = number + options_.delay;
    if (options_.delay == 0) end(options_.alpha);
  }
  const std::vector<double>& local(int rank) const { return local_[static_cast<size_t>(rank)]; }

 private:
  void begin(int fragment) {
    pending_ = fragment;
    for (size_t i = 0; i < global_.size(); ++i) {
      mean_[i] = 0;
      for (const auto& each : local_) {
        mean_[i] += (global_[i] - each[i]) / static_cast<double>(local_.size());
      }
    }
  }
  void end(double alpha) {
    // Cut at multiples of 64, the first fragments one such line longer.
    const int64_t lines = (kTotal + 63) / 64;
    const auto cut = [&](int64_t f) {
      return std::min(
          kTotal,
          (lines / options_.fragments * f + std::min<int64_t>(f, lines % options_.fragments)) * 64);
    };
    for (auto i = static_cast<size_t>(cut(pending_)); i < static_cast<size_t>(cut(pending_ + 1));
         ++i) {
      momentum_[i] = momentum_[i] * options_.momentum + mean_[i];
      const double step =
          options_.nesterov ? mean_[i] + options_.momentum * momentum_[i] : momentum_[i];
      global_[i] -= options_.rate * step;
      for (auto& each : local_) each[i] = alpha * each[i] + (1 - alpha) * global_[i];
    }
    pending_ = -1;
  }

  const dt::OuterOptions options_;
  std::vector<double> global_;
  std::vector<double> momentum_;
  std::vector<double> mean_;
  std::vector<std::vector<double>> local_;
  int pending_ = -1;
  int64_t due_ = 0;
};

dt::Comm world_of(const Rank& rank) {
  dt_comm* handle = nullptr;
  dt::detail::check(dt_comm_world(rank.job, &handle));
  return dt::Comm(handle);
}

/// A body that may throw what dt.hpp throws.
std::function<dt_status(const Rank&)> in_cpp(std::function<void(const Rank&)> body) {
  return [body = std::move(body)](const Rank& rank) -> dt_status {
    try {
      body(rank);
      return DT_OK;
    } catch (const dt::Error& error) {
      return error.status();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank.rank, error.what());
      return DT_ERR_INTERNAL;
    }
  };
}

std::function<Settings(int)> on_hosts(std::vector<int> hosts) {
  return [hosts = std::move(hosts)](int rank) -> Settings {
    return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
  };
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("outer: fragments, delays and mixtures, as a plain loop has them") {
  std::vector<dt::OuterOptions> ways(7);
  ways[1].sync_every = 4;
  ways[2].sync_every = 6;
  ways[2].fragments = 3;
  ways[3].sync_every = 6;
  ways[3].fragments = 2;
  ways[3].delay = 2;
  ways[3].alpha = 0.5;
  ways[4].sync_every = 3;
  ways[4].momentum = 0;  // local SGD
  ways[4].rate = 1;
  ways[5].sync_every = 60;
  ways[5].fragments = 60;
  ways[5].nesterov = false;
  ways[6].sync_every = 4;
  ways[6].delay = 3;
  ways[6].alpha = 1;  // what ranks have never meets
  std::vector<dt_outer_format> formats = {DT_OUTER_F32, DT_OUTER_4BIT};
  if (!dt::test::kThreadSanitizer) {
    formats.push_back(DT_OUTER_BF16);
    formats.push_back(DT_OUTER_8BIT);
  }
  for (const auto& hosts : std::vector<std::vector<int>>{{0}, {0, 0, 0, 0}, {0, 0, 1}}) {
    for (size_t way = 0; way < ways.size(); ++way) {
      for (const dt_outer_format format : formats) {
        CAPTURE(hosts.size());
        CAPTURE(way);
        CAPTURE(static_cast<int>(format));
        dt::OuterOptions options = ways[way];
        options.format = format;
        // Two roundings of half a step each; in f32 all means, else the first of each fragment.
        const bool exact = format == DT_OUTER_F32;
        const double levels = format == DT_OUTER_BF16 ? 256 : format == DT_OUTER_8BIT ? 127 : 7;
        const double largest = 0.5 * static_cast<double>(options.sync_every);
        const double tolerance =
            exact ? 1e-5 : 1.01 * options.rate * (1 + options.momentum) * largest / levels;
        const auto steps = exact ? 13 : static_cast<int>(options.sync_every + options.delay);
        std::vector<double> errors(hosts.size());
        std::vector<Floats> ended(hosts.size());
        require_all_ok(run_ranks(static_cast<int>(hosts.size()), in_cpp([&](const Rank& rank) {
                                   Reference reference(rank.world_size, options);
                                   Local local;
                                   dt::Outer outer(world_of(rank), local.params(), options);
                                   double& worst = errors[static_cast<size_t>(rank.rank)];
                                   for (int step = 1; step <= steps; ++step) {
                                     local.train(step, rank.rank);
                                     (void)outer.step();
                                     reference.step(step);
                                     for (size_t i = 0; i < local.values.size(); ++i) {
                                       worst = std::max(
                                           worst, std::abs(reference.local(rank.rank)[i] -
                                                           static_cast<double>(local.values[i])));
                                     }
                                   }
                                   outer.sync();
                                   ended[static_cast<size_t>(rank.rank)] = local.values;
                                 }),
                                 {}, on_hosts(hosts)));
        for (const double each : errors) CHECK(each <= tolerance);
        for (const Floats& each : ended) CHECK(same_bits(each, ended[0]));
      }
    }
  }
}

TEST_CASE("outer: to synchronise again, without training between, changes nothing") {
  for (const dt_outer_format format : {DT_OUTER_F32, DT_OUTER_BF16, DT_OUTER_8BIT, DT_OUTER_4BIT}) {
    CAPTURE(static_cast<int>(format));
    require_all_ok(run_ranks(2, in_cpp([&](const Rank& rank) {
                               Local local;
                               dt::OuterOptions options;
                               options.fragments = 2;
                               options.sync_every = 2;
                               options.format = format;
                               dt::Outer outer(world_of(rank), local.params(), options);
                               local.train(1, rank.rank);
                               (void)outer.step();
                               local.train(2, rank.rank);
                               (void)outer.step();
                               outer.sync();
                               const Floats evaluated = local.values;
                               outer.sync();
                               if (!same_bits(evaluated, local.values))
                                 throw std::logic_error("the second one changed values");
                               local.train(3, rank.rank);  // and no step
                               outer.sync();
                               if (same_bits(evaluated, local.values))
                                 throw std::logic_error("training was lost");
                             })));
  }
}

TEST_CASE("outer: 16-bit parameters have a global value of f32") {
  require_all_ok(
      run_ranks(2, in_cpp([](const Rank& rank) {
                  uint16_t weight[] = {0x3f80, 0x4000};  // 1 and 2
                  dt::OuterOptions options;
                  options.momentum = 0;
                  options.rate = 0.25;
                  dt::Outer outer(world_of(rank), {{weight, 2, DT_BF16, "weight"}}, options);
                  const uint16_t trained[] = {0x4000, 0x4080};  // 2 and 4
                  std::memcpy(weight, trained, sizeof weight);
                  if (!outer.step()) throw std::logic_error("not as it should be");
                  const uint16_t wanted[] = {0x3fa0, 0x4020};  // 1.25 and 2.5
                  if (std::memcmp(weight, wanted, sizeof weight) != 0)
                    throw std::logic_error("not as it should be");
                })));
}

TEST_CASE("outer: saved in the middle, and gone on from there with the same bits") {
  const TempFolder folder;
  const std::string path = folder.path() + "/outer";
  dt::OuterOptions options;
  options.sync_every = 2;
  options.format = DT_OUTER_8BIT;
  std::vector<Floats> ended(6);
  require_all_ok(run_ranks(3, in_cpp([&](const Rank& rank) {
                             const dt::Comm world = world_of(rank);
                             Local local;
                             dt::Outer outer(world, local.params(), options);
                             for (int step = 1; step <= 8; ++step) {
                               local.train(step, rank.rank);
                               (void)outer.step();
                               if (step == 4 && rank.rank == 1) outer.save(path);
                             }
                             ended[static_cast<size_t>(rank.rank)] = local.values;
                           })));
  require_all_ok(run_ranks(3, in_cpp([&](const Rank& rank) {
                             Local local;
                             dt::Outer outer(world_of(rank), local.params(), options);
                             local.train(99, rank.rank);
                             outer.load(path);
                             for (int step = static_cast<int>(outer.steps()) + 1; step <= 8;
                                  ++step) {
                               local.train(step, rank.rank);
                               (void)outer.step();
                             }
                             ended[static_cast<size_t>(3 + rank.rank)] = local.values;
                           })));
  for (const Floats& each : ended) CHECK(same_bits(each, ended[0]));
}

/// Over those of each parameter in a file that had two steps.
void write_steps(const std::string& path, int64_t steps) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto size = static_cast<size_t>(8 * std::size(kCounts));
  // The numbers are the widest dtype, so they lie first.
  const int64_t header = *reinterpret_cast<const int64_t*>(bytes.data());
  for (size_t at = 0; at < size; at += 8) {
    std::memcpy(&bytes[static_cast<size_t>(header) + 8 + at], &steps, sizeof steps);
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_CASE("outer: what cannot be saved or loaded is named, and changes nothing") {
  const TempFolder folder;
  const std::string path = folder.path() + "/outer";
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  require_all_ok(run_ranks(
      2, in_cpp([&](const Rank& rank) {
        Local local;
        dt::OuterOptions options;
        options.sync_every = 2;
        options.delay = 1;
        dt::Outer outer(world_of(rank), local.params(), options);
        (void)outer.step();
        (void)outer.step();
        const auto refused = [](const std::function<void()>& call, dt_status status,
                                const std::string& text) {
          try {
            call();
          } catch (const dt::Error& error) {
            if (error.status() == status && contains(error.what(), text)) return;
            throw;
          }
          throw std::logic_error("not as it should be");
        };
        refused([&] { outer.save(path); }, DT_ERR_INVALID_STATE,
                "dt_outer_save on comm \"world\": a mean is under way");
        refused([&] { outer.load(path); }, DT_ERR_SYSTEM, "cannot open \"" + path + "\"");
        outer.sync();
        refused([&] { outer.save(folder.path()); }, DT_ERR_INVALID_ARGUMENT, "is not a file");
        refused([&] { outer.save(pipe); }, DT_ERR_INVALID_ARGUMENT, "is not a file");
        outer.save(path + std::to_string(rank.rank));
        options.momentum = 0;
        dt::Outer plain(world_of(rank), local.params(), options);
        plain.load(path + "0");  // what it has no use for
        plain.save(path + "plain" + std::to_string(rank.rank));
        const Floats before = local.values;
        refused([&] { outer.load(path + "plain0"); }, DT_ERR_INVALID_ARGUMENT, "momentum_buffer");
        write_steps(path + std::to_string(rank.rank), INT64_MAX);
        refused([&] { outer.load(path + std::to_string(rank.rank)); }, DT_ERR_INVALID_ARGUMENT,
                "or one that cannot be; give a file that dt_outer_save wrote");
        write_steps(path + std::to_string(rank.rank), rank.rank);
        refused([&] { outer.load(path + std::to_string(rank.rank)); }, DT_ERR_MISMATCH,
                "read different files");
        if (!same_bits(before, local.values))
          throw std::logic_error("a failed load changed values");
      })));
}

TEST_CASE("outer: ranks that differ hear of it") {
  const auto made_by = [](const std::function<void(int, Local*, dt::OuterOptions*)>& change) {
    return run_ranks(2, in_cpp([&](const Rank& rank) {
                       Local local;
                       dt::OuterOptions options;
                       change(rank.rank, &local, &options);
                       const dt::Outer outer(world_of(rank), local.params(), options);
                     }));
  };
  for (const Outcome& each : made_by([](int rank, Local*, dt::OuterOptions*options) {
         options->rate = rank == 0 ? 0.5 : 0.25;
       })) {
    CHECK(each.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(each.message, "have different parameters or options"), each.message);
  }
  for (const Outcome& each : made_by([](int rank, Local*local, dt::OuterOptions*) {
         local->values[5] += static_cast<float>(rank);
       })) {
    CHECK(each.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(each.message, "dt_outer_create on comm \"world\": rank 1 ("),
                  each.message);
    CHECK_MESSAGE(contains(each.message, "begin with different values; broadcast"), each.message);
  }
}

TEST_CASE("outer: after a loss parameters are those of before, and the others go on") {
  std::vector<Floats> ended(3);
  const auto outcomes = run_ranks(4, [&](const Rank& rank) -> dt_status {
    Local local;
    dt::OuterOptions options;
    options.sync_every = 2;
    try {
      const dt::Comm world = world_of(rank);
      dt::Outer outer(world, local.params(), options);
      // A slow rank may lose the mean of step 2, which the others have.
      bool failed = false;
      for (int step = 1; step <= 4 && !failed; ++step) {
        if (rank.rank == 3 && step == 4) return DT_OK;  // leaves
        local.train(step, rank.rank);
        const Floats before = local.values;
        try {
          (void)outer.step();
        } catch (const dt::Error& error) {
          failed = contains(error.what(), "rank 3");
          if (!failed || !same_bits(before, local.values)) throw;
        }
      }
      if (!failed) throw std::logic_error("no failure");
      dt_comm* rest = nullptr;
      RANK_TRY(dt_comm_shrink(rank.world, &rest));
      const dt::Comm smaller(rest);
      outer.move(smaller);
      outer.sync();
      ended[static_cast<size_t>(rank.rank)] = local.values;
      return DT_OK;
    } catch (const dt::Error& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank.rank, error.what());
      return error.status();
    }
  });
  for (const int rank : {0, 1, 2}) {
    const Outcome& each = outcomes[static_cast<size_t>(rank)];
    CHECK_MESSAGE(each.status == DT_OK, each.message);
    CHECK(same_bits(ended[static_cast<size_t>(rank)], ended[0]));
  }
}

TEST_CASE("outer: the time-out is that of the communicator, also one that is set later") {
  const auto outcomes = run_ranks(
      2,
      [](const Rank& rank) -> dt_status {
        float weight[] = {1, 2};
        const dt_outer_param param = {weight, 2, "weight", DT_F32, 0};
        dt_outer* outer = nullptr;
        RANK_TRY(dt_outer_create(rank.world, &param, 1, nullptr, &outer));
        RANK_TRY(dt_comm_set_timeout(rank.world, 300));
        const dt_status status = rank.rank == 0 ? dt_outer_step(outer, nullptr) : DT_ERR_TIMEOUT;
        RANK_TRY(dt_store_barrier(rank.job, "done", 2, -1));
        dt_outer_destroy(outer);
        return status == DT_ERR_TIMEOUT ? DT_OK : DT_ERR_INTERNAL;
      },
      {{"collective.timeout_ms", "0"}});
  for (const Outcome& each : outcomes) CHECK(each.status != DT_ERR_INTERNAL);
}

TEST_CASE("outer: handles that differ do not move together, and stay as they are") {
  require_all_ok(run_ranks(4, in_cpp([](const Rank& rank) {
                             dt::Comm world = world_of(rank);
                             const dt::Comm pair = *world.split(rank.rank / 2, rank.rank);
                             Local local;
                             dt::OuterOptions options;
                             if (rank.rank >= 2) options.momentum = 0;
                             dt::Outer outer(pair, local.params(), options);
                             local.train(1, rank.rank);
                             (void)outer.step();
                             const Floats before = local.values;
                             bool refused = false;
                             try {
                               outer.move(world);
                             } catch (const dt::Error& error) {
                               refused =
                                   error.status() == DT_ERR_MISMATCH &&
                                   contains(error.what(), "dt_outer_move on comm \"world\"") &&
                                   contains(error.what(), "different parameters or options");
                             }
                             if (!refused) throw std::logic_error("moved");
                             world.barrier();
                             outer.sync();  // over the pair, where nobody has trained since
                             for (size_t i = 0; i < before.size(); ++i) {
                               if (std::abs(before[i] - local.values[i]) > 1.0F) {
                                 throw std::logic_error("the failed move changed values");
                               }
                             }
                           })));
}

TEST_CASE("outer: one that has moved to another job does not keep the job before") {
  Outcome mover;
  std::promise<void> heard;
  const auto move = [&](const Rank& rank) -> dt_status {
    dt_comm* own = nullptr;
    RANK_TRY(dt_comm_split(rank.world, rank.rank, 0, &own));
    if (rank.rank == 1) {
      const dt_status status = dt_barrier(rank.world, nullptr, nullptr);
      heard.set_value();
      return status;
    }
    float weight[] = {1, 2};
    const dt_outer_param param = {weight, 2, "weight", DT_F32, 0};
    dt_outer* outer = nullptr;
    RANK_TRY(dt_outer_create(own, &param, 1, nullptr, &outer));
    dt_config* const config = rank_config(0, 1, 1, {});
    dt_job* after = nullptr;
    const dt_status begun = dt_init(config, &after);
    dt_config_destroy(config);
    RANK_TRY(begun);
    dt_comm* alone = nullptr;
    RANK_TRY(dt_comm_world(after, &alone));
    RANK_TRY(dt_outer_move(outer, alone));
    dt_comm_destroy(alone);
    dt_job_destroy(after);
    dt_comm_destroy(own);
    dt_comm_destroy(rank.world);
    dt_job_destroy(rank.job);  // the last handle of that job: its other rank hears of a death
    const bool in_time =
        heard.get_future().wait_for(std::chrono::seconds(15)) == std::future_status::ready;
    const dt_status step = dt_outer_step(outer, nullptr);
    dt_outer_destroy(outer);
    return in_time ? step : DT_ERR_TIMEOUT;
  };
  const auto outcomes = run_ranks(2,
                                  [&](const Rank& rank) -> dt_status {
                                    const dt_status status = move(rank);
                                    if (rank.rank == 0) mover = outcome_of(status);
                                    return status;
                                  },
                                  {{"collective.timeout_ms", "60000"}});
  CHECK_MESSAGE(mover.status == DT_OK, mover.message);
  CHECK_MESSAGE(outcomes[1].status == DT_ERR_PEER_LOST, outcomes[1].message);
}

TEST_CASE("outer: who is not behind keeps what it has trained since") {
  require_all_ok(run_ranks(2, in_cpp([](const Rank& rank) {
                             dt::Comm world = world_of(rank);
                             Local local;
                             dt::Outer outer(world, local.params());
                             local.train(1, rank.rank);
                             (void)outer.step();
                             local.train(2, rank.rank);
                             const Floats trained = local.values;
                             outer.move(world);
                             if (!same_bits(trained, local.values)) {
                               throw std::logic_error("what was trained is gone");
                             }
                           })));
}

TEST_CASE("outer: groups with shards of 16 bits, whose optimizers follow") {
  for (const int32_t stage : {1, 2, 3}) {
    CAPTURE(stage);
    std::vector<std::vector<uint16_t>> ended(4);
    require_all_ok(run_ranks(
        4, in_cpp([&](const Rank& rank) {
          constexpr int64_t kCount = 300;
          dt::Comm world = world_of(rank);
          dt::Comm within = *world.split(rank.rank / 2, rank.rank);
          const dt::Comm across = *world.split(rank.rank % 2, rank.rank);
          dt::ShardOptions sharded;
          sharded.stage = stage;
          dt::Shard shard(within, {{kCount, DT_BF16, "weight", 1}}, sharded);
          const std::vector<uint16_t> first(kCount, 0x3f80);  // 1
          shard.set(0, first.data());
          shard.updated();
          dt::Optimizer optimizer = dt::Optimizer::sgd(shard);
          const dt_piece piece = shard.piece(0);
          dt::OuterOptions options;
          options.sync_every = 2;
          options.momentum = 0;
          options.rate = 0.5;
          dt::Outer outer(across, {{piece.param, piece.count, DT_BF16, "weight"}}, options);
          // Groups go down by 0.25 and 0.5 in a step. The means of two steps, halved, are 0.375.
          const std::vector<uint16_t> gradient(kCount, rank.rank < 2 ? 0x3e80 : 0x3f00);
          for (int step = 1; step <= 4; ++step) {
            shard.gather(0);
            shard.reducer().ready(0, const_cast<uint16_t*>(gradient.data()));
            shard.reducer().finish();
            optimizer.step(1);
            (void)shard.piece(0);
            if (outer.step()) shard.updated();
          }
          shard.gather(0);
          const auto* values = static_cast<const uint16_t*>(shard.param(0));
          ended[static_cast<size_t>(rank.rank)].assign(values, values + kCount);
        })));
    for (const auto& each : ended) {
      CHECK(each == std::vector<uint16_t>(300, 0x3e80));  // 1 - 2 * 0.375
    }
  }
}

TEST_CASE("outer: who has loaded a file gives its values to who has not") {
  const TempFolder folder;
  const std::string path = folder.path() + "/outer";
  std::vector<Floats> ended(4);
  require_all_ok(run_ranks(4, in_cpp([&](const Rank& rank) {
                             dt::Comm world = world_of(rank);
                             const dt::Comm pair = *world.split(rank.rank / 2, rank.rank);
                             Local local;
                             {
                               Local trained;
                               dt::Outer outer(world, trained.params());
                               trained.train(1, rank.rank);
                               (void)outer.step();
                               if (rank.rank == 0) outer.save(path);
                             }
                             world.barrier();
                             dt::Outer outer(pair, local.params());
                             if (rank.rank >= 2) outer.load(path);
                             const bool same = same_bits(local.values, first_values());
                             if (same != (rank.rank < 2)) throw std::logic_error("not loaded");
                             outer.move(world);
                             ended[static_cast<size_t>(rank.rank)] = local.values;
                           })));
  for (const Floats& each : ended) {
    CHECK(same_bits(each, ended[3]));
    CHECK(!same_bits(each, first_values()));
  }
}

TEST_CASE("outer: who has had fewer means gets what the others have") {
  std::vector<Floats> ended(4);
  std::vector<Floats> ahead(4);
  require_all_ok(run_ranks(4, in_cpp([&](const Rank& rank) {
                             dt::Comm world = world_of(rank);
                             const dt::Comm pair = *world.split(rank.rank / 2, rank.rank);
                             Local local;
                             dt::Outer outer(pair, local.params());
                             for (int step = 1; step <= (rank.rank >= 2 ? 3 : 1); ++step) {
                               local.train(step, rank.rank);
                               (void)outer.step();
                             }
                             ahead[static_cast<size_t>(rank.rank)] = local.values;
                             outer.move(world);
                             if (outer.steps() != 3) throw std::logic_error("other steps");
                             ended[static_cast<size_t>(rank.rank)] = local.values;
                             outer.sync();
                           })));
  for (const Floats& each : ended) CHECK(same_bits(each, ahead[2]));
  CHECK(!same_bits(ahead[0], ahead[2]));
}

}  // namespace dt_test::outer_test
