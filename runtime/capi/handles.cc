// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

#include "base/fork.h"

namespace dt::capi {
namespace {

constexpr int kKindShift = 56;
constexpr int kGenerationShift = 24;
constexpr uint64_t kSlotMask = (1u << kGenerationShift) - 1;

constexpr int kMostTries = 1000;  // to take a lock that is held for a few instructions

constexpr char kForked[] =
    "belongs to the parent of this forked process; start a new process with exec instead";

std::atomic<HandleTable*> made_table{nullptr};  // of handle_table(), once that was called

uint64_t bits(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

void* make_handle(HandleKind kind, uint32_t generation, uint32_t slot) {
  return reinterpret_cast<void*>(static_cast<uint64_t>(kind) << kKindShift |
                                 static_cast<uint64_t>(generation) << kGenerationShift | slot);
}

}  // namespace

const char* handle_kind_name(HandleKind kind) {
  switch (kind) {
    case HandleKind::kConfig: return "config";
    case HandleKind::kJob: return "job";
    case HandleKind::kComm: return "communicator";
    case HandleKind::kWork: return "work";
    case HandleKind::kReducer: return "reducer";
    case HandleKind::kSampler: return "sampler";
    case HandleKind::kNamed: return "named submission";
    case HandleKind::kStoreServer: return "store server";
    case HandleKind::kShard: return "shard";
    case HandleKind::kOptimizer: return "optimizer";
    case HandleKind::kOuter: return "outer optimizer";
    case HandleKind::kPs: return "connection to parameter servers";
    case HandleKind::kPsServer: return "parameter server";
  }
  return nullptr;
}

/// Held for a few instructions, never while calling out; yields because its holder may have lost
/// the processor.
///
/// A fork copies the locks that other threads of the parent hold, and in the child nobody releases
/// those. So a lock says in which process its holder is, and a child takes over what is left of the
/// parent. What it finds may be half written, but for the slot's fork generation, written when the
/// handle was made; so the child answers by that and does not touch the object.
class HandleTable::SlotLock {
 public:
  explicit SlotLock(Slot& slot) : slot_(slot) {
    const uint32_t mine = fork_generation() + 1;
    uint32_t holder = 0;  // nobody; or of the parent, which the next round replaces
    while (!slot_.holder.compare_exchange_weak(holder, mine, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
      if (holder != mine) continue;
      std::this_thread::yield();
      holder = 0;
    }
  }
  ~SlotLock() { slot_.holder.store(0, std::memory_order_release); }
  SlotLock(const SlotLock&) = delete;
  SlotLock& operator=(const SlotLock&) = delete;

 private:
  Slot& slot_;
};

HandleTable& handle_table() {
  static HandleTable* const table = [] {
    auto* const made = new HandleTable;
    made_table.store(made, std::memory_order_release);
    return made;
  }();
  return *table;
}

bool request_stop(const void* handle) {
  HandleTable* const table = made_table.load(std::memory_order_acquire);
  return table != nullptr && table->request_stop(handle);
}

HandleTable::~HandleTable() {
  for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.load();
}

/// A fork copies the lock of the free slots, too. If a thread of the parent held it, nobody
/// releases it in the child, and the list is half written.
Status HandleTable::own_free() {
  const uint32_t mine = fork_generation() + 1;
  for (int tries = 0; owner_.load(std::memory_order_relaxed) != mine; ++tries) {
    const auto own = [&](Free&) { owner_.store(mine, std::memory_order_relaxed); };
    if (free_.try_with(own)) return {};
    if (tries == kMostTries) return Status(Code::kInvalidState, format("dt %s", kForked));
    std::this_thread::yield();
  }
  return {};
}

Result<uint32_t> HandleTable::take_free() {
  return free_.with([&](Free& free) -> Result<uint32_t> {
    if (free.slots.empty()) {
      if (free.used_chunks == kChunks) {
        return Status(Code::kOutOfMemory, "16 million handles are open; destroy those not in use");
      }
      free.slots.reserve(kChunkSlots);
      chunks_[free.used_chunks].store(new Slot[kChunkSlots], std::memory_order_release);
      const uint32_t first = free.used_chunks++ * kChunkSlots;
      for (uint32_t i = kChunkSlots; i-- > 0;) free.slots.push_back(first + i);
    }
    const uint32_t slot = free.slots.back();
    free.slots.pop_back();
    return slot;
  });
}

Result<void*> HandleTable::open(HandleKind kind, std::shared_ptr<void> object) {
  DT_TRY(own_free());
  DT_TRY_VALUE(const uint32_t index, take_free());
  Slot& slot = chunks_[index / kChunkSlots].load(std::memory_order_acquire)[index % kChunkSlots];
  SlotLock lock(slot);
  slot.kind = kind;
  slot.fork_generation = fork_generation();
  slot.object = std::move(object);
  void* const handle = make_handle(kind, slot.generation, index);
  if (kind == HandleKind::kJob) slot.open_job.store(bits(handle), std::memory_order_release);
  return handle;
}

HandleTable::Slot* HandleTable::slot_of(const void* handle, HandleKind kind, std::string* why) {
  if (handle == nullptr) {
    *why = "is NULL";
    return nullptr;
  }
  const uint64_t number = bits(handle);
  const auto index = static_cast<uint32_t>(number & kSlotMask);
  const auto stated = static_cast<HandleKind>(number >> kKindShift);
  Slot* const chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
  if (chunk == nullptr || handle_kind_name(stated) == nullptr) {
    *why = "is not a handle of dt";
    return nullptr;
  }
  if (stated != kind) {
    *why = format("is a %s handle; a %s handle is wanted", handle_kind_name(stated),
                  handle_kind_name(kind));
    return nullptr;
  }
  return &chunk[index % kChunkSlots];
}

Result<std::shared_ptr<void>> HandleTable::find(const void* handle, HandleKind kind) {
  std::string why;
  Slot* const slot = slot_of(handle, kind, &why);
  if (slot == nullptr) return Status(Code::kInvalidArgument, why);
  const auto generation = static_cast<uint32_t>(bits(handle) >> kGenerationShift);
  SlotLock lock(*slot);
  if (slot->object == nullptr || slot->kind != kind || slot->generation != generation) {
    return Status(Code::kInvalidArgument, "is closed");
  }
  if (slot->fork_generation != fork_generation()) {
    return Status(Code::kInvalidState, kForked);
  }
  return slot->object;
}

// A handle that is closed meanwhile is marked for nobody: its number comes never again.
bool HandleTable::request_stop(const void* handle) {
  const uint64_t number = bits(handle);
  if (static_cast<HandleKind>(number >> kKindShift) != HandleKind::kJob) return false;
  const uint64_t index = number & kSlotMask;
  Slot* const chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
  if (chunk == nullptr) return false;
  Slot& slot = chunk[index % kChunkSlots];
  if (slot.open_job.load(std::memory_order_acquire) != number) return false;
  slot.stop_job.store(number, std::memory_order_release);
  return true;
}

bool HandleTable::stop_requested(const void* handle) const {
  const uint64_t index = bits(handle) & kSlotMask;
  const Slot* const chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk != nullptr &&
         chunk[index % kChunkSlots].stop_job.load(std::memory_order_acquire) == bits(handle);
}

std::shared_ptr<void> HandleTable::close(const void* handle, HandleKind kind) {
  std::string why;
  Slot* const slot = slot_of(handle, kind, &why);
  if (slot == nullptr) return nullptr;
  const uint64_t number = bits(handle);
  std::shared_ptr<void> object;
  {
    SlotLock lock(*slot);
    if (slot->object == nullptr || slot->kind != kind ||
        slot->generation != static_cast<uint32_t>(number >> kGenerationShift)) {
      return nullptr;
    }
    if (slot->fork_generation != fork_generation()) {
      // In a forked child the object's threads do not exist; its destructor must not run. The slot
      // is not used again: a thread of the parent may have held the list of free ones.
      new std::shared_ptr<void>(std::move(slot->object));
      slot->open_job.store(0, std::memory_order_release);
      ++slot->generation;
      return nullptr;
    }
    object = std::move(slot->object);
    slot->object = nullptr;
    slot->open_job.store(0, std::memory_order_release);
    ++slot->generation;
  }
  free_.with([&](Free& free) { free.slots.push_back(static_cast<uint32_t>(number & kSlotMask)); });
  return object;
}

}  // namespace dt::capi
