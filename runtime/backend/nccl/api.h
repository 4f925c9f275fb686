// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime.h"

// The part of NCCL's C interface that dt uses, written down anew: dt is built without nccl.h and
// never linked to the library. Values and layouts are fixed within NCCL 2.
namespace dt::nccl {

using Comm = struct CommTag*;

enum class Answer : int32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

enum class Type : int32_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum class Op : int32_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };

struct UniqueId {
  char bytes[128] = {};
};

/// ncclConfig_t as of 2.28: an older library ignores the end, a newer one fills in its defaults.
struct Config {
  static constexpr int32_t kUnset = INT32_MIN;

  size_t size = sizeof(Config);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 22800;
  int32_t blocking = kUnset;
  int32_t cga_cluster_size = kUnset;
  int32_t min_ctas = kUnset;
  int32_t max_ctas = kUnset;
  const char* net_name = nullptr;
  int32_t split_share = kUnset;
  int32_t traffic_class = kUnset;
  const char* comm_name = nullptr;  ///< kept by NCCL: must outlive the communicator
  int32_t collnet_enable = kUnset;
  int32_t cta_policy = kUnset;
  int32_t shrink_share = kUnset;
  int32_t nvls_ctas = kUnset;
  int32_t channels_per_net_peer = kUnset;
  int32_t nvlink_centric_sched = kUnset;
};

/// The functions by name; null where the library has none of the optional ones.
struct Functions {
  // required
  Answer (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(Answer answer) = nullptr;
  const char* (*get_last_error)(Comm comm) = nullptr;
  Answer (*get_unique_id)(UniqueId* id) = nullptr;
  Answer (*comm_init_rank_config)(Comm* comm, int size, UniqueId id, int rank,
                                  Config* config) = nullptr;
  Answer (*comm_get_async_error)(Comm comm, Answer* answer) = nullptr;
  Answer (*comm_finalize)(Comm comm) = nullptr;
  Answer (*comm_destroy)(Comm comm) = nullptr;
  Answer (*comm_abort)(Comm comm) = nullptr;
  Answer (*all_reduce)(const void* send, void* recv, size_t count, Type type, Op op, Comm comm,
                       cuda::Stream stream) = nullptr;
  Answer (*broadcast)(const void* send, void* recv, size_t count, Type type, int root, Comm comm,
                      cuda::Stream stream) = nullptr;
  Answer (*reduce)(const void* send, void* recv, size_t count, Type type, Op op, int root,
                   Comm comm, cuda::Stream stream) = nullptr;
  Answer (*all_gather)(const void* send, void* recv, size_t count, Type type, Comm comm,
                       cuda::Stream stream) = nullptr;
  Answer (*reduce_scatter)(const void* send, void* recv, size_t count, Type type, Op op, Comm comm,
                           cuda::Stream stream) = nullptr;
  Answer (*send)(const void* buffer, size_t count, Type type, int peer, Comm comm,
                 cuda::Stream stream) = nullptr;
  Answer (*recv)(void* buffer, size_t count, Type type, int peer, Comm comm,
                 cuda::Stream stream) = nullptr;
  Answer (*group_start)() = nullptr;
  Answer (*group_end)() = nullptr;
  // optional
  Answer (*mem_alloc)(void** pointer, size_t bytes) = nullptr;
  Answer (*mem_free)(void* pointer) = nullptr;
  Answer (*comm_register)(Comm comm, void* pointer, size_t bytes, void** handle) = nullptr;
  Answer (*comm_deregister)(Comm comm, void* handle) = nullptr;
};

}  // namespace dt::nccl
