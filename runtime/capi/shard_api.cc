// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "capi/operation.h"
#include "training/shard_checkpoint.h"

namespace dt::capi {
namespace {

constexpr int32_t kMaxDims = 64;

template <class F>
dt_status on_shard(const char* function, dt_shard* shard, F&& body) noexcept {
  return on<ShardObject>(
      function, shard, "shard",
      [&](const Call& call, const ShardPtr& object) -> Status { return body(call, *object); });
}

/// Nothing else runs on it or its reducer meanwhile.
template <class F>
dt_status alone_on_shard(const char* function, dt_shard* shard, F&& body) noexcept {
  return on_shard(function, shard, [&](const Call& call, const ShardObject& object) -> Status {
    DT_TRY_VALUE(const auto turn, object.reducer->turns.alone(call));
    return body(call, object);
  });
}

Status check_unit(const Call& call, const ShardObject& object, int32_t unit) {
  const auto& params = object.shard->params();
  if (std::any_of(params.begin(), params.end(),
                  [&](const auto& param) { return param.unit == unit; })) {
    return {};
  }
  return call.invalid("unit is %d, which no parameter has", unit);
}

Status check_share(const Call& call, const char* field, double value) {
  if (value >= 0 && value < 1) return {};
  return call.invalid("options->%s is %g; it must be in [0, 1)", field, value);
}

Status check_not_negative(const Call& call, const char* field, double value) {
  if (value >= 0 && std::isfinite(value)) return {};
  return call.invalid("options->%s is %g; it must be at least 0", field, value);
}

/// In the file: `dims` sizes. Empty: one dimension.
Result<std::vector<int64_t>> read_shape(const Call& call, const training::Param& param,
                                        size_t index, int32_t dims, const int64_t* sizes) {
  std::vector<int64_t> shape(sizes, sizes + dims);
  std::string text;
  int64_t product = 1;
  bool fits = true;
  bool has_zero = false;
  for (const int64_t size : shape) {
    text += format(text.empty() ? "%lld" : ", %lld", static_cast<long long>(size));
    has_zero = has_zero || size == 0;
    fits = fits && size >= 0 && (size == 0 || !__builtin_mul_overflow(product, size, &product));
  }
  if (dims > 0 && (!fits || (has_zero ? 0 : product) != param.count)) {
    return call.invalid("parameter %zu (%s) cannot have the shape (%s): it has %lld elements",
                        index, param.name.empty() ? "no name" : param.name.c_str(), text.c_str(),
                        static_cast<long long>(param.count));
  }
  return shape;
}

/// The weight decay of each parameter.
Result<std::vector<double>> read_decay(const Call& call, const ShardObject& object, double all,
                                       const double* each) {
  DT_TRY(check_not_negative(call, "weight_decay", all));
  std::vector<double> decay(object.shard->params().size(), all);
  if (each == nullptr) return decay;
  for (size_t i = 0; i < decay.size(); ++i) {
    DT_TRY(check_not_negative(call, format("weight_decays[%zu]", i).c_str(), each[i]));
    decay[i] = each[i];
  }
  return decay;
}

Status give_optimizer(const Call& call, const ShardObject& object,
                      training::Optimizer::Options options, dt_optimizer** out_optimizer) {
  auto made = std::make_shared<OptimizerObject>();
  made->job = object.job;
  made->reducer = object.reducer;
  DT_TRY_VALUE(made->optimizer, training::Optimizer::create(object.shard, std::move(options)));
  return call.give(std::move(made), out_optimizer);
}

Status read_skip(const Call& call, int32_t asked, bool* skips) {
  if (asked != 0 && asked != 1) {
    return call.invalid("options->skip_non_finite is %d; it must be 0 or 1", asked);
  }
  *skips = asked == 1;
  return {};
}

using FileFunction = Status (*)(training::Shard&, training::Optimizer*, const std::string&);

dt_status on_file(const char* function, dt_shard* shard, dt_optimizer* optimizer, const char* path,
                  FileFunction run) noexcept {
  return alone_on_shard(
      function, shard, [&](const Call& call, const ShardObject& object) -> Status {
        std::shared_ptr<OptimizerObject> of;
        if (optimizer != nullptr) {
          DT_TRY_VALUE(of, call.get<OptimizerObject>(optimizer, "optimizer"));
          if (of->optimizer->shard() != object.shard) {
            return call.invalid("optimizer is of another shard; give that of this one, or none");
          }
        }
        DT_TRY(call.not_null(path, "path"));
        if (*path == '\0') return call.invalid("path is empty");
        return run(*object.shard, of != nullptr ? of->optimizer.get() : nullptr, path);
      });
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_shard_create(dt_comm* comm, const dt_param* params, int32_t count,
                          const dt_shard_options* options, dt_shard** out_shard) {
  return on_comm("dt_shard_create", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(call.not_null(out_shard, "out_shard"));
    DT_TRY(on->comm->check_ungrouped("dt_shard_create"));
    DT_TRY_VALUE(auto read, read_params(call, params, count));
    dt_shard_options standard;
    dt_shard_options_init(&standard);
    dt_shard_options asked;
    DT_TRY(read_options(call, options != nullptr ? options : &standard, "options",
                        "dt_shard_options_init", &asked));
    if (asked.stage < 0 || asked.stage > 3) {
      return call.invalid("options->stage is %d; it must be in [0, 3]", asked.stage);
    }
    if (asked.prefetch < 0) {
      return call.invalid("options->prefetch is %d; it must be at least 0", asked.prefetch);
    }
    if (asked.shard_ranks < 0 ||
        (asked.shard_ranks > 0 && on->comm->size() % asked.shard_ranks != 0)) {
      return call.invalid(
          "options->shard_ranks is %d; it must be 0 or divide the %d ranks of comm \"%s\"",
          asked.shard_ranks, on->comm->size(), on->comm->name().c_str());
    }
    if (asked.offload != nullptr && *asked.offload == '\0') {
      return call.invalid("options->offload is empty; give the path of a directory");
    }
    const int64_t* sizes = asked.shapes;
    for (size_t i = 0; i < read.size(); ++i) {
      const int64_t granule = asked.granules != nullptr ? asked.granules[i] : 1;
      const int32_t unit = asked.units != nullptr ? asked.units[i] : 0;
      if (granule < 0) {
        return call.invalid("options->granules[%zu] is %lld", i, static_cast<long long>(granule));
      }
      if (unit < 0) return call.invalid("options->units[%zu] is %d", i, unit);
      const int32_t dims = asked.dims != nullptr ? asked.dims[i] : 0;
      if (dims < 0 || dims > kMaxDims) {
        return call.invalid("options->dims[%zu] is %d; it must be in [0, %d]", i, dims, kMaxDims);
      }
      if (dims > 0) DT_TRY(call.not_null(asked.shapes, "options->shapes"));
      DT_TRY_VALUE(read[i].shape, read_shape(call, read[i], i, dims, sizes));
      sizes += dims;
      read[i].granule = std::max<int64_t>(granule, 1);
      read[i].unit = unit;
    }
    training::Shard::Options chosen;
    chosen.stage = asked.stage;
    chosen.prefetch = asked.prefetch;
    chosen.shard_ranks = asked.shard_ranks;
    if (asked.offload != nullptr) chosen.offload = asked.offload;
    DT_TRY_VALUE(chosen.reducer,
                 read_reducer_options(call, *on, asked.reducer, "options->reducer", read));
    dt_reducer_options of;
    DT_TRY(read_options(call, asked.reducer, "options->reducer", "dt_reducer_options_init", &of));
    if (of.row_elements != nullptr) {
      return call.invalid(
          "options->reducer->row_elements is set; a shard's gradients are dense: give rows to a "
          "dt_reducer, or to parameter servers (dt_ps_connect)");
    }
    if (!chosen.reducer.places.empty()) {
      return call.invalid(
          "options->reducer->grads is set; a shard cuts its buckets anew for each number of ranks, "
          "so its gradients lie where dt_reducer_grad() says");
    }
    if (chosen.reducer.static_graph) {
      return call.invalid(
          "options->reducer->static_graph is 1; a shard learns nothing from its first step: say "
          "dt_param.uses, and find_unused for what some steps do not use");
    }
    if (chosen.reducer.tune_steps != 0) {
      return call.invalid(
          "options->reducer->tune_steps is %d; it must be 0 with a shard, whose buckets do not "
          "change",
          chosen.reducer.tune_steps);
    }
    if (chosen.reducer.wire_8bit) {
      return call.invalid(
          "options->reducer->wire is DT_WIRE_8BIT, which does not go with a shard; use "
          "DT_WIRE_BF16");
    }
    auto reducer = std::make_shared<ReducerObject>();
    auto object = std::make_shared<ShardObject>();
    reducer->job = object->job = on->job;
    DT_TRY_VALUE(object->shard, training::Shard::create(on->comm, std::move(read), chosen));
    reducer->reducer = object->shard->reducer();
    object->reducer = std::move(reducer);
    return call.give(std::move(object), out_shard);
  });
}

dt_status dt_shard_reducer(dt_shard* shard, dt_reducer** out_reducer) {
  return on_shard("dt_shard_reducer", shard,
                  [&](const Call& call, const ShardObject& object) -> Status {
                    DT_TRY(call.not_null(out_reducer, "out_reducer"));
                    return call.give(ReducerPtr(object.reducer), out_reducer);
                  });
}

dt_status dt_shard_param(dt_shard* shard, int32_t index, void** out_pointer) {
  return on_shard("dt_shard_param", shard,
                  [&](const Call& call, const ShardObject& object) -> Status {
                    DT_TRY(call.not_null(out_pointer, "out_pointer"));
                    DT_TRY(check_param(call, *object.shard->reducer(), index));
                    DT_TRY_VALUE(*out_pointer, object.shard->param(index));
                    return {};
                  });
}

dt_status dt_shard_set(dt_shard* shard, int32_t index, const void* values, dt_stream stream) {
  return alone_on_shard(
      "dt_shard_set", shard, [&](const Call& call, const ShardObject& object) -> Status {
        DT_TRY(check_param(call, *object.shard->reducer(), index));
        const auto count = object.shard->params()[static_cast<size_t>(index)].count;
        DT_TRY(check_buffer(call, "values", values, count));
        return object.shard->set(index, values, stream_of(stream));
      });
}

dt_status dt_shard_piece(dt_shard* shard, int32_t index, dt_stream stream, dt_piece* out_piece) {
  return alone_on_shard(
      "dt_shard_piece", shard, [&](const Call& call, const ShardObject& object) -> Status {
        DT_TRY(call.not_null(out_piece, "out_piece"));
        DT_TRY(call.known_size(out_piece->struct_size, sizeof(dt_piece), "out_piece",
                               "dt_piece_init"));
        DT_TRY(check_param(call, *object.shard->reducer(), index));
        const auto piece = object.shard->piece(index, stream_of(stream));
        DT_TRY(piece.status());
        const training::Shard::Piece& from = piece.value();
        dt_piece filled;
        dt_piece_init(&filled);
        filled.struct_size = out_piece->struct_size;
        filled.offset = from.offset;
        filled.count = from.count;
        filled.param = from.param;
        filled.grad = from.grad;
        memcpy(out_piece, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
        return {};
      });
}

dt_status dt_shard_plan(dt_shard* shard, int32_t index, int64_t* out_offsets, int64_t* out_counts) {
  return on_shard("dt_shard_plan", shard,
                  [&](const Call& call, const ShardObject& object) -> Status {
                    DT_TRY(check_param(call, *object.shard->reducer(), index));
                    DT_TRY(call.not_null(out_offsets, "out_offsets"));
                    DT_TRY(call.not_null(out_counts, "out_counts"));
                    const auto pieces = object.shard->plan(index);
                    const auto ranks = static_cast<size_t>(object.shard->comm()->size());
                    for (size_t rank = 0; rank < ranks; ++rank) {
                      const auto& piece = pieces[rank % pieces.size()];
                      out_offsets[rank] = piece.count > 0 ? piece.offset : 0;
                      out_counts[rank] = piece.count;
                    }
                    return {};
                  });
}

dt_status dt_shard_full_grad(dt_shard* shard, int32_t index, dt_stream stream, void* out_values) {
  return alone_on_shard(
      "dt_shard_full_grad", shard, [&](const Call& call, const ShardObject& object) -> Status {
        DT_TRY(check_param(call, *object.shard->reducer(), index));
        const auto count = object.shard->params()[static_cast<size_t>(index)].count;
        DT_TRY(check_buffer(call, "out_values", out_values, count));
        return object.shard->full_grad(index, out_values, stream_of(stream));
      });
}

dt_status dt_shard_updated(dt_shard* shard, dt_stream stream) {
  return alone_on_shard("dt_shard_updated", shard,
                        [&](const Call&, const ShardObject& object) -> Status {
                          object.shard->written();
                          return object.shard->updated(stream_of(stream));
                        });
}

dt_status dt_shard_gather(dt_shard* shard, int32_t unit, dt_stream stream) {
  return alone_on_shard("dt_shard_gather", shard,
                        [&](const Call& call, const ShardObject& object) -> Status {
                          DT_TRY(check_unit(call, object, unit));
                          return object.shard->gather(unit, stream_of(stream));
                        });
}

dt_status dt_shard_release(dt_shard* shard, int32_t unit, dt_stream stream) {
  return alone_on_shard("dt_shard_release", shard,
                        [&](const Call& call, const ShardObject& object) -> Status {
                          DT_TRY(check_unit(call, object, unit));
                          return object.shard->release(unit, stream_of(stream));
                        });
}

dt_status dt_shard_save(dt_shard* shard, dt_optimizer* optimizer, const char* path) {
  return on_file("dt_shard_save", shard, optimizer, path, training::save_shard);
}

dt_status dt_shard_load(dt_shard* shard, dt_optimizer* optimizer, const char* path) {
  return on_file("dt_shard_load", shard, optimizer, path, training::load_shard);
}

void dt_shard_destroy(dt_shard* shard) { destroy<ShardObject>(shard); }

dt_status dt_optimizer_adamw(dt_shard* shard, const dt_adamw_options* options,
                             dt_optimizer** out_optimizer) {
  return on_shard("dt_optimizer_adamw", shard,
                  [&](const Call& call, const ShardObject& object) -> Status {
                    DT_TRY(call.not_null(out_optimizer, "out_optimizer"));
                    dt_adamw_options standard;
                    dt_adamw_options_init(&standard);
                    dt_adamw_options asked;
                    DT_TRY(read_options(call, options != nullptr ? options : &standard, "options",
                                        "dt_adamw_options_init", &asked));
                    DT_TRY(check_share(call, "beta1", asked.beta1));
                    DT_TRY(check_share(call, "beta2", asked.beta2));
                    DT_TRY(check_not_negative(call, "epsilon", asked.epsilon));
                    training::Optimizer::Options chosen;
                    chosen.kind = training::AdamW{asked.beta1, asked.beta2, asked.epsilon};
                    DT_TRY(read_skip(call, asked.skip_non_finite, &chosen.skip_non_finite));
                    DT_TRY_VALUE(chosen.weight_decay,
                                 read_decay(call, object, asked.weight_decay, asked.weight_decays));
                    return give_optimizer(call, object, std::move(chosen), out_optimizer);
                  });
}

dt_status dt_optimizer_sgd(dt_shard* shard, const dt_sgd_options* options,
                           dt_optimizer** out_optimizer) {
  return on_shard(
      "dt_optimizer_sgd", shard, [&](const Call& call, const ShardObject& object) -> Status {
        DT_TRY(call.not_null(out_optimizer, "out_optimizer"));
        dt_sgd_options asked;
        DT_TRY(read_options(call, options, "options", "dt_sgd_options_init", &asked));
        DT_TRY(check_not_negative(call, "momentum", asked.momentum));
        if (!std::isfinite(asked.dampening)) {
          return call.invalid("options->dampening is %g; it must be finite", asked.dampening);
        }
        if (asked.nesterov != 0 && asked.nesterov != 1) {
          return call.invalid("options->nesterov is %d; it must be 0 or 1", asked.nesterov);
        }
        if (asked.nesterov == 1 && (!(asked.momentum > 0) || asked.dampening != 0)) {
          return call.invalid("options->nesterov is 1; it goes with a momentum and no dampening");
        }
        training::Optimizer::Options chosen;
        chosen.kind = training::Sgd{asked.momentum, asked.dampening, asked.nesterov == 1};
        DT_TRY(read_skip(call, asked.skip_non_finite, &chosen.skip_non_finite));
        DT_TRY_VALUE(chosen.weight_decay,
                     read_decay(call, object, asked.weight_decay, asked.weight_decays));
        return give_optimizer(call, object, std::move(chosen), out_optimizer);
      });
}

dt_status dt_optimizer_step(dt_optimizer* optimizer, double rate, dt_stream stream) {
  return on<OptimizerObject>(
      "dt_optimizer_step", optimizer, "optimizer",
      [&](const Call& call, const std::shared_ptr<OptimizerObject>& object) -> Status {
        DT_TRY_VALUE(const auto turn, object->reducer->turns.alone(call));
        if (!std::isfinite(rate)) return call.invalid("rate is %g; it must be finite", rate);
        return object->optimizer->step(rate, stream_of(stream));
      });
}

dt_status dt_optimizer_skipped(dt_optimizer* optimizer, int32_t behind, int64_t* out_skipped) {
  return on<OptimizerObject>(
      "dt_optimizer_skipped", optimizer, "optimizer",
      [&](const Call& call, const std::shared_ptr<OptimizerObject>& object) -> Status {
        DT_TRY(call.not_null(out_skipped, "out_skipped"));
        constexpr int32_t kMost = kernels::StepGuard::kSlots - 1;
        if (behind < 0 || behind > kMost) {
          return call.invalid("behind is %d; it must be between 0 and %d", behind, kMost);
        }
        DT_TRY_VALUE(const auto turn, object->reducer->turns.alone(call));
        const Result<int64_t> skipped = object->optimizer->skipped(behind);
        DT_TRY(skipped.status());
        *out_skipped = skipped.value();
        return {};
      });
}

void dt_optimizer_destroy(dt_optimizer* optimizer) { destroy<OptimizerObject>(optimizer); }

}  // extern "C"
