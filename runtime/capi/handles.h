// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"

namespace dt::capi {

/// What a handle stands for; part of its bits, so that a foreign handle is told apart.
enum class HandleKind : uint8_t {
  kConfig = 1,
  kJob = 2,
  kComm = 3,
  kWork = 4,
  kReducer = 5,
  kSampler = 6,
  kStoreServer = 7,
  kShard = 8,
  kOptimizer = 9,
  kNamed = 10,
  kOuter = 11,
  kPs = 12,
  kPsServer = 13,
};
const char* handle_kind_name(HandleKind kind);

/// The one table of the process: handle number -> counted reference.
///
/// A handle is {kind: 8 bits, generation: 32, slot: 24} in the shape of a pointer. The kind sits in
/// the top byte, where no user-space pointer has bits, so a real pointer passed by mistake is no
/// handle. A slot's generation moves each time it is freed, so an old number never finds a new
/// object (short of 2^32 re-uses of one slot).
///
/// Any thread. A look-up takes the slot's spin lock for the time of one reference count; a close
/// that races with it either comes first (the look-up fails) or after (the object lives on in the
/// caller's reference).
class HandleTable {
 public:
  HandleTable() = default;
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  /// Never null. Out of slots (16 million): OUT_OF_MEMORY. In a child that was forked while another
  /// thread was in here: INVALID_STATE.
  Result<void*> open(HandleKind kind, std::shared_ptr<void> object);
  /// The object, or why `handle` is none: "is NULL", "is closed", "is a job handle", ...
  Result<std::shared_ptr<void>> find(const void* handle, HandleKind kind);
  /// Marks the job behind `handle`. False: it is no open handle of a job. For signal handlers:
  /// atomics only, and no lock, which the interrupted thread may hold.
  bool request_stop(const void* handle);
  /// Whether that was done.
  bool stop_requested(const void* handle) const;
  /// Takes the object out. Null when `handle` is no open handle of this kind.
  std::shared_ptr<void> close(const void* handle, HandleKind kind);

 private:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunks = 16384;

  struct Slot {
    std::atomic<uint32_t> holder{0};    // the lock: 0 free, else 1 + its holder's fork_generation()
    HandleKind kind{};                  // under the lock
    uint32_t generation = 1;            // under the lock
    uint32_t fork_generation = 0;       // under the lock: where the object's threads live
    std::shared_ptr<void> object;       // under the lock; null while free
    std::atomic<uint64_t> open_job{0};  // the handle of a job while it is open, else 0
    std::atomic<uint64_t> stop_job{0};  // the handle that was asked to stop
  };
  class SlotLock;

  struct Free {
    std::vector<uint32_t> slots;
    uint32_t used_chunks = 0;
  };

  Slot* slot_of(const void* handle, HandleKind kind, std::string* why);
  Status own_free();
  Result<uint32_t> take_free();

  // A chunk is published with release and stays as long as the table: readers need no lock.
  std::atomic<Slot*> chunks_[kChunks] = {};
  Guarded<Free> free_;
  // 1 + the fork_generation() of the process that uses free_, 0: nobody has. Written under the lock
  // of free_, by the first that opens a handle in a process; later ones read it and take the lock.
  std::atomic<uint32_t> owner_{0};
};

/// Lives as long as the process: destroyed by nobody, so that threads that outlive main() still
/// find a table that says "closed".
HandleTable& handle_table();

/// handle_table().request_stop(), but makes no table: that takes memory and the lock of a static.
/// Without a table no handle is open.
bool request_stop(const void* handle);

}  // namespace dt::capi
