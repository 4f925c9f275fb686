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
///
/// end() and release() may wait, so each runs on a thread of its own. While one of them runs, that
/// thread has the carrier: on another one only grace_ms(), has_memory() and waits_for() are called.
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
  /// Also after abort(), end() and release().
  virtual void free(void* /*pointer*/) {}

  /// Looks for errors of operations that were enqueued. Cheap.
  virtual Status check() = 0;
  /// Gives up what is under way, whatever peers do. Only end() and release() come after it.
  virtual void abort() = 0;
  /// Whether end() has something to do.
  virtual bool has_end() const { return false; }
  /// Around the end() of several communicators that were aborted, on the same thread.
  virtual void group_aborts(bool /*begin*/) {}
  /// Ends the communicator. After abort() whatever peers do; otherwise nothing is under way, and it
  /// ends in peace, or is aborted when `peace` is over. May wait for peers, and for all that the
  /// GPU has to do. Only release() comes after it.
  virtual void end(const Wait& /*peace*/) {}
  /// Gives memory back: the GPU has passed all that was enqueued, and the communicator has ended.
  /// May wait for all that the GPU has to do. Where it is not known what the GPU has passed, this
  /// is not called, and the memory is left behind.
  /// False: something else still uses it; called again.
  virtual bool release() = 0;
  /// For messages: what something that does not end may be waiting for. Any thread.
  virtual const char* waits_for() const = 0;
};

}  // namespace dt::backend
