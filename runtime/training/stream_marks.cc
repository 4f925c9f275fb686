// SPDX-License-Identifier: Apache-2.0
#include "training/stream_marks.h"

#include <sched.h>

namespace dt::training {

StreamMarks::Pool::~Pool() {
  spare.with([&](const std::vector<cuda::Event>& events) {
    for (const cuda::Event event : events) (void)runtime->destroy_event(event);
  });
}

Result<MarkPtr> StreamMarks::set(cuda::Stream stream) {
  cuda::Event event = pool_->spare.with([](std::vector<cuda::Event>& events) -> cuda::Event {
    if (events.empty()) return nullptr;
    const cuda::Event last = events.back();
    events.pop_back();
    return last;
  });
  if (event == nullptr) {
    DT_TRY_VALUE(event, pool_->runtime->create_event(/*timed=*/false));
  }
  MarkPtr mark(new StreamMark(stream, event), [pool = pool_](const StreamMark* unused) {
    pool->spare.with([&](std::vector<cuda::Event>& events) { events.push_back(unused->event()); });
    delete unused;
  });
  DT_TRY(pool_->runtime->record(event, stream));
  return mark;
}

std::shared_ptr<const collective::StreamSteps> steps_behind(
    std::vector<MarkPtr> marks, std::function<Status(cuda::Stream)> before) {
  struct Steps : collective::StreamSteps {
    std::vector<MarkPtr> marks;
  };
  auto steps = std::make_shared<Steps>();
  for (const MarkPtr& mark : marks) steps->after.push_back(mark->event());
  steps->marks = std::move(marks);
  steps->before = std::move(before);
  return steps;
}

Status await_event(comm::Communicator& comm, cuda::Event event, Deadline deadline,
                   bool broken_too) {
  const std::shared_ptr<cuda::Runtime> runtime = comm.backend().device();
  for (;;) {
    DT_TRY_VALUE(const bool passed, runtime->passed(event));
    if (passed) return {};
    if (!broken_too) DT_TRY(comm.broken());
    if (deadline.passed()) {
      return Status(
          Code::kTimeout,
          format("%s has not come to what was enqueued on comm \"%s\" before the time-out",
                 runtime->device().name.c_str(), comm.name().c_str()));
    }
    sched_yield();
  }
}

}  // namespace dt::training
