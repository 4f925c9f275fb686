// SPDX-License-Identifier: Apache-2.0
#include "collective/blocks.h"

namespace dt::collective {
namespace {

constexpr int64_t kPairsListed = 4;  // in a message

/// As the finalizer of splitmix64: Steele, Lea and Flood, OOPSLA 2014.
uint64_t scrambled(uint64_t word) {
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return word ^ word >> 31;
}

uint64_t word_of_block(int32_t from, int32_t to, int64_t count) {
  if (count == 0) return 0;
  const uint64_t pair = static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
  return scrambled(scrambled(pair + 0x9e3779b97f4a7c15) + static_cast<uint64_t>(count));
}

}  // namespace

Extent outgoing(const Collective& collective, int32_t rank, int32_t size, int32_t to) {
  const int64_t count = collective.count;
  switch (collective.kind) {
    case Kind::kAlltoall: return {to * count, count};
    case Kind::kGather: return to == collective.root ? Extent{0, count} : Extent{};
    case Kind::kScatter: return rank == collective.root ? Extent{to * count, count} : Extent{};
    default: break;
  }
  if (collective.blocks == nullptr || to >= size) return {};
  return collective.blocks->outgoing[static_cast<size_t>(to)];
}

Extent incoming(const Collective& collective, int32_t rank, int32_t size, int32_t from) {
  const int64_t count = collective.count;
  switch (collective.kind) {
    case Kind::kAlltoall: return {from * count, count};
    case Kind::kGather: return rank == collective.root ? Extent{from * count, count} : Extent{};
    case Kind::kScatter: return from == collective.root ? Extent{0, count} : Extent{};
    default: break;
  }
  if (collective.blocks == nullptr || from >= size) return {};
  return collective.blocks->incoming[static_cast<size_t>(from)];
}

Collective reduce_for(const Collective& collective, int32_t root, int32_t rank) {
  const Extent block = collective.blocks->outgoing[static_cast<size_t>(root)];
  Collective part = collective;
  part.kind = Kind::kReduce;
  part.blocks = nullptr;
  part.root = root;
  part.count = block.count;
  part.send = static_cast<const char*>(collective.send) + block.offset * collective.element_bytes();
  part.recv = root == rank ? collective.recv : nullptr;
  return part;
}

uint64_t balance(const Collective& collective, int32_t rank, int32_t size) {
  uint64_t sum = 0;
  for (int32_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    sum += word_of_block(rank, peer, outgoing(collective, rank, size, peer).count);
    sum -= word_of_block(peer, rank, incoming(collective, rank, size, peer).count);
  }
  return sum;
}

Difference difference(Dtype dtype, int32_t size,
                      const std::function<int64_t(int32_t, int32_t)>& sent,
                      const std::function<int64_t(int32_t, int32_t)>& expected,
                      const std::function<std::string(int32_t)>& name) {
  Difference result;
  int64_t pairs = 0;
  std::string text;
  for (int32_t from = 0; from < size; ++from) {
    for (int32_t to = 0; to < size; ++to) {
      const int64_t given = sent(from, to);
      const int64_t wanted = expected(to, from);
      if (from == to || given == wanted || ++pairs > kPairsListed) continue;
      if (result.first < 0) result.first = from;
      text += format("%s%s sends %lld to %s, which expects %lld", text.empty() ? "" : "; ",
                     name(from).c_str(), static_cast<long long>(given), name(to).c_str(),
                     static_cast<long long>(wanted));
    }
  }
  if (pairs > kPairsListed) {
    text += format("; and %lld other pairs", static_cast<long long>(pairs - kPairsListed));
  }
  result.text = format(
      "ranks disagree about counts of %s: %s; make both sides name the same count, "
      "then go on with dt_comm_shrink",
      dtype_name(dtype), text.c_str());
  return result;
}

Collective among(const Collective& collective, int32_t size, const std::vector<int32_t>& members,
                 int32_t own) {
  const int32_t rank = members[static_cast<size_t>(own)];
  auto blocks = std::make_shared<Blocks>();
  int64_t sent = 0;
  int64_t received = 0;
  for (const int32_t member : members) {
    blocks->outgoing.push_back(outgoing(collective, rank, size, member));
    blocks->incoming.push_back(incoming(collective, rank, size, member));
    sent += blocks->outgoing.back().count;
    received += blocks->incoming.back().count;
  }
  Collective part;
  part.kind = is_multicast(collective.kind) ? collective.kind : Kind::kAlltoallv;
  part.dtype = collective.dtype;
  part.send = collective.send;
  part.recv = collective.recv;
  part.count = sent > received ? sent : received;
  part.blocks = std::move(blocks);
  return part;
}

}  // namespace dt::collective
