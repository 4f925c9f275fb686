// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "base/log.h"
#include "base/numa.h"
#include "base/status.h"
#include "base/wait.h"
#include "transport/shm/section.h"
#include "transport/shm/space.h"

namespace dt::shm {

/// A listening abstract Unix socket, made before the join so that its name can be published there.
/// Close-on-exec. Movable; the destructor closes it.
class ArenaListener {
 public:
  static Result<ArenaListener> create();

  ArenaListener(ArenaListener&& other) noexcept;
  ArenaListener& operator=(ArenaListener&& other) noexcept;
  ~ArenaListener();

  /// Printable, unique within the network namespace while the listener lives.
  const std::string& name() const { return name_; }
  int fd() const { return fd_; }

 private:
  ArenaListener(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  int fd_ = -1;
  std::string name_;
};

/// A mapping of a part of the arena. Unmapped with its last reference. Because the arena's file is
/// sealed and never shrinks, a view stays valid memory whatever its owner does.
class View {
 public:
  View(char* data, int64_t offset, int64_t bytes) : data_(data), offset_(offset), bytes_(bytes) {}
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  char* data() const { return data_; }
  int64_t offset() const { return offset_; }  ///< in the owner's section
  int64_t bytes() const { return bytes_; }

 private:
  char* data_;
  int64_t offset_;
  int64_t bytes_;
};

/// Where a pointer lies: in a live allocation of this rank's section.
struct Location {
  int64_t offset = -1;             ///< of the pointer, in the section
  int64_t allocation_offset = -1;  ///< of the allocation around it
  int64_t allocation_bytes = 0;
};

/// Memory shared by the ranks of one host: one sealed memfd with a section per local rank. A rank
/// allocates in its own section and maps parts of the others'. One object per rank; ranks may be
/// threads of one process. Any thread may call any function.
class HostArena {
 public:
  struct Options {
    uint64_t session = 0;  ///< equal on all local ranks, different between jobs and attempts
    int32_t local_rank = 0;
    int32_t local_size = 1;
    int32_t world_rank = 0;  ///< of this rank, for messages
    NumaHome home;
    LoggerPtr logger;  ///< null: silent
  };

  /// Collective over the local ranks. `listener` is this rank's own, used (and closed) only where
  /// local_rank is 0; `leader_name` is the name of local rank 0's. Returns when every rank has
  /// mapped the arena.
  static Result<std::shared_ptr<HostArena>> create(ArenaListener listener,
                                                   const std::string& leader_name,
                                                   const Options& options, const Wait& wait);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  int32_t local_rank() const { return options_.local_rank; }
  int32_t local_size() const { return options_.local_size; }
  const LoggerPtr& logger() const { return options_.logger; }

  /// Zeroed memory in the own section, aligned to 4096 bytes (2 MiB from 2 MiB on, in huge pages
  /// where the system has them), already backed: touching it never fails. OUT_OF_MEMORY says what
  /// to check. bytes > 0.
  enum class Use {
    kData,     ///< of the layers above and of callers
    kControl,  ///< how ranks speak with each other
  };
  Result<void*> allocate(int64_t bytes, Use use = Use::kData);
  /// `pointer` is what allocate() gave, or null. The memory goes back to the system, unless
  /// quarantine() was called: then it stays reserved, since a late peer may still write into it.
  Status release(void* pointer);
  /// Enters memory of the own section into the page table in one go, before it is written: a fault
  /// for each page takes 2 us under a hypervisor. (Of peers' memory the kernel enters several pages
  /// at a fault, which costs less than asking for all.)
  static void map_pages(char* begin, int64_t bytes);
  /// A communicator of this arena failed: no block is reused from now on.
  void quarantine() { quarantined_.store(true, std::memory_order_relaxed); }
  /// Takes the data of this rank out of the peers' reach, at the same addresses and with the same
  /// contents: for a peer that is lost, and may wake up and write. locate() knows it no more. No
  /// operation may use that memory meanwhile.
  Status withdraw();

  /// Gives memory from allocate() back once `detached` (inside one of the blocks) reaches `target`:
  /// looked at by later allocate() and retire() calls. For memory that peers may still read.
  void retire(std::vector<void*> pointers, const std::atomic<uint32_t>* detached, uint32_t target);

  /// True when [pointer, pointer + bytes) lies inside one live allocation of this rank.
  bool locate(const void* pointer, int64_t bytes, Location* out) const;
  /// A mapping of [offset, offset + bytes) of a local rank's section, page aligned; cached.
  Result<std::shared_ptr<const View>> view(int32_t local_rank, int64_t offset, int64_t bytes);

  /// The header page of a local rank's section; valid while the arena lives.
  SectionHeader& header(int32_t local_rank) const { return *headers_[local_rank]; }
  SectionHeader& own_header() const { return *headers_[options_.local_rank]; }
  Doorbell& doorbell() const { return own_header().doorbell; }
  /// This rank begins nothing any more and owes nobody anything: all that it has for its peers lies
  /// there already. Unless a communicator of this arena failed, wakes those that still wait.
  void leave();
  /// That rank has left, as the store says, and the store has told of every failure before.
  void peer_left(int32_t local_rank);
  /// Some rank has left; cheap enough to be asked whenever something is waited for.
  bool anyone_left() const {
    return headers_[0]->leavers.load(std::memory_order_seq_cst) != 0 ||
           told_of_leavers_.load(std::memory_order_seq_cst);
  }
  /// In peace, or the store says so. What it wrote before is there then.
  bool has_left(int32_t local_rank) const {
    return headers_[local_rank]->left.load(std::memory_order_seq_cst) ==
               SectionHeader::kLeftInPeace ||
           told_left_[local_rank].load(std::memory_order_acquire);
  }
  /// The NUMA node where a local rank lives; -1: not known.
  int32_t node(int32_t local_rank) const { return headers_[local_rank]->node; }
  /// More local ranks than processors that any of them may use.
  bool oversubscribed() const { return oversubscribed_; }

 private:
  struct Block {
    int64_t offset = 0;
    int64_t bytes = 0;  ///< whole pages
    bool is_data = false;
    bool withdrawn = false;
  };
  struct Blocks {
    Space space;
    std::map<uintptr_t, Block> live;  ///< by address
  };
  struct Retired {
    std::vector<void*> pointers;
    const std::atomic<uint32_t>* detached;
    uint32_t target;
  };
  struct Cached {
    std::shared_ptr<const View> view;
    uint64_t used = 0;  ///< tick of the last use
  };
  struct Views {
    std::vector<std::map<int64_t, Cached>> by_rank;  ///< by offset; never overlapping
    uint64_t tick = 0;
    int32_t total = 0;
  };

  HostArena(int fd, const Options& options);
  Status map_headers();
  Status check_headers();
  void reap();
  void settle(char* address, const Block& block);
  Status reserve(char* address, const Block& block) const;
  Status reserve_pages(int64_t offset, int64_t bytes) const;
  Status shortage(int64_t bytes, const std::string& why) const;
  Result<char*> map(int32_t local_rank, int64_t offset, int64_t bytes) const;
  static void drop_oldest(Views& views);

  const int fd_;
  const Options options_;
  std::vector<SectionHeader*> headers_;
  std::vector<std::atomic<bool>> told_left_;  ///< by local rank; set once the store has said so
  std::atomic<bool> told_of_leavers_{false};  ///< any of those
  bool oversubscribed_ = false;
  std::atomic<bool> quarantined_{false};
  std::atomic<bool> unsettled_{false};  ///< the system refused, and does not get asked again
  Guarded<Blocks> blocks_;
  Guarded<std::vector<Retired>> retired_;
  Guarded<Views> views_;
};

}  // namespace dt::shm
