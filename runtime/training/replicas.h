// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "base/guarded.h"
#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// Begins what a rank says to the other replicas when its own is broken.
inline constexpr const char* kReplicaFailed = "its replica has failed: ";

/// The ranks that have the same pieces as this one, one in each replica of a sharded model, and the
/// sums over them of what each replica has reduced.
///
/// Operations are submitted in the order of sum(), each once its input is there and all before it
/// were submitted: replicas reduce at their own pace, and their ranks must agree on an order.
///
/// Threads: sum() from one at a time. `begin` comes from whichever thread ends a reduction, also
/// while another one submits; the one that finds nobody submitting does so, without the lock, and
/// goes on with what came meanwhile.
class Replicas : public std::enable_shared_from_this<Replicas> {
 public:
  /// Collective over `comm`: afterwards submit() blocks no more.
  static Result<std::shared_ptr<Replicas>> create(std::shared_ptr<comm::Communicator> comm);

  struct Sum {
    std::shared_ptr<backend::Work> work;
    /// To be called once, with what became of the input: where that failed this rank withholds.
    std::function<void(const Status&)> begin;
  };
  Sum sum(backend::Collective collective);
  comm::Communicator& comm() const { return *comm_; }

 private:
  struct Pending {
    backend::Collective collective;
    std::shared_ptr<backend::Work> work;
    bool may_begin = false;
  };
  struct State {
    std::deque<std::shared_ptr<Pending>> pending;  // not submitted, in order
    bool submitting = false;
  };

  explicit Replicas(std::shared_ptr<comm::Communicator> comm) : comm_(std::move(comm)) {}
  void begin(Pending& ended, const Status& input);

  const std::shared_ptr<comm::Communicator> comm_;
  Guarded<State> state_;
};

}  // namespace dt::training
