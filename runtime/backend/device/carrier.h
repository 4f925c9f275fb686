// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "collective/operation.h"

namespace dt::backend {

/// Carries out the operations of one device communicator. All on the device thread, in the order of
/// the calls, which is the same on all ranks. Nothing here waits: begin what there is to do, then
/// look again and again whether it is done. Where a call fails the communicator is broken, and
/// abort() follows.
class Carrier {
 public:
  virtual ~Carrier() = default;

  /// The collective first call: meets the other ranks, for which it may take until the deadline.
  virtual Status begin_open(Deadline deadline) = 0;
  virtual Result<bool> is_open() = 0;

  /// Begins to enqueue on the engine's stream, behind the operations' inputs. Several: one group,
  /// or adjacent sends and receives, to be enqueued as one. They stay where they are until ended.
  virtual Status begin(std::span<const collective::Collective* const> operations) = 0;
  /// Whether one more may begin before all that began have ended.
  virtual bool takes(const collective::Collective& /*next*/) const { return false; }
  /// Goes on with them. Appends those that are wholly enqueued.
  virtual Status progress(std::vector<const collective::Collective*>* ended) = 0;
  /// By how much a carrier that keeps deadlines itself, and knows more, may be late.
  virtual int64_t grace_ms() const { return 0; }

  /// Whether it has memory of its own kind, on the device: then all that is allocated comes from
  /// it.
  virtual bool has_memory() const { return false; }
  virtual Result<void*> allocate(int64_t /*bytes*/) { return nullptr; }
  /// Also after abort(), close() and release().
  virtual void free(void* /*pointer*/) {}

  /// Looks for errors of operations that were enqueued. Cheap.
  virtual Status check() = 0;
  /// Around the abort() of several communicators.
  virtual void group_aborts(bool /*begin*/) {}
  /// Ends what is under way, whatever peers do. Only release() comes after it.
  virtual void abort() = 0;
  /// Goes on with a peaceful end; nothing is under way. True: it has come to its end.
  virtual Result<bool> close() = 0;
  /// Gives memory back: the GPU has passed all that was enqueued, and the communicator is aborted
  /// or closed. Where that cannot be known this is not called, and the memory is left behind.
  /// False: something else still uses it; called again.
  virtual bool release() = 0;
  /// For messages: what something that does not end may be waiting for. Any thread.
  virtual const char* waits_for() const = 0;
};

}  // namespace dt::backend
