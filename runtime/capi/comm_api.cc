// SPDX-License-Identifier: Apache-2.0
#include "capi/operation.h"

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_comm_world(dt_job* job, dt_comm** out_comm) {
  return guard("dt_comm_world", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(out_comm, "out_comm"));
    DT_TRY_VALUE(auto world, object->job->world());
    auto comm = std::make_shared<CommObject>();
    comm->job = object->job;
    comm->comm = std::move(world);
    return call.give(std::move(comm), out_comm);
  });
}

dt_status dt_comm_split(dt_comm* comm, int32_t color, int32_t key, dt_comm** out_comm) {
  return on_comm("dt_comm_split", comm, [&](const Call& call, const CommPtr& parent) -> Status {
    DT_TRY(call.not_null(out_comm, "out_comm"));
    auto split = parent->comm->split(color, key);
    DT_TRY(parent->job->seen(split.status()));
    auto part = std::move(split).value();
    if (part == nullptr) {
      *out_comm = nullptr;
      return {};
    }
    auto object = std::make_shared<CommObject>();
    object->job = parent->job;
    object->comm = std::move(part);
    return call.give(std::move(object), out_comm);
  });
}

dt_status dt_comm_shrink(dt_comm* comm, dt_comm** out_smaller) {
  return on_comm("dt_comm_shrink", comm, [&](const Call& call, const CommPtr& parent) -> Status {
    DT_TRY(call.not_null(out_smaller, "out_smaller"));
    auto smaller = parent->job->shrink(parent->comm);
    DT_TRY(parent->job->seen(smaller.status()));
    auto object = std::make_shared<CommObject>();
    object->job = parent->job;
    object->comm = std::move(smaller).value();
    return call.give(std::move(object), out_smaller);
  });
}

dt_status dt_comm_rank(dt_comm* comm, int32_t* out_rank) {
  return guard("dt_comm_rank", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    DT_TRY(call.not_null(out_rank, "out_rank"));
    *out_rank = object->comm->rank();
    return {};
  });
}

dt_status dt_comm_size(dt_comm* comm, int32_t* out_size) {
  return guard("dt_comm_size", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    DT_TRY(call.not_null(out_size, "out_size"));
    *out_size = object->comm->size();
    return {};
  });
}

dt_status dt_comm_world_rank(dt_comm* comm, int32_t rank, int32_t* out_world_rank) {
  return guard("dt_comm_world_rank", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    DT_TRY(call.not_null(out_world_rank, "out_world_rank"));
    if (rank < 0 || rank >= object->comm->size()) {
      return call.invalid("rank is %d; the communicator has ranks 0 to %d", rank,
                          object->comm->size() - 1);
    }
    *out_world_rank = object->comm->world_rank(rank);
    return {};
  });
}

dt_status dt_comm_set_timeout(dt_comm* comm, int64_t timeout_ms) {
  return guard("dt_comm_set_timeout", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    object->comm->set_timeout_ms(timeout_ms);
    return {};
  });
}

dt_status dt_comm_check(dt_comm* comm) {
  return guard("dt_comm_check", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    return object->comm->broken();
  });
}

void dt_comm_destroy(dt_comm* comm) { destroy<CommObject>(comm); }

dt_status dt_mem_alloc(dt_comm* comm, int64_t bytes, void** out_pointer) {
  return guard("dt_mem_alloc", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    DT_TRY(call.not_null(out_pointer, "out_pointer"));
    if (bytes <= 0) {
      return call.invalid("bytes is %lld; it must be > 0", static_cast<long long>(bytes));
    }
    DT_TRY_VALUE(*out_pointer, object->comm->allocate(bytes));
    return {};
  });
}

dt_status dt_mem_free(dt_comm* comm, void* pointer) {
  return guard("dt_mem_free", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    const Status status = object->comm->release(pointer);
    if (status.code() != Code::kInvalidArgument) return status;
    return call.invalid("pointer %s", status.message().c_str());
  });
}

}  // extern "C"
