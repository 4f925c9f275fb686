// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "base/status.h"
#include "base/wait.h"
#include "collective/operation.h"
#include "cuda/runtime.h"

namespace dt::backend {

/// Carries out the operations of one device communicator. All on the engine's thread, in the order
/// of the calls, which is the same on all ranks.
class Carrier {
 public:
  virtual ~Carrier() = default;

  /// The collective first call: meets the other ranks. `wait` ends it.
  virtual Status open(const Wait& wait) = 0;
  /// Enqueues on the engine's stream, behind the operation's inputs; may wait for peers or for the
  /// stream, under `wait`. Several: adjacent sends and receives, to be enqueued as one. Where it
  /// fails the communicator is broken and abort() follows.
  virtual Status enqueue(std::span<const collective::Collective* const> operations,
                         const Wait& wait) = 0;
  /// Looks for errors of operations under way. Cheap, never blocks.
  virtual Status check() = 0;
  /// Ends what is under way, whatever peers do. Nothing else is called afterwards.
  virtual void abort() = 0;
  /// Begins a peaceful end; nothing is under way. True: it has come to its end. Called again until
  /// it has, or until abort().
  virtual Result<bool> close() = 0;
  /// For messages: what an operation that does not end may be waiting for.
  virtual const char* waits_for() const = 0;
};

}  // namespace dt::backend
