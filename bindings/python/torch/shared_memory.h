// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Tensors in memory that the ranks of a host reduce where it lies.
 */
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "work.h"

namespace dt::torch {

/**
 * Memory of a communicator. What tensors give back is kept for later ones, because new pages cost
 * more than the copies that they save: at most twice what tensors have had at once. All goes with
 * this object, which each tensor keeps. Any thread may call any function.
 */
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  /** @param comm of `owner`, a Python object, which lives as long as the memory. */
  SharedMemory(dt_comm* comm, pybind11::object owner)
      : comm_(comm), owner_(owner.release().ptr()) {}
  ~SharedMemory() {
    for (const auto& [bytes, pointer] : idle_) (void)dt_mem_free(comm_, pointer);
    if (!Py_IsInitialized()) return;
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(owner_);
  }

  /** Its contents are undefined. Without memory to share it is an ordinary tensor. */
  at::Tensor allocate(int64_t count, const at::TensorOptions& options) {
    const int64_t bytes = count * static_cast<int64_t>(options.dtype().itemsize());
    const bool on_host = options.device().is_cpu();
    const auto block = on_host && bytes > 0 ? take(bytes) : std::nullopt;
    if (!block) return at::empty({count}, options);
    std::shared_ptr<void> lent(
        block->pointer, [self = shared_from_this(), block = *block](void*) { self->give(block); });
    return at::from_blob(
        block->pointer, {count}, [lent](void*) mutable { lent.reset(); }, options.device(at::kCPU));
  }

 private:
  struct Block {
    int64_t bytes = 0;
    void* pointer = nullptr;
  };

  /** A block of up to twice the size; more would waste memory. */
  std::optional<Block> take(int64_t bytes) {
    if (!is_whole()) return std::nullopt;
    Block block{bytes};
    {
      const std::lock_guard lock(mutex_);
      const auto found = idle_.lower_bound(bytes);
      if (found != idle_.end() && found->first <= 2 * bytes) {
        block = {found->first, found->second};
        idle_bytes_ -= block.bytes;
        idle_.erase(found);
      }
    }
    if (block.pointer == nullptr && dt_mem_alloc(comm_, bytes, &block.pointer) != DT_OK) {
      TORCH_WARN_ONCE("backend dt: a tensor is not in shared memory, so that its operations copy: ",
                      dt_last_error());
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    used_bytes_ += block.bytes;
    most_bytes_ = std::max(most_bytes_, used_bytes_);
    return block;
  }

  /** Keeps the block, and frees the largest ones where that is too much. */
  void give(const Block& block) {
    if (getpid() != process_) return;  // of a forked child, whose memory is the parent's
    std::vector<void*> freed;
    try {
      const bool keeps = is_whole();
      const std::lock_guard lock(mutex_);
      used_bytes_ -= block.bytes;
      while (keeps && !idle_.empty() && idle_bytes_ + block.bytes > 2 * most_bytes_) {
        const auto largest = std::prev(idle_.end());
        freed.push_back(largest->second);
        idle_bytes_ -= largest->first;
        idle_.erase(largest);
      }
      if (keeps) {
        idle_.emplace(block.bytes, block.pointer);
        idle_bytes_ += block.bytes;
      } else {
        freed.push_back(block.pointer);
      }
    } catch (const std::bad_alloc&) {
      // It goes with the job.
    }
    for (void* const pointer : freed) (void)dt_mem_free(comm_, pointer);
  }

  /**
   * Not in a forked child. After a failure other ranks may still write what was in use, so none of
   * it is used again, and dt keeps its place free.
   */
  bool is_whole() const { return getpid() == process_ && dt_comm_check(comm_) == DT_OK; }

  dt_comm* const comm_;
  PyObject* const owner_;
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::multimap<int64_t, void*> idle_;  ///< under mutex_; by size
  int64_t idle_bytes_ = 0;              ///< under mutex_
  int64_t used_bytes_ = 0;              ///< under mutex_; by tensors
  int64_t most_bytes_ = 0;              ///< under mutex_; of used_bytes_ so far
};

}  // namespace dt::torch
