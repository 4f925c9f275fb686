// SPDX-License-Identifier: Apache-2.0
#include "capi/operation.h"

#include <algorithm>
#include <limits>

namespace dt::capi {

Status check_elements(const Call& call, int64_t count, dt_dtype dtype, int64_t parts,
                      int64_t element_bytes) {
  if (count < 0) {
    return call.invalid("count is %lld; it must be >= 0", static_cast<long long>(count));
  }
  if (!is_valid(static_cast<Dtype>(dtype))) {
    return call.invalid("dtype is %d, which is no dt_dtype", static_cast<int>(dtype));
  }
  const int64_t element = std::max(element_bytes, dtype_bytes(static_cast<Dtype>(dtype)));
  if (count > std::numeric_limits<int64_t>::max() / element / parts) {
    return call.invalid("count %lld x %lld parts of %s does not fit into 2^63 bytes",
                        static_cast<long long>(count), static_cast<long long>(parts),
                        dtype_name(static_cast<Dtype>(dtype)));
  }
  return {};
}

Status check_op(const Call& call, dt_reduce_op op) {
  if (is_valid(static_cast<ReduceOp>(op))) return {};
  return call.invalid("op is %d, which is no dt_reduce_op", static_cast<int>(op));
}

Status check_reduction(const Call& call, const backend::Backend& backend, Dtype dtype,
                       ReduceOp op) {
  if (!can_reduce(dtype, op)) {
    return call.invalid("%s of %s: %s", reduce_op_name(op), dtype_name(dtype),
                        dtype == Dtype::kBool ? "truth values have no mean; count them as u8"
                        : is_bitwise(op)      ? "bits are combined of integers and bool only"
                                              : "8-bit floats are moved only; convert them");
  }
  if (backend.has_reduction(dtype, op)) return {};
  return Status(Code::kUnsupported,
                format("%s: NCCL has no %s of %s; convert the elements, or reduce them in host "
                       "memory (dt_comm_host)",
                       call.function(), reduce_op_name(op), dtype_name(dtype)));
}

Status check_rank(const Call& call, const char* argument, int32_t rank, int32_t size) {
  if (rank >= 0 && rank < size) return {};
  return call.invalid("%s is %d; the communicator has ranks 0 to %d", argument, rank, size - 1);
}

Status check_aligned(const Call& call, const std::string& what, const void* data, int64_t element) {
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element) == 0) return {};
  return call.invalid("%s is at %p, which is no multiple of its elements' %lld bytes; align it",
                      what.c_str(), data, static_cast<long long>(element));
}

Status check_on_gpu(const Call& call, cuda::Runtime& gpu, const std::string& what,
                    const char* first, const char* last) {
  for (const char* const byte : {first, last}) {
    DT_TRY_VALUE(const cuda::PointerInfo info, gpu.pointer_info(byte));
    if (info.memory == cuda::Memory::kManaged) continue;
    if (info.memory != cuda::Memory::kDevice) {
      return call.invalid("%s %s in memory of the host; give memory of the rank's GPU",
                          what.c_str(), byte == first ? "begins" : "ends");
    }
    if (info.device != gpu.device().index) {
      return call.invalid("%s lies on GPU %d; give memory of the rank's GPU, which is %d",
                          what.c_str(), info.device, gpu.device().index);
    }
  }
  return {};
}

Status check_buffer(const Call& call, const char* argument, const void* buffer, int64_t count) {
  if (buffer != nullptr || count == 0) return {};
  return call.invalid("%s is NULL with count %lld", argument, static_cast<long long>(count));
}

Status check_overlap(const Call& call, const void* a, int64_t a_bytes, const void* b,
                     int64_t b_bytes, int64_t allowed) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  if (a_bytes == 0 || b_bytes == 0) return {};
  if (first + static_cast<uintptr_t>(allowed) == second) return {};
  const bool apart = first + static_cast<uintptr_t>(a_bytes) <= second ||
                     second + static_cast<uintptr_t>(b_bytes) <= first;
  if (apart) return {};
  return call.invalid(
      "send and recv overlap, but not as the operation in place; give memory that lies apart");
}

Status conclude(job::Job& job, Status status) {
  status = job.seen(std::move(status));
  const Code code = status.code();
  if (code == Code::kInvalidArgument || code == Code::kInvalidState || code == Code::kUnsupported) {
    job.refused(status.message());
  }
  return status;
}

Status issue(const Call& call, const CommObject& on, backend::Collective& collective,
             dt_work** out_work) {
  if (out_work == nullptr) return on.comm->run_or_group(collective);
  return give_work(call, on, out_work, [&](const std::shared_ptr<backend::Work>& work) {
    return on.comm->submit_or_group(collective, work);
  });
}

}  // namespace dt::capi
