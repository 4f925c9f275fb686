// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"
#include "base/wait.h"
#include "collective/operation.h"
#include "comm/communicator.h"
#include "cuda/runtime.h"

namespace dt::training {

/// That destruction gives to what runs on a GPU.
inline constexpr int64_t kLastStepMs = 1'000;

/// Where a stream stood, for other streams to wait for. Recorded once, and used for another place
/// only when nobody holds it any more.
class StreamMark {
 public:
  cuda::Stream stream() const { return stream_; }
  cuda::Event event() const { return event_; }

 private:
  friend class StreamMarks;
  StreamMark(cuda::Stream stream, cuda::Event event) : stream_(stream), event_(event) {}

  const cuda::Stream stream_;
  const cuda::Event event_;
};
using MarkPtr = std::shared_ptr<const StreamMark>;

/// Events that are lent as marks, so that a step makes none. Marks may outlive it.
///
/// Threads: any.
class StreamMarks {
 public:
  explicit StreamMarks(std::shared_ptr<cuda::Runtime> runtime)
      : pool_(std::make_shared<Pool>(std::move(runtime))) {}

  Result<MarkPtr> set(cuda::Stream stream);
  Status wait(cuda::Stream stream, const StreamMark& mark) const {
    return pool_->runtime->wait(stream, mark.event());
  }
  Result<bool> passed(const StreamMark& mark) const { return pool_->runtime->passed(mark.event()); }

 private:
  struct Pool {
    explicit Pool(std::shared_ptr<cuda::Runtime> of) : runtime(std::move(of)) {}
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    const std::shared_ptr<cuda::Runtime> runtime;
    Guarded<std::vector<cuda::Event>> spare;
  };
  const std::shared_ptr<Pool> pool_;
};

/// What an operation waits for, which keeps the marks as long as it needs them.
/// @param before as in StreamSteps; may be empty
std::shared_ptr<const collective::StreamSteps> steps_behind(
    std::vector<MarkPtr> marks, std::function<Status(cuda::Stream)> before);

/// Waits until the GPU of the communicator has come to `event`. TIMEOUT where it does not before
/// `deadline`; the communicator's error where that breaks, unless `broken_too`.
Status await_event(comm::Communicator& comm, cuda::Event event, Deadline deadline, bool broken_too);

}  // namespace dt::training
