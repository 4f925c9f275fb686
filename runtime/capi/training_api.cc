// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "capi/operation.h"

namespace dt::capi {
namespace {

constexpr int32_t kMaxParams = 1 << 20;
constexpr int32_t kMaxPowerSgdRank = 64;

}  // namespace

Result<std::vector<training::Param>> read_params(const Call& call, const dt_param* params,
                                                 int32_t count) {
  DT_TRY(call.not_null(params, "params"));
  if (count < 1 || count > kMaxParams) {
    return call.invalid("count is %d; it must be in [1, %d]", count, kMaxParams);
  }
  std::vector<training::Param> read(static_cast<size_t>(count));
  int64_t left = INT64_MAX / 16;  // bytes of all parameters together, with room for padding
  for (int32_t i = 0; i < count; ++i) {
    const dt_param& param = params[i];
    const auto dtype = static_cast<Dtype>(param.dtype);
    if (!is_valid(dtype)) {
      return call.invalid("params[%d].dtype is %d, which is no dt_dtype", i,
                          static_cast<int>(param.dtype));
    }
    if (param.uses < 0) return call.invalid("params[%d].uses is %d", i, param.uses);
    if (param.count < 0 || param.count > left / dtype_bytes(dtype)) {
      return call.invalid("params[%d].count is %lld", i, static_cast<long long>(param.count));
    }
    left -= param.count * dtype_bytes(dtype);
    read[static_cast<size_t>(i)] = {param.count, dtype, param.name != nullptr ? param.name : "",
                                    std::max(param.uses, 1)};
  }
  return read;
}

namespace {

Status check_wire(const Call& call, const char* options, dt_wire wire) {
  if (wire >= DT_WIRE_SAME && wire <= DT_WIRE_8BIT) return {};
  return call.invalid("%s->wire is %d, which is no dt_wire", options, static_cast<int>(wire));
}

/// None: gradients travel as they are, or in 8 bits.
std::optional<Dtype> half_of(dt_wire wire) {
  if (wire == DT_WIRE_F16) return Dtype::kF16;
  if (wire == DT_WIRE_BF16) return Dtype::kBf16;
  return std::nullopt;
}

/// For parameters with row_elements > 0: replaces the number of elements by rows and columns.
Status read_row_elements(const Call& call, const dt_reducer_options* options,
                         std::vector<training::Param>* params) {
  dt_reducer_options asked;
  DT_TRY(read_options(call, options, "options", "dt_reducer_options_init", &asked));
  if (asked.row_elements == nullptr) return {};
  for (size_t i = 0; i < params->size(); ++i) {
    training::Param& param = (*params)[i];
    const int64_t elements = asked.row_elements[i];
    if (elements == 0) continue;
    if (elements < 0 || param.count % elements != 0) {
      return call.invalid(
          "options->row_elements[%zu] is %lld; give how many of the parameter's %lld elements a "
          "row "
          "has, or 0 for a dense one",
          i, static_cast<long long>(elements), static_cast<long long>(param.count));
    }
    param.rows = param.count / elements;
    param.row_elements = elements;
    param.count = 0;
  }
  return {};
}

/// Wraps the caller's function, and takes the handle of the work that it gives.
training::Hook hook_of(dt_bucket_hook function, void* user_data) {
  return [function, user_data](const training::HookBucket& bucket,
                               int32_t stage) -> Result<training::HookWork> {
    dt_bucket view = {};
    view.struct_size = sizeof view;
    view.index = bucket.index;
    view.is_last = bucket.last ? 1 : 0;
    view.param_count = static_cast<int32_t>(bucket.params.size());
    view.params = bucket.params.data();
    view.data = bucket.data;
    view.count = bucket.count;
    view.dtype = static_cast<dt_dtype>(bucket.dtype);
    view.stream = reinterpret_cast<dt_stream>(bucket.stream);
    dt_work* work = nullptr;
    const uint64_t errors = recorded();
    const dt_status status = function(user_data, &view, stage, &work);
    if (status != DT_OK) {
      dt_work_destroy(work);
      const Code code =
          status > DT_OK && status <= DT_ERR_INTERNAL ? static_cast<Code>(status) : Code::kInternal;
      const std::string returned =
          format("it returned %s (%d); ", dt_status_name(status), static_cast<int>(status));
      return Status(
          code, returned + (recorded() == errors
                                ? "no call of dt failed in it: look at what this rank says"
                                : format("this thread's last error is \"%s\"", dt_last_error())));
    }
    if (work == nullptr) return training::HookWork{};
    const Call call("the reducer's hook");
    DT_TRY_VALUE(const auto object, call.get<WorkObject>(work, "*out_work"));
    training::HookWork started{object->comm, object->work};
    dt_work_destroy(work);
    if (started.comm == nullptr) {
      return call.invalid(
          "*out_work is of dt_named_submit; give that of an operation of a "
          "communicator, or wait for it in the hook");
    }
    return started;
  };
}

/// Each parameter once.
Result<std::vector<int32_t>> read_order(const Call& call, const char* options, const int32_t* order,
                                        size_t count) {
  if (order == nullptr) return std::vector<int32_t>();
  std::vector<bool> seen(count);
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(order[i]);
    if (order[i] < 0 || index >= count || seen[index]) {
      return call.invalid("%s->order[%zu] is %d; it must name each of the %zu parameters once",
                          options, i, order[i], count);
    }
    seen[index] = true;
  }
  return std::vector<int32_t>(order, order + count);
}

/// Where the caller's gradients lie, which must not overlap.
Result<std::vector<char*>> read_places(const Call& call, const CommObject& on, const char* options,
                                       void* const* grads, const int64_t* row_elements,
                                       std::span<const training::Param> params) {
  std::vector<char*> places;
  if (grads == nullptr) return places;
  const auto gpu = on.comm->backend().device();
  auto name_of = [&](size_t i) {
    std::string text = format("%s->grads[%zu]", options, i);
    return params[i].name.empty() ? text : text + " (parameter \"" + params[i].name + "\")";
  };
  auto bytes_of = [&](size_t i) { return params[i].count * dtype_bytes(params[i].dtype); };
  std::vector<size_t> by_place;
  for (size_t i = 0; i < params.size(); ++i) {
    auto* const place = static_cast<char*>(grads[i]);
    places.push_back(place);
    if (params[i].count == 0 || (row_elements != nullptr && row_elements[i] > 0)) continue;
    if (place == nullptr) {
      return call.invalid("%s is NULL; say where the gradient lies", name_of(i).c_str());
    }
    DT_TRY(check_aligned(call, name_of(i), place, dtype_bytes(params[i].dtype)));
    if (gpu != nullptr) {
      DT_TRY(check_on_gpu(call, *gpu, name_of(i), place, place + bytes_of(i) - 1));
    }
    by_place.push_back(i);
  }
  std::sort(by_place.begin(), by_place.end(),
            [&](size_t a, size_t b) { return places[a] < places[b]; });
  for (size_t at = 1; at < by_place.size(); ++at) {
    const size_t one = by_place[at - 1];
    const size_t next = by_place[at];
    if (places[one] + bytes_of(one) <= places[next]) continue;
    return call.invalid("%s and %s share memory; give each gradient its own", name_of(one).c_str(),
                        name_of(next).c_str());
  }
  return places;
}

}  // namespace

Status check_path(const Call& call, const char* path) {
  DT_TRY(call.not_null(path, "path"));
  if (*path == '\0') return call.invalid("path is empty");
  return {};
}

Status check_param(const Call& call, const training::Reducer& reducer, int32_t index) {
  if (index >= 0 && index < reducer.param_count()) return {};
  return call.invalid("index is %d; the reducer has parameters 0 to %d", index,
                      reducer.param_count() - 1);
}

Result<training::Reducer::Options> read_reducer_options(const Call& call, const CommObject& on,
                                                        const dt_reducer_options* options,
                                                        const char* argument,
                                                        std::span<const training::Param> params) {
  dt_reducer_options asked;
  DT_TRY(read_options(call, options, argument, "dt_reducer_options_init", &asked));
  if (asked.bucket_cap_bytes < 0 || asked.first_bucket_bytes < 0) {
    return call.invalid("a bucket cap of %s is negative", argument);
  }
  if (asked.find_unused != 0 && asked.find_unused != 1) {
    return call.invalid("%s->find_unused is %d; it must be 0 or 1", argument, asked.find_unused);
  }
  if (asked.divide_by_users != 0 && asked.divide_by_users != 1) {
    return call.invalid("%s->divide_by_users is %d; it must be 0 or 1", argument,
                        asked.divide_by_users);
  }
  if (asked.tune_steps != 0 && asked.tune_steps <= training::BucketTuner::kUntimed) {
    return call.invalid("%s->tune_steps is %d; it must be 0, or at least %d", argument,
                        asked.tune_steps, training::BucketTuner::kUntimed + 1);
  }
  if (asked.tune_steps != 0 && asked.keep_plan != 0) {
    return call.invalid("%s has keep_plan and tune_steps; choose one", argument);
  }
  if (asked.static_graph != 0 && asked.static_graph != 1) {
    return call.invalid("%s->static_graph is %d; it must be 0 or 1", argument, asked.static_graph);
  }
  if (asked.static_graph != 0 && asked.find_unused != 0) {
    return call.invalid("%s has static_graph and find_unused; choose one", argument);
  }
  const bool knows_users = asked.find_unused != 0 || asked.static_graph != 0;
  if (asked.divide_by_users != 0 && (!knows_users || asked.sum != 0)) {
    return call.invalid(
        "%s->divide_by_users is 1; it goes with find_unused = 1 or static_graph = 1, and sum = 0",
        argument);
  }
  DT_TRY(check_wire(call, argument, asked.wire));
  if (!(asked.predivide >= 0 && std::isfinite(asked.predivide))) {
    return call.invalid("%s->predivide is %g; it must be positive, or 0", argument,
                        asked.predivide);
  }
  const Config& config = on.job->config();
  training::Reducer::Options chosen;
  chosen.bucket_cap_bytes = config.integer("reducer.bucket_cap_bytes");
  chosen.first_bucket_bytes = config.integer("reducer.first_bucket_bytes");
  chosen.rebuild = config.boolean("reducer.rebuild");
  chosen.check_steps = config.integer("reducer.check_steps");
  chosen.log_steps = config.integer("reducer.log_steps");
  chosen.logger = on.job->logger();
  chosen.sum = asked.sum != 0;
  chosen.tune_steps = asked.tune_steps;
  chosen.find_unused = asked.find_unused != 0;
  chosen.static_graph = asked.static_graph != 0;
  chosen.divide_by_users = asked.divide_by_users != 0;
  chosen.predivide = asked.predivide;
  DT_TRY_VALUE(chosen.places,
               read_places(call, on, argument, asked.grads, asked.row_elements, params));
  DT_TRY_VALUE(chosen.order, read_order(call, argument, asked.order, params.size()));
  chosen.wire_8bit = asked.wire == DT_WIRE_8BIT;
  chosen.wire = half_of(asked.wire);
  if (asked.bucket_cap_bytes > 0) chosen.bucket_cap_bytes = asked.bucket_cap_bytes;
  if (asked.first_bucket_bytes > 0) chosen.first_bucket_bytes = asked.first_bucket_bytes;
  if (asked.keep_plan != 0) chosen.rebuild = false;
  for (size_t i = 0; i < params.size(); ++i) {
    const Status has = check_reduction(call, on.comm->backend(), params[i].dtype,
                                       chosen.sum ? ReduceOp::kSum : ReduceOp::kAvg);
    if (!has.ok()) return Status(has.code(), format("%s (params[%zu])", has.message().c_str(), i));
  }
  return chosen;
}

}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_reducer_create(dt_comm* comm, const dt_param* params, int32_t count,
                            const dt_reducer_options* options, dt_reducer** out_reducer) {
  return on_comm("dt_reducer_create", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(call.not_null(out_reducer, "out_reducer"));
    DT_TRY(on->comm->check_ungrouped("dt_reducer_create"));
    DT_TRY_VALUE(auto read, read_params(call, params, count));
    DT_TRY_VALUE(const auto chosen, read_reducer_options(call, *on, options, "options", read));
    DT_TRY(read_row_elements(call, options, &read));
    auto object = std::make_shared<ReducerObject>();
    object->job = on->job;
    DT_TRY_VALUE(object->reducer, training::Reducer::create(on->comm, std::move(read), chosen));
    return call.give(std::move(object), out_reducer);
  });
}

dt_status dt_reducer_grad(dt_reducer* reducer, int32_t index, dt_stream stream,
                          void** out_pointer) {
  return on_reducer("dt_reducer_grad", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.shared(call));
                      DT_TRY(call.not_null(out_pointer, "out_pointer"));
                      DT_TRY(check_param(call, *object->reducer, index));
                      DT_TRY_VALUE(*out_pointer, object->reducer->grad(index, stream_of(stream)));
                      return {};
                    });
}

dt_status dt_reducer_ready(dt_reducer* reducer, int32_t index, void* grad, dt_stream stream) {
  return on_reducer("dt_reducer_ready", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.shared(call));
                      DT_TRY(check_param(call, *object->reducer, index));
                      return object->reducer->ready(index, grad, stream_of(stream));
                    });
}

dt_status dt_reducer_ready_rows(dt_reducer* reducer, int32_t index, const int64_t* rows,
                                int64_t row_count, const void* values) {
  return on_reducer("dt_reducer_ready_rows", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.shared(call));
                      DT_TRY(check_param(call, *object->reducer, index));
                      if (row_count < 0) {
                        return call.invalid("row_count is %lld", static_cast<long long>(row_count));
                      }
                      if (row_count > 0) {
                        DT_TRY(call.not_null(rows, "rows"));
                        DT_TRY(call.not_null(values, "values"));
                      }
                      return object->reducer->ready_rows(
                          index, std::span(rows, static_cast<size_t>(row_count)), values);
                    });
}

dt_status dt_reducer_rows(dt_reducer* reducer, int32_t index, const int64_t** out_rows,
                          void** out_values, int64_t* out_count) {
  return on_reducer("dt_reducer_rows", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(call.not_null(out_rows, "out_rows"));
                      DT_TRY(call.not_null(out_values, "out_values"));
                      DT_TRY(call.not_null(out_count, "out_count"));
                      DT_TRY(check_param(call, *object->reducer, index));
                      DT_TRY_VALUE(const auto result, object->reducer->rows(index));
                      *out_rows = result->indices().data();
                      *out_values = result->values();
                      *out_count = result->row_count();
                      return {};
                    });
}

dt_status dt_reducer_accumulate(dt_reducer* reducer, int32_t on) {
  return on_reducer("dt_reducer_accumulate", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      if (on != 0 && on != 1) return call.invalid("on is %d; give 0 or 1", on);
                      object->reducer->accumulate(on == 1);
                      return {};
                    });
}

dt_status dt_reducer_set_hook(dt_reducer* reducer, dt_bucket_hook hook, void* user_data) {
  return on_reducer("dt_reducer_set_hook", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      return object->reducer->set_hook(hook != nullptr ? hook_of(hook, user_data)
                                                                       : training::Hook());
                    });
}

dt_status dt_reducer_power_sgd(dt_reducer* reducer, const int64_t* rows,
                               const dt_power_sgd_options* options) {
  return on_reducer(
      "dt_reducer_power_sgd", reducer, [&](const Call& call, const ReducerPtr& object) -> Status {
        DT_TRY_VALUE(const auto turn, object->turns.alone(call));
        DT_TRY(call.not_null(rows, "rows"));
        dt_power_sgd_options asked;
        DT_TRY(read_options(call, options, "options", "dt_power_sgd_options_init", &asked));
        if (asked.rank < 0 || asked.rank > kMaxPowerSgdRank) {
          return call.invalid("options->rank is %d; it must be in [0, %d]", asked.rank,
                              kMaxPowerSgdRank);
        }
        if (asked.start_step < 0) return call.invalid("options->start_step is negative");
        if (!(asked.min_compression >= 0)) {
          return call.invalid("options->min_compression is %g; it must be positive, or 0",
                              asked.min_compression);
        }
        DT_TRY(check_wire(call, "options", asked.wire));
        if (asked.wire == DT_WIRE_8BIT) {
          return call.invalid(
              "options->wire is DT_WIRE_8BIT; PowerSGD travels in 16 bits, DT_WIRE_F16 or "
              "DT_WIRE_BF16, or as it is");
        }
        training::PowerSgd::Options chosen;
        if (asked.rank > 0) chosen.rank = asked.rank;
        if (asked.min_compression > 0) chosen.min_compression = asked.min_compression;
        chosen.start_step = asked.start_step;
        chosen.warm_start = asked.cold_start == 0;
        chosen.error_feedback = asked.no_error_feedback == 0;
        chosen.seed = asked.seed;
        chosen.wire = half_of(asked.wire);
        return object->reducer->compress(
            std::span(rows, static_cast<size_t>(object->reducer->param_count())), chosen);
      });
}

dt_status dt_reducer_save(dt_reducer* reducer, const char* path) {
  return on_reducer("dt_reducer_save", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(check_path(call, path));
                      return object->reducer->save(path);
                    });
}

dt_status dt_reducer_load(dt_reducer* reducer, const char* path) {
  return on_reducer("dt_reducer_load", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(check_path(call, path));
                      return object->reducer->load(path);
                    });
}

dt_status dt_reducer_unused(dt_reducer* reducer, int32_t index, void* grad, dt_stream stream) {
  return on_reducer("dt_reducer_unused", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.shared(call));
                      DT_TRY(check_param(call, *object->reducer, index));
                      return object->reducer->unused(index, grad, stream_of(stream));
                    });
}

dt_status dt_reducer_used(dt_reducer* reducer, int32_t index, int32_t* out_used) {
  return on_reducer("dt_reducer_used", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(call.not_null(out_used, "out_used"));
                      DT_TRY(check_param(call, *object->reducer, index));
                      DT_TRY_VALUE(const bool used, object->reducer->used(index));
                      *out_used = used ? 1 : 0;
                      return {};
                    });
}

dt_status dt_reducer_active(dt_reducer* reducer, int32_t* out_ranks) {
  return on_reducer("dt_reducer_active", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(call.not_null(out_ranks, "out_ranks"));
                      DT_TRY_VALUE(*out_ranks, object->reducer->active());
                      return {};
                    });
}

dt_status dt_reducer_watch(dt_reducer* reducer, int32_t index, const void* data, int64_t bytes) {
  return on_reducer("dt_reducer_watch", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(check_param(call, *object->reducer, index));
                      if (bytes < 0)
                        return call.invalid("bytes is %lld", static_cast<long long>(bytes));
                      object->reducer->watch(index, data, bytes);
                      return {};
                    });
}

dt_status dt_reducer_finish(dt_reducer* reducer, dt_stream stream) {
  return on_reducer("dt_reducer_finish", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      return object->reducer->finish(stream_of(stream));
                    });
}

dt_status dt_reducer_clip_norm(dt_reducer* reducer, double max_norm, double norm_type,
                               dt_stream stream, float* out_norm) {
  return on_reducer(
      "dt_reducer_clip_norm", reducer, [&](const Call& call, const ReducerPtr& object) -> Status {
        DT_TRY_VALUE(const auto turn, object->turns.alone(call));
        if (!(max_norm > 0)) {
          return call.invalid("max_norm is %g; it must be positive", max_norm);
        }
        if (!(norm_type >= 1)) {
          return call.invalid("norm_type is %g; it must be at least 1", norm_type);
        }
        const auto gpu = object->reducer->within()->backend().device();
        if (gpu != nullptr && out_norm != nullptr) {
          DT_TRY_VALUE(const cuda::PointerInfo info, gpu->pointer_info(out_norm));
          if (info.memory == cuda::Memory::kHost) {
            return call.invalid("out_norm is in memory of the host; give one f32 of the GPU");
          }
        }
        return object->reducer->clip_norm(max_norm, norm_type, stream_of(stream), out_norm);
      });
}

dt_status dt_reducer_rebuild(dt_reducer* reducer, int32_t* out_changed) {
  return on_reducer("dt_reducer_rebuild", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY_VALUE(const bool changed, object->reducer->rebuild());
                      if (out_changed != nullptr) *out_changed = changed ? 1 : 0;
                      return {};
                    });
}

dt_status dt_reducer_bucket(dt_reducer* reducer, int32_t index, int32_t* out_bucket) {
  return on_reducer("dt_reducer_bucket", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.shared(call));
                      DT_TRY(call.not_null(out_bucket, "out_bucket"));
                      DT_TRY(check_param(call, *object->reducer, index));
                      *out_bucket = object->reducer->bucket_of(index);
                      return {};
                    });
}

dt_status dt_reducer_order(dt_reducer* reducer, int32_t* out_order) {
  return on_reducer("dt_reducer_order", reducer,
                    [&](const Call& call, const ReducerPtr& object) -> Status {
                      DT_TRY_VALUE(const auto turn, object->turns.alone(call));
                      DT_TRY(call.not_null(out_order, "out_order"));
                      const auto& order = object->reducer->order();
                      std::copy(order.begin(), order.end(), out_order);
                      return {};
                    });
}

dt_status dt_reducer_stats(dt_reducer* reducer, dt_reducer_statistics* out_statistics) {
  return on_reducer(
      "dt_reducer_stats", reducer, [&](const Call& call, const ReducerPtr& object) -> Status {
        DT_TRY(call.not_null(out_statistics, "out_statistics"));
        DT_TRY(call.known_size(out_statistics->struct_size, sizeof(dt_reducer_statistics),
                               "out_statistics", "dt_reducer_statistics_init"));
        const training::Reducer::Statistics from = object->reducer->statistics();
        dt_reducer_statistics filled;
        dt_reducer_statistics_init(&filled);
        filled.struct_size = out_statistics->struct_size;
        filled.bucket_count = from.bucket_count;
        filled.steps = from.steps;
        filled.bytes = from.bytes;
        filled.communication_ns = from.communication_ns;
        filled.exposed_ns = from.exposed_ns;
        filled.total_bytes = from.total_bytes;
        filled.total_communication_ns = from.total_communication_ns;
        filled.total_exposed_ns = from.total_exposed_ns;
        filled.hidden_share = from.total_communication_ns == 0
                                  ? 1.0
                                  : 1.0 - static_cast<double>(from.total_exposed_ns) /
                                              static_cast<double>(from.total_communication_ns);
        filled.rebuilt = from.rebuilt ? 1 : 0;
        filled.tuned = from.tuned ? 1 : 0;
        filled.bucket_cap_bytes = from.bucket_cap_bytes;
        filled.memory_bytes = from.memory_bytes;
        filled.total_gather_ns = from.total_gather_ns;
        memcpy(out_statistics, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
        return {};
      });
}

void dt_reducer_destroy(dt_reducer* reducer) { destroy<ReducerObject>(reducer); }

}  // extern "C"
