// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "base/wait.h"
#include "comm/communicator.h"
#include "cuda/runtime.h"

namespace dt::training {

/// Copies memory of a GPU to the host part by part, lets the host work on each part, and copies it
/// back. While the host works on one part, the next and the one before are copied.
///
/// A part has one of a few blocks of pinned memory. Its copies down come behind those up of the
/// part that had the block before, on the GPU; the host waits for the copies down, and for nothing
/// else.
///
/// Threads: one at a time.
class DevicePipe {
 public:
  static constexpr int64_t kPartBytes = 4 << 20;  ///< at most

  struct Part {
    void* data = nullptr;          ///< in any memory
    const void* beside = nullptr;  ///< of the same length, only goes down; null: none
    int64_t bytes = 0;
    bool down = false;  ///< `data` does
    bool up = false;
  };
  /// What the host does with a part: its number, and where `data` and `beside` are.
  using Work = std::function<Status(size_t part, char* data, char* beside)>;

  /// For a communicator over GPUs. Its time-out is that of waiting, which ends when it breaks.
  static Result<std::unique_ptr<DevicePipe>> create(std::shared_ptr<comm::Communicator> comm);
  ~DevicePipe();
  DevicePipe(const DevicePipe&) = delete;
  DevicePipe& operator=(const DevicePipe&) = delete;

  /// A stream that the caller may give to run().
  cuda::Stream stream() const { return up_; }
  /// Copies are behind what `stream` has, and what it is given later is behind them. TIMEOUT where
  /// it does not come to them.
  Status run(std::span<const Part> parts, cuda::Stream stream, const Work& work);
  /// Memory of the GPU, and what the host has of it.
  struct Mirror {
    void* device = nullptr;
    void* host = nullptr;
    int64_t bytes = 0;
  };
  /// Copies all of them up to the GPU, or down from it, and waits. Behind what stream() waits for.
  Status transfer(std::span<const Mirror> mirrors, bool up);
  /// Waits until the GPU has done what it was given here.
  Status await();

 private:
  struct Block {
    char* data = nullptr;
    char* beside = nullptr;
    cuda::Event down = nullptr;
    cuda::Event up = nullptr;
    bool goes_up = false;  // `up` was recorded in this run
  };

  explicit DevicePipe(std::shared_ptr<comm::Communicator> comm)
      : comm_(std::move(comm)), runtime_(comm_->backend().device()) {}
  Status bring_down(const Part& part, Block* block);
  Status bring_up(const Part& part, Block* block);
  Status run_parts(std::span<const Part> parts, const Work& work);
  /// `broken_too`: also where the communicator is broken.
  Status await_both(Deadline deadline, bool broken_too);

  const std::shared_ptr<comm::Communicator> comm_;
  const std::shared_ptr<cuda::Runtime> runtime_;
  cuda::Stream down_ = nullptr;
  cuda::Stream up_ = nullptr;
  cuda::Event edge_ = nullptr;  // of run()
  char* memory_ = nullptr;
  std::array<Block, 3> blocks_;
  bool busy_ = true;  // the GPU may still use the blocks, or have other work of stream()
};

}  // namespace dt::training
