// SPDX-License-Identifier: Apache-2.0
#include "collective/group.h"

#include <new>
#include <utility>

namespace dt::collective {

Result<void*> Group::make_block(shm::HostArena& arena, const Shape& shape, int32_t members) {
  DT_TRY_VALUE(void* memory,
               arena.allocate(Layout(shape, members).bytes, shm::HostArena::Use::kControl));
  Block* block = new (memory) Block();  // atomics start at zero, as the memory already is
  block->magic = Block::kMagic;
  block->shape = shape;
  block->members = members;
  return memory;
}

Result<std::unique_ptr<Group>> Group::open(Options options, void* own_block,
                                           const std::vector<int64_t>& offsets) {
  std::unique_ptr<Group> group(new Group(std::move(options), own_block));
  const Options& opened = group->options_;
  const Layout layout(opened.shape, group->size());
  const int64_t page = shm::kPageBytes;
  const int64_t bytes = (layout.bytes + page - 1) / page * page;
  group->inline_stride_ = (layout.ring - layout.inline_area) / 2;
  group->lane_stride_ =
      (layout.inline_area - layout.lanes) / 2 / static_cast<int64_t>(sizeof(Lane));
  group->recent_.resize(group->size());
  for (int32_t rank = 0; rank < group->size(); ++rank) {
    const Member& member = opened.members[rank];
    Peer peer;
    char* base = static_cast<char*>(own_block);
    if (rank != opened.rank) {
      // The shape is read through one page before it is trusted.
      DT_TRY_VALUE(auto first, opened.arena->view(member.local_rank, offsets[rank], page));
      const Block* block = reinterpret_cast<const Block*>(first->data());
      if (block->magic != Block::kMagic || !(block->shape == opened.shape) ||
          block->members != group->size()) {
        ErrorInfo info;
        info.code = Code::kMismatch;
        info.rank = member.world_rank;
        info.host = opened.host;
        info.pid = member.pid;
        info.message = format(
            "communicator \"%s\": rank %d (%s, pid %lld) has inline_bytes %lld, slot_bytes %lld "
            "and "
            "%lld slots, rank %d has %lld, %lld and %lld; set the same host.* values on all ranks",
            opened.name.c_str(), member.world_rank, opened.host.c_str(),
            static_cast<long long>(member.pid), static_cast<long long>(block->shape.inline_bytes),
            static_cast<long long>(block->shape.slot_bytes),
            static_cast<long long>(block->shape.slots), opened.members[opened.rank].world_rank,
            static_cast<long long>(opened.shape.inline_bytes),
            static_cast<long long>(opened.shape.slot_bytes),
            static_cast<long long>(opened.shape.slots));
        return Status(std::move(info));
      }
      DT_TRY_VALUE(peer.view, opened.arena->view(member.local_rank, offsets[rank], bytes));
      base = peer.view->data();
      peer.doorbell = &opened.arena->header(member.local_rank).doorbell;
      group->doorbells_.push_back(peer.doorbell);
    }
    peer.block = reinterpret_cast<Block*>(base);
    peer.mailboxes = reinterpret_cast<std::atomic<int64_t>*>(base + layout.mailboxes);
    peer.lanes = reinterpret_cast<Lane*>(base + layout.lanes);
    peer.inline_area = base + layout.inline_area;
    peer.ring = base + layout.ring;
    group->peers_.push_back(std::move(peer));
  }
  return group;
}

Group::~Group() {
  // Peers may still read our block: each member signs off everywhere, and a block is given back
  // when all have.
  for (const Peer& peer : peers_) peer.block->detached.fetch_add(1, std::memory_order_acq_rel);
  auto* own = static_cast<Block*>(own_block_);
  adopted_.push_back(own_block_);
  options_.arena->retire(std::move(adopted_), &own->detached, static_cast<uint32_t>(size()));
}

int32_t Group::rank_of_local(int32_t local_rank) const {
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (options_.members[rank].local_rank == local_rank) return rank;
  }
  return -1;
}

Result<char*> Group::resolve(int32_t rank, const Place& place) {
  Recent& recent = recent_[rank];
  for (const auto& view : recent.views) {
    if (view && view->offset() == place.allocation_offset &&
        view->bytes() == place.allocation_bytes) {
      return view->data() + (place.offset - place.allocation_offset);
    }
  }
  DT_TRY_VALUE(auto view, arena().view(options_.members[rank].local_rank, place.allocation_offset,
                                       place.allocation_bytes));
  char* data = view->data() + (place.offset - place.allocation_offset);
  recent.views[recent.next] = std::move(view);
  recent.next = (recent.next + 1) % kRecent;
  return data;
}

}  // namespace dt::collective
