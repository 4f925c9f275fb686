// SPDX-License-Identifier: Apache-2.0
// What a reducer carries from step to step, saved and loaded.
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <dt/dt.hpp>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "dt_run.h"
#include "thread_ranks.h"

namespace dt_test::reducer_file_test {

using dt::test::TempFolder;

namespace {

using Floats = std::vector<float>;

constexpr int64_t kRows = 24;
constexpr int64_t kColumns = 50;
constexpr int64_t kVector = 77;

enum class Way { kPlain, k8Bit, kPowerSgd, kPowerSgd16Bit };

std::vector<dt::Param> model() {
  return {{kRows * kColumns, DT_F32, "matrix"}, {kVector, DT_F32, "vector"}, {3, DT_F64, "other"}};
}

dt::Reducer make(const dt::Comm& world, Way way, const std::vector<dt::Param>& params = model(),
                 int32_t power_sgd_rank = 2) {
  dt::ReducerOptions options;
  if (way == Way::k8Bit) options.wire = DT_WIRE_8BIT;
  options.keep_plan = true;
  options.bucket_cap_bytes = 600;
  dt::Reducer reducer(world, params, options);
  if (way == Way::kPowerSgd || way == Way::kPowerSgd16Bit) {
    dt::PowerSgdOptions power_sgd;
    power_sgd.rank = power_sgd_rank;
    power_sgd.start_step = 2;
    if (way == Way::kPowerSgd16Bit) power_sgd.wire = DT_WIRE_F16;
    std::vector<int64_t> rows(params.size());
    rows[0] = kRows;
    reducer.power_sgd(rows, power_sgd);
  }
  return reducer;
}

/// The results of all parameters of f32.
Floats step(dt::Reducer* reducer, int rank, int number) {
  Floats all(static_cast<size_t>(kRows * kColumns + kVector));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<float>(std::sin(static_cast<double>(i) + 50.0 * rank + 7.0 * number));
  }
  double other[3] = {};
  reducer->ready(2, other);
  reducer->ready(1, all.data() + kRows * kColumns);
  reducer->ready(0, all.data());
  reducer->finish();
  return all;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect(bool good, const char* what) {
  if (!good) throw std::logic_error(what);
}

void run_each(int ranks, const std::function<void(dt::Comm&, int)>& body) {
  require_all_ok(run_ranks(ranks, [&](const Rank& rank) -> dt_status {
    try {
      dt_comm* world = nullptr;
      RANK_TRY(dt_comm_world(rank.job, &world));
      dt::Comm comm(world);
      body(comm, rank.rank);
      return DT_OK;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank.rank, error.what());
      return DT_ERR_INTERNAL;
    }
  }));
}

void refused(dt::Reducer* reducer, const std::string& path, dt_status status,
             const std::string& text) {
  try {
    reducer->load(path);
  } catch (const dt::Error& error) {
    if (error.status() == status && contains(error.what(), text)) return;
    throw std::logic_error(std::string("other than \"") + text + "\": " + error.what());
  }
  throw std::logic_error("loaded, without \"" + text + "\"");
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("reducer: saved behind a step, and gone on from there with the same bits") {
  const TempFolder folder;
  for (const Way way : {Way::kPlain, Way::k8Bit, Way::kPowerSgd, Way::kPowerSgd16Bit}) {
    for (const int ranks : {1, 2, 3}) {
      for (const int saved : {0, 1, 4}) {  // PowerSGD begins with step 3
        CAPTURE(static_cast<int>(way));
        CAPTURE(ranks);
        CAPTURE(saved);
        run_each(ranks, [&](dt::Comm& world, int rank) {
          const std::string path = folder.path() + "/rank" + std::to_string(rank);
          dt::Reducer whole = make(world, way);
          std::vector<Floats> wanted;
          for (int i = 0; i < 7; ++i) {
            if (i == saved) whole.save(path);
            wanted.push_back(step(&whole, rank, i));
          }
          dt::Reducer resumed = make(world, way);
          if (saved > 1) (void)step(&resumed, rank, 99);  // of another step, which load() replaces
          resumed.load(path);
          for (int i = saved; i < 7; ++i) {
            expect(same_bits(step(&resumed, rank, i), wanted[static_cast<size_t>(i)]),
                   "other bits");
          }
          dt::Reducer without = make(world, way);
          bool same = true;
          for (int i = saved; i < 7; ++i) {
            same &= same_bits(step(&without, rank, i), wanted[static_cast<size_t>(i)]);
          }
          expect(same == (way == Way::kPlain || saved == 0), "the file makes no difference");
        });
      }
    }
  }
}

TEST_CASE("reducer: a file that does not fit is refused on all ranks, and nothing changes") {
  const TempFolder folder;
  for (const Way way : {Way::k8Bit, Way::kPowerSgd}) {
    CAPTURE(static_cast<int>(way));
    run_each(2, [&](dt::Comm& world, int rank) {
      const std::string path = folder.path() + "/rank";
      const std::string own = path + std::to_string(rank);
      const auto saved_by = [&](dt::Reducer made, const char* name, int steps) {
        const std::string to = own + name;
        for (int i = 0; i < steps; ++i) (void)step(&made, rank, i);
        made.save(to);
        return to;
      };
      dt::Reducer reducer = make(world, way);
      dt::Reducer twin = make(world, way);
      for (int i = 0; i < 4; ++i) {
        (void)step(&reducer, rank, i);
        (void)step(&twin, rank, i);
      }
      const std::string good = saved_by(make(world, way), "good", 4);
      const std::string later = saved_by(make(world, way), "later", 5);
      const std::string plain = saved_by(make(world, Way::kPlain), "plain", 1);
      expect(bytes_of(plain).size() < 300, "an empty file is long");
      auto renamed = model();
      renamed[0].name = "renamed";
      const std::string names = saved_by(make(world, way, renamed), "names", 0);
      auto larger = model();
      larger.push_back({way == Way::k8Bit ? 5 : 0, DT_F32, "one more"});
      const std::string more = own + "more";
      make(world, way, larger).save(more);
      world.barrier();

      refused(&reducer, own + "none", DT_ERR_SYSTEM, "cannot open");
      refused(&reducer, plain, DT_ERR_MISMATCH, "with compression \"none\", this one's is");
      refused(&reducer, path + "0good", DT_ERR_MISMATCH,
              "rank 0 of 2 saved it, this is rank 1 of 2");
      refused(&reducer, rank == 0 ? good : later, DT_ERR_MISMATCH, "read files of different steps");
      refused(&reducer, names, DT_ERR_MISMATCH, "it has no tensor \"error.matrix\"");
      if (way == Way::k8Bit) {
        refused(&reducer, more, DT_ERR_MISMATCH, "this model has no tensor \"error.one more\"");
      } else {
        const std::string wide = saved_by(make(world, way, model(), 3), "wide", 4);
        refused(&reducer, wide, DT_ERR_MISMATCH, "its \"q.matrix\" has 150 elements of F32");
      }
      const std::string text = bytes_of(good);
      const std::string cut = own + "cut";
      for (const size_t bytes : {size_t{0}, size_t{7}, size_t{40}, text.size() - 1}) {
        std::ofstream(cut, std::ios::binary | std::ios::trunc) << text.substr(0, bytes);
        refused(&reducer, cut, DT_ERR_INVALID_ARGUMENT, "give a file that dt_reducer_save wrote");
      }
      const std::string foreign = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
      std::ofstream(cut, std::ios::binary | std::ios::trunc)
          << static_cast<char>(foreign.size()) << std::string(7, '\0') << foreign << 'x';
      refused(&reducer, cut, DT_ERR_INVALID_ARGUMENT, "it has no state of a reducer");

      for (int i = 4; i < 7; ++i) {
        expect(same_bits(step(&reducer, rank, i), step(&twin, rank, i)),
               "a failed load changed it");
      }
      reducer.load(good);
      twin.load(good);
      expect(same_bits(step(&reducer, rank, 4), step(&twin, rank, 4)), "other bits");
    });
  }
}

TEST_CASE("reducer: not saved inside a step, with equal names, or over what is not a file") {
  const TempFolder folder;
  run_each(1, [&](dt::Comm& world, int) {
    const std::string path = folder.path() + "/reducer";
    dt::Reducer reducer = make(world, Way::k8Bit);
    const auto cannot_save = [](dt::Reducer* which, const std::string& to,
                                const std::string& text) {
      try {
        which->save(to);
      } catch (const dt::Error& error) {
        expect(contains(error.what(), text), error.what());
        return;
      }
      throw std::logic_error("saved, without \"" + text + "\"");
    };
    reducer.save(path);
    const std::string pipe = folder.path() + "/pipe";
    expect(mkfifo(pipe.c_str(), 0600) == 0, "no pipe");
    cannot_save(&reducer, pipe, "pipe\" is not a file; give the path of a file");
    Floats gradient(kVector);
    reducer.ready(1, gradient.data());
    refused(&reducer, path, DT_ERR_INVALID_STATE, "inside a step");
    cannot_save(&reducer, path, "dt_reducer_save on comm \"world\": inside a step");
    auto twice = model();
    twice[1].name = "matrix";
    dt::Reducer same = make(world, Way::k8Bit, twice);
    cannot_save(&same, path,
                "parameter #1 \"matrix\" would be called \"error.matrix\" in the file");
  });
}

}  // namespace dt_test::reducer_file_test
