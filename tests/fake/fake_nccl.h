// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/nccl/api.h"

namespace dt::test {

/// The helm of a shared library that has NCCL's functions and works among the threads of one
/// process, over host memory. Each file that is loaded is a library of its own. Every rank should
/// be a thread.
///
/// Blocking communicators behave as NCCL's. On others a call answers kInProgress, and its operation
/// is enqueued only when ncclCommGetAsyncError has said so `polls` times: an event recorded earlier
/// passes too early, as with NCCL. What waits for longer than a minute ends the program.
///
/// Any thread may call any function.
class FakeNccl {
 public:
  /// Runs an operation in the order of a stream: FakeCuda::enqueue. An operation blocks until its
  /// peers have come to it or until it is aborted. False: it will not run.
  using Enqueue = std::function<bool(cuda::Stream stream, std::function<void()> operation)>;

  enum class Fault {
    kAnswer,          ///< the call answers `answer` and does nothing; of ncclCommGetAsyncError, the
                      ///< communicator is in that state from then on
    kHang,            ///< the call does not return before release(); an abort takes effect before
    kStayInProgress,  ///< what the call began on a non-blocking communicator never ends
    kSpin,            ///< the operation is enqueued, but its rank never takes part: a stuck GPU
  };
  struct Order {
    std::string function;  ///< "ncclAllReduce"
    Fault fault = Fault::kAnswer;
    nccl::Answer answer = nccl::Answer::kInternalError;
    int rank = -1;  ///< only on communicators where the caller has this rank; -1: any
    int after = 0;  ///< calls that go well before
    int times = 1;  ///< negative: always
  };
  /// What a rank gave to ncclCommInitRankConfig.
  struct Seen {
    int rank = 0;
    int size = 0;
    nccl::Config config;  ///< without the pointers
    std::string net_name;
    std::string comm_name;
  };

  virtual void set_enqueue(Enqueue enqueue) = 0;
  virtual void set_version(int version) = 0;
  virtual void set_polls(int polls) = 0;
  /// After an abort the communicators of the peers come to kRemoteError, as with sockets; by
  /// default they notice nothing, as with NVLink.
  virtual void set_peers_notice_abort(bool notice) = 0;
  /// An abort returns when the stream has passed the communicator's operations, as NCCL's does:
  /// what lies in front of them there holds it up. By default it returns at once.
  virtual void set_abort_synchronises(bool synchronises) = 0;
  /// A destroy and an abort return when all ranks have finalized or aborted, as NCCL's do for ranks
  /// of one host that use each other's proxy threads.
  virtual void set_destroy_waits_for_peers(bool waits) = 0;
  /// A send ends when its message is on the way, as NCCL's small ones do; by default when it is
  /// received.
  virtual void set_eager_sends(bool eager) = 0;
  virtual void order(const Order& order) = 0;
  /// Lets go of all hung calls and forgets all orders.
  virtual void release() = 0;
  /// As just loaded, but for communicators that live: for the beginning of a test.
  virtual void reset() = 0;
  /// How many calls hang at the moment.
  virtual int hung() = 0;

  virtual int64_t calls(const std::string& function) = 0;
  /// Communicators that were neither destroyed nor aborted.
  virtual int64_t communicators() = 0;
  /// The most threads that called on one communicator; calls that end it do not count.
  virtual int64_t threads() = 0;
  virtual std::vector<Seen> initialised() = 0;
  /// What NCCL would answer with a hang, wrong data or a crash: ranks that call different
  /// operations, calls before the previous one has ended, handles that are gone.
  virtual std::vector<std::string> misuses() = 0;

 protected:
  ~FakeNccl() = default;
};

/// Of the library in that file, which is loaded where it is not yet. Null: it is no fake.
FakeNccl* fake_nccl(const std::string& path);

}  // namespace dt::test
