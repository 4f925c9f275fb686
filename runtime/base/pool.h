// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/guarded.h"

namespace dt {

/// Makes objects that come and go with every operation. The memory of those that are gone serves
/// the next: as long as no more than kKept live at a time, nothing is allocated after a while.
///
/// Any thread may make one, and any may drop the last reference, also when the pool is gone: each
/// object holds the list that its memory goes back to, and the list holds no object. Memory changes
/// hands under the list's lock only, after the destructor of the one and before the constructor of
/// the other, which orders all that their threads did.
template <class T>
class Pool {
 public:
  /// Memory of more than this many is given back: a burst must not be kept for ever.
  static constexpr size_t kKept = 64;

  template <class... Arguments>
  std::shared_ptr<T> make(Arguments&&... arguments) const {
    return std::allocate_shared<T>(Allocator<T>{blocks_}, std::forward<Arguments>(arguments)...);
  }

 private:
  /// Some more than are asked for: a thread that has ended an operation may still hold it when the
  /// caller, who was told, begins the next.
  static constexpr size_t kStep = 4;

  class Blocks {
   public:
    Blocks() {
      free_.with([](auto& all) { all.reserve(kKept); });
    }
    ~Blocks() {
      free_.with([](auto& all) {
        for (void* const block : all) ::operator delete(block);
      });
    }
    void* take(size_t bytes) {
      return free_.with([bytes](auto& all) {
        if (all.empty()) {
          for (size_t i = 0; i < kStep; ++i) all.push_back(::operator new(bytes));
        }
        void* const last = all.back();
        all.pop_back();
        return last;
      });
    }
    void give(void* block) {
      const bool kept = free_.with([block](auto& all) {
        if (all.size() == kKept) return false;
        all.push_back(block);
        return true;
      });
      if (!kept) ::operator delete(block);
    }

   private:
    Guarded<std::vector<void*>> free_;
  };

  /// For allocate_shared() alone, which asks for one U at a time: a T with its reference counts.
  /// So all blocks of a pool have one size.
  template <class U>
  struct Allocator {
    using value_type = U;
    static_assert(alignof(U) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

    explicit Allocator(std::shared_ptr<Blocks> list) : blocks(std::move(list)) {}
    template <class V>
    Allocator(const Allocator<V>& other) : blocks(other.blocks) {}
    U* allocate(size_t) { return static_cast<U*>(blocks->take(sizeof(U))); }
    void deallocate(U* block, size_t) { blocks->give(block); }
    template <class V>
    bool operator==(const Allocator<V>& other) const {
      return blocks == other.blocks;
    }

    std::shared_ptr<Blocks> blocks;
  };

  std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
};

}  // namespace dt
