// SPDX-License-Identifier: Apache-2.0
#include "sharded.h"

#include <cstring>

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

/// The nearest, of two the even one. Finite values only.
std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof bits);
    result[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  return result;
}

}  // namespace

ShardedParameters::ShardedParameters(const dt::Comm& comm, const Network& network,
                                     const Device& device, const Options& options,
                                     const dt::ReducerOptions& reducer_options)
    : device_(device),
      shard_(comm, params_of(network, device.precision()),
             shard_options(network, options, reducer_options)),
      optimizer_(dt::Optimizer::adamw(shard_, adamw_options(network, options.decay))) {
  const bool halves = device.precision() == Precision::kBf16;
  network.initial_values(static_cast<uint64_t>(options.seed),
                         [&](int parameter, const std::vector<float>& values) {
                           // In host memory, which has been read when the call returns.
                           if (halves) {
                             shard_.set(parameter, to_bf16(values).data(), device_.stream());
                           } else {
                             shard_.set(parameter, values.data(), device_.stream());
                           }
                         });
}

std::vector<dt::Param> params_of(const Network& network, Precision precision) {
  const dt_dtype dtype = precision == Precision::kBf16 ? DT_BF16 : DT_F32;
  std::vector<dt::Param> params;
  for (const Parameter& parameter : network.layout()) {
    dt::Param& param = params.emplace_back();
    param = {parameter.count, dtype, parameter.name};
    if (parameter.rows > 0) param.shape = {parameter.rows, parameter.count / parameter.rows};
  }
  return params;
}

}  // namespace gpt
