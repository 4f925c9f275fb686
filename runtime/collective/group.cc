// SPDX-License-Identifier: Apache-2.0
#include "collective/group.h"

#include <new>
#include <utility>

namespace dt::collective {
namespace {

/// "host.segments 8 and 4", of what differs; empty: nothing.
std::string difference_text(const Shape& theirs, const Shape& own) {
  const struct {
    const char* name;
    int64_t theirs;
    int64_t own;
  } entries[] = {
      {"inline_bytes", theirs.inline_bytes, own.inline_bytes},
      {"slot_bytes", theirs.slot_bytes, own.slot_bytes},
      {"ring_bytes", theirs.slots * theirs.slot_bytes, own.slots * own.slot_bytes},
      {"segment_bytes", theirs.thresholds.segment_bytes, own.thresholds.segment_bytes},
      {"segments", theirs.thresholds.segments, own.thresholds.segments},
      {"exchange_ranks", theirs.thresholds.exchange_ranks, own.thresholds.exchange_ranks},
      {"streaming_bytes", theirs.thresholds.streaming_bytes, own.thresholds.streaming_bytes},
      {"push_bytes", theirs.thresholds.push_bytes, own.thresholds.push_bytes},
      {"mapped_bytes", theirs.thresholds.mapped_bytes, own.thresholds.mapped_bytes},
  };
  std::string text;
  for (const auto& entry : entries) {
    if (entry.theirs == entry.own) continue;
    text += format("%shost.%s %lld, here %lld", text.empty() ? "" : "; ", entry.name,
                   static_cast<long long>(entry.theirs), static_cast<long long>(entry.own));
  }
  return text;
}

/// `block` is of `rank`, and not what the caller's own is.
Status differs_from(const Group::Options& opened, int32_t rank, const Block& block) {
  const Member& member = opened.members[rank];
  const std::string what = block.magic == Block::kMagic ? difference_text(block.shape, opened.shape)
                                                        : "no block of this release";
  ErrorInfo info;
  info.code = Code::kMismatch;
  info.rank = member.world_rank;
  info.host = opened.host;
  info.pid = member.pid;
  info.message = format(
      "communicator \"%s\": rank %d (%s, pid %lld) differs from rank %d: %s; set the same host.* "
      "values on all ranks",
      opened.name.c_str(), member.world_rank, opened.host.c_str(),
      static_cast<long long>(member.pid), opened.members[opened.rank].world_rank,
      what.empty() ? format("%d members, here %d", block.members,
                            static_cast<int32_t>(opened.members.size()))
                         .c_str()
                   : what.c_str());
  return Status(std::move(info));
}

}  // namespace

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
  std::vector<int32_t> nodes;
  for (const Member& member : opened.members)
    nodes.push_back(opened.arena->node(member.local_rank));
  group->levels_ = Levels(nodes, opened.rank);
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
        return differs_from(opened, rank, *block);
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

void Group::map_slots(int64_t at_least) {
  const int64_t slots = std::min(std::max(at_least, 2 * mapped_slots_ + 1), options_.shape.slots);
  arena().map_pages(own().ring + mapped_slots_ * options_.shape.slot_bytes,
                    (slots - mapped_slots_) * options_.shape.slot_bytes);
  mapped_slots_ = slots;
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
  // The oldest may be what the collective that is under way reads or writes.
  if (holds_views_ && recent.views[recent.next]) {
    replaced_.push_back(std::move(recent.views[recent.next]));
  }
  recent.views[recent.next] = std::move(view);
  recent.next = (recent.next + 1) % kRecent;
  return data;
}

}  // namespace dt::collective
