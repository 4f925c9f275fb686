// SPDX-License-Identifier: Apache-2.0
#include "capi/objects.h"
#include "capi/operation.h"
#include "training/equality.h"

namespace dt::capi {
namespace {

using backend::Collective;
using backend::Kind;

Status point_to_point(const Call& call, Kind kind, const CommPtr& on, const void* send, void* recv,
                      int64_t count, dt_dtype dtype, int32_t peer, dt_stream stream,
                      dt_work** out_work) {
  DT_TRY(check_elements(call, count, dtype, 1));
  DT_TRY(check_rank(call, "peer", peer, on->comm->size()));
  if (peer == on->comm->rank()) return call.invalid("peer %d is this rank itself", peer);
  DT_TRY(check_buffer(call, "buffer", kind == Kind::kSend ? send : recv, count));
  Collective collective;
  collective.kind = kind;
  collective.stream = stream_of(stream);
  collective.dtype = static_cast<Dtype>(dtype);
  collective.root = peer;
  collective.send = send;
  collective.recv = recv;
  collective.count = count;
  return issue(call, *on, collective, out_work);
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_group_begin(dt_comm* comm) {
  return on_comm("dt_group_begin", comm,
                 [](const Call&, const CommPtr& on) -> Status { return on->comm->begin_group(); });
}

dt_status dt_group_end(dt_comm* comm) {
  return on_comm("dt_group_end", comm, [](const Call&, const CommPtr& on) -> Status {
    return on->job->seen(on->comm->end_group());
  });
}

dt_status dt_allreduce(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_reduce_op op, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_allreduce", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(check_elements(call, count, dtype, 1));
    DT_TRY(check_op(call, op));
    DT_TRY(check_buffer(call, "send", send, count));
    DT_TRY(check_buffer(call, "recv", recv, count));
    const int64_t bytes = count * dtype_bytes(static_cast<Dtype>(dtype));
    DT_TRY(check_overlap(call, send, bytes, recv, bytes, 0));
    Collective collective;
    collective.kind = Kind::kAllreduce;
    collective.stream = stream_of(stream);
    collective.dtype = static_cast<Dtype>(dtype);
    collective.op = static_cast<ReduceOp>(op);
    collective.send = send;
    collective.recv = recv;
    collective.count = count;
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_reduce(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                    dt_reduce_op op, int32_t root, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_reduce", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(check_elements(call, count, dtype, 1));
    DT_TRY(check_op(call, op));
    DT_TRY(check_rank(call, "root", root, on->comm->size()));
    DT_TRY(check_buffer(call, "send", send, count));
    const bool receives = root == on->comm->rank();
    if (receives) {
      DT_TRY(check_buffer(call, "recv", recv, count));
      const int64_t bytes = count * dtype_bytes(static_cast<Dtype>(dtype));
      DT_TRY(check_overlap(call, send, bytes, recv, bytes, 0));
    }
    Collective collective;
    collective.kind = Kind::kReduce;
    collective.stream = stream_of(stream);
    collective.dtype = static_cast<Dtype>(dtype);
    collective.op = static_cast<ReduceOp>(op);
    collective.root = root;
    collective.send = send;
    collective.recv = receives ? recv : nullptr;
    collective.count = count;
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_broadcast(dt_comm* comm, void* buffer, int64_t count, dt_dtype dtype, int32_t root,
                       dt_stream stream, dt_work** out_work) {
  return on_comm("dt_broadcast", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(check_elements(call, count, dtype, 1));
    DT_TRY(check_rank(call, "root", root, on->comm->size()));
    DT_TRY(check_buffer(call, "buffer", buffer, count));
    Collective collective;
    collective.kind = Kind::kBroadcast;
    collective.stream = stream_of(stream);
    collective.dtype = static_cast<Dtype>(dtype);
    collective.root = root;
    collective.send = buffer;
    collective.recv = buffer;
    collective.count = count;
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_allgather(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_stream stream, dt_work** out_work) {
  return on_comm("dt_allgather", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int64_t size = on->comm->size();
    DT_TRY(check_elements(call, count, dtype, size));
    DT_TRY(check_buffer(call, "send", send, count));
    DT_TRY(check_buffer(call, "recv", recv, count));
    const int64_t bytes = count * dtype_bytes(static_cast<Dtype>(dtype));
    DT_TRY(check_overlap(call, recv, size * bytes, send, bytes, on->comm->rank() * bytes));
    Collective collective;
    collective.kind = Kind::kAllgather;
    collective.stream = stream_of(stream);
    collective.dtype = static_cast<Dtype>(dtype);
    collective.send = send;
    collective.recv = recv;
    collective.count = count;
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_reduce_scatter(dt_comm* comm, const void* send, void* recv, int64_t count,
                            dt_dtype dtype, dt_reduce_op op, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_reduce_scatter", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int64_t size = on->comm->size();
    DT_TRY(check_elements(call, count, dtype, size));
    DT_TRY(check_op(call, op));
    DT_TRY(check_buffer(call, "send", send, count));
    DT_TRY(check_buffer(call, "recv", recv, count));
    const int64_t bytes = count * dtype_bytes(static_cast<Dtype>(dtype));
    DT_TRY(check_overlap(call, send, size * bytes, recv, bytes, on->comm->rank() * bytes));
    Collective collective;
    collective.kind = Kind::kReduceScatter;
    collective.stream = stream_of(stream);
    collective.dtype = static_cast<Dtype>(dtype);
    collective.op = static_cast<ReduceOp>(op);
    collective.send = send;
    collective.recv = recv;
    collective.count = count;
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_barrier(dt_comm* comm, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_barrier", comm, [&](const Call& call, const CommPtr& on) -> Status {
    Collective collective;
    collective.kind = Kind::kBarrier;
    collective.stream = stream_of(stream);
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_send(dt_comm* comm, const void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                  dt_stream stream, dt_work** out_work) {
  return on_comm("dt_send", comm, [&](const Call& call, const CommPtr& on) -> Status {
    return point_to_point(call, Kind::kSend, on, buffer, nullptr, count, dtype, peer, stream,
                          out_work);
  });
}

dt_status dt_recv(dt_comm* comm, void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                  dt_stream stream, dt_work** out_work) {
  return on_comm("dt_recv", comm, [&](const Call& call, const CommPtr& on) -> Status {
    return point_to_point(call, Kind::kRecv, on, nullptr, buffer, count, dtype, peer, stream,
                          out_work);
  });
}

dt_status dt_check_equal(dt_comm* comm, const void* data, int64_t bytes, const char* name,
                         dt_stream stream) {
  return on_comm("dt_check_equal", comm, [&](const Call& call, const CommPtr& on) -> Status {
    if (bytes < 0) return call.invalid("bytes is %lld", static_cast<long long>(bytes));
    if (bytes > 0) DT_TRY(call.not_null(data, "data"));
    return on->job->seen(training::check_equal(on->comm, data, bytes, name != nullptr ? name : "",
                                               stream_of(stream)));
  });
}

}  // extern "C"
