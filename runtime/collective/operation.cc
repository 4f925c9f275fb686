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
    case Kind::kAlltoall: return "alltoall";
    case Kind::kAlltoallv: return "alltoallv";
    case Kind::kGather: return "gather";
    case Kind::kGatherv: return "gatherv";
    case Kind::kScatter: return "scatter";
    case Kind::kScatterv: return "scatterv";
    case Kind::kAllgatherv: return "allgatherv";
  }
  return "?";
}

}  // namespace dt::collective
