// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/nccl/library.h"
#include "session.h"

namespace dt::test {

/// One way to sum floats over the ranks, and what calling it cost on this rank.
struct Way {
  std::string name;
  /// The call alone: enqueues the sum, and is the only part whose allocations count.
  std::function<Status()> call;
  /// Until what follows on the stream, and the next call, are ordered behind it.
  std::function<Status()> order;
  /// Until the host sees the result as done.
  std::function<Status()> finish;

  // microseconds since the call began, one for each sample
  std::vector<double> called_us{};
  std::vector<double> ordered_us{};
  std::vector<double> done_us{};
  int64_t allocations = 0;  ///< the most of one call
};

/// What all ways sum.
struct Sum {
  const float* send = nullptr;
  float* recv = nullptr;
  int64_t count = 0;
};

/// dt_allreduce() with a work handle. Borrows both.
Way dt_way(Session* session, const Sum* sum);

/// A communicator of NCCL's own beside dt's, as a program would use it without dt.
class RawNccl {
 public:
  /// Collective. `name` tells several apart.
  static Result<std::unique_ptr<RawNccl>> create(Session* session,
                                                 std::shared_ptr<const nccl::Library> library,
                                                 const std::string& name, bool blocking);
  ~RawNccl();
  RawNccl(const RawNccl&) = delete;
  RawNccl& operator=(const RawNccl&) = delete;
  /// Collective, once nothing is under way.
  Status end();

  /// Borrows both.
  Way way(const Sum* sum);

 private:
  RawNccl(Session* session, std::shared_ptr<const nccl::Library> library, std::string name,
          bool blocking);
  Status settle(const char* call, nccl::Answer answer);

  Session* const session_;
  const std::shared_ptr<const nccl::Library> library_;
  const std::string name_;
  const bool blocking_;
  nccl::Comm comm_ = nullptr;
};

struct Samples {
  int64_t warmup = 20;
  int64_t count = 200;
};
/// All ways in turns, each sample beginning with another one, so that all suffer alike. Ways must
/// be in the same order on all ranks.
Status measure(std::vector<Way>* ways, const Samples& samples);

/// Whether each way gives the right sum.
Status verify(Session* session, std::vector<Way>* ways, const Sum& sum);

std::string way_header();
/// A line for each way; the ratios are those to the last one.
std::string way_lines(const Sum& sum, const std::vector<Way>& ways);
/// Of the call for the smallest sum: its time, and that it allocates nothing.
std::string goal_line(const Way& smallest);

}  // namespace dt::test
