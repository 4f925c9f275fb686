// SPDX-License-Identifier: Apache-2.0
// Gradients that travel in 8 bits, on GPUs that are made of threads: beside a reducer over host
// memory that gets the same gradients.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "../../sanitizers.h"
#include "device_trainer.h"
#include "training/equality.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr float kNobodys = -77;
constexpr size_t kBlockElements = 64;

using Options = training::Reducer::Options;

/// Counts that fill neither blocks nor the ranks' parts.
std::vector<training::Param> model() {
  return params_of({{Dtype::kF32, 1000},
                    {Dtype::kF32, 1},
                    {Dtype::kI32, 70},
                    {Dtype::kF32, 64},
                    {Dtype::kF32, 0},
                    {Dtype::kF32, 129},
                    {Dtype::kF64, 33},
                    {Dtype::kF32, 3001},
                    {Dtype::kF32, 200}});
}

Options in_8bit(bool sum = false, bool rebuild = false) {
  Options options = small_buckets(sum, rebuild);
  options.wire_8bit = true;
  return options;
}

std::vector<char> gradient(const training::Param& param, int64_t step, int rank, size_t index) {
  std::vector<char> bytes(static_cast<size_t>(param.count * dtype_bytes(param.dtype)));
  if (param.dtype != Dtype::kF32) {
    fill(param.dtype, bytes.data(), param.count, step, rank, index);
    return bytes;
  }
  for (int64_t i = 0; i < param.count; ++i) {
    const double x =
        static_cast<double>(i + 1000 * static_cast<int64_t>(index) + 37 * rank + 11 * step);
    test::store<float>(bytes.data(), i,
                       static_cast<float>(std::sin(x) * (1 + static_cast<double>(i % 7))));
  }
  return bytes;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Folder {
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name, int rank) const {
    return (path / format("%s-%d", name, rank)).string();
  }

  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / format("dt-8bit-%d", getpid());
};

/// A reducer over GPUs and one over host memory, which get the same gradients. All ranks make them
/// at the same time.
class Pair {
 public:
  /// In how many parts a rank gives a gradient. 0: it has none, and says so. -n: it says nothing
  /// behind n - 1 parts.
  using Uses = std::function<int(int64_t step, int rank, size_t param)>;

  Pair(GpuRank* rank, std::vector<training::Param> params, const Options& options,
       Mode mode = Mode::kPointers)
      : rank_(rank), mode_(mode), params_(std::move(params)), host_(host_comm(*rank)) {
    rank->memory->push_back(memory_);
    for (const training::Param& param : params_) {
      memory_->own.emplace_back(static_cast<size_t>(param.count * dtype_bytes(param.dtype)));
    }
    memory_->seen = host_results_ = host_places_ = memory_->own;
    Options there = options;
    Options here = options;  // with the same plan
    // A gradient that no rank has becomes zeros there, and stays as it is elsewhere.
    own_places_ = mode == Mode::kMixed && !options.find_unused && !options.static_graph;
    for (size_t p = 0; own_places_ && p < params_.size(); ++p) {
      there.places.push_back(memory_->own[p].data());
      here.places.push_back(host_places_[p].data());
    }
    auto made = training::Reducer::create(rank->comm, params_, there);
    rank->expect_ok(made.status(), "create");
    if (made.ok()) on_gpu_ = std::move(made).value();
    auto beside = training::Reducer::create(host_, params_, here);
    rank->expect_ok(beside.status(), "create on the host");
    if (beside.ok()) on_host_ = std::move(beside).value();
    rank->meet();
  }
  ~Pair() { rank_->meet(); }

  bool made() const { return on_gpu_ != nullptr && on_host_ != nullptr; }
  training::Reducer& on_gpu() { return *on_gpu_; }
  training::Reducer& on_host() { return *on_host_; }
  const Tensors& results() const { return memory_->seen; }

  /// Infinity and NaN in two blocks of the last rank's.
  void spoil(int64_t step) { spoilt_ = step; }
  void set_uses(Uses uses) { uses_ = std::move(uses); }

  void step(int64_t number, cuda::Stream stream) {
    std::vector<const char*> results(params_.size());
    for (size_t p = params_.size(); p-- > 0;) {
      give_on_gpu(number, p, uses_(number, rank_->rank, p), stream, &results[p]);
    }
    rank_->expect_ok(on_gpu_->finish(stream), "finish");
    // Behind that: both exchange over the host, in one order on all ranks.
    for (size_t p = params_.size(); p-- > 0;) {
      give_on_host(number, p, uses_(number, rank_->rank, p));
    }
    rank_->expect_ok(on_host_->finish(), "finish on the host");
    look(results, stream);
    compare(number);
  }
  /// What both carry on to the next step is the same.
  void compare_errors(const Folder& folder) {
    const std::string gpu_file = folder.file("gpu", rank_->rank);
    const std::string host_file = folder.file("host", rank_->rank);
    rank_->expect_ok(on_gpu_->save(gpu_file), "save");
    rank_->expect_ok(on_host_->save(host_file), "save on the host");
    const std::string errors = content_of(gpu_file);
    rank_->expect(errors.size() > 5000 && errors == content_of(host_file), "the same errors");
  }
  void check_ranks_equal() {
    for (const auto& each : memory_->seen) {
      rank_->expect_ok(training::check_equal(host_, each.data(), static_cast<int64_t>(each.size()),
                                             "result", nullptr),
                       "the same bits on all ranks");
    }
  }

 private:
  bool in_place(size_t param) const {
    if (mode_ == Mode::kMixed) return rank_->rank % 2 == 0 && param % 2 == 0;
    return mode_ == Mode::kInPlace;
  }
  std::vector<char> values(int64_t step, size_t p) const {
    auto bytes = gradient(params_[p], step, rank_->rank, p);
    if (spoilt_ != step || rank_->rank + 1 != rank_->size) return bytes;
    if (p == 0) test::store<float>(bytes.data(), 70, INFINITY);
    if (p == 5) test::store<float>(bytes.data(), 128, NAN);
    return bytes;
  }
  void give_on_gpu(int64_t step, size_t p, int parts, cuda::Stream stream, const char** result) {
    const auto index = static_cast<int32_t>(p);
    const bool inside = in_place(p);
    char* const grad =
        inside ? static_cast<char*>(on_gpu_->grad(index, stream).value()) : memory_->own[p].data();
    *result = parts < 0 ? static_cast<const char*>(on_gpu_->grad(index, stream).value()) : grad;
    void* const given = inside ? nullptr : grad;
    if (parts == 0) {
      if (!inside) write(p, untouched(p), grad, stream);
      rank_->expect_ok(on_gpu_->unused(index, given, stream), "unused");
    }
    for (int part = 0; part < (parts < 0 ? -1 - parts : parts); ++part) {
      write(p, values(step, p), grad, stream);
      on_gpu_->accumulate(parts < 0 || part + 1 < parts);
      rank_->expect_ok(on_gpu_->ready(index, given, stream), "ready");
    }
    on_gpu_->accumulate(false);
  }
  void give_on_host(int64_t step, size_t p, int parts) {
    const auto index = static_cast<int32_t>(p);
    auto& own = host_results_[p];
    if (parts == 0) {
      own = untouched(p);
      rank_->expect_ok(on_host_->unused(index, in_place(p) ? nullptr : own.data()), "unused");
    }
    for (int part = 0; part < (parts < 0 ? -1 - parts : parts); ++part) {
      own = values(step, p);
      on_host_->accumulate(parts < 0 || part + 1 < parts);
      rank_->expect_ok(on_host_->ready(index, own.data()), "ready on the host");
    }
    on_host_->accumulate(false);
  }
  std::vector<char> untouched(size_t p) const {
    std::vector<char> bytes(memory_->own[p].size());
    with_dtype(params_[p].dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t i = 0; i < params_[p].count; ++i) {
        test::store<T>(bytes.data(), i, static_cast<Arithmetic<T>>(kNobodys));
      }
    });
    return bytes;
  }
  void write(size_t p, std::vector<char> bytes, char* to, cuda::Stream stream) {
    if (params_[p].count == 0) return;
    rank_->expect_ok(
        rank_->cuda->launch(
            stream, [to, bytes = std::move(bytes)] { memcpy(to, bytes.data(), bytes.size()); }),
        "compute");
  }
  void look(const std::vector<const char*>& results, cuda::Stream stream) {
    rank_->expect_ok(rank_->cuda->launch(stream,
                                         [results, memory = memory_] {
                                           for (size_t p = 0; p < results.size(); ++p) {
                                             auto& to = memory->seen[p];
                                             if (!to.empty()) {
                                               memcpy(to.data(), results[p], to.size());
                                             }
                                           }
                                         }),
                     "use");
    rank_->expect(rank_->cuda->finish(stream), "the stream ends");
  }
  void compare(int64_t step) {
    for (size_t p = 0; p < params_.size(); ++p) {
      const int parts = uses_(step, rank_->rank, p);
      if ((parts < 0 || (parts == 0 && in_place(p))) && params_[p].count > 0) {
        const void* const there = on_host_->grad(static_cast<int32_t>(p)).value();
        memcpy(host_results_[p].data(), there, host_results_[p].size());
      }
      rank_->expect(
          memory_->seen[p] == host_results_[p],
          format("step %lld, #%zu: not the bits of the host", static_cast<long long>(step), p));
    }
    if (spoilt_ != step) return;
    for (const auto& [p, block] : {std::pair<size_t, size_t>(0, 1), {5, 2}}) {
      const auto count = static_cast<size_t>(params_[p].count);
      for (size_t i = 0; i < count; ++i) {
        const float found = load<float>(memory_->seen[p].data(), static_cast<int64_t>(i));
        if (std::isnan(found) == (i / kBlockElements == block)) continue;
        return rank_->expect(false,
                             format("#%zu, element %zu: %g", p, i, static_cast<double>(found)));
      }
    }
  }

  GpuRank* const rank_;
  const Mode mode_;
  const std::vector<training::Param> params_;
  const std::shared_ptr<comm::Communicator> host_;
  // Kernels may still be in it when this is gone.
  struct Memory {
    Tensors own;
    Tensors seen;
  };
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  std::unique_ptr<training::Reducer> on_gpu_;
  std::unique_ptr<training::Reducer> on_host_;
  Tensors host_results_;
  bool own_places_ = false;
  Tensors host_places_;
  int64_t spoilt_ = -1;
  Uses uses_ = [](int64_t, int, size_t) { return 1; };
};

const std::vector<std::pair<const char*, int>> kWorlds = {
    {"nccl", 1}, {"nccl", 2}, {"nccl", 3}, {"nccl", 4}, {"staged", 2}, {"staged", 3}};

}  // namespace

TEST_CASE("8 bits on GPUs: the bits and the errors of the reducer over host memory") {
  const Folder folder;
  const auto modes = kThreadSanitizer ? std::vector{Mode::kMixed}
                                      : std::vector{Mode::kPointers, Mode::kInPlace, Mode::kMixed};
  for (const auto& world : kWorlds) {
    CAPTURE(world.first);
    CAPTURE(world.second);
    run_on_gpus({world.first, world.second}, [&](GpuRank& rank) {
      const cuda::Stream stream = rank.new_stream();
      for (const Mode mode : modes) {
        for (const int way : {0, 1, 2, 3}) {
          if (way > 0 && mode != modes[0]) continue;
          Options options = in_8bit(/*sum=*/way == 1, /*rebuild=*/mode == Mode::kPointers);
          if (way >= 2) options.predivide = way == 2 ? 4 : 3;
          Pair pair(&rank, model(), options, mode);
          if (!pair.made()) return;
          pair.spoil(2);
          for (int64_t step = 0; step < 5; ++step) {
            pair.step(step, stream);
            pair.check_ranks_equal();
            if (step > 1) pair.compare_errors(folder);
          }
        }
      }
    });
  }
}

TEST_CASE("8 bits on GPUs: parts that accumulate, and parameters that ranks do not use") {
  const Folder folder;
  for (const auto& world : {std::pair("nccl", 3), std::pair("staged", 2)}) {
    for (const int way : {0, 1, 2, 3}) {
      CAPTURE(world.first);
      CAPTURE(way);
      run_on_gpus({world.first, world.second}, [&](GpuRank& rank) {
        const cuda::Stream stream = rank.new_stream();
        const bool is_static = way == 3;
        Options options = in_8bit();
        options.find_unused = !is_static;
        options.static_graph = is_static;
        options.divide_by_users = way == 1 || is_static;
        for (const Mode mode : {Mode::kPointers, Mode::kMixed}) {
          if (way == 2 && mode == Mode::kMixed) options.predivide = 2;
          Pair pair(&rank, model(), options, mode);
          if (!pair.made()) return;
          pair.set_uses([=](int64_t step, int on, size_t p) {
            if (is_static) step = 0;
            const bool used = p != 3 && (step * 7 + on * 3 + static_cast<int64_t>(p) * 5) % 3 != 0;
            const bool in_parts = !is_static && way != 0 && mode == Mode::kPointers && p % 2 == 0;
            return !used ? 0 : in_parts ? 2 : 1;
          });
          for (int64_t step = 0; step < 6; ++step) pair.step(step, stream);
          pair.compare_errors(folder);
        }
      });
    }
  }
}

TEST_CASE("8 bits on GPUs: ranks with different numbers of batches") {
  const Folder folder;
  for (const auto& world : {std::pair("nccl", 3), std::pair("staged", 2)}) {
    for (const bool says : {false, true}) {
      CAPTURE(world.first);
      CAPTURE(says);
      run_on_gpus({world.first, world.second}, [&](GpuRank& rank) {
        const cuda::Stream stream = rank.new_stream();
        for (const Mode mode : {Mode::kPointers, Mode::kMixed}) {
          Options options = in_8bit();
          options.find_unused = true;
          options.divide_by_users = mode == Mode::kPointers;
          Pair pair(&rank, model(), options, mode);
          if (!pair.made()) return;
          // 1, 3 and 5 batches, two in a step; or 1, 2 and 3 with one.
          const auto has = [passes = mode == Mode::kPointers ? 2 : 1](int64_t step, int on) {
            return static_cast<int>(std::clamp<int64_t>(passes * (on - step) + 1, 0, passes));
          };
          pair.set_uses([=](int64_t step, int on, size_t) {
            const int batches = has(step, on);
            const bool is_cut = mode == Mode::kPointers && batches == 1;
            return is_cut ? -2 : batches > 0 || says ? batches : -1;
          });
          for (int64_t step = 0; step <= rank.size; ++step) {
            pair.step(step, stream);
            int32_t active = 0;
            for (int on = 0; on < rank.size; ++on) active += has(step, on) > 0 ? 1 : 0;
            for (training::Reducer* const each : {&pair.on_gpu(), &pair.on_host()}) {
              const auto found = each->active();
              rank.expect(found.ok() && found.value() == active, "active");
            }
          }
          pair.compare_errors(folder);
        }
      });
    }
  }
}

TEST_CASE("8 bits on GPUs: a reducer goes on from a file with the same bits") {
  const Folder folder;
  for (const auto& world : {std::pair("nccl", 2), std::pair("staged", 2)}) {
    CAPTURE(world.first);
    run_on_gpus({world.first, world.second}, [&](GpuRank& rank) {
      const cuda::Stream stream = rank.new_stream();
      const std::string path = folder.file("state", rank.rank);
      Tensors wanted;
      Options options = in_8bit();
      {
        Pair pair(&rank, model(), options);
        if (!pair.made()) return;
        for (int64_t step = 0; step < 3; ++step) pair.step(step, stream);
        rank.expect_ok(pair.on_gpu().save(path), "save");
        pair.step(3, stream);
        wanted = pair.results();
        options.order = pair.on_gpu().order();
        rank.meet();
        if (rank.rank == 0) rank.expect(!pair.on_gpu().load(path + "no").ok(), "no file");
        if (rank.rank != 0) rank.expect(!pair.on_gpu().load(path).ok(), "not one rank alone");
        pair.step(4, stream);  // nothing has changed
      }
      Pair next(&rank, model(), options);
      if (!next.made()) return;
      rank.expect_ok(next.on_gpu().load(path), "load");
      rank.expect_ok(next.on_host().load(path), "load on the host");
      next.step(3, stream);
      rank.expect(next.results() == wanted, "the bits of the first reducer");
      next.compare_errors(folder);
    });
  }
}

TEST_CASE("8 bits on GPUs: no call waits for the GPU, and steps make nothing") {
  run_on_gpus({"nccl", 3}, [](GpuRank& rank) {
    const cuda::Stream stream = rank.new_stream();
    for (const Mode mode : {Mode::kPointers, Mode::kInPlace}) {
      Pair pair(&rank, model(), in_8bit(), mode);
      if (!pair.made()) return;
      for (int64_t step = 0; step < 2; ++step) pair.step(step, stream);
      const auto before = rank.cuda->counters();
      for (int64_t step = 2; step < 8; ++step) pair.step(step, stream);
      const auto after = rank.cuda->counters();
      rank.expect(after.allocations == before.allocations &&
                      after.pinned_allocations == before.pinned_allocations &&
                      after.events == before.events && after.streams == before.streams,
                  "nothing is made");
    }
    Trainer trainer(&rank, params_of({{Dtype::kF32, 500}, {Dtype::kF32, 900}, {Dtype::kF32, 10}}),
                    in_8bit());
    rank.expect_ok(trainer.backward(0, {stream}), "backward");
    rank.expect_ok(trainer.reducer().finish(stream), "finish");
    Gate gate;
    std::atomic<bool> used{false};
    const cuda::Stream uses = rank.new_stream();
    rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
    rank.expect_ok(trainer.backward(1, {stream}), "backward");
    rank.expect_ok(trainer.reducer().finish(uses), "finish");
    rank.expect_ok(rank.cuda->launch(uses, [&] { used = true; }), "use");
    rank.meet();
    rank.expect(!used, "the stream that uses the gradients waits for them");
    gate.open();
    rank.expect(rank.cuda->finish(uses), "the stream ends");
    rank.meet();
  });
}

TEST_CASE("8 bits on GPUs: a rank that stands still is a time-out, also of a file") {
  const Folder folder;
  for (const bool saves : {false, true}) {
    CAPTURE(saves);
    run_on_gpus({"nccl", 2, 500}, [&](GpuRank& rank) {
      Trainer trainer(&rank, params_of({{Dtype::kF32, 500}, {Dtype::kF32, 900}}), in_8bit());
      const cuda::Stream stream = rank.new_stream();
      rank.expect_ok(trainer.backward(0, {stream}), "backward");
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      rank.meet();
      Status status;
      if (rank.rank == 0) {
        status = trainer.backward(1, {stream});
        if (status.ok()) status = trainer.reducer().finish(stream);
        if (status.ok() && saves) {
          status = trainer.reducer().save(folder.file("late", rank.rank));
          rank.expect(!status.ok(), "the file of a step that does not end");
        }
      }
      if (status.ok()) status = rank.await_broken();
      rank.expect(status.code() == Code::kTimeout, status.message());
      if (!saves) rank.expect(contains(status, "alltoall \"bucket 0\""), status.message());
      rank.meet();
    });
  }
}

TEST_CASE("8 bits on GPUs: destroyed inside a step, its memory stays while the GPU may use it") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, params_of({{Dtype::kF32, 500}, {Dtype::kF32, 900}, {Dtype::kF32, 10}}),
                    in_8bit());
    const cuda::Stream stream = rank.new_stream();
    rank.expect_ok(trainer.backward(0, {stream}), "backward");
    rank.expect_ok(trainer.reducer().finish(stream), "finish");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    const int64_t live = rank.cuda->counters().live_allocations;
    Gate gate;
    rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
    for (const int32_t index : {2, 1}) {  // some buckets, on all ranks the same
      trainer.compute(1, index, stream);
      rank.expect_ok(trainer.ready(index, stream), "ready");
    }
    trainer.drop_reducer();
    rank.expect(rank.cuda->counters().live_allocations == live, "nothing was released");
    rank.meet();
    gate.open();
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    rank.meet();
  });
}

TEST_CASE("8 bits on GPUs: memory for errors is counted, and agreed on") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    if (rank.rank == 1) rank.cuda->fail("cudaMalloc", 0, 1);
    const auto made = training::Reducer::create(rank.comm, model(), in_8bit());
    rank.expect(!made.ok(), "not made");
    rank.expect(
        contains(made.status(), rank.rank == 1 ? "4 bytes for each element of f32: cudaMalloc"
                                               : "another rank has no memory"),
        made.status().message());
    const int64_t live = rank.cuda->counters().live_allocations;
    int64_t elements = 0;
    for (const training::Param& param : model()) {
      if (param.dtype == Dtype::kF32) elements += param.count;
    }
    {
      auto reducer = training::Reducer::create(rank.comm, model(), in_8bit());
      auto without = training::Reducer::create(rank.comm, model(), small_buckets(false, false));
      rank.expect(reducer.ok() && without.ok(), "the communicator is whole");
      if (reducer.ok() && without.ok()) {
        const int64_t more =
            reducer.value()->statistics().memory_bytes - without.value()->statistics().memory_bytes;
        // The errors, and twice what travels, of a quarter each.
        rank.expect(more > 6 * elements && more < 8 * elements,
                    format("%lld bytes more", static_cast<long long>(more)));
      }
    }
    rank.expect(rank.cuda->counters().live_allocations == live, "all was released");
    rank.meet();
  });
}

TEST_CASE("8 bits on GPUs: a missing gradient breaks the communicator and is named") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      Trainer trainer(&rank, params_of({{Dtype::kF32, 500}, {Dtype::kF32, 900}, {Dtype::kF32, 10}}),
                      in_8bit());
      const cuda::Stream stream = rank.new_stream();
      if (rank.rank == 1) trainer.order() = {2, 0};
      Status status = trainer.backward(0, {stream});
      if (status.ok()) status = trainer.reducer().finish(stream);
      if (status.ok()) status = rank.await_broken();
      rank.expect(status.code() == Code::kInvalidState, status.message());
      rank.expect(contains(status, "no gradient for #1 \"layer1\""), status.message());
      rank.meet();
    });
  }
}
