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

int64_t Parts::of(const Collective& collective, const KindBuffer& buffer) const {
  if (buffer.root_only && collective.root != rank_) return 0;
  switch (buffer.holds) {
    case Holds::kNothing: return 0;
    case Holds::kOwnEntry: return 1;
    case Holds::kCount: return is_irregular(collective.kind) ? size_ : 1;
    case Holds::kCountPerRank:
    case Holds::kTable: return size_;
  }
  return 0;
}

int64_t Parts::sent(const Collective& collective) const {
  return of(collective, traits(collective.kind).send);
}

int64_t Parts::received(const Collective& collective) const {
  return of(collective, traits(collective.kind).recv);
}

int64_t Parts::most(const Collective& collective) const {
  if (moves_blocks(collective.kind)) return size_;
  return std::max<int64_t>({sent(collective), received(collective), 1});
}

Extent Parts::sent_at(const Collective& collective, int64_t part, int64_t begin,
                      int64_t count) const {
  if (!is_irregular(collective.kind)) return {part * collective.count + begin, count};
  return cut(collective::outgoing(collective, rank_, size_, static_cast<int32_t>(part)), begin,
             count);
}

Extent Parts::received_at(const Collective& collective, int64_t part, int64_t begin,
                          int64_t count) const {
  if (!is_irregular(collective.kind)) return {part * collective.count + begin, count};
  return cut(collective::incoming(collective, rank_, size_, static_cast<int32_t>(part)), begin,
             count);
}

std::shared_ptr<const Blocks> Parts::chunk_of(const Collective& collective, int64_t begin,
                                              int64_t count) const {
  auto blocks = std::make_shared<Blocks>();
  const bool multicast = is_multicast(collective.kind);
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
  info.operation = kind_name(collective.kind);
  info.message = format("%s, rank %d: %s", info.operation.c_str(), rank_, found.text.c_str());
  return Status(std::move(info));
}

}  // namespace dt::backend
