// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"

namespace dt::training {

/// What ranks must agree on under one name.
struct NamedCall {
  backend::Kind kind = backend::Kind::kAllreduce;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;
  int64_t count = 0;
  int32_t group_size = 0;  ///< 0: not in a group
  int32_t group_index = 0;
  std::string group;  ///< the name of its first

  bool operator==(const NamedCall&) const = default;
  int64_t bytes() const { return count * dtype_bytes(dtype); }
  /// `allreduce f32 sum x 1000, 2 of 3 in the group of "layer1"`.
  std::string text() const;
};

/// From a rank to the coordinator.
struct NamedNews {
  struct Fresh {
    std::string name;
    NamedCall call;
  };
  uint32_t heard = 0;  ///< answers with operations that the rank has had
  bool leaves = false;
  bool joins = false;
  bool asks = false;  ///< for the report
  std::vector<uint32_t> known;
  std::vector<Fresh> fresh;
  std::vector<std::string> overdue;

  bool empty() const {
    return !leaves && !joins && !asks && known.empty() && fresh.empty() && overdue.empty();
  }
};

/// From the coordinator to a rank. The rank carries out the operations first.
struct NamedAnswer {
  static constexpr uint32_t kNoId = 0xffffffff;
  struct Operation {
    uint32_t id = kNoId;
    bool known = false;  ///< name and call do not travel
    std::string name;
    NamedCall call;
  };
  struct Failure {
    std::string name;
    Status status;
  };
  bool may_end = false;  ///< nothing comes behind this
  int32_t joined = -1;   ///< all ranks have, this one last
  Status broken;
  std::optional<std::string> report;
  std::vector<Operation> operations;
  std::vector<uint32_t> forgotten;  ///< ids that are not used behind this
  std::vector<Failure> failures;

  bool empty() const {
    return !may_end && joined < 0 && broken.ok() && !report && operations.empty() &&
           failures.empty();
  }
};

std::string pack(const NamedNews& news);
std::string pack(const NamedAnswer& answer);
/// INTERNAL where the bytes are no such message.
Result<NamedNews> unpack_news(const std::string& bytes);
Result<NamedAnswer> unpack_answer(const std::string& bytes);

}  // namespace dt::training
