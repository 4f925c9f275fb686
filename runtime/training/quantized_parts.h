// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "collective/operation.h"
#include "kernels/host/quantize.h"

namespace dt::training {

/// How ranks sum an array of f32 that travels in few bits (kernels/host/quantize.h). Each rank has
/// a part of it: the ranks send each other their blocks of these parts, each sums its own part in
/// f32, and sends the result to all, quantized again. So an element is rounded twice, whatever the
/// number of ranks, and a rank sends 2 (N - 1) / N of the array, as in an allreduce.
///
/// In memory the blocks of all parts lie one behind the other: block b at b * quantized_bytes(1).
class QuantizedParts {
 public:
  /// @param count elements of the array
  QuantizedParts(int bits, int32_t ranks, int64_t count)
      : bits_(bits),
        ranks_(ranks),
        count_(count),
        blocks_(((count + kernels::kQuantBlock - 1) / kernels::kQuantBlock + ranks - 1) / ranks) {}

  int64_t part_bytes() const { return kernels::quantized_bytes(blocks_, bits_); }
  /// Of all parts.
  int64_t bytes() const { return ranks_ * part_bytes(); }
  /// Elements of the array that belong to a rank's part: from, count.
  std::pair<int64_t, int64_t> part(int32_t rank) const;

  /// The two operations. Both buffers have bytes(); the first operation gives this rank its part as
  /// every rank has it, the second one every part of the result, from the part in front of `sent`.
  collective::Collective send_parts(const void* sent, void* received) const;
  collective::Collective send_result(const void* sent, void* received) const;

 private:
  int bits_;
  int32_t ranks_;
  int64_t count_;
  int64_t blocks_;  // of a part
};

}  // namespace dt::training
