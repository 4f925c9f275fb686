// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "base/guarded.h"
#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// The ranks that have the same pieces as this one, one in each replica of a sharded model, and the
/// sums over them of what each replica has reduced. Also the second operation of each bucket in 8
/// bits, where the first one takes the place of a replica's reduction.
///
/// Operations are submitted in the order of sum(), each once its input is there and all before it
/// were submitted: replicas reduce at their own pace, and their ranks must agree on an order.
///
/// Threads: sum() from one at a time. `begin` comes from whichever thread ends a reduction, also
/// after this is gone, when it does nothing; and from within the submission of another sum, which
/// may end a reduction, too. It holds the door's mutex throughout, so that the destructor, which
/// shuts the door, waits for it: a communicator must not end on a thread that its own end needs.
class Replicas {
 public:
  /// Collective over `comm`; after it submit() never blocks. Operations have the time-out of
  /// `whole` and two seconds more, so that a rank that waits within its own replica times out first
  /// and names whom it waits for.
  /// @param failed_text  begins what a rank says where its input failed; a literal
  static Result<std::unique_ptr<Replicas>> create(
      std::shared_ptr<comm::Communicator> comm,
      const std::shared_ptr<const comm::Communicator>& whole, const char* failed_text);
  ~Replicas() { shut(); }
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  struct Sum {
    std::shared_ptr<backend::Work> work;
    /// To be called once, with what became of the input: where that failed this rank withholds.
    std::function<void(const Status&)> begin;
  };
  /// `prepare`: called before the operation is submitted, unless the input failed.
  Sum sum(backend::Collective collective, std::function<void()> prepare = {});
  /// From now on `begin` does nothing. Waits for calls of it.
  void shut();
  comm::Communicator& comm() const { return *comm_; }
  const char* failed_text() const { return failed_text_; }

 private:
  struct Pending {
    backend::Collective collective;
    std::shared_ptr<backend::Work> work;
    std::function<void()> prepare;  // empty: nothing to do
    bool may_begin = false;
    Status failed;  // its input, on a GPU
  };
  struct State {
    std::deque<std::shared_ptr<Pending>> pending;  // not submitted, in order
    bool submitting = false;
  };
  struct Door {
    std::recursive_mutex mutex;
    Replicas* behind = nullptr;  // null: shut
  };

  Replicas(std::shared_ptr<comm::Communicator> comm, const char* failed_text)
      : comm_(std::move(comm)), failed_text_(failed_text) {
    door_->behind = this;
  }
  void begin(Pending& ended, const Status& input);

  const std::shared_ptr<comm::Communicator> comm_;
  const char* const failed_text_;
  const std::shared_ptr<Door> door_ = std::make_shared<Door>();
  Guarded<State> state_;
};

}  // namespace dt::training
