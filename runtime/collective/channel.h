// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collective/descriptor.h"
#include "collective/distributor.h"
#include "collective/group.h"
#include "collective/mover.h"
#include "collective/operation.h"

namespace dt::collective {

/// Runs the collectives of one communicator, one after the other, as a state machine that never
/// blocks. Under the communicator's progress lock.
class Channel {
 public:
  explicit Channel(Group& group);

  /// Announces the next operation. `collective` is borrowed until advance() says kDone, or for ever
  /// if the communicator breaks.
  void start(const Collective& collective);
  Step advance();
  /// Of the operation that is done. MISMATCH and OUT_OF_MEMORY break the communicator.
  const Status& result() const { return result_; }
  /// Why the present operation ran out of time.
  Status timed_out() const;
  /// Why the present operation cannot end: this rank has left the job.
  Status left_behind(int32_t rank) const;
  /// Whom the present operation waits for.
  std::vector<int32_t> awaited() const;
  int64_t sequence() const { return static_cast<int64_t>(sequence_); }

 private:
  /// Takes back from the peers the memory of the next announcement, if it is like the present one.
  void claim_next() const;
  void announce_inline(const Collective& collective, Head& head);
  uint64_t announce_places(const Collective& collective, Detail& detail) const;
  Step move();
  Step meet();
  /// All have announced. kDone: see result_.
  Step match();
  Status disagreement() const;
  void finish_inline();
  const char* inline_data(int32_t rank) const;
  const Head& head(int32_t rank) const { return group_.peer(rank).block->heads[sequence_ & 1]; }
  const Detail& detail(int32_t rank) const {
    return group_.peer(rank).block->details[sequence_ & 1];
  }

  Group& group_;
  Mover mover_;
  Distributor distributor_;
  const Collective* collective_ = nullptr;
  uint64_t sequence_ = 0;     ///< of the present operation; the first is 1
  uint64_t signature_ = 0;    ///< own
  int64_t inline_bytes_ = 0;  ///< of the contribution; -1: too large
  int32_t arrived_ = 0;       ///< members below have announced
  bool moving_ = false;
  bool distributes_ = false;  ///< blocks: the distributor's, not the mover's
  Status result_;
  std::vector<uint64_t> signatures_;
  std::vector<const Detail*> details_;
  std::vector<const void*> sources_;
};

}  // namespace dt::collective
