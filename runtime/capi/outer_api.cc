// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "capi/operation.h"

namespace dt::capi {
namespace {

using OuterPtr = std::shared_ptr<OuterObject>;

constexpr int32_t kMostOuterParams = 1 << 20;

/// The job is looked at under the turn, because dt_outer_move() changes it. So a call that is
/// refused because another thread is inside one is not shown in stall reports.
template <class F>
dt_status alone_on_outer(const char* function, dt_outer* outer, F&& body) noexcept {
  return guard(function, [&](const Call& call) -> Status {
    DT_TRY_VALUE(const OuterPtr object, call.get<OuterObject>(outer, "outer"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    Status status = body(call, *object);
    return conclude(*object->job, std::move(status));
  });
}

Result<std::vector<training::OuterParam>> read_outer_params(const Call& call,
                                                            const dt_outer_param* params,
                                                            int32_t count) {
  DT_TRY(call.not_null(params, "params"));
  if (count < 1 || count > kMostOuterParams) {
    return call.invalid("count is %d; it must be in [1, %d]", count, kMostOuterParams);
  }
  std::vector<training::OuterParam> read;
  int64_t left = INT64_MAX / 64;  // elements of all together
  for (int32_t i = 0; i < count; ++i) {
    const dt_outer_param& param = params[i];
    const auto dtype = static_cast<Dtype>(param.dtype);
    if (dtype != Dtype::kF32 && dtype != Dtype::kF16 && dtype != Dtype::kBf16) {
      return call.invalid("params[%d].dtype is %s; it must be f32, f16 or bf16", i,
                          is_valid(dtype) ? dtype_name(dtype) : "no dt_dtype");
    }
    if (param.count < 0 || param.count > left) {
      return call.invalid("params[%d].count is %lld", i, static_cast<long long>(param.count));
    }
    if (param.reserved != 0) return call.invalid("params[%d].reserved is not 0", i);
    DT_TRY(check_buffer(call, format("params[%d].data", i).c_str(), param.data, param.count));
    left -= param.count;
    read.push_back({param.data, param.count, dtype, param.name != nullptr ? param.name : ""});
  }
  return read;
}

Result<training::Outer::Options> read_outer_options(const Call& call,
                                                    const dt_outer_options& asked) {
  if (asked.sync_every < 1) {
    return call.invalid("options->sync_every is %lld; it must be at least 1",
                        static_cast<long long>(asked.sync_every));
  }
  if (asked.fragments < 1 || asked.sync_every % asked.fragments != 0) {
    return call.invalid("options->fragments is %d; it must divide sync_every, which is %lld",
                        asked.fragments, static_cast<long long>(asked.sync_every));
  }
  const int64_t interval = asked.sync_every / asked.fragments;
  if (asked.delay < 0 || asked.delay >= interval) {
    return call.invalid(
        "options->delay is %lld; it must be at least 0 and less than sync_every / fragments, "
        "which is %lld",
        static_cast<long long>(asked.delay), static_cast<long long>(interval));
  }
  if (!(asked.alpha >= 0 && asked.alpha <= 1)) {
    return call.invalid("options->alpha is %g; it must be in [0, 1]", asked.alpha);
  }
  if (!(asked.rate >= 0) || !std::isfinite(asked.rate)) {
    return call.invalid("options->rate is %g; it must be at least 0", asked.rate);
  }
  if (!(asked.momentum >= 0 && asked.momentum < 1)) {
    return call.invalid("options->momentum is %g; it must be in [0, 1)", asked.momentum);
  }
  if (asked.nesterov != 0 && asked.nesterov != 1) {
    return call.invalid("options->nesterov is %d; it must be 0 or 1", asked.nesterov);
  }
  if (asked.format < DT_OUTER_F32 || asked.format > DT_OUTER_4BIT) {
    return call.invalid("options->format is %d, which is no dt_outer_format",
                        static_cast<int>(asked.format));
  }
  training::Outer::Options chosen;
  chosen.sync_every = asked.sync_every;
  chosen.fragments = asked.fragments;
  chosen.delay = asked.delay;
  chosen.alpha = asked.alpha;
  chosen.rate = asked.rate;
  chosen.momentum = asked.momentum;
  chosen.nesterov = asked.nesterov == 1;
  chosen.format = static_cast<training::MeanFormat>(asked.format);
  return chosen;
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_outer_create(dt_comm* comm, const dt_outer_param* params, int32_t count,
                          const dt_outer_options* options, dt_outer** out_outer) {
  return on_comm("dt_outer_create", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(call.not_null(out_outer, "out_outer"));
    DT_TRY_VALUE(auto read, read_outer_params(call, params, count));
    dt_outer_options standard;
    dt_outer_options_init(&standard);
    dt_outer_options asked;
    DT_TRY(read_options(call, options != nullptr ? options : &standard, "options",
                        "dt_outer_options_init", &asked));
    DT_TRY_VALUE(const auto chosen, read_outer_options(call, asked));
    auto made = std::make_shared<OuterObject>();
    made->job = on->job;
    auto outer = training::Outer::create(on->comm, std::move(read), chosen);
    DT_TRY(outer.status());
    made->outer = std::move(outer).value();
    return call.give(std::move(made), out_outer);
  });
}

dt_status dt_outer_step(dt_outer* outer, int32_t* out_changed) {
  return alone_on_outer("dt_outer_step", outer,
                        [&](const Call&, const OuterObject& object) -> Status {
                          DT_TRY_VALUE(const bool changed, object.outer->step());
                          if (out_changed != nullptr) *out_changed = changed ? 1 : 0;
                          return {};
                        });
}

dt_status dt_outer_sync(dt_outer* outer) {
  return alone_on_outer("dt_outer_sync", outer, [](const Call&, const OuterObject& object) {
    return object.outer->sync();
  });
}

dt_status dt_outer_steps(dt_outer* outer, int64_t* out_steps) {
  return alone_on_outer("dt_outer_steps", outer,
                        [&](const Call& call, const OuterObject& object) -> Status {
                          DT_TRY(call.not_null(out_steps, "out_steps"));
                          *out_steps = object.outer->steps();
                          return {};
                        });
}

dt_status dt_outer_move(dt_outer* outer, dt_comm* comm) {
  return guard("dt_outer_move", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const OuterPtr object, call.get<OuterObject>(outer, "outer"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    const auto to = call.get<CommObject>(comm, "comm");
    if (!to.ok()) return conclude(*object->job, to.status());
    // The communicator may be of another job: the ranks that wait are in that one, which alone
    // knows its failures.
    DT_TRY(conclude(*to.value()->job, object->outer->move(to.value()->comm)));
    object->job = to.value()->job;
    return {};
  });
}

dt_status dt_outer_save(dt_outer* outer, const char* path) {
  return alone_on_outer("dt_outer_save", outer,
                        [&](const Call& call, const OuterObject& object) -> Status {
                          DT_TRY(check_path(call, path));
                          return object.outer->save(path);
                        });
}

dt_status dt_outer_load(dt_outer* outer, const char* path) {
  return alone_on_outer("dt_outer_load", outer,
                        [&](const Call& call, const OuterObject& object) -> Status {
                          DT_TRY(check_path(call, path));
                          return object.outer->load(path);
                        });
}

void dt_outer_destroy(dt_outer* outer) { destroy<OuterObject>(outer); }

}  // extern "C"
