// SPDX-License-Identifier: Apache-2.0
#include "collective/operation.h"

namespace dt::collective {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce: return "allreduce";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllgather: return "allgather";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kBarrier: return "barrier";
    case Kind::kSend: return "send";
    case Kind::kRecv: return "recv";
  }
  return "?";
}

}  // namespace dt::collective
