// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <dt/dt.hpp>
#include <string>
#include <vector>

#include "network.h"
#include "options.h"

namespace gpt {

/// Parameters and their AdamW in a dt::Shard: a rank keeps what the stage of ZeRO leaves it.
class ShardedParameters final : public ParameterSource {
 public:
  /// Collective. @param device computes with them, and is borrowed. @param reducer_options of the
  /// gradients.
  ShardedParameters(const dt::Comm& comm, const Network& network, const Device& device,
                    const Options& options, const dt::ReducerOptions& reducer_options);

  dt::Reducer& reducer() { return shard_.reducer(); }
  /// Updates what this rank keeps, and begins to send it. Collective.
  void step(double rate) { optimizer_.step(rate, device_.stream()); }

  /// Everything that training needs to go on, in one file. Collective.
  void save(const std::string& path) { shard_.save(path, optimizer_); }
  void load(const std::string& path) { shard_.load(path, optimizer_); }

  void enter(int unit) override { shard_.gather(unit, device_.stream()); }
  void leave(int unit) override { shard_.release(unit, device_.stream()); }
  void* weight(int parameter) override { return shard_.param(parameter); }

 private:
  const Device& device_;
  dt::Shard shard_;
  dt::Optimizer optimizer_;
};

/// As dt wants them, for a reducer or a shard.
std::vector<dt::Param> params_of(const Network& network, Precision precision);

}  // namespace gpt
