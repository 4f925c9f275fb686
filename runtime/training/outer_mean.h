// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "comm/communicator.h"
#include "training/quantized_parts.h"

namespace dt::training {

/// What the elements of a mean travel as.
enum class MeanFormat { kF32, kBf16, k8Bit, k4Bit };

/// The mean of an array of f32 over the ranks of a communicator, one at a time, while the caller
/// goes on. All ranks end with equal bits.
///
/// In few bits as QuantizedParts says.
///
/// Threads: one at a time.
class OuterMean {
 public:
  /// Collective. Its operations go over a communicator of its own, with the time-out of `comm`.
  /// @param largest   elements of the largest array
  /// @param operation "outer_create", in messages
  static Result<std::unique_ptr<OuterMean>> create(comm::Communicator& comm, MeanFormat format,
                                                   int64_t largest, const char* operation);
  /// What is still under way after a second keeps the memory, which stays with the communicator.
  ~OuterMean();
  OuterMean(const OuterMean&) = delete;
  OuterMean& operator=(const OuterMean&) = delete;

  /// The array: to be filled in before begin(), and the mean after end().
  float* values() { return values_; }
  /// Collective. @param name of the operations. @param tag what ranks must agree on besides
  Status begin(int64_t count, const std::string& name, int32_t tag);
  /// Goes on with what can go on without waiting.
  void advance();
  Status end();

 private:
  enum class Phase { kIdle, kFirst, kSecond };

  OuterMean(std::shared_ptr<comm::Communicator> comm, MeanFormat format)
      : comm_(std::move(comm)), format_(format) {}
  Status allocate(int64_t largest);
  bool is_quantized() const { return format_ == MeanFormat::k8Bit || format_ == MeanFormat::k4Bit; }
  int bits() const { return format_ == MeanFormat::k8Bit ? 8 : 4; }
  QuantizedParts parts() const { return {bits(), comm_->size(), count_}; }
  Status submit(backend::Collective collective);
  Status go_on();
  Status begin_second();

  const std::shared_ptr<comm::Communicator> comm_;
  const MeanFormat format_;
  void* memory_ = nullptr;  // of all that follows
  float* values_ = nullptr;
  char* sent_ = nullptr;      // as it travels
  char* received_ = nullptr;  // likewise, of all ranks; in few bits only
  // These belong to the array whose mean is under way:
  Phase phase_ = Phase::kIdle;
  int64_t count_ = 0;
  std::string name_;
  int32_t tag_ = 0;
  std::shared_ptr<backend::Work> work_;
  Status failed_;  // of advance(), for end()
};

}  // namespace dt::training
