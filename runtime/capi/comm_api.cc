// SPDX-License-Identifier: Apache-2.0
#include "capi/operation.h"

using namespace dt;
using namespace dt::capi;

namespace {

constexpr size_t kNameBytes = 64;

Status read_members(const Call& call, const launch::Place& place, const int32_t* ranks,
                    int32_t count, std::vector<int32_t>* out) {
  if (count < 1 || count > place.world_size) {
    return call.invalid("count is %d; the job has %d ranks", count, place.world_size);
  }
  DT_TRY(call.not_null(ranks, "ranks"));
  std::vector<int32_t> first(static_cast<size_t>(place.world_size), -1);  // where it stands
  for (int32_t i = 0; i < count; ++i) {
    const int32_t rank = ranks[i];
    if (rank < 0 || rank >= place.world_size) {
      return call.invalid("ranks[%d] is %d; the job has ranks 0 to %d", i, rank,
                          place.world_size - 1);
    }
    if (first[rank] >= 0) {
      return call.invalid("ranks[%d] is %d, and so is ranks[%d]; name each once", i, rank,
                          first[rank]);
    }
    first[rank] = i;
  }
  if (first[place.rank] < 0) {
    return call.invalid("this rank, %d, is not among ranks; only those call it that are",
                        place.rank);
  }
  out->assign(ranks, ranks + count);
  return {};
}

Status give_comm(const Call& call, const std::shared_ptr<job::Job>& job,
                 std::shared_ptr<comm::Communicator> comm, dt_comm** out_comm) {
  auto object = std::make_shared<CommObject>();
  object->job = job;
  object->comm = std::move(comm);
  return call.give(std::move(object), out_comm);
}

}  // namespace

extern "C" {

dt_status dt_comm_world(dt_job* job, dt_comm** out_comm) {
  return guard("dt_comm_world", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(out_comm, "out_comm"));
    DT_TRY_VALUE(auto world, object->job->world());
    return give_comm(call, object->job, std::move(world), out_comm);
  });
}

dt_status dt_comm_create(dt_job* job, const int32_t* ranks, int32_t count, const char* name,
                         dt_comm** out_comm) {
  return on_job("dt_comm_create", job, [&](const Call& call, const JobPtr& object) -> Status {
    DT_TRY(call.not_null(out_comm, "out_comm"));
    std::vector<int32_t> members;
    DT_TRY(read_members(call, object->job->place(), ranks, count, &members));
    const std::string label = name == nullptr ? "comm" : name;
    if (label.size() > kNameBytes) {
      return call.invalid("name has %zu bytes; at most %zu are allowed", label.size(), kNameBytes);
    }
    DT_TRY_VALUE(auto made, object->job->create(members, label));
    return give_comm(call, object->job, std::move(made), out_comm);
  });
}

dt_status dt_comm_host(dt_comm* comm, dt_comm** out_host) {
  return guard("dt_comm_host", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    DT_TRY(call.not_null(out_host, "out_host"));
    return give_comm(call, object->job, object->comm->on_host(), out_host);
  });
}

dt_status dt_comm_split(dt_comm* comm, int32_t color, int32_t key, dt_comm** out_comm) {
  return on_comm("dt_comm_split", comm, [&](const Call& call, const CommPtr& parent) -> Status {
    DT_TRY(call.not_null(out_comm, "out_comm"));
    auto split = parent->comm->split(color, key);
    DT_TRY(split.status());
    auto part = std::move(split).value();
    if (part == nullptr) {
      *out_comm = nullptr;
      return {};
    }
    return give_comm(call, parent->job, std::move(part), out_comm);
  });
}

dt_status dt_comm_shrink(dt_comm* comm, dt_comm** out_smaller) {
  return on_comm("dt_comm_shrink", comm, [&](const Call& call, const CommPtr& parent) -> Status {
    DT_TRY(call.not_null(out_smaller, "out_smaller"));
    auto smaller = parent->job->shrink(parent->comm);
    DT_TRY(smaller.status());
    return give_comm(call, parent->job, std::move(smaller).value(), out_smaller);
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
    return object->job->seen(object->comm->broken());
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
    const auto memory = object->comm->allocate(bytes);
    DT_TRY(object->job->seen(memory.status()));
    *out_pointer = memory.value();
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
