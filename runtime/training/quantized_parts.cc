// SPDX-License-Identifier: Apache-2.0
#include "training/quantized_parts.h"

#include <algorithm>

namespace dt::training {

std::pair<int64_t, int64_t> QuantizedParts::part(int32_t rank) const {
  const int64_t elements = blocks_ * kernels::kQuantBlock;
  const int64_t from = std::min(rank * elements, count_);
  return {from, std::min(elements, count_ - from)};
}

collective::Collective QuantizedParts::send_parts(const void* sent, void* received) const {
  collective::Collective operation;
  operation.kind = collective::Kind::kAlltoall;
  operation.dtype = Dtype::kU8;
  operation.op = ReduceOp::kSum;
  operation.send = sent;
  operation.recv = received;
  operation.count = part_bytes();
  return operation;
}

collective::Collective QuantizedParts::send_result(const void* sent, void* received) const {
  collective::Collective operation = send_parts(sent, received);
  operation.kind = collective::Kind::kAllgather;
  return operation;
}

}  // namespace dt::training
