// SPDX-License-Identifier: Apache-2.0
// Shards whose state, and in stage 3 whose pieces, lie in files: the same bits as in memory.
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <dt/dt.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "drawn.h"
#include "dt_run.h"
#include "thread_ranks.h"

namespace dt_test::offload_test {

using dt::test::TempFolder;

namespace {

constexpr int kSaved = 2;  // steps before a checkpoint
constexpr int kSteps = 4;
constexpr double kRate = 0.01;

const std::vector<dt_param> kParams = {{700, "embedding", DT_F32, 0},
                                       {9, "scale", DT_F64, 0},
                                       {0, "nothing", DT_F32, 0},
                                       {300, "projection", DT_F16, 0},
                                       {5'000, "large", DT_BF16, 0}};
constexpr int64_t kStateBytes = 8 * 700 + 16 * 9 + 12 * 5'300;  // of AdamW, of all ranks
constexpr int64_t kPieceBytes = 4 * 700 + 8 * 9 + 2 * 5'300;

struct Setup {
  bool adamw = true;
  int32_t stage = 1;
  std::string offload;
};

dt::Comm world_of(const Rank& rank) {
  dt_comm* handle = nullptr;
  dt::detail::check(dt_comm_world(rank.job, &handle));
  return dt::Comm(handle);
}

class Model {
 public:
  Model(const Rank& rank, const Setup& setup)
      : world_(world_of(rank)), shard_(make_shard(setup)), optimizer_(make_optimizer(setup)) {}

  void fill() {
    for (int32_t p = 0; p < count(); ++p) shard_.set(p, array_of(param(p), 0, p).data());
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      shard_.gather(0);
      std::vector<std::string> gradients;
      for (int32_t p = 0; p < count(); ++p) gradients.push_back(array_of(param(p), step + 1, p));
      for (int32_t p = count(); p-- > 0;) {
        shard_.reducer().ready(p, gradients[static_cast<size_t>(p)].data());
      }
      shard_.reducer().finish();
      optimizer_.step(kRate);
    }
  }
  std::string bits() {
    std::string all;
    shard_.gather(0);
    for (int32_t p = 0; p < count(); ++p) {
      all.append(static_cast<const char*>(shard_.param(p)), array_of(param(p), 0, p).size());
    }
    return all;
  }
  void save(const std::string& path) { shard_.save(path, optimizer_); }
  void load(const std::string& path) { shard_.load(path, optimizer_); }
  int64_t memory_bytes() { return shard_.reducer().stats().memory_bytes; }
  dt_piece piece(int32_t p) const { return shard_.piece(p); }

 private:
  static int32_t count() { return static_cast<int32_t>(kParams.size()); }
  static const dt_param& param(int32_t p) { return kParams[static_cast<size_t>(p)]; }
  dt::Shard make_shard(const Setup& setup) const {
    dt::ShardOptions options;
    options.stage = setup.stage;
    options.reducer.bucket_cap_bytes = 3'000;
    options.offload = setup.offload;
    std::vector<dt::Param> params;
    for (const dt_param& each : kParams) params.push_back({each.count, each.dtype, each.name});
    return dt::Shard(world_, params, options);
  }
  dt::Optimizer make_optimizer(const Setup& setup) const {
    if (setup.adamw) return dt::Optimizer::adamw(shard_);
    dt::SgdOptions options;
    options.momentum = 0.9;
    return dt::Optimizer::sgd(shard_, options);
  }

  dt::Comm world_;
  dt::Shard shard_;
  dt::Optimizer optimizer_;
};

/// What `body` returns on each rank.
using Body = std::function<std::string(const Rank&)>;
std::vector<std::string> results_of(int world_size, const Body& body) {
  std::vector<std::string> results(static_cast<size_t>(world_size));
  require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
    try {
      results[static_cast<size_t>(rank.rank)] = body(rank);
      return DT_OK;
    } catch (const dt::Error& error) {
      fprintf(stderr, "rank %d: %s\n", rank.rank, error.what());
      return DT_ERR_INTERNAL;
    }
  }));
  return results;
}

/// The message of creating such a model.
std::string refusal_of(const Rank& rank, const Setup& setup) {
  try {
    const Model model(rank, setup);
    return "none";
  } catch (const dt::Error& error) {
    return std::to_string(error.status()) + ": " + error.what();
  }
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Of this process's mappings of files below a folder.
struct Mapped {
  int64_t bytes = 0;
  int64_t anonymous_bytes = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
};

Mapped mapped_below(const std::string& folder) {
  Mapped mapped;
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(smaps, line)) {
    unsigned long begin = 0;
    unsigned long end = 0;
    long long kib = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = contains(line, folder + "/");
      if (inside) mapped.ranges.emplace_back(begin, end);
    } else if (inside && sscanf(line.c_str(), "Size: %lld kB", &kib) == 1) {
      mapped.bytes += kib * 1024;
    } else if (inside && sscanf(line.c_str(), "Anonymous: %lld kB", &kib) == 1) {
      mapped.anonymous_bytes += kib * 1024;
    }
  }
  return mapped;
}

/// Private memory of the process, without files.
int64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  long long kib = 0;
  while (std::getline(status, line) && sscanf(line.c_str(), "VmData: %lld kB", &kib) != 1) {
  }
  return kib * 1024;
}

bool is_empty(const std::string& folder) { return std::filesystem::is_empty(folder); }

/// A limit of this process, which goes with it.
template <int kind>
class Limit {
 public:
  explicit Limit(rlim_t bytes) {
    getrlimit(kind, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(kind, &limit);
  }
  ~Limit() { setrlimit(kind, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace

TEST_CASE("offload: the bits are those of memory, in every stage, on all ranks or on one") {
  const TempFolder folder;
  for (const bool adamw : {true, false}) {
    for (const int world_size : {1, 2, 3}) {
      const auto trained = [&](int32_t stage, int ranks) {
        return results_of(world_size, [&](const Rank& rank) {
          Model model(rank, {adamw, stage, rank.rank < ranks ? folder.path() : ""});
          model.fill();
          model.train(0, kSteps);
          return model.bits();
        });
      };
      const std::string wanted = trained(1, 0)[0];
      for (const int32_t stage : {0, 1, 2, 3}) {
        for (const int ranks : {world_size, 1}) {
          CAPTURE(world_size);
          CAPTURE(stage);
          CAPTURE(ranks);
          for (const std::string& each : trained(stage, ranks)) CHECK(each == wanted);
        }
      }
    }
  }
  CHECK(is_empty(folder.path()));
}

TEST_CASE("offload: checkpoints from files and from memory are the same, and go either way") {
  const TempFolder folder;
  for (const bool adamw : {true, false}) {
    const auto saved = [&](int32_t stage, const std::string& offload, const std::string& path) {
      return results_of(4, [&](const Rank& rank) {
        Model model(rank, {adamw, stage, offload});
        model.fill();
        model.train(0, kSaved);
        model.save(path);
        model.train(kSaved, kSteps);
        return model.bits();
      })[0];
    };
    const auto resumed = [&](int32_t stage, const std::string& offload, const std::string& path) {
      return results_of(2, [&](const Rank& rank) {
        Model model(rank, {adamw, stage, offload});
        model.load(path);
        model.train(kSaved, kSteps);
        return model.bits();
      })[0];
    };
    const TempFolder files;
    const std::string of_memory = folder.path() + "/of_memory";
    const std::string of_files = folder.path() + "/of_files";
    for (const int32_t stage : {1, 3}) {
      CAPTURE(adamw);
      CAPTURE(stage);
      const std::string wanted = saved(stage, "", of_memory);
      CHECK(saved(stage, files.path(), of_files) == wanted);
      CHECK(read_file(of_files) == read_file(of_memory));
      CHECK(resumed(stage, files.path(), of_memory) == wanted);
      CHECK(resumed(stage, "", of_files) == wanted);
    }
  }
}

TEST_CASE("offload: what lies in files takes no memory of the process") {
  const TempFolder folder;
  const auto memory_of = [&](int32_t stage, const std::string& offload) {
    int64_t bytes = 0;
    results_of(2, [&](const Rank& rank) {
      Model model(rank, {true, stage, offload});
      model.fill();
      model.train(0, kSteps);
      if (rank.rank == 1) bytes = model.memory_bytes();
      dt::detail::check(dt_barrier(rank.world, nullptr, nullptr));
      if (rank.rank == 0 && !offload.empty()) {
        const Mapped mapped = mapped_below(folder.path());
        CHECK(mapped.bytes >= kStateBytes + (stage == 3 ? kPieceBytes : 0));
        CHECK(mapped.anonymous_bytes == 0);
        const dt_piece piece = model.piece(4);
        const auto at = reinterpret_cast<uintptr_t>(piece.param);
        const bool in_file =
            std::any_of(mapped.ranges.begin(), mapped.ranges.end(),
                        [&](const auto& range) { return at >= range.first && at < range.second; });
        CHECK(in_file == (stage == 3));
      }
      dt::detail::check(dt_barrier(rank.world, nullptr, nullptr));
      return std::string();
    });
    CHECK(mapped_below(folder.path()).ranges.empty());
    return bytes;
  };
  CHECK(memory_of(1, folder.path()) == memory_of(1, ""));  // which counts no optimizer
  const int64_t saved = memory_of(3, "") - memory_of(3, folder.path());
  CHECK(saved >= kPieceBytes / 2);
  CHECK(saved <= kPieceBytes / 2 + 256 * 8);  // buckets end at multiples of 256 bytes
}

TEST_CASE("offload: a process that may have no more memory has room for state in files") {
  const TempFolder folder;
  constexpr int64_t kCount = 4'000'000;  // and 32 MB of state
  const auto refusal = results_of(1, [&](const Rank& rank) -> std::string {
    const dt::Comm world = world_of(rank);
    const std::vector<dt::Param> params = {{kCount, DT_F32, "weight", 1}};
    dt::ShardOptions options;
    const dt::Shard in_memory(world, params, options);
    options.offload = folder.path();
    const dt::Shard in_files(world, params, options);
    const Limit<RLIMIT_DATA> limit(static_cast<rlim_t>(private_bytes() + 4 * kCount));
    const dt::Optimizer works = dt::Optimizer::adamw(in_files);
    try {
      const dt::Optimizer fails = dt::Optimizer::adamw(in_memory);
      return "none";
    } catch (const dt::Error& error) {
      return std::to_string(error.status()) + ": " + error.what();
    }
  })[0];
  CAPTURE(refusal);
  CHECK(contains(refusal, std::to_string(DT_ERR_OUT_OF_MEMORY) + ": "));
  CHECK(
      contains(refusal,
               "dt_optimizer_adamw on comm \"world\": cannot get 32000000 bytes of memory: Cannot "
               "allocate memory; give the shard a directory"));
}

TEST_CASE("offload: a directory that takes no files fails on all ranks, with the same text") {
  const TempFolder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "not a directory";
  struct Case {
    std::string path;
    std::string reason;
  };
  const Case cases[] = {{folder.path() + "/missing",
                         "No such file or directory; look whether its directory is there"},
                        {file, "Not a directory; look at the path"},
                        {std::string(5'000, 'a'), "File name too long"}};
  for (const Case& given : cases) {
    for (const int32_t stage : {1, 3}) {
      const auto refusals = results_of(3, [&](const Rank& rank) {
        const std::string refusal =
            refusal_of(rank, {true, stage, rank.rank == 1 ? given.path : folder.path()});
        Model(rank, {true, stage, folder.path()}).fill();  // nothing is broken
        return refusal;
      });
      for (const std::string& each : refusals) {
        CHECK(each == refusals[0]);
        CAPTURE(each);
        CHECK(contains(each, std::to_string(DT_ERR_SYSTEM) + ": "));
        CHECK(contains(each, "dt_shard_create on comm \"world\": rank 1 ("));
        CHECK(contains(each, "cannot make a file in \""));
        CHECK(contains(each, given.reason));
      }
    }
  }
}

TEST_CASE("offload: files that may not be so long are refused, and no signal ends the process") {
  const TempFolder folder;
  for (const int32_t stage : {1, 3}) {
    const std::string refusal = results_of(1, [&](const Rank& rank) {
      std::string text;
      {
        const Limit<RLIMIT_FSIZE> limit(4096);
        text = refusal_of(rank, {true, stage, folder.path()});
      }
      Model(rank, {true, stage, folder.path()}).fill();
      return text;
    })[0];
    CAPTURE(refusal);
    CHECK(contains(refusal, stage == 3 ? "dt_shard_create on comm \"world\": rank 0 ("
                                       : "dt_optimizer_adamw on comm \"world\": cannot get "));
    CHECK(
        contains(refusal, " bytes for a file in \"" + folder.path() + "\": File too large; raise"));
  }
  CHECK(is_empty(folder.path()));
}

}  // namespace dt_test::offload_test
