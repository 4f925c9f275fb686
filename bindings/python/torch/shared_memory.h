// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Tensors in memory that the ranks of a host reduce where it lies.
 */
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>

#include "work.h"

namespace dt::torch {

/**
 * Memory of a communicator. What a tensor gives back is kept for the next ones, because new pages
 * cost more than the copies that they save: at most twice what tensors have had at once. Any
 * thread may call any function.
 */
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  /** @param comm of `owner`, a Python object, which lives as long as the memory. */
  SharedMemory(dt_comm* comm, pybind11::object owner)
      : comm_(comm), owner_(owner.release().ptr()) {}
  ~SharedMemory() {
    for (const auto& [bytes, block] : idle_) free(block);
    if (!Py_IsInitialized()) return;
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(owner_);
  }

  /** Not initialized, and the memory of this rank alone where there is none to share. */
  at::Tensor allocate(int64_t count, const at::TensorOptions& options) {
    const Block block = take(count * static_cast<int64_t>(options.dtype().itemsize()));
    if (block.second == nullptr) return at::empty({count}, options);
    return at::from_blob(
        block.second, {count}, [self = shared_from_this(), block](void*) { self->give(block); },
        options);
  }

 private:
  using Block = std::pair<int64_t, void*>;  ///< its size

  Block take(int64_t bytes) {
    Block block{bytes, nullptr};
    if (bytes <= 0) return block;
    const std::lock_guard lock(mutex_);
    // One of less than half would leave too much of it unused.
    const auto found = idle_.lower_bound(bytes);
    if (found != idle_.end() && found->first <= 2 * bytes) {
      block = *found;
      idle_.erase(found);
      idle_bytes_ -= block.first;
    } else if (dt_mem_alloc(comm_, bytes, &block.second) != DT_OK) {
      TORCH_WARN_ONCE("backend dt: a tensor is not in shared memory, so that its operations copy: ",
                      dt_last_error());
      return block;
    }
    used_bytes_ += block.first;
    most_bytes_ = std::max(most_bytes_, used_bytes_);
    return block;
  }
  void give(const Block& block) {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= block.first;
    if (idle_bytes_ + block.first > 2 * most_bytes_) {
      free(block.second);
    } else {
      idle_.insert(block);
      idle_bytes_ += block.first;
    }
  }
  /** In a forked child the memory is the parent's, and dt refuses. */
  void free(void* block) { (void)dt_mem_free(comm_, block); }

  dt_comm* const comm_;
  PyObject* const owner_;
  std::mutex mutex_;
  std::multimap<int64_t, void*> idle_;  ///< under mutex_; by size
  int64_t idle_bytes_ = 0;              ///< under mutex_
  int64_t used_bytes_ = 0;              ///< under mutex_; by tensors
  int64_t most_bytes_ = 0;              ///< under mutex_; of used_bytes_ so far
};

}  // namespace dt::torch
