// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/pulse.h"
#include "backend/work.h"
#include "base/status.h"
#include "base/wait.h"
#include "collective/operation.h"
#include "kernels/cuda/tensors.h"

namespace dt::backend {

using collective::Collective;
using collective::Kind;

/// Implements collectives for one communicator. All ranks of the communicator issue the same
/// operations in the same order; operations complete in issue order, except that adjacent sends and
/// receives progress together.
///
/// Threads: any thread may call any function; calls are serialised inside. Once an operation failed
/// with a communicator error (TIMEOUT, PEER_LOST, MISMATCH, ABORTED) or interrupt() was called,
/// every queued and later operation fails with that first status.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  /// Enqueues and returns. A failed status: nothing was enqueued, `work` is not completed.
  virtual Status submit(const Collective& collective, std::shared_ptr<Work> work) = 0;
  /// Runs to completion on the calling thread when nothing is queued, else enqueues and waits.
  virtual Status run(const Collective& collective) = 0;
  /// Waits until `work` (of this backend) is done, helping it along. False: deadline or interrupt
  /// of `wait` came first; nothing is cancelled.
  virtual bool wait(Work& work, const Wait& wait) = 0;
  /// For who looks at works and does not wait: advances what no thread of dt advances, without
  /// blocking. False: nothing is like that here.
  virtual bool help() { return false; }
  /// Orders `work` (of this backend) before later work of `stream`. A host communicator has no
  /// streams: there it waits for the work.
  virtual Status wait_stream(Work& work, cuda::Stream /*stream*/) {
    (void)wait(work, Wait());
    return work.status();
  }
  /// The same ranks over host memory: for what a layer above must agree on. May be this.
  virtual Backend& on_host() { return *this; }
  /// The device whose memory the collectives take; null: host memory.
  virtual std::shared_ptr<cuda::Runtime> device() const { return nullptr; }
  /// Work on tensors of that device; null: host memory.
  virtual std::shared_ptr<kernels::TensorKernels> kernels() const { return nullptr; }
  /// Whether it has this reduction, one of those that can_reduce() knows.
  virtual bool has_reduction(Dtype /*dtype*/, ReduceOp /*op*/) const { return true; }
  /// An eventfd that is readable once operations completed; made at the first call, owned by the
  /// backend. Each completion adds 1.
  virtual Result<int> completion_fd() = 0;

  /// Memory that this backend reduces fastest. Zeroed; aligned to 4096 bytes, on a device to 256.
  virtual Result<void*> allocate(int64_t bytes) = 0;
  /// `pointer` is what allocate() gave, or null.
  virtual Status release(void* pointer) = 0;
  /// Holds what operations use until none of them can run on the device any more; for ever where
  /// that cannot be known. Never waits.
  virtual void keep(std::shared_ptr<void> /*used*/) {}

  /// What is submitted between the two is carried out as one on a device: its operations may wait
  /// for each other's peers. Elsewhere every operation goes on by itself.
  virtual Status begin_group() { return {}; }
  virtual Status end_group() { return {}; }
  /// After the end: the caller has waited for those of the group that it waits for.
  virtual void leave_group() {}

  /// Waits until nothing of this job is under way on the device. False: the deadline or the
  /// interrupt came first. Host communicators end their operations themselves.
  virtual bool drain(const Wait& /*wait*/) { return true; }
  /// To be called now and then: fails what a hanging call of the device's libraries holds up.
  virtual void look_after() {}
  /// Not ok: a call of those libraries has not returned for so long, and a communicator of the job
  /// is broken; the reason of that.
  virtual Status hang(int64_t /*limit_ms*/) const { return {}; }

  /// What this rank does on it. Never blocks.
  virtual Pulse pulse() const { return {}; }
  /// A rank is away on purpose until this point of the monotonic clock at the latest: operations
  /// have their whole time-out after that. Replaces an earlier one. Never blocks.
  virtual void excuse(int64_t /*until_ns*/) {}

  /// Nothing that was submitted is under way.
  virtual bool idle() const { return true; }
  /// This rank begins nothing more on it, and what it had begun has ended; peers that still wait
  /// for it fail. A host's ranks hear of it by HostEngine::say_goodbye() and
  /// HostEngine::peers_left().
  virtual void leave() {}
  /// This one did, as the control plane says. Any thread; never blocks.
  virtual void peer_left(int32_t /*rank*/) {}
  /// The error of an operation that needs this one, which did. Communicators over GPUs ask
  /// theirs over host memory. Any thread.
  virtual Status left_behind(const Collective& /*collective*/, int64_t /*sequence*/,
                             int32_t /*rank*/) const {
    return Status(Code::kInternal, "no other rank can have left here");
  }

  /// Breaks the communicator: everything queued and every later call returns `status`. Wakes
  /// blocked calls. Never blocks. The first status stays.
  virtual void interrupt(Status status) = 0;
  /// The same from this rank, for what the other ranks do not know: the control plane is told, and
  /// they get `status`, too. On host memory a rank that lacks its part of an operation withholds
  /// instead (Collective::withheld), which leaves the communicator whole.
  virtual void fail(Status status) { interrupt(std::move(status)); }
  /// The status that broke it, ok while whole.
  virtual Status broken() const = 0;

  /// Of a broken communicator: waits until no operation of it touches memory of this host any more.
  /// False: the deadline came first.
  virtual bool quiesce(const Wait& /*wait*/) { return true; }

  /// A communicator as this one among some of its ranks, which `on_host` connects: collective over
  /// those. For survivors: this one may be broken.
  virtual Result<std::shared_ptr<Backend>> among(std::shared_ptr<Backend> on_host,
                                                 const std::string& /*name*/, int32_t /*rank*/,
                                                 int32_t /*size*/, const Wait& /*wait*/) {
    return on_host;
  }

  /// Collective over the parent: ranks with equal color >= 0 form a communicator, ordered by (key,
  /// rank). Null on ranks whose color is negative. `name` is for messages.
  struct Split {
    std::shared_ptr<Backend> backend;
    std::vector<int32_t> members;  ///< parent ranks, in the order of the new communicator
  };
  virtual Result<Split> split(int32_t color, int32_t key, const std::string& name,
                              Deadline deadline) = 0;
};

}  // namespace dt::backend
