// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "capi/call.h"
#include "capi/objects.h"
#include "training/sampler_check.h"

namespace dt::capi {
namespace {

constexpr int64_t kMaxSize = INT64_MAX / 16;  // with room for padding and for a default window

Status check_size(const Call& call, const char* name, int64_t value) {
  if (value >= 0 && value <= kMaxSize) return {};
  return call.invalid("options->%s is %lld; it must be in [0, %lld]", name,
                      static_cast<long long>(value), static_cast<long long>(kMaxSize));
}

Status check_weights(const Call& call, const dt_sampler_options& read) {
  double largest = 0;
  for (int64_t i = 0; i < read.size; ++i) {
    const double weight = read.weights[i];
    if (!std::isfinite(weight) || weight < 0) {
      return call.invalid("options->weights[%lld] is %g; weights are finite and >= 0",
                          static_cast<long long>(i), std::isnan(weight) ? NAN : weight);
    }
    largest = std::max(largest, weight);
  }
  if (largest > 0) return {};
  return call.invalid(
      "options->weights are all 0 or none; give at least one sample a weight above 0");
}

/// Orders that exclude each other.
Status check_order(const Call& call, const dt_sampler_options& read) {
  DT_TRY(check_size(call, "size", read.size));
  DT_TRY(check_size(call, "block", read.block));
  DT_TRY(check_size(call, "window", read.window));
  DT_TRY(check_size(call, "draws", read.draws));
  if (read.sequential != 0 && read.block != 0) {
    return call.invalid("options->sequential and options->block are both set; choose one order");
  }
  if (read.weights != nullptr && (read.sequential != 0 || read.block != 0)) {
    return call.invalid("options->weights and options->%s are both set; choose one order",
                        read.block != 0 ? "block" : "sequential");
  }
  if (read.window != 0 && read.block == 0) {
    return call.invalid("options->window is %lld without options->block; set both",
                        static_cast<long long>(read.window));
  }
  if (read.draws != 0 && read.weights == nullptr) {
    return call.invalid("options->draws is %lld without options->weights; set both",
                        static_cast<long long>(read.draws));
  }
  return read.weights != nullptr ? check_weights(call, read) : Status();
}

Status check_part(const Call& call, const dt_sampler_options& read) {
  if (read.world_size < 1) {
    return call.invalid("options->world_size is %d; it must be >= 1", read.world_size);
  }
  if (read.rank < 0 || read.rank >= read.world_size) {
    return call.invalid("options->rank is %d; it must be in [0, %d)", read.rank, read.world_size);
  }
  return {};
}

/// Whether a saved state is one of this sampler's order.
Status check_state(const Call& call, const training::Sampler& sampler,
                   const dt_sampler_state& state) {
  if (state.size != sampler.options().size) {
    return call.invalid(
        "state->size is %lld, the sampler's data set has %lld samples; resume with the data set "
        "that the state was saved with",
        static_cast<long long>(state.size), static_cast<long long>(sampler.options().size));
  }
  if (state.order != sampler.order_digest()) {
    return call.invalid(
        "state->order is %lld, the sampler's is %lld: another seed or another order; create it "
        "with the options that the state was saved with (world_size, rank, drop_last and "
        "whole_batches may differ)",
        static_cast<long long>(state.order), static_cast<long long>(sampler.order_digest()));
  }
  if (state.epoch < 0) {
    return call.invalid("state->epoch is %lld; it must be >= 0",
                        static_cast<long long>(state.epoch));
  }
  if (state.consumed < 0 || state.consumed > sampler.order_size()) {
    return call.invalid("state->consumed is %lld; it must be in [0, %lld]",
                        static_cast<long long>(state.consumed),
                        static_cast<long long>(sampler.order_size()));
  }
  return {};
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_sampler_create(const dt_sampler_options* options, dt_sampler** out_sampler) {
  return guard("dt_sampler_create", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(options, "options"));
    DT_TRY(call.not_null(out_sampler, "out_sampler"));
    dt_sampler_options read;
    DT_TRY(read_options(call, options, "options", "dt_sampler_options_init", &read));
    DT_TRY(check_part(call, read));
    DT_TRY(check_order(call, read));
    training::Sampler::Options chosen;
    chosen.size = read.size;
    chosen.world_size = read.world_size;
    chosen.rank = read.rank;
    chosen.shuffle = read.sequential == 0;
    chosen.seed = static_cast<uint64_t>(read.seed);
    chosen.drop_last = read.drop_last != 0;
    chosen.whole_batches = read.whole_batches != 0;
    chosen.block = read.block;
    chosen.window = read.window;
    if (read.weights != nullptr) {
      chosen.weights = std::make_shared<training::Weights>(read.weights, read.size);
      chosen.draws = read.draws > 0 ? read.draws : read.size;
    }
    return call.give(std::make_shared<SamplerObject>(std::move(chosen)), out_sampler);
  });
}

dt_status dt_sampler_set_epoch(dt_sampler* sampler, int64_t epoch) {
  return guard("dt_sampler_set_epoch", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    if (epoch < 0) return call.invalid("epoch is %lld", static_cast<long long>(epoch));
    object->sampler.set_epoch(epoch);
    return {};
  });
}

dt_status dt_sampler_length(dt_sampler* sampler, int64_t* out_length) {
  return guard("dt_sampler_length", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY(call.not_null(out_length, "out_length"));
    *out_length = object->sampler.length();
    return {};
  });
}

dt_status dt_sampler_indices(dt_sampler* sampler, int64_t first, int64_t count,
                             int64_t* out_indices) {
  return guard("dt_sampler_indices", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    const int64_t length = object->sampler.length();
    if (first < 0 || count < 0 || first > length || count > length - first) {
      return call.invalid("first %lld, count %lld; this rank has %lld samples",
                          static_cast<long long>(first), static_cast<long long>(count),
                          static_cast<long long>(length));
    }
    if (count > 0) DT_TRY(call.not_null(out_indices, "out_indices"));
    object->sampler.copy_indices(first, count, out_indices);
    return {};
  });
}

dt_status dt_sampler_next(dt_sampler* sampler, int64_t count, int64_t* out_indices,
                          int64_t* out_count) {
  return guard("dt_sampler_next", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    if (count < 1) {
      return call.invalid("count is %lld; it must be >= 1", static_cast<long long>(count));
    }
    DT_TRY(call.not_null(out_indices, "out_indices"));
    DT_TRY(call.not_null(out_count, "out_count"));
    training::Sampler& from = object->sampler;
    if (from.ended()) {
      return Status(Code::kInvalidState,
                    format("dt_sampler_next: rank %d has taken its %lld samples of epoch %lld, and "
                           "was told of the end; go on with dt_sampler_set_epoch()",
                           from.options().rank, static_cast<long long>(from.taken()),
                           static_cast<long long>(from.epoch())));
    }
    *out_count = from.next(count, out_indices);
    return {};
  });
}

dt_status dt_sampler_save(dt_sampler* sampler, int64_t taken, dt_sampler_state* out_state) {
  return guard("dt_sampler_save", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    const training::Sampler& from = object->sampler;
    if (taken < -1 || taken > from.length()) {
      return call.invalid(
          "taken is %lld; this rank has %lld samples, and -1 is as many as "
          "dt_sampler_next() gave",
          static_cast<long long>(taken), static_cast<long long>(from.length()));
    }
    DT_TRY(call.not_null(out_state, "out_state"));
    DT_TRY(call.known_size(out_state->struct_size, sizeof(dt_sampler_state), "out_state",
                           "dt_sampler_state_init"));
    dt_sampler_state filled;
    dt_sampler_state_init(&filled);
    filled.struct_size = out_state->struct_size;
    filled.epoch = from.epoch();
    filled.consumed = from.consumed(taken == -1 ? from.taken() : taken);
    filled.size = from.options().size;
    filled.order = from.order_digest();
    memcpy(out_state, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
    return {};
  });
}

dt_status dt_sampler_resume(dt_sampler* sampler, const dt_sampler_state* state) {
  return guard("dt_sampler_resume", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    DT_TRY(call.not_null(state, "state"));
    dt_sampler_state read;
    DT_TRY(read_options(call, state, "state", "dt_sampler_state_init", &read));
    DT_TRY(check_state(call, object->sampler, read));
    object->sampler.resume(read.epoch, read.consumed);
    return {};
  });
}

dt_status dt_sampler_check(dt_sampler* sampler, dt_comm* comm) {
  return guard("dt_sampler_check", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<SamplerObject>(sampler, "sampler"));
    DT_TRY_VALUE(const auto on, call.get<CommObject>(comm, "comm"));
    DT_TRY_VALUE(const auto turn, object->turns.alone(call));
    return on->job->seen(training::check_samplers(*on->comm, object->sampler));
  });
}

void dt_sampler_destroy(dt_sampler* sampler) { destroy<SamplerObject>(sampler); }

}  // extern "C"
