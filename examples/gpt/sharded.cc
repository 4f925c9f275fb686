// SPDX-License-Identifier: Apache-2.0
#include "sharded.h"

namespace gpt {
namespace {

dt::ShardOptions shard_options(const Network& network, const Options& options,
                               const dt::ReducerOptions& reducer_options) {
  dt::ShardOptions result;
  result.stage = static_cast<int32_t>(*options.zero);
  result.reducer = reducer_options;
  result.offload = options.offload;
  for (const Parameter& parameter : network.layout()) result.units.push_back(parameter.unit);
  return result;
}

dt::AdamWOptions adamw_options(const Network& network, double decay) {
  dt::AdamWOptions result;
  result.beta1 = kBeta1;
  result.beta2 = kBeta2;
  result.epsilon = kAdamEpsilon;
  for (const Parameter& parameter : network.layout()) {
    result.weight_decays.push_back(parameter.rows == 0 ? 0 : decay);
  }
  return result;
}

}  // namespace

ShardedParameters::ShardedParameters(const dt::Comm& comm, const Network& network,
                                     const Options& options,
                                     const dt::ReducerOptions& reducer_options)
    : shard_(comm, params_of(network, Precision::kF32),
             shard_options(network, options, reducer_options)),
      optimizer_(dt::Optimizer::adamw(shard_, adamw_options(network, options.decay))) {
  network.initial_values(static_cast<uint64_t>(options.seed),
                         [&](int parameter, const std::vector<float>& values) {
                           shard_.set(parameter, values.data());
                         });
}

std::vector<dt::Param> params_of(const Network& network, Precision precision) {
  const dt_dtype dtype = precision == Precision::kBf16 ? DT_BF16 : DT_F32;
  std::vector<dt::Param> params;
  for (const Parameter& parameter : network.layout()) {
    params.push_back({parameter.count, dtype, parameter.name});
  }
  return params;
}

}  // namespace gpt
