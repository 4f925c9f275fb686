// SPDX-License-Identifier: Apache-2.0
// Checkpoints of shards: whoever reads one goes on to the bits of the run that was never stopped.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "../sanitizers.h"
#include "drawn.h"
#include "dt_run.h"
#include "thread_ranks.h"

namespace dt_test::checkpoint_test {

using dt::test::TempFolder;

namespace {

constexpr int kSaved = 3;  // steps before the checkpoint
constexpr int kSteps = 6;
constexpr double kRate = 0.01;

const std::vector<dt_param> kParams = {
    {700, "embedding", DT_F32, 0},   {9, nullptr, DT_F64, 0}, {0, "nothing", DT_F32, 0},
    {300, "projection", DT_BF16, 0}, {1, "scale", DT_F32, 0}, {5'000, "large", DT_BF16, 0}};
const int64_t kGranules[] = {70, 1, 1, 7, 1, 1'000};
const int32_t kUnits[] = {0, 0, 1, 1, 2, 2};

enum class Kind { kNone, kAdamW, kSgd, kMomentum };

/// How a model is cut, and what updates it.
struct Setup {
  Kind kind = Kind::kAdamW;
  int32_t stage = 1;
  int64_t bucket_bytes = 1 << 20;
  bool units = false;  // and granules
  int32_t shard_ranks = 0;
};

/// The handles of one rank.
class Model {
 public:
  Model() = default;
  ~Model() {
    dt_optimizer_destroy(optimizer);
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  dt_status open(const Rank& rank, const Setup& setup,
                 const std::vector<dt_param>& params = kParams) {
    params_ = params;
    dt_reducer_options gradients;
    dt_reducer_options_init(&gradients);
    gradients.bucket_cap_bytes = setup.bucket_bytes;
    gradients.sum = 1;  // of one rank's gradients and zeros: the same for any number of ranks
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.stage = setup.stage;
    options.reducer = &gradients;
    options.granules = setup.units ? kGranules : nullptr;
    options.units = setup.units ? kUnits : nullptr;
    if (setup.shard_ranks < rank.world_size) options.shard_ranks = setup.shard_ranks;
    RANK_TRY(dt_shard_create(rank.world, params_.data(), static_cast<int32_t>(params_.size()),
                             &options, &shard));
    RANK_TRY(dt_shard_reducer(shard, &reducer));
    if (setup.kind == Kind::kNone) return DT_OK;
    if (setup.kind == Kind::kAdamW) return dt_optimizer_adamw(shard, nullptr, &optimizer);
    dt_sgd_options sgd;
    dt_sgd_options_init(&sgd);
    if (setup.kind == Kind::kMomentum) sgd.momentum = 0.9;
    sgd.dampening = 0.25;
    return dt_optimizer_sgd(shard, &sgd, &optimizer);
  }
  /// Other values than those of the checkpoint.
  dt_status fill() {
    for (size_t p = 0; p < params_.size(); ++p) {
      const auto index = static_cast<int32_t>(p);
      RANK_TRY(dt_shard_set(shard, index, array_of(params_[p], 0, index).data(), nullptr));
    }
    return DT_OK;
  }
  dt_status train(const Rank& rank, int from, int to) {
    for (int step = from; step < to; ++step) {
      RANK_TRY(gather());
      std::vector<std::string> gradients;
      for (size_t p = 0; p < params_.size(); ++p) {
        gradients.push_back(array_of(params_[p], step + 1, static_cast<int32_t>(p)));
        if (rank.rank != 0) std::fill(gradients[p].begin(), gradients[p].end(), '\0');
      }
      for (size_t p = params_.size(); p-- > 0;) {
        RANK_TRY(dt_reducer_ready(reducer, static_cast<int32_t>(p), gradients[p].data(), nullptr));
      }
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      RANK_TRY(dt_optimizer_step(optimizer, kRate, nullptr));
    }
    return DT_OK;
  }
  dt_status gather() {
    for (const int32_t unit : {0, 1, 2}) {
      const dt_status status = dt_shard_gather(shard, unit, nullptr);
      if (status != DT_OK && status != DT_ERR_INVALID_ARGUMENT) return status;  // no such unit
    }
    return DT_OK;
  }
  dt_status bits(std::string* out) {
    RANK_TRY(gather());
    out->clear();
    for (size_t p = 0; p < params_.size(); ++p) {
      void* values = nullptr;
      RANK_TRY(dt_shard_param(shard, static_cast<int32_t>(p), &values));
      out->append(static_cast<const char*>(values),
                  static_cast<size_t>(params_[p].count * dt_dtype_bytes(params_[p].dtype)));
    }
    return DT_OK;
  }

  dt_shard* shard = nullptr;
  dt_reducer* reducer = nullptr;
  dt_optimizer* optimizer = nullptr;

 private:
  std::vector<dt_param> params_;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string file_of(const std::string& json, const std::string& data) {
  std::string head(8, '\0');
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(json.size() >> (8 * i));
  return head + json + data;
}

/// All ranks failed alike.
void check_same_failure(const std::vector<Outcome>& outcomes, dt_status status,
                        const std::vector<std::string>& parts) {
  for (const Outcome& each : outcomes) {
    CHECK(each.status == status);
    CHECK(each.message == outcomes[0].message);
  }
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK_MESSAGE(contains(outcomes[0].message, part), outcomes[0].message);
  }
}

/// A checkpoint of 4 ranks, and the bits that they end with, if they go on.
void train_and_save(Kind kind, const std::string& path, std::string* ended) {
  std::vector<std::string> bits(4);
  require_all_ok(run_ranks(4, [&](const Rank& rank) -> dt_status {
    Model model;
    RANK_TRY(model.open(rank, {kind}));
    RANK_TRY(model.fill());
    RANK_TRY(model.train(rank, 0, kSaved));
    RANK_TRY(dt_shard_save(model.shard, model.optimizer, path.c_str()));  // while parameters travel
    RANK_TRY(model.train(rank, kSaved, kSteps));
    return model.bits(&bits[static_cast<size_t>(rank.rank)]);
  }));
  for (const std::string& each : bits) CHECK(each == bits[0]);
  *ended = bits[0];
}

}  // namespace

TEST_CASE("checkpoint: any number of ranks and any cut go on to the same bits") {
  for (const Kind kind : dt::test::kThreadSanitizer
                             ? std::vector{Kind::kAdamW}
                             : std::vector{Kind::kAdamW, Kind::kSgd, Kind::kMomentum}) {
    const TempFolder folder;
    const std::string path = folder.path() + "/model.safetensors";
    std::string wanted;
    train_and_save(kind, path, &wanted);
    const std::string saved = read_file(path);
    REQUIRE(saved.size() > 8);
    CHECK(!is_there(path + ".partial"));
    for (const int world_size : {1, 2, 3, 8}) {
      for (const Setup& setup :
           {Setup{kind, 1, 1 << 20, false}, Setup{kind, 1, 1, true}, Setup{kind, 1, 2'000, true},
            Setup{kind, 0, 3'000, false}, Setup{kind, 2, 2'000, true}, Setup{kind, 3, 1, true},
            Setup{kind, 2, 2'000, true, 1}, Setup{kind, 3, 1 << 20, false, 4}}) {
        CAPTURE(world_size);
        CAPTURE(setup.stage);
        CAPTURE(setup.bucket_bytes);
        const std::string again = folder.path() + "/again";
        std::vector<std::string> bits(static_cast<size_t>(world_size));
        require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
          Model model;
          RANK_TRY(model.open(rank, setup));
          RANK_TRY(dt_shard_load(model.shard, model.optimizer, path.c_str()));
          RANK_TRY(dt_shard_save(model.shard, model.optimizer, again.c_str()));
          RANK_TRY(model.train(rank, kSaved, kSteps));
          return model.bits(&bits[static_cast<size_t>(rank.rank)]);
        }));
        for (const std::string& each : bits) CHECK(each == wanted);
        CHECK(read_file(again) == saved);
      }
    }
  }
}

TEST_CASE("checkpoint: ranks on several hosts agree like those on one") {
  const TempFolder folder;
  const std::string path = folder.path() + "/model";
  std::string wanted;
  train_and_save(Kind::kAdamW, path, &wanted);
  const std::string again = folder.path() + "/again";
  std::vector<std::string> bits(5);
  const auto on_hosts = numbered({0, 0, 1, 1, 2}, 1);
  require_all_ok(run_ranks(
      5,
      [&](const Rank& rank) -> dt_status {
        Model model;
        RANK_TRY(model.open(rank, {Kind::kAdamW}));
        RANK_TRY(dt_shard_load(model.shard, model.optimizer, path.c_str()));
        RANK_TRY(dt_shard_save(model.shard, model.optimizer, again.c_str()));
        RANK_TRY(model.train(rank, kSaved, kSteps));
        return model.bits(&bits[static_cast<size_t>(rank.rank)]);
      },
      {}, on_hosts));
  for (const std::string& each : bits) CHECK(each == wanted);
  CHECK(read_file(again) == read_file(path));
  const auto outcomes = run_ranks(
      5,
      [&](const Rank& rank) -> dt_status {
        Model model;
        RANK_TRY(model.open(rank, {Kind::kAdamW}));
        const std::string own = rank.rank == 4 ? again + "4" : again;
        return dt_shard_save(model.shard, model.optimizer, own.c_str());
      },
      {}, on_hosts);
  check_same_failure(outcomes, DT_ERR_SYSTEM, {": rank 4 (", ") does not find \"" + again + "4"});
}

TEST_CASE("checkpoint: parameters alone, over what an optimizer already updates") {
  const TempFolder folder;
  const std::string path = folder.path() + "/parameters";
  std::string first;
  std::string second;
  require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
    Model model;
    RANK_TRY(model.open(rank, {Kind::kSgd}));
    RANK_TRY(model.fill());
    RANK_TRY(dt_shard_save(model.shard, nullptr, path.c_str()));
    std::string bits[2];
    for (std::string& each : bits) {
      RANK_TRY(model.train(rank, 0, 2));
      RANK_TRY(model.bits(&each));
      RANK_TRY(dt_shard_load(model.shard, nullptr, path.c_str()));
    }
    if (rank.rank == 1) {
      first = bits[0];
      second = bits[1];
    }
    return DT_OK;
  }));
  // SGD has no state but the f32 values of bf16, which follow what is loaded.
  CHECK(!first.empty());
  CHECK(first == second);
}

TEST_CASE("checkpoint: of a file made elsewhere, in another order and without f32 values") {
  const TempFolder folder;
  const std::string path = folder.path() + "/made_elsewhere";
  const std::string json =
      R"({"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[16,20]},)"
      R"("v":{"dtype":"BF16","shape":[1],"data_offsets":[20,22]},)"
      R"("optimizer.step.v":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("optimizer.step.w":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}})";
  const std::string values("\x80\x3f\0\x40\x40\x40", 6);  // 1, 2 and 3
  write_file(path, file_of(json, std::string("\7\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 16) + values));
  const std::vector<dt_param> params = {{2, "w", DT_BF16, 0}, {1, "v", DT_BF16, 0}};
  require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
    Model model;
    RANK_TRY(model.open(rank, {Kind::kSgd}, params));
    RANK_TRY(dt_shard_load(model.shard, model.optimizer, path.c_str()));
    RANK_TRY(dt_shard_save(model.shard, model.optimizer, (path + ".2").c_str()));
    return DT_OK;
  }));
  const std::string again = read_file(path + ".2");
  // The steps in the model's order, and the values as f32 and as bf16.
  const std::string data = std::string("\5\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0", 16) +
                           std::string("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40", 12) + values;
  REQUIRE(again.size() > data.size());
  CHECK(again.substr(again.size() - data.size()) == data);
}

TEST_CASE("checkpoint: files that do not fit are refused on all ranks, and change nothing") {
  const TempFolder folder;
  const std::string path = folder.path() + "/file";
  const std::string good =
      file_of(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "01234567");
  struct Case {
    std::string bytes;
    dt_status status;
    std::string text;
  };
  const Case cases[] = {
      {"", DT_ERR_INVALID_ARGUMENT, "it has 0 bytes only; give a file that dt_shard_save wrote"},
      {std::string(8, '\xff'), DT_ERR_INVALID_ARGUMENT,
       "its header would have 18446744073709551615"},
      {good.substr(0, 20), DT_ERR_INVALID_ARGUMENT, "its header would end at byte"},
      {good.substr(0, good.size() - 1), DT_ERR_INVALID_ARGUMENT, "it has 7 bytes of tensors"},
      {file_of("no JSON", ""), DT_ERR_INVALID_ARGUMENT, "the header is not JSON at byte"},
      {file_of("{}", ""), DT_ERR_INVALID_ARGUMENT, "it has no tensor \"w\""},
      {file_of(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "0123456789ab"),
       DT_ERR_INVALID_ARGUMENT, "its \"w\" has 3 elements of F32, this model's 2 of F32"},
      {file_of(R"({"w":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", std::string(16, 'a')),
       DT_ERR_INVALID_ARGUMENT, "its \"w\" has 2 elements of I64, this model's 2 of F32"},
      {file_of(R"({"__metadata__":{"dt":"9"}})", ""), DT_ERR_VERSION, "has version \"9\""},
  };
  const std::vector<dt_param> params = {{2, "w", DT_F32, 0}};
  const float values[] = {1, 2};
  for (const Case& each : cases) {
    write_file(path, each.bytes);
    std::vector<std::string> kept(3);
    const auto outcomes = run_ranks(3, [&](const Rank& rank) -> dt_status {
      Model model;
      RANK_TRY(model.open(rank, {Kind::kNone}, params));
      RANK_TRY(dt_shard_set(model.shard, 0, values, nullptr));
      const dt_status status = dt_shard_load(model.shard, nullptr, path.c_str());
      const std::string message = dt_last_error();
      RANK_TRY(model.bits(&kept[static_cast<size_t>(rank.rank)]));
      (void)dt_shard_load(model.shard, nullptr, path.c_str());  // the message of this thread again
      return status;
    });
    check_same_failure(
        outcomes, each.status,
        {"dt_shard_load on comm \"world\": rank 0 (", "cannot load \"" + path + "\": ", each.text});
    for (const std::string& bits : kept) {
      CHECK(bits == std::string(reinterpret_cast<const char*>(values), sizeof values));
    }
  }
  const auto load = [&](const std::function<std::string(int)>& path_of, Kind kind) {
    return run_ranks(3, [&, kind](const Rank& rank) -> dt_status {
      Model model;
      RANK_TRY(model.open(rank, {kind}, params));
      return dt_shard_load(model.shard, model.optimizer, path_of(rank.rank).c_str());
    });
  };
  write_file(path, good);
  require_all_ok(load([&](int) { return path; }, Kind::kNone));
  check_same_failure(load([&](int) { return path; }, Kind::kMomentum), DT_ERR_INVALID_ARGUMENT,
                     {"it has no tensor \"optimizer.step.w\"; load parameters alone"});
  check_same_failure(load([&](int rank) { return rank == 2 ? path + "?" : path; }, Kind::kNone),
                     DT_ERR_SYSTEM,
                     {"rank 2 (", "cannot open \"" + path + "?\": No such file or directory"});
  write_file(path + "2",
             file_of(R"({ "w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "01234567"));
  write_file(path + "3",
             file_of(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "01234568"));
  for (const char* const other : {"2", "3"}) {
    CAPTURE(std::string(other));
    check_same_failure(load([&](int rank) { return rank == 1 ? path + other : path; }, Kind::kNone),
                       DT_ERR_MISMATCH, {"rank 1 (", ") and rank 0 (", "read different files"});
  }
  check_same_failure(load([&](int) { return folder.path(); }, Kind::kNone), DT_ERR_INVALID_ARGUMENT,
                     {"it is not a file"});
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  check_same_failure(load([&](int) { return pipe; }, Kind::kNone), DT_ERR_INVALID_ARGUMENT,
                     {"it is not a file"});
}

TEST_CASE("checkpoint: files that differ at one end of a tensor are not the same checkpoint") {
  const TempFolder folder;
  const std::vector<dt_param> params = {{5'000, "w", DT_F32, 0}};
  const std::string json = R"({"w":{"dtype":"F32","shape":[5000],"data_offsets":[0,20000]}})";
  const std::string path = folder.path() + "/file";
  std::string values(20'000, '1');
  write_file(path, file_of(json, values));
  for (const size_t at : {size_t{0}, size_t{19'999}}) {
    CAPTURE(at);
    values[at] = '2';
    write_file(path + "2", file_of(json, values));
    values[at] = '1';
    check_same_failure(run_ranks(2,
                                 [&](const Rank& rank) -> dt_status {
                                   Model model;
                                   RANK_TRY(model.open(rank, {Kind::kNone}, params));
                                   const std::string own = rank.rank == 1 ? path + "2" : path;
                                   return dt_shard_load(model.shard, nullptr, own.c_str());
                                 }),
                       DT_ERR_MISMATCH, {"rank 1 (", ") and rank 0 (", "read different files"});
  }
}

TEST_CASE("checkpoint: the state of another kind of optimizer is refused") {
  const TempFolder folder;
  const std::string path = folder.path() + "/model";
  std::string ended;
  train_and_save(Kind::kAdamW, path, &ended);
  const auto outcomes = run_ranks(2, [&](const Rank& rank) -> dt_status {
    Model model;
    RANK_TRY(model.open(rank, {Kind::kMomentum}));
    return dt_shard_load(model.shard, model.optimizer, path.c_str());
  });
  check_same_failure(outcomes, DT_ERR_INVALID_ARGUMENT,
                     {"it has the state of the optimizer \"adamw\", not of sgd"});
}

TEST_CASE("checkpoint: a save that fails fails on all ranks, and the older file stays whole") {
  const TempFolder folder;
  const std::string path = folder.path() + "/model";
  std::string ended;
  train_and_save(Kind::kAdamW, path, &ended);
  const std::string saved = read_file(path);
  const auto save = [&](const std::function<std::string(int)>& path_of,
                        int without_optimizer = -1) {
    return run_ranks(4, [&](const Rank& rank) -> dt_status {
      Model model;
      RANK_TRY(model.open(rank, {Kind::kAdamW}));
      return dt_shard_save(model.shard, rank.rank == without_optimizer ? nullptr : model.optimizer,
                           path_of(rank.rank).c_str());
    });
  };
  const std::string lost = folder.path() + "/lost/model";
  check_same_failure(save([&](int) { return lost; }), DT_ERR_SYSTEM,
                     {"dt_shard_save on comm \"world\": rank 0 (", "pid ", "cannot make \"" + lost,
                      "No such file or directory; look whether its directory is there"});
  check_same_failure(save([&](int) { return folder.path(); }), DT_ERR_INVALID_ARGUMENT,
                     {"rank 0 (", "is not a file; give the path of a file"});
  REQUIRE(mkdir((path + "2.partial").c_str(), 0700) == 0);
  check_same_failure(save([&](int) { return path + "2"; }), DT_ERR_SYSTEM,
                     {"cannot remove what an earlier save left at"});

  // Ranks that do not see rank 0's file: without any, and with one that another job left.
  REQUIRE(mkdir((folder.path() + "/other").c_str(), 0700) == 0);
  const std::string other = folder.path() + "/other/model";
  const auto on_other = [&](int rank) { return rank == 2 ? other : path; };
  for (const bool left : {false, true}) {
    if (left) write_file(other + ".partial", saved);
    check_same_failure(save(on_other), DT_ERR_SYSTEM,
                       {": rank 2 (", ") does not find \"" + other + ".partial\", which rank 0 (",
                        ") made; give a path that all hosts share"});
    CHECK(!is_there(path + ".partial"));
  }
  CHECK(read_file(other + ".partial") == saved);
  check_same_failure(save([&](int) { return path; }, 3), DT_ERR_MISMATCH,
                     {"rank 3 (", ") and rank 0 (", "save different tensors"});

  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto limited = run_ranks(4, [&](const Rank& rank) -> dt_status {
    Model model;
    RANK_TRY(model.open(rank, {Kind::kAdamW}));
    rlimit small = before;
    small.rlim_cur = saved.size() - 1;
    if (rank.rank == 0 && setrlimit(RLIMIT_FSIZE, &small) != 0) return DT_ERR_INTERNAL;
    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    const dt_status status = dt_shard_save(model.shard, model.optimizer, path.c_str());
    if (rank.rank == 0) setrlimit(RLIMIT_FSIZE, &before);
    return status;
  });
  check_same_failure(limited, DT_ERR_SYSTEM,
                     {"rank 0 (", "cannot write the " + std::to_string(saved.size()) + " bytes of",
                      "File too large; raise the limit of a file's size (ulimit -f)"});

  CHECK(read_file(path) == saved);
  CHECK(!is_there(path + ".partial"));
  write_file(path + ".partial", "of a job that was killed");
  require_all_ok(save([&](int) { return path; }));
  CHECK(!is_there(path + ".partial"));
  CHECK(read_file(path).size() == saved.size());
}

TEST_CASE("checkpoint: names that two parameters have, and calls inside a step, are refused") {
  const std::vector<dt_param> params = {{2, "w", DT_F32, 0}, {2, "w", DT_F32, 0}};
  check_same_failure(run_ranks(2,
                               [&](const Rank& rank) -> dt_status {
                                 Model model;
                                 RANK_TRY(model.open(rank, {Kind::kNone}, params));
                                 return dt_shard_save(model.shard, nullptr, "/nowhere/model");
                               }),
                     DT_ERR_INVALID_ARGUMENT, {"parameter #1 \"w\"", "parameter #0 \"w\""});
  require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
    Model model;
    RANK_TRY(model.open(rank, {Kind::kNone}, params));
    float gradient[] = {1, 2};
    RANK_TRY(dt_reducer_ready(model.reducer, 1, gradient, nullptr));
    for (auto* const call : {dt_shard_save, dt_shard_load}) {
      if (call(model.shard, nullptr, "/nowhere/model") != DT_ERR_INVALID_STATE ||
          !contains(dt_last_error(), "inside a step; call it after dt_reducer_finish")) {
        return DT_ERR_INTERNAL;
      }
    }
    RANK_TRY(dt_reducer_ready(model.reducer, 0, gradient, nullptr));
    return dt_reducer_finish(model.reducer, nullptr);
  }));
}

}  // namespace dt_test::checkpoint_test
