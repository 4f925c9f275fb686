// SPDX-License-Identifier: Apache-2.0
#include "shard_checks.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "../fake/elements.h"

namespace dt::test {
namespace {

constexpr int kSteps = 3;
constexpr double kRate = 0.125;

struct Described {
  dt_dtype dtype;
  int64_t count;
  int32_t unit;
};
constexpr Described kModel[] = {
    {DT_F32, 70'003, 0}, {DT_BF16, 4097, 0}, {DT_F32, 1, 1},    {DT_F16, 65'537, 1},
    {DT_F64, 333, 2},    {DT_F32, 0, 2},     {DT_F32, 9001, 2},
};
constexpr int32_t kParams = sizeof kModel / sizeof *kModel;
constexpr int32_t kUnits = 3;

using Values = std::vector<std::vector<char>>;

int64_t bytes_of(const Described& param) {
  return param.count * (param.dtype == DT_F64 ? 8 : param.dtype == DT_F32 ? 4 : 2);
}

void store_as(dt_dtype dtype, char* data, int64_t index, double value) {
  switch (dtype) {
    case DT_F16: return store<F16>(data, index, static_cast<float>(value));
    case DT_BF16: return store<Bf16>(data, index, static_cast<float>(value));
    case DT_F64: return store<double>(data, index, value);
    default: return store<float>(data, index, static_cast<float>(value));
  }
}

/// Eighths that every dtype has.
std::vector<char> pattern(const Described& param, int seed) {
  std::vector<char> data(static_cast<size_t>(bytes_of(param)));
  for (int64_t i = 0; i < param.count; ++i) {
    store_as(param.dtype, data.data(), i, static_cast<double>((i * 7 + seed * 13) % 61 - 30) / 8);
  }
  return data;
}

struct How {
  int32_t stage = 0;
  double max_norm = 0;  ///< 0: gradients are not clipped
  bool on_host = false;
  bool skips = false;  ///< before each step there is one whose gradients are not all finite
};

class Training {
 public:
  Training(Session* session, dt_comm* comm, const How& how)
      : session_(session), how_(how), stream_(how.on_host ? nullptr : session->stream()) {
    std::vector<dt_param> params(kParams, dt_param{});
    std::vector<int32_t> units(kParams);
    for (int32_t p = 0; p < kParams; ++p) {
      params[static_cast<size_t>(p)].count = kModel[p].count;
      params[static_cast<size_t>(p)].dtype = kModel[p].dtype;
      units[static_cast<size_t>(p)] = kModel[p].unit;
      names_.push_back("layer" + std::to_string(p));
    }
    for (size_t p = 0; p < params.size(); ++p) params[p].name = names_[p].c_str();
    dt_reducer_options reducing;
    dt_reducer_options_init(&reducing);
    reducing.bucket_cap_bytes = 1 << 16;
    // NCCL adds three numbers in another order where they lie elsewhere. Sums of eighths are exact.
    reducing.sum = session->ranks() > 2 ? 1 : 0;
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.stage = how.stage;
    options.units = units.data();
    options.reducer = &reducing;
    need(dt_shard_create(comm, params.data(), kParams, &options, &shard_));
    need(dt_shard_reducer(shard_, &reducer_));
    dt_adamw_options adamw;
    dt_adamw_options_init(&adamw);
    adamw.skip_non_finite = how.skips ? 1 : 0;
    need(dt_optimizer_adamw(shard_, &adamw, &optimizer_));
    for (int32_t p = 0; p < kParams; ++p) {
      need(dt_shard_set(shard_, p, pattern(kModel[p], p).data(), stream_));
    }
    need(dt_shard_updated(shard_, stream_));
  }
  ~Training() {
    finish();
    dt_optimizer_destroy(optimizer_);
    dt_reducer_destroy(reducer_);
    dt_shard_destroy(shard_);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  dt_shard* shard() const { return shard_; }
  dt_optimizer* optimizer() const { return optimizer_; }

  /// `gradients`: memory for those of all parameters, one after the other. `bad`: one is infinite.
  void step(int number, const std::vector<char*>& gradients, bool bad = false) {
    for (int32_t unit = kUnits; unit-- > 0;) {
      need(dt_shard_gather(shard_, unit, stream_));
      for (int32_t p = kParams; p-- > 0;) {
        if (kModel[p].unit != unit) continue;
        auto given = pattern(kModel[p], number * 5 + session_->rank() * 3 + p);
        if (bad && p == number && session_->rank() == number % session_->ranks()) {
          store_as(kModel[p].dtype, given.data(), kModel[p].count - 1, HUGE_VAL);
        }
        char* const gradient = gradients[static_cast<size_t>(p)];
        write(gradient, given);
        need(dt_reducer_ready(reducer_, p, gradient, stream_));
      }
      need(dt_shard_release(shard_, unit, stream_));
    }
    need(dt_reducer_finish(reducer_, stream_));
    if (how_.max_norm > 0) {
      need(dt_reducer_clip_norm(reducer_, how_.max_norm, 2, stream_, nullptr));
    }
    need(dt_optimizer_step(optimizer_, kRate, stream_));
    finish();  // before the gradients are written again
  }
  Values values() {
    Values all;
    for (int32_t unit = 0; unit < kUnits; ++unit) {
      need(dt_shard_gather(shard_, unit, stream_));
      finish();
      for (int32_t p = 0; p < kParams; ++p) {
        if (kModel[p].unit != unit) continue;
        void* from = nullptr;
        need(dt_shard_param(shard_, p, &from));
        auto& to = all.emplace_back(static_cast<size_t>(bytes_of(kModel[p])));
        if (to.empty()) continue;
        if (how_.on_host) {
          memcpy(to.data(), from, to.size());
        } else {
          session_->read(to.data(), from, static_cast<int64_t>(to.size()));
        }
      }
      need(dt_shard_release(shard_, unit, stream_));
    }
    return all;
  }

 private:
  void finish() {
    if (!how_.on_host) need(session_->finish());
  }
  void write(char* to, const std::vector<char>& from) {
    if (from.empty()) return;
    if (how_.on_host) {
      memcpy(to, from.data(), from.size());
    } else {
      session_->write(to, from.data(), static_cast<int64_t>(from.size()));
    }
  }

  Session* const session_;
  const How how_;
  const dt_stream stream_;
  std::vector<std::string> names_;
  dt_shard* shard_ = nullptr;
  dt_reducer* reducer_ = nullptr;
  dt_optimizer* optimizer_ = nullptr;
};

void compare(Session* session, const char* what, int32_t stage, const Values& found,
             const Values& right) {
  for (size_t p = 0; p < right.size(); ++p) {
    if (found[p] == right[p]) continue;
    std::fprintf(stderr, "rank %d: stage %d: parameter #%zu has other bits than %s\n",
                 session->rank(), stage, p, what);
    std::_Exit(1);
  }
}

}  // namespace

void check_shards(Session* session) {
  std::vector<char*> gradients;
  std::vector<std::vector<char>> host_memory;
  std::vector<char*> host_gradients;
  for (const Described& param : kModel) {
    const int64_t bytes = std::max<int64_t>(bytes_of(param), 8);
    gradients.push_back(static_cast<char*>(session->memory(bytes)));
    host_gradients.push_back(host_memory.emplace_back(static_cast<size_t>(bytes)).data());
  }
  const auto trained = [&](dt_comm* comm, const How& how) {
    Training training(session, comm, how);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<char*>& memory = how.on_host ? host_gradients : gradients;
      if (how.skips) training.step(step, memory, /*bad=*/true);
      training.step(step, memory);
    }
    int64_t skipped = -1;
    need(dt_optimizer_skipped(training.optimizer(), 1, &skipped));
    if (skipped != (how.skips ? kSteps : 0)) {
      std::fprintf(stderr, "rank %d: %d steps were skipped\n", session->rank(),
                   static_cast<int>(skipped));
      std::_Exit(1);
    }
    return training.values();
  };
  const Values plain = trained(session->comm(), {});
  const Values clipped = trained(session->comm(), {0, 1.0, false});
  for (const int32_t stage : {1, 2, 3}) {
    compare(session, "stage 0", stage, trained(session->comm(), {stage, 0, false}), plain);
    compare(session, "stage 0, clipped", stage, trained(session->comm(), {stage, 1.0, false}),
            clipped);
  }
  compare(session, "without steps that are skipped", 0,
          trained(session->comm(), {0, 0, false, true}), plain);
  compare(session, "without steps that are skipped, clipped", 3,
          trained(session->comm(), {3, 1.0, false, true}), clipped);
  // Two numbers have one sum in any order, and half of it is exact.
  if (session->gpu() != nullptr && session->ranks() <= 2) {
    dt_comm* on_host = nullptr;
    need(dt_comm_host(session->comm(), &on_host));
    compare(session, "on a GPU", 1, trained(on_host, {1, 0, true}), plain);
    dt_comm_destroy(on_host);
  }

  const std::string path = session->spread(
      "checkpoint", std::filesystem::temp_directory_path() /
                        format("dt-shards-%d.safetensors", static_cast<int>(getpid())));
  {
    Training before(session, session->comm(), {2, 0, false});
    for (int step = 0; step + 1 < kSteps; ++step) before.step(step, gradients);
    need(dt_shard_save(before.shard(), before.optimizer(), path.c_str()));
  }
  Training behind(session, session->comm(), {3, 0, false});
  need(dt_shard_load(behind.shard(), behind.optimizer(), path.c_str()));
  behind.step(kSteps - 1, gradients);
  compare(session, "without a checkpoint", 3, behind.values(), plain);
  session->barrier();
  if (session->rank() == 0) std::filesystem::remove(path);
}

}  // namespace dt::test
