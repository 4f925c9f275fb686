// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/block.h"
#include "collective/levels.h"
#include "collective/stager.h"
#include "transport/shm/arena.h"

namespace dt::collective {

struct Member {
  int32_t local_rank = 0;
  int32_t world_rank = 0;
  int64_t pid = 0;
  /// In a part of a larger communicator: the rank there, which messages show. Else -1.
  int32_t whole_rank = -1;
};

/// The members of a communicator and the memory they share.
class Group {
 public:
  struct Options {
    std::string name;  ///< of the communicator, for messages
    std::string host;
    std::vector<Member> members;  ///< by rank
    int32_t rank = 0;             ///< of the caller
    Shape shape;
    Staging staging = Staging::kAuto;  ///< of the caller
    std::shared_ptr<shm::HostArena> arena;
  };
  struct Peer {
    std::shared_ptr<const shm::View> view;
    Block* block = nullptr;
    std::atomic<int64_t>* mailboxes = nullptr;
    Lane* lanes = nullptr;
    char* inline_area = nullptr;
    char* ring = nullptr;
    Doorbell* doorbell = nullptr;
  };

  /// Makes the caller's own block; its section offset is to be published to the other members.
  static Result<void*> make_block(shm::HostArena& arena, const Shape& shape, int32_t members);
  /// `own_block` is taken in any case; `offsets` are those of all members' blocks.
  static Result<std::unique_ptr<Group>> open(Options options, void* own_block,
                                             const std::vector<int64_t>& offsets);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int32_t size() const { return static_cast<int32_t>(options_.members.size()); }
  int32_t rank() const { return options_.rank; }
  const Options& options() const { return options_; }
  const Shape& shape() const { return options_.shape; }
  shm::HostArena& arena() const { return *options_.arena; }
  const Peer& peer(int32_t rank) const { return peers_[rank]; }
  const Peer& own() const { return peers_[options_.rank]; }
  /// By the NUMA nodes of the members.
  const Levels& levels() const { return levels_; }

  char* inline_area(int32_t rank, uint64_t sequence) const {
    return peers_[rank].inline_area + static_cast<int64_t>(sequence & 1) * inline_stride_;
  }
  /// Of `rank` with each member.
  Lane* lanes(int32_t rank, uint64_t sequence) const {
    return peers_[rank].lanes + static_cast<int64_t>(sequence & 1) * lane_stride_;
  }
  char* slot(int32_t rank, int64_t segment) const {
    return peers_[rank].ring + segment % options_.shape.slots * options_.shape.slot_bytes;
  }
  /// The own one, to be filled; slots are filled in order. By who has the progress lock.
  char* slot_to_fill(int64_t segment) {
    const int64_t at = segment % options_.shape.slots;
    if (at >= mapped_slots_) map_slots(at + 1);
    return slot(options_.rank, segment);
  }
  /// So many of the own slots, at least, are in the page table from now on. The steps in which they
  /// are filled first are each as large as all before it: who uses few slots pays for few.
  void map_slots(int64_t at_least);
  void ring_peers() const {
    for (Doorbell* doorbell : doorbells_) doorbell->ring();
  }
  /// `memory` of the own section goes back together with the own block.
  void adopt(void* memory) { adopted_.push_back(memory); }
  /// The mapped address of a buffer that a member announced.
  Result<char*> resolve(int32_t rank, const Place& place);
  /// From the plan of a collective to its end: what resolve() gave stays mapped, whatever else is
  /// resolved meanwhile, by the collective or by messages beside it. Under the progress lock.
  void hold_views() { holds_views_ = true; }
  void drop_views() {
    holds_views_ = false;
    if (!replaced_.empty()) replaced_.clear();
  }

 private:
  Group(Options options, void* own_block) : options_(std::move(options)), own_block_(own_block) {}

  // Buckets are used in turn; a few remembered views per member keep the arena's lock out of it.
  static constexpr int kRecent = 8;
  struct Recent {
    std::array<std::shared_ptr<const shm::View>, kRecent> views;
    int next = 0;
  };

  const Options options_;
  void* const own_block_;
  std::vector<void*> adopted_;
  Levels levels_;
  int64_t inline_stride_ = 0;
  int64_t lane_stride_ = 0;  ///< Lanes
  std::vector<Peer> peers_;
  std::vector<Doorbell*> doorbells_;  ///< of the other members
  std::vector<Recent> recent_;        ///< under the communicator's progress lock, as the next
  std::vector<std::shared_ptr<const shm::View>> replaced_;  ///< no longer recent, but held
  bool holds_views_ = false;
  int64_t mapped_slots_ = 0;  ///< own, from the ring's begin
};

}  // namespace dt::collective
