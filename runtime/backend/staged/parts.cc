// SPDX-License-Identifier: Apache-2.0
#include "backend/staged/parts.h"

#include <algorithm>

#include "base/dtype.h"

namespace dt::backend {
namespace {

using collective::Blocks;
using collective::Collective;
using collective::Extent;
using collective::Kind;

Extent cut(Extent whole, int64_t begin, int64_t count) {
  return {whole.offset + begin, std::clamp<int64_t>(whole.count - begin, 0, count)};
}

}  // namespace

int64_t Parts::sent(const Collective& collective) const {
  switch (collective.kind) {
    case Kind::kReduceScatter:
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
    case Kind::kGatherv: return size_;
    case Kind::kScatter:
    case Kind::kScatterv: return collective.root == rank_ ? size_ : 0;
    case Kind::kRecv:
    case Kind::kBarrier: return 0;
    case Kind::kBroadcast: return collective.root == rank_ ? 1 : 0;
    default: return 1;
  }
}

int64_t Parts::received(const Collective& collective) const {
  switch (collective.kind) {
    case Kind::kAllgather:
    case Kind::kAllgatherv:
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
    case Kind::kScatterv: return size_;
    case Kind::kGather:
    case Kind::kGatherv: return collective.root == rank_ ? size_ : 0;
    case Kind::kSend:
    case Kind::kBarrier: return 0;
    case Kind::kReduce: return collective.root == rank_ ? 1 : 0;
    default: return 1;
  }
}

int64_t Parts::most(const Collective& collective) const {
  if (collective::moves_blocks(collective.kind)) return size_;
  return std::max<int64_t>({sent(collective), received(collective), 1});
}

Extent Parts::sent_at(const Collective& collective, int64_t part, int64_t begin,
                      int64_t count) const {
  if (!collective::is_irregular(collective.kind)) return {part * collective.count + begin, count};
  return cut(collective::outgoing(collective, rank_, size_, static_cast<int32_t>(part)), begin,
             count);
}

Extent Parts::received_at(const Collective& collective, int64_t part, int64_t begin,
                          int64_t count) const {
  if (!collective::is_irregular(collective.kind)) return {part * collective.count + begin, count};
  return cut(collective::incoming(collective, rank_, size_, static_cast<int32_t>(part)), begin,
             count);
}

std::shared_ptr<const Blocks> Parts::chunk_of(const Collective& collective, int64_t begin,
                                              int64_t count) const {
  auto blocks = std::make_shared<Blocks>();
  const bool multicast = collective::is_multicast(collective.kind);
  int64_t sent = 0;
  int64_t received = 0;
  for (int32_t part = 0; part < size_; ++part) {
    const int64_t out = sent_at(collective, part, begin, count).count;
    const int64_t in = received_at(collective, part, begin, count).count;
    blocks->outgoing.push_back({multicast ? 0 : sent, out});
    blocks->incoming.push_back({received, in});
    sent += out;
    received += in;
  }
  return blocks;
}

std::vector<int64_t> Parts::table_of(const Collective& collective) const {
  std::vector<int64_t> table;
  for (const Extent& block : collective.blocks->outgoing) table.push_back(block.count);
  for (const Extent& block : collective.blocks->incoming) table.push_back(block.count);
  return table;
}

Result<int64_t> Parts::longest(const Collective& collective,
                               const std::vector<int64_t>& tables) const {
  const auto entry = [&](int64_t rank, int64_t index) {
    return tables[static_cast<size_t>(2 * size_ * rank + index)];
  };
  bool differ = false;
  for (int32_t from = 0; from < size_; ++from) {
    for (int32_t to = 0; to < size_; ++to) differ |= entry(from, to) != entry(to, size_ + from);
  }
  if (!differ) return tables.empty() ? 0 : *std::max_element(tables.begin(), tables.end());
  const auto found = collective::difference(
      collective.dtype, size_, [&](int32_t rank, int32_t peer) { return entry(rank, peer); },
      [&](int32_t rank, int32_t peer) { return entry(rank, size_ + peer); },
      [](int32_t rank) { return format("rank %d", rank); });
  ErrorInfo info;
  info.code = Code::kMismatch;
  info.operation = collective::kind_name(collective.kind);
  info.message = format("%s, rank %d: %s", info.operation.c_str(), rank_, found.text.c_str());
  return Status(std::move(info));
}

}  // namespace dt::backend
