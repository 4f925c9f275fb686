// SPDX-License-Identifier: Apache-2.0
// alltoall, gather, scatter and their irregular forms, over every backend.
#include "collective/blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "../../sanitizers.h"
#include "harness.h"

using namespace conformance;
using dt::collective::Blocks;
using dt::collective::Extent;

namespace {

constexpr int64_t kBlocksMs = 60'000;
constexpr Kind kBlockKinds[] = {Kind::kAlltoall, Kind::kAlltoallv, Kind::kGather,    Kind::kGatherv,
                                Kind::kScatter,  Kind::kScatterv,  Kind::kAllgatherv};

Setup blocks_setup(const char* backend, int32_t size) {
  Setup one;
  one.backend = backend;
  one.size = size;
  // Small, so that a few thousand elements go around the ring several times.
  one.host.inline_bytes = 256;
  one.host.slot_bytes = 1024;
  one.host.ring_bytes = 4096;
  return one;
}

Setup blocks_over_hosts(std::vector<int32_t> hosts) {
  Setup one = blocks_setup("multihost", static_cast<int32_t>(hosts.size()));
  one.hosts = std::move(hosts);
  return one;
}

std::vector<Setup> block_setups() {
  return {blocks_setup("self", 1),         blocks_setup("host", 1),
          blocks_setup("host", 2),         blocks_setup("host", 3),
          blocks_setup("host", 8),         blocks_over_hosts({0, 1}),
          blocks_over_hosts({0, 1, 0, 1}), blocks_over_hosts({0, 0, 0, 1}),
          blocks_over_hosts({0, 1, 2}),    blocks_setup("nccl", 1),
          blocks_setup("nccl", 2),         blocks_setup("nccl", 4),
          blocks_setup("staged", 2),       blocks_setup("staged", 3)};
}

void on_block_setups(const std::vector<Setup>& setups, const std::function<void(Rank&)>& body) {
  for (const Setup& one : setups) {
    CAPTURE(one.backend);
    CAPTURE(one.size);
    std::string hosts;
    for (const int32_t host : one.hosts) hosts += dt::format("%d", host);
    CAPTURE(hosts);
    for (const std::string& failure : run_ranks(one, body)) FAIL_CHECK(failure);
  }
}

/// How long the blocks are, and in which order they lie.
enum class Layout { kEqual, kUneven, kOneLong, kBackwards };
constexpr Layout kLayouts[] = {Layout::kEqual, Layout::kUneven, Layout::kOneLong,
                               Layout::kBackwards};

struct Case {
  Kind kind = Kind::kAlltoall;
  Dtype dtype = Dtype::kI32;
  int64_t unit = 1;
  int32_t root = 0;
  Layout layout = Layout::kEqual;
  bool send_shared = false;
  bool recv_shared = false;
  bool misaligned = false;
  bool in_place = false;  ///< where the kind has it

  bool irregular() const { return dt::is_irregular(kind); }
  /// Elements that rank `from` sends to rank `to` of `size`.
  int64_t count(int32_t from, int32_t to, int32_t size) const {
    const bool gathers = kind == Kind::kGather || kind == Kind::kGatherv;
    const bool scatters = kind == Kind::kScatter || kind == Kind::kScatterv;
    if ((gathers && to != root) || (scatters && from != root)) return 0;
    if (kind == Kind::kAllgatherv) to = 0;
    if (!irregular() || layout == Layout::kEqual) return unit;
    if (layout == Layout::kOneLong) return from == size - 1 && to == 0 ? unit * 5 : (from + to) % 2;
    return (from * 7 + to * 3) % 5 * unit / 2;
  }
  std::string text(int32_t size) const {
    return dt::format("%s %s x %lld root %d layout %d%s%s%s%s of %d ranks", dt::kind_name(kind),
                      dtype_name(dtype), static_cast<long long>(unit), root,
                      static_cast<int>(layout), send_shared ? " send shared" : "",
                      recv_shared ? " recv shared" : "", misaligned ? " misaligned" : "",
                      in_place ? " in place" : "", size);
  }
};

double block_value(const Case& one, int32_t from, int32_t to, int64_t index) {
  // The same block goes to all.
  const int64_t pair = from * 16 + (one.kind == Kind::kAllgatherv ? 0 : to);
  const int64_t value = pair * 4099 + index;
  return static_cast<double>(one.dtype == Dtype::kU8 ? value % 251 : value % 8'000'000);
}

/// Blocks one behind the other, or in the opposite order with an element between them.
std::vector<Extent> lay_out(const std::vector<int64_t>& counts, bool backwards, int64_t* out_end) {
  const auto size = static_cast<int32_t>(counts.size());
  std::vector<Extent> extents(counts.size());
  int64_t end = 0;
  for (int32_t i = 0; i < size; ++i) {
    const auto rank = static_cast<size_t>(backwards ? size - 1 - i : i);
    if (backwards) ++end;
    extents[rank] = {end, counts[rank]};
    end += counts[rank];
  }
  *out_end = end;
  return extents;
}

class BlockBuffer {
 public:
  BlockBuffer(const Rank& rank, bool shared, bool misaligned, int64_t bytes) : rank_(rank) {
    bytes += 16;
    if (shared) {
      auto memory = rank.backend->allocate(bytes);
      rank.expect_ok(memory.status(), "allocate");
      shared_ = memory.ok() ? memory.value() : nullptr;
      data_ = static_cast<char*>(shared_);
    } else {
      ordinary_.resize(static_cast<size_t>(bytes));
      data_ = ordinary_.data() + (misaligned ? 1 : 0);
    }
  }
  ~BlockBuffer() { rank_.expect_ok(rank_.backend->release(shared_), "release"); }
  BlockBuffer(const BlockBuffer&) = delete;
  BlockBuffer& operator=(const BlockBuffer&) = delete;
  char* data() const { return data_; }

 private:
  const Rank& rank_;
  std::vector<char> ordinary_;
  void* shared_ = nullptr;
  char* data_ = nullptr;
};

/// Runs it and compares every element, and what lies between the blocks, with a plain loop.
void check_blocks(const Rank& rank, const Case& one) {
  const int32_t size = rank.size;
  const int32_t me = rank.rank;
  const int64_t element = dt::dtype_bytes(one.dtype);
  const bool backwards = one.irregular() && one.layout == Layout::kBackwards;
  std::vector<int64_t> out_counts;
  std::vector<int64_t> in_counts;
  for (int32_t peer = 0; peer < size; ++peer) {
    out_counts.push_back(one.count(me, peer, size));
    in_counts.push_back(one.count(peer, me, size));
  }
  int64_t out_end = 0;
  int64_t in_end = 0;
  auto blocks = std::make_shared<Blocks>();
  blocks->outgoing = lay_out(out_counts, backwards, &out_end);
  blocks->incoming = lay_out(in_counts, backwards, &in_end);
  if (one.kind == Kind::kAllgatherv) {
    blocks->outgoing.assign(out_counts.size(), {0, out_counts[0]});
    out_end = out_counts[0];
  }
  BlockBuffer first(rank, one.send_shared, one.misaligned, out_end * element);
  BlockBuffer second(rank, one.recv_shared, one.misaligned, in_end * element);
  char* send = first.data();
  char* recv = second.data();
  const auto own = static_cast<size_t>(me);
  const bool gathers = one.kind == Kind::kGather || one.kind == Kind::kGatherv;
  const bool scatters = one.kind == Kind::kScatter || one.kind == Kind::kScatterv;
  if (one.in_place && ((gathers && me == one.root) || one.kind == Kind::kAllgatherv)) {
    send = recv + blocks->incoming[own].offset * element;
    if (gathers) blocks->outgoing[own].offset = 0;
  }
  if (one.in_place && scatters && me == one.root) {
    recv = send + blocks->outgoing[own].offset * element;
    blocks->incoming[own].offset = 0;
  }
  const bool kept_apart = recv == second.data();
  if (kept_apart) {
    for (int64_t i = 0; i < in_end; ++i) encode(one.dtype, recv, i, 99);
  }
  for (int32_t to = 0; to < size; ++to) {
    const Extent block = blocks->outgoing[static_cast<size_t>(to)];
    for (int64_t i = 0; i < block.count; ++i) {
      encode(one.dtype, send, block.offset + i, block_value(one, me, to, i));
    }
  }
  Collective collective;
  collective.kind = one.kind;
  collective.dtype = one.dtype;
  collective.root = one.root;
  collective.send = out_end > 0 ? send : nullptr;
  collective.recv = in_end > 0 ? recv : nullptr;
  collective.count = one.irregular() ? std::max(out_end, in_end) : one.unit;
  collective.deadline = Deadline::after_ms(kBlocksMs);
  if (one.irregular()) collective.blocks = blocks;
  const std::string what = one.text(size);
  const Status status = rank.run(collective);
  if (!status.ok()) return rank.expect_ok(status, what);
  std::vector<double> wanted(static_cast<size_t>(in_end), 99);
  for (int32_t from = 0; from < size; ++from) {
    const Extent block = blocks->incoming[static_cast<size_t>(from)];
    for (int64_t i = 0; i < block.count && (kept_apart || from == one.root); ++i) {
      wanted[static_cast<size_t>(block.offset + i)] = block_value(one, from, me, i);
    }
  }
  const int64_t looked_at = kept_apart ? in_end : blocks->incoming[own].count;
  for (int64_t i = 0; i < looked_at; ++i) {
    const double found = decode(one.dtype, recv, i);
    if (found == wanted[static_cast<size_t>(i)]) continue;
    rank.expect(
        false, dt::format("%s: element %lld is %g, not %g", what.c_str(), static_cast<long long>(i),
                          found, wanted[static_cast<size_t>(i)]));
    return;
  }
}

/// An alltoallv of one element for each pair; but rank 0 sends `sent` to rank 1, which expects
/// `expected`.
Status run_uneven(const Rank& rank, int64_t sent, int64_t expected) {
  const auto size = static_cast<size_t>(rank.size);
  std::vector<int32_t> send(size + 5000, rank.rank);
  std::vector<int32_t> recv(size + 5000, -1);
  std::vector<int64_t> out(size, 1);
  std::vector<int64_t> in(size, 1);
  if (rank.rank == 0) out[1] = sent;
  if (rank.rank == 1) in[0] = expected;
  auto blocks = std::make_shared<Blocks>();
  int64_t out_end = 0;
  int64_t in_end = 0;
  blocks->outgoing = lay_out(out, false, &out_end);
  blocks->incoming = lay_out(in, false, &in_end);
  Collective collective;
  collective.kind = Kind::kAlltoallv;
  collective.dtype = Dtype::kI32;
  collective.send = send.data();
  collective.recv = recv.data();
  collective.count = std::max(out_end, in_end);
  collective.blocks = blocks;
  collective.deadline = Deadline::after_ms(kBlocksMs);
  return rank.run(collective);
}

}  // namespace

TEST_CASE("Blocks: every kind brings every element to its place, however long the blocks are") {
  on_block_setups(block_setups(), [](Rank& rank) {
    int turn = 0;
    for (const Kind kind : kBlockKinds) {
      for (const int64_t unit : {0, 1, 65, 3001}) {
        for (const Layout layout : kLayouts) {
          Case one;
          one.kind = kind;
          one.unit = unit;
          one.layout = layout;
          if (one.irregular() == (layout == Layout::kEqual)) continue;
          one.root = ++turn % rank.size;
          one.send_shared = turn % 2 == 0;
          one.recv_shared = turn % 3 == 0;
          check_blocks(rank, one);
        }
      }
    }
  });
}

TEST_CASE("Blocks: every size of element, misaligned, in place, shared on some ranks only") {
  on_block_setups(block_setups(), [](Rank& rank) {
    const bool on_device = rank.backend->device() != nullptr;  // where elements are aligned
    for (const Kind kind : kBlockKinds) {
      for (const int64_t unit : {5, 900}) {
        for (int form = 0; form < 3; ++form) {
          constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kI32, Dtype::kF64};
          Case one;
          one.kind = kind;
          one.dtype = kDtypes[(form + unit) % 3];
          one.unit = unit;
          one.root = rank.size - 1;
          one.layout = form == 0 ? Layout::kUneven : Layout::kBackwards;
          one.misaligned = form == 0 && !on_device;
          one.in_place = form == 1;
          one.send_shared = form == 2 && rank.rank % 2 == 0;
          one.recv_shared = form == 2 && rank.rank % 2 == 1;
          check_blocks(rank, one);
        }
      }
    }
  });
}

TEST_CASE("Blocks: any kind, from any root, may be the first operation of a world or a part") {
  const auto first = [](const Rank& rank, Kind kind, int32_t root) {
    if (kind == Kind::kSend) {  // to the next rank, and from the one before
      int32_t out = rank.rank;
      int32_t in = -1;
      Collective send;
      send.kind = kind;
      send.send = &out;
      send.count = 1;
      send.dtype = Dtype::kI32;
      send.root = (rank.rank + 1) % rank.size;
      send.deadline = Deadline::after_ms(kBlocksMs);
      Collective recv = send;
      recv.kind = Kind::kRecv;
      recv.send = nullptr;
      recv.recv = &in;
      recv.root = (rank.rank + rank.size - 1) % rank.size;
      const auto sent = std::make_shared<Work>();
      rank.expect_ok(rank.backend->submit(send, sent), "submit");
      rank.expect_ok(rank.run(recv), "recv");
      rank.expect(rank.backend->wait(*sent, {send.deadline}), "sent");
      rank.expect_ok(sent->status(), "send");
      rank.expect(in == recv.root, dt::format("got %d from %d", in, recv.root));
    } else if (dt::moves_blocks(kind)) {
      Case one;
      one.kind = kind;
      one.unit = 3;
      one.root = root;
      one.layout = one.irregular() ? Layout::kUneven : Layout::kEqual;
      check_blocks(rank, one);
    } else if (kind == Kind::kBarrier) {
      rank.expect_ok(rank.run(Collective()), "barrier");
    } else {
      check_collective(rank, kind, Dtype::kI32, ReduceOp::kSum, 100, root, Placement::kOrdinary);
    }
  };
  std::vector<std::pair<Kind, bool>> kinds;  // and whether there is a root
  for (const Kind kind : kBlockKinds) {
    kinds.emplace_back(kind, kind == Kind::kGather || kind == Kind::kGatherv ||
                                 kind == Kind::kScatter || kind == Kind::kScatterv);
  }
  for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllgather,
                          Kind::kReduceScatter, Kind::kBarrier, Kind::kSend}) {
    kinds.emplace_back(kind, kind == Kind::kReduce || kind == Kind::kBroadcast);
  }
  for (const std::vector<int32_t>& of_rank :
       {std::vector<int32_t>{0, 1}, {0, 1, 2}, {0, 0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 1, 3, 4}}) {
    const auto size = static_cast<int32_t>(of_rank.size());
    for (const auto& [each, rooted] : kinds) {
      const Kind kind = each;
      for (int32_t root = 0; root < (rooted ? size : 1); ++root) {
        CAPTURE(dt::kind_name(kind));
        CAPTURE(root);
        on_block_setups({blocks_over_hosts(of_rank)}, [&](Rank& rank) {
          // No operation of the world comes before, which would make the connections.
          auto part = rank.backend->split(0, -rank.rank, "part", Deadline::after_ms(kBlocksMs));
          rank.expect_ok(part.status(), "split");
          if (!part.ok()) return;
          Rank turned = rank;
          turned.backend = part.value().backend;
          turned.rank = rank.size - 1 - rank.rank;
          first(turned, kind, root);
        });
        on_block_setups({blocks_over_hosts(of_rank)}, [&](Rank& rank) { first(rank, kind, root); });
      }
    }
  }
}

TEST_CASE("Blocks: larger than every ring and between other operations") {
  std::vector<Setup> setups = {blocks_setup("host", dt::test::kThreadSanitizer ? 2 : 4)};
  if (!dt::test::kThreadSanitizer) setups.push_back(blocks_setup("host", 2));
  for (Setup& one : setups) one.host = {};
  setups.push_back(blocks_over_hosts({0, 1, 1}));
  setups.push_back(blocks_setup("staged", 2));
  on_block_setups(setups, [](Rank& rank) {
    for (const Kind kind : kBlockKinds) {
      Case one;
      one.kind = kind;
      one.layout = Layout::kUneven;
      one.unit = 100'003;
      check_blocks(rank, one);
      check_collective(rank, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 30'000, 0,
                       Placement::kOrdinary);
      one.send_shared = true;
      check_blocks(rank, one);
    }
  });
}

TEST_CASE("Blocks: works in flight of every kind complete in order") {
  on_block_setups(block_setups(), [](Rank& rank) {
    constexpr int64_t kCount = 300;
    const auto all = static_cast<size_t>(rank.size * kCount);
    std::vector<std::vector<int32_t>> sent;
    std::vector<std::vector<int32_t>> received;
    std::vector<std::shared_ptr<Work>> works;
    for (int round = 0; round < 6; ++round) {
      sent.emplace_back(all, rank.rank + round * 100);
      received.emplace_back(all, -1);
      Collective collective;
      collective.kind = round % 3 == 0   ? Kind::kAlltoall
                        : round % 3 == 1 ? Kind::kGather
                                         : Kind::kScatter;
      collective.dtype = Dtype::kI32;
      collective.send = sent.back().data();
      collective.recv = received.back().data();
      collective.count = kCount;
      collective.deadline = Deadline::after_ms(kBlocksMs);
      works.push_back(std::make_shared<Work>());
      rank.expect_ok(rank.backend->submit(collective, works.back()), "submit");
    }
    rank.expect(rank.backend->wait(*works.back(), {Deadline::after_ms(kBlocksMs)}), "wait");
    for (size_t i = 0; i < works.size(); ++i) {
      rank.expect(works[i]->done(), "a work is behind a later one");
      rank.expect_ok(works[i]->status(), "work");
      const bool whole = i % 3 == 0 || (i % 3 == 1 && rank.rank == 0);
      const int32_t last = whole ? rank.size - 1 : 0;
      const size_t at = i % 3 == 2 ? kCount - 1 : whole ? all - 1 : 0;
      const int32_t wanted = i % 3 == 1 && !whole ? -1 : last + static_cast<int32_t>(i) * 100;
      rank.expect(received[i][at] == wanted,
                  dt::format("work %zu gave %d, not %d", i, received[i][at], wanted));
    }
  });
}

TEST_CASE("Blocks: a pair that disagrees about its count fails the operation on all ranks") {
  for (const Setup& one :
       {blocks_setup("host", 2), blocks_setup("host", 4), blocks_setup("staged", 3),
        blocks_over_hosts({0, 1}), blocks_over_hosts({0, 0, 1}), blocks_over_hosts({0, 1, 0, 2})}) {
    for (const auto& counts : {std::pair<int64_t, int64_t>{5, 7}, {3000, 0}, {0, 1}}) {
      const int64_t sent = counts.first;
      const int64_t expected = counts.second;
      const std::string wanted = dt::format("sends %lld to rank 1", static_cast<long long>(sent));
      const std::string and_more =
          dt::format("which expects %lld", static_cast<long long>(expected));
      const auto body = [&](Rank& rank) {
        const Status status = run_uneven(rank, sent, expected);
        rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
        const std::string& text = status.message();
        rank.expect(text.find("rank 0") != std::string::npos &&
                        text.find(wanted) != std::string::npos &&
                        text.find(and_more) != std::string::npos,
                    text);
        rank.expect(rank.backend->broken().code() == Code::kMismatch, "it is broken");
      };
      for (const std::string& failure : run_ranks(one, body)) FAIL_CHECK(failure);
    }
  }
}

TEST_CASE("Blocks: ranks that call different kinds, roots or counts are told apart") {
  for (const Setup& one : {blocks_setup("host", 3), blocks_over_hosts({0, 1, 1})}) {
    for (int form = 0; form < 3; ++form) {
      const auto body = [&](Rank& rank) {
        std::vector<int32_t> send(30, 1);
        std::vector<int32_t> recv(30, 1);
        const bool other = rank.rank == 2;
        auto blocks = std::make_shared<Blocks>();
        blocks->outgoing.assign(3, {0, 1});
        blocks->incoming = {{0, 1}, {1, 1}, {2, 1}};
        Collective collective;
        collective.kind = form == 0   ? (other ? Kind::kAlltoallv : Kind::kAllgatherv)
                          : form == 1 ? Kind::kGather
                                      : Kind::kAlltoall;
        if (form == 0) collective.blocks = blocks;
        collective.dtype = Dtype::kI32;
        collective.root = form == 1 && other ? 1 : 0;
        collective.send = send.data();
        collective.recv = recv.data();
        collective.count = form == 2 && other ? 4 : 3;
        collective.deadline = Deadline::after_ms(kBlocksMs);
        const Status status = rank.run(collective);
        rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
        const char* const wanted[] = {"alltoallv i32", "gather i32 x 3 root 1", "alltoall i32 x 4"};
        rank.expect(status.message().find(wanted[form]) != std::string::npos, status.message());
      };
      for (const std::string& failure : run_ranks(one, body)) FAIL_CHECK(failure);
    }
  }
}

TEST_CASE("Blocks: a rank with nothing to give fails the operation everywhere, not the comm") {
  on_block_setups({blocks_setup("self", 1), blocks_setup("host", 3), blocks_over_hosts({0, 1, 0})},
                  [](Rank& rank) {
                    for (const Kind kind : kBlockKinds) {
                      std::vector<int32_t> send(3000, 1);
                      std::vector<int32_t> recv(3000, 7);
                      auto blocks = std::make_shared<Blocks>();
                      const auto size = static_cast<size_t>(rank.size);
                      blocks->outgoing.assign(size, {0, 0});
                      blocks->incoming.assign(size, {0, 0});
                      Collective collective;
                      collective.kind = kind;
                      if (dt::is_irregular(kind)) collective.blocks = blocks;
                      collective.dtype = Dtype::kI32;
                      collective.send = send.data();
                      collective.recv = recv.data();
                      collective.count = 900;
                      collective.deadline = Deadline::after_ms(kBlocksMs);
                      if (rank.rank == rank.size - 1) {
                        collective.withheld = std::make_shared<const std::string>("nothing here");
                        collective.send = nullptr;
                      }
                      const Status status = rank.run(collective);
                      rank.expect(status.code() == Code::kInvalidState, status.message());
                      rank.expect(status.message().find("nothing here") != std::string::npos,
                                  status.message());
                      rank.expect(recv[0] == 7, "no data moved");
                      rank.expect_ok(rank.backend->broken(), "whole");
                    }
                    Case one;
                    one.unit = 400;
                    check_blocks(rank, one);
                  });
}

TEST_CASE("Blocks: who does not come is named, and so is the operation") {
  on_block_setups({blocks_setup("host", 3)}, [](Rank& rank) {
    if (rank.rank == 1) return rank.meet();
    std::vector<int32_t> send(3000, 1);
    std::vector<int32_t> recv(3000, 1);
    Collective collective;
    collective.kind = Kind::kAlltoall;
    collective.dtype = Dtype::kI32;
    collective.send = send.data();
    collective.recv = recv.data();
    collective.count = 1000;
    collective.deadline = Deadline::after_ms(50);
    const Status status = rank.run(collective);
    rank.expect(status.code() == Code::kTimeout, status.message());
    rank.expect(status.message().find("alltoall #1") != std::string::npos &&
                    status.message().find("has not arrived: rank 1") != std::string::npos,
                status.message());
    rank.meet();
  });
}
