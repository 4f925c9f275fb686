// SPDX-License-Identifier: Apache-2.0
#include "record/meter.h"

#include <algorithm>

#include "base/kinds.h"

namespace dt::record {

double bus_bandwidth(const Totals::Kind& kind) {
  return kind.busy_ns == 0
             ? 0.0
             : static_cast<double>(kind.bus_bytes) / static_cast<double>(kind.busy_ns);
}

double hidden_share(const Totals::Steps& steps) {
  if (steps.communication_ns == 0) return 1.0;
  return 1.0 - static_cast<double>(steps.exposed_ns) / static_cast<double>(steps.communication_ns);
}

Meter::Meter(int32_t world_size)
    : began_(clock_.now()),
      world_size_(static_cast<size_t>(std::max(world_size, 0))),
      peers_(new Peer[world_size_]()),
      factors_(new Factors[kClassesMax]()) {
  Factors& unknown = factors_[0];
  std::fill(std::begin(unknown.parts), std::end(unknown.parts), 1);
  std::fill(std::begin(unknown.bus), std::end(unknown.bus), 1.0);
}

Meter::Factors Meter::factors_of(int32_t size) {
  Factors factors;
  std::fill(std::begin(factors.parts), std::end(factors.parts), 1);
  std::fill(std::begin(factors.bus), std::end(factors.bus), 1.0);
  const double rest = static_cast<double>(size - 1) / size;
  for (const KindTraits& kind : kKindTraits) {
    const auto index = static_cast<size_t>(kind.kind);
    // With tables `count` is that of the larger buffer already.
    const bool per_rank =
        kind.send.holds == Holds::kCountPerRank || kind.recv.holds == Holds::kCountPerRank;
    if (per_rank) factors.parts[index] = size;
    if (kind.bus == BusFactor::kOthers) factors.bus[index] = rest;
    if (kind.bus == BusFactor::kTwiceOthers) factors.bus[index] = 2 * rest;
  }
  return factors;
}

uint8_t Meter::size_class(int32_t size) {
  if (size < 1) return 0;
  return sizes_.with([&](std::vector<int32_t>& sizes) -> uint8_t {
    const auto found = std::find(sizes.begin(), sizes.end(), size);
    const auto index = static_cast<size_t>(found - sizes.begin()) + 1;
    if (index >= kClassesMax) return 0;
    if (found == sizes.end()) {
      sizes.push_back(size);
      factors_[index] = factors_of(size);
    }
    return static_cast<uint8_t>(index);
  });
}

Totals::Peer Meter::peer(int32_t world_rank) const {
  if (world_rank < 0 || static_cast<size_t>(world_rank) >= world_size_) return {};
  const Peer& peer = peers_[static_cast<size_t>(world_rank)];
  return {peer.waits.load(std::memory_order_relaxed),
          peer.waited_ns.load(std::memory_order_relaxed)};
}

Totals Meter::read() const {
  const auto value = [](const std::atomic<int64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  Totals totals;
  const Scale scale(began_, clock_.now());
  converted_.with([&](Converted& converted) {
    for (size_t k = 0; k < Totals::kKinds; ++k) {
      Totals::Kind& sum = totals.kinds[k];
      int64_t ticks = 0;
      const auto take = [&](const Kind& kind) {
        sum.operations += value(kind.operations);
        sum.failures += value(kind.failures);
        sum.bytes += value(kind.bytes);
        sum.bus_bytes += value(kind.bus_bytes);
        ticks += value(kind.ticks);
      };
      for (const Cell& cell : cells_) take(cell.kinds[k]);
      take(crowd_.kinds[k]);
      converted.ns[k] += scale.duration_ns(ticks - converted.ticks[k]);
      converted.ticks[k] = ticks;
      sum.busy_ns = converted.ns[k];
    }
  });
  for (size_t rank = 0; rank < world_size_; ++rank) {
    totals.peers.push_back(peer(static_cast<int32_t>(rank)));
  }
  totals.steps = {value(steps_), value(step_bytes_), value(communication_ns_), value(exposed_ns_)};
  totals.stalls = value(stalls_);
  return totals;
}

}  // namespace dt::record
