// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capi/call.h"
#include "capi/objects.h"

/// What the operations of dt.h share: checks of their arguments, and the way into a communicator.
namespace dt::capi {

/// `parts`: how many times `count` elements the larger buffer holds; `element_bytes` 0: the
/// dtype's.
Status check_elements(const Call& call, int64_t count, dt_dtype dtype, int64_t parts,
                      int64_t element_bytes = 0);
Status check_op(const Call& call, dt_reduce_op op);
/// Whether there is such a reduction, and the backend has it.
Status check_reduction(const Call& call, const backend::Backend& backend, Dtype dtype, ReduceOp op);
Status check_rank(const Call& call, const char* argument, int32_t rank, int32_t size);
Status check_buffer(const Call& call, const char* argument, const void* buffer, int64_t count);
Status check_aligned(const Call& call, const std::string& what, const void* data, int64_t element);
/// On GPUs: that both bytes, the first and the last of `what`, are memory of the rank's GPU.
Status check_on_gpu(const Call& call, cuda::Runtime& gpu, const std::string& what,
                    const char* first, const char* last);
/// Regions of `a_bytes` and `b_bytes` may not overlap, unless b begins `allowed` bytes after a.
Status check_overlap(const Call& call, const void* a, int64_t a_bytes, const void* b,
                     int64_t b_bytes, int64_t allowed);

/// A copy of what the handle holds; NULL: as of dt_config_create(NULL).
Result<ConfigObject::State> config_of(const Call& call, const dt_config* config);

/// How a call that needs all ranks ends: its failure goes through Job::seen(). If the call is
/// refused here, the reason goes into the stall reports of the ranks that wait for this one.
Status conclude(job::Job& job, Status status);

/// Runs a call that needs all ranks.
template <class Object, class Handle, class F>
dt_status on(const char* function, Handle* handle, const char* argument, F&& body) noexcept {
  return guard(function, [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<Object>(handle, argument));
    return conclude(*object->job, body(call, object));
  });
}

template <class F>
dt_status on_job(const char* function, dt_job* job, F&& body) noexcept {
  return on<JobObject>(function, job, "job", std::forward<F>(body));
}

template <class F>
dt_status on_comm(const char* function, dt_comm* comm, F&& body) noexcept {
  return on<CommObject>(function, comm, "comm", std::forward<F>(body));
}

template <class F>
dt_status on_reducer(const char* function, dt_reducer* reducer, F&& body) noexcept {
  return on<ReducerObject>(function, reducer, "reducer", std::forward<F>(body));
}

/// What dt_reducer_create() and dt_shard_create() take.
Result<std::vector<training::Param>> read_params(const Call& call, const dt_param* params,
                                                 int32_t count);
/// `params`: as read_params() gave them.
Result<training::Reducer::Options> read_reducer_options(const Call& call, const CommObject& on,
                                                        const dt_reducer_options* options,
                                                        const char* argument,
                                                        std::span<const training::Param> params);
/// Checks that the path of a file is neither null nor empty.
Status check_path(const Call& call, const char* path);
Status check_param(const Call& call, const training::Reducer& reducer, int32_t index);

/// Checks what a caller describes; kinds that dt.h makes of several operations stay one.
Result<backend::Collective> read_collective(const Call& call, const CommObject& on,
                                            const dt_collective* collective);

/// The handle of a work that is about to begin. It is closed again unless it is kept, also where an
/// allocation throws in between.
class NewWork {
 public:
  NewWork() = default;
  ~NewWork() {
    if (handle_ != nullptr) destroy<WorkObject>(handle_);
  }
  NewWork(const NewWork&) = delete;
  NewWork& operator=(const NewWork&) = delete;

  Status give(const Call& call, const std::shared_ptr<WorkObject>& work) {
    return call.give(work, &handle_);
  }
  void keep(dt_work** out) { *out = std::exchange(handle_, nullptr); }

 private:
  dt_work* handle_ = nullptr;
};

/// Gives a handle of the work that `begin(work)` begins. The handle is made first, because nothing
/// may fail once operations are enqueued.
template <class F>
Status give_work(const Call& call, const CommObject& on, dt_work** out_work, F&& begin) {
  const auto object = on.works.make();
  object->job = on.job;
  object->comm = on.comm;
  object->work = on.comm->new_work();
  NewWork handle;
  DT_TRY(handle.give(call, object));
  Status status = std::forward<F>(begin)(object->work);
  if (status.ok()) handle.keep(out_work);
  return status;
}

/// Runs now, or enqueues and gives a handle.
Status issue(const Call& call, const CommObject& on, backend::Collective& collective,
             dt_work** out_work);

/// False: the deadline came first.
bool wait_for(const std::shared_ptr<WorkObject>& object, Deadline deadline);

}  // namespace dt::capi
