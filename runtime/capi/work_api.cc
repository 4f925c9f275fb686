// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "capi/call.h"
#include "capi/operation.h"

namespace dt::capi {
namespace {

constexpr int32_t kMaxWorks = 65536;

int32_t first_done(const std::vector<std::shared_ptr<WorkObject>>& works) {
  for (size_t i = 0; i < works.size(); ++i) {
    if (works[i]->work->done()) return static_cast<int32_t>(i);
  }
  return -1;
}

// How long a wait for several works sleeps at most where no thread advances them: it hears of one.
constexpr int64_t kLookMs = 1;

/// Advances those that no thread advances, and gives the first of them; null: there is none.
WorkObject* unattended(const std::vector<std::shared_ptr<WorkObject>>& works) {
  WorkObject* first = nullptr;
  for (const auto& each : works) {
    if (each->comm != nullptr && each->comm->backend().help() && first == nullptr &&
        !each->work->done())
      first = each.get();
  }
  return first;
}

/// Ends what watch() of these works began, also where one of them threw for want of memory.
struct UnwatchAtEnd {
  const std::vector<std::shared_ptr<WorkObject>>& works;
  Doorbell* const bell;

  ~UnwatchAtEnd() {
    for (const auto& each : works) each->work->unwatch(bell);
  }
};

/// Waits on all works at once: each rings one doorbell on this stack.
int32_t wait_any(const std::vector<std::shared_ptr<WorkObject>>& works, Deadline deadline) {
  if (const int32_t done = first_done(works); done >= 0) return done;
  Doorbell bell;
  const UnwatchAtEnd at_end{works, &bell};
  for (const auto& each : works) each->work->watch(&bell);
  for (;;) {
    WorkObject* const one = unattended(works);
    const uint32_t ticket = bell.prepare();
    const int32_t done = first_done(works);
    if (done >= 0 || deadline.passed()) {
      bell.cancel();
      return done;
    }
    if (one == nullptr) {
      bell.sleep(ticket, deadline);
      continue;
    }
    bell.cancel();
    const Deadline look = deadline.earlier(Deadline::after_ms(kLookMs));
    (void)one->comm->backend().wait(*one->work, Wait{look, nullptr});
  }
}

}  // namespace

bool wait_for(const std::shared_ptr<WorkObject>& object, Deadline deadline) {
  if (object->comm == nullptr) return wait_any({object}, deadline) == 0;
  return object->comm->backend().wait(*object->work, Wait{deadline, nullptr});
}

}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_work_test(dt_work* work, int32_t* out_done) {
  return guard("dt_work_test", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<WorkObject>(work, "work"));
    DT_TRY(call.not_null(out_done, "out_done"));
    if (!object->work->done() && object->comm != nullptr) (void)object->comm->backend().help();
    const bool done = object->work->done();
    DT_TRY(object->seen());
    *out_done = done ? 1 : 0;
    return {};
  });
}

dt_status dt_work_wait(dt_work* work, int64_t timeout_ms, int32_t* out_done) {
  return guard("dt_work_wait", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<WorkObject>(work, "work"));
    const bool done = wait_for(object, Deadline::after_ms(timeout_ms));
    if (done) DT_TRY(object->seen());
    if (out_done != nullptr) *out_done = done ? 1 : 0;
    return {};
  });
}

dt_status dt_work_wait_stream(dt_work* work, dt_stream stream) {
  return guard("dt_work_wait_stream", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<WorkObject>(work, "work"));
    if (object->comm == nullptr) {
      (void)wait_for(object, Deadline::never());
      return object->seen();
    }
    return object->job->seen(object->comm->backend().wait_stream(*object->work, stream_of(stream)));
  });
}

dt_status dt_work_wait_any(dt_work* const* works, int32_t count, int64_t timeout_ms,
                           int32_t* out_index) {
  return guard("dt_work_wait_any", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(works, "works"));
    DT_TRY(call.not_null(out_index, "out_index"));
    if (count < 1 || count > kMaxWorks) {
      return call.invalid("count is %d; it must be in [1, %d]", count, kMaxWorks);
    }
    std::vector<std::shared_ptr<WorkObject>> objects(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      const std::string argument = format("works[%d]", i);
      DT_TRY_VALUE(objects[static_cast<size_t>(i)],
                   call.get<WorkObject>(works[i], argument.c_str()));
    }
    *out_index = wait_any(objects, Deadline::after_ms(timeout_ms));
    return {};
  });
}

dt_status dt_work_fd(dt_comm* comm, int32_t* out_fd) {
  return guard("dt_work_fd", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<CommObject>(comm, "comm"));
    DT_TRY(call.not_null(out_fd, "out_fd"));
    DT_TRY_VALUE(*out_fd, object->comm->backend().completion_fd());
    return {};
  });
}

const char* dt_work_error(dt_work* work) {
  thread_local std::string message;
  guard("dt_work_error", [&](const Call& call) -> Status {
    message.clear();
    DT_TRY_VALUE(const auto object, call.get<WorkObject>(work, "work"));
    message = object->seen().message();
    return {};
  });
  return message.c_str();
}

dt_status dt_work_error_info(dt_work* work, dt_error_info* out_info) {
  return guard("dt_work_error_info", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<WorkObject>(work, "work"));
    const Status status = object->seen();
    return fill_error_info(call.function(), status.ok() ? nullptr : &status.info(), out_info);
  });
}

dt_status dt_work_share(dt_work* work, dt_work** out_other) {
  return guard("dt_work_share", [&](const Call& call) -> Status {
    DT_TRY_VALUE(auto object, call.get<WorkObject>(work, "work"));
    DT_TRY(call.not_null(out_other, "out_other"));
    return call.give(std::move(object), out_other);
  });
}

void dt_work_destroy(dt_work* work) { destroy<WorkObject>(work); }

}  // extern "C"
