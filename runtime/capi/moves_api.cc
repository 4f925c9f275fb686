// SPDX-License-Identifier: Apache-2.0
// alltoall, gather, scatter, and all with counts of their own.
#include <algorithm>
#include <limits>

#include "capi/objects.h"
#include "capi/operation.h"
#include "collective/blocks.h"

namespace dt::capi {
namespace {

using backend::Collective;
using backend::Kind;
using collective::Blocks;
using collective::Extent;

// The buffers may not coincide anywhere.
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::min();

/// The arguments that say where blocks lie, by rank; null offsets: one behind the other.
struct Table {
  const char* counts_name;
  const int64_t* counts;
  const char* offsets_name;
  const int64_t* offsets;
};

Status read_table(const Call& call, const Table& table, int32_t size, dt_dtype dtype,
                  std::vector<Extent>* out) {
  DT_TRY(call.not_null(table.counts, table.counts_name));
  const int64_t most = std::numeric_limits<int64_t>::max() / dtype_bytes(static_cast<Dtype>(dtype));
  int64_t packed = 0;
  for (int32_t rank = 0; rank < size; ++rank) {
    const int64_t count = table.counts[rank];
    const int64_t offset = table.offsets == nullptr ? packed : table.offsets[rank];
    if (count < 0) {
      return call.invalid("%s[%d] is %lld; it must be >= 0", table.counts_name, rank,
                          static_cast<long long>(count));
    }
    if (offset < 0) {
      return call.invalid("%s[%d] is %lld; it must be >= 0", table.offsets_name, rank,
                          static_cast<long long>(offset));
    }
    if (count > most - offset || count > most - packed) {
      return call.invalid("%s[%d] is %lld: the buffer does not fit into 2^63 bytes",
                          table.counts_name, rank, static_cast<long long>(count));
    }
    packed += count;
    out->push_back({offset, count});
  }
  return {};
}

/// Blocks in `recv` may not overlap; without offsets they do not.
Status check_apart(const Call& call, const Table& table, const std::vector<Extent>& extents) {
  if (table.offsets == nullptr) return {};
  std::vector<size_t> ranks;
  bool ascending = true;
  int64_t end = 0;
  for (size_t rank = 0; rank < extents.size(); ++rank) {
    if (extents[rank].count == 0) continue;
    ascending = ascending && extents[rank].offset >= end;
    end = extents[rank].end();
    ranks.push_back(rank);
  }
  if (ascending) return {};
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](size_t a, size_t b) { return extents[a].offset < extents[b].offset; });
  for (size_t i = 1; i < ranks.size(); ++i) {
    const size_t a = ranks[i - 1];
    const size_t b = ranks[i];
    if (extents[a].end() <= extents[b].offset) continue;
    return call.invalid(
        "the blocks of ranks %zu and %zu overlap in recv: %s[%zu] is %lld with %lld elements, "
        "%s[%zu] is %lld with %lld; give offsets that keep them apart",
        a, b, table.offsets_name, a, static_cast<long long>(extents[a].offset),
        static_cast<long long>(extents[a].count), table.offsets_name, b,
        static_cast<long long>(extents[b].offset), static_cast<long long>(extents[b].count));
  }
  return {};
}

/// The table of what is written.
Status read_incoming(const Call& call, const Table& table, int32_t size, dt_dtype dtype,
                     std::vector<Extent>* out) {
  DT_TRY(read_table(call, table, size, dtype, out));
  return check_apart(call, table, *out);
}

/// The one count of a rank that is not the root.
Status check_count(const Call& call, const char* argument, int64_t count, dt_dtype dtype) {
  DT_TRY(check_elements(call, 0, dtype, 1));
  if (count >= 0 &&
      count <= std::numeric_limits<int64_t>::max() / dtype_bytes(static_cast<Dtype>(dtype))) {
    return {};
  }
  return call.invalid("%s is %lld; it must be >= 0 and fit into 2^63 bytes", argument,
                      static_cast<long long>(count));
}

int64_t total(const std::vector<Extent>& extents) {
  int64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.count;
  return sum;
}

int64_t end_of(const std::vector<Extent>& extents) {
  int64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.count > 0) end = std::max(end, extent.end());
  }
  return end;
}

/// In place, the one block of a buffer lies where it belongs in the other, at element `place`.
Status check_blocks(const Call& call, const Collective& collective, bool send_is_whole,
                    int64_t place) {
  const int64_t element = dtype_bytes(collective.dtype);
  const int64_t out = end_of(collective.blocks->outgoing);
  const int64_t in = end_of(collective.blocks->incoming);
  DT_TRY(check_buffer(call, "send", collective.send, out));
  DT_TRY(check_buffer(call, "recv", collective.recv, in));
  const int64_t allowed = place == kNowhere ? kNowhere : place * element;
  return send_is_whole ? check_overlap(call, collective.send, out * element, collective.recv,
                                       in * element, allowed)
                       : check_overlap(call, collective.recv, in * element, collective.send,
                                       out * element, allowed);
}

/// The caller's own block, of which it names both ends.
Status check_own(const Call& call, const Blocks& blocks, int32_t rank) {
  const auto own = static_cast<size_t>(rank);
  const int64_t sent = blocks.outgoing[own].count;
  const int64_t expected = blocks.incoming[own].count;
  if (sent == expected) return {};
  return call.invalid("this rank, %d, sends %lld elements to itself and expects %lld", rank,
                      static_cast<long long>(sent), static_cast<long long>(expected));
}

Collective collective_of(Kind kind, const void* send, void* recv, int64_t count, dt_dtype dtype,
                         int32_t root, dt_stream stream) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = static_cast<Dtype>(dtype);
  collective.root = root;
  collective.send = send;
  collective.recv = recv;
  collective.count = count;
  collective.stream = stream_of(stream);
  return collective;
}

Status issue_blocks(const Call& call, const CommObject& on, Collective& collective,
                    std::shared_ptr<const Blocks> blocks, bool send_is_whole, int64_t place,
                    dt_work** out_work) {
  DT_TRY(check_own(call, *blocks, on.comm->rank()));
  collective.count = total(blocks->incoming);
  // Of a block that goes to all, once is all that `send` holds.
  if (!collective::is_multicast(collective.kind)) {
    collective.count = std::max(collective.count, total(blocks->outgoing));
  }
  collective.blocks = std::move(blocks);
  DT_TRY(check_blocks(call, collective, send_is_whole, place));
  return issue(call, on, collective, out_work);
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_alltoall(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                      dt_stream stream, dt_work** out_work) {
  return on_comm("dt_alltoall", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int64_t size = on->comm->size();
    DT_TRY(check_elements(call, count, dtype, size));
    DT_TRY(check_buffer(call, "send", send, count));
    DT_TRY(check_buffer(call, "recv", recv, count));
    const int64_t bytes = size * count * dtype_bytes(static_cast<Dtype>(dtype));
    DT_TRY(check_overlap(call, send, bytes, recv, bytes, kNowhere));
    Collective collective = collective_of(Kind::kAlltoall, send, recv, count, dtype, 0, stream);
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_alltoallv(dt_comm* comm, const void* send, const int64_t* send_counts,
                       const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                       const int64_t* recv_offsets, dt_dtype dtype, dt_stream stream,
                       dt_work** out_work) {
  return on_comm("dt_alltoallv", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(check_elements(call, 0, dtype, 1));
    const int32_t size = on->comm->size();
    auto blocks = std::make_shared<Blocks>();
    DT_TRY(read_table(call, {"send_counts", send_counts, "send_offsets", send_offsets}, size, dtype,
                      &blocks->outgoing));
    DT_TRY(read_incoming(call, {"recv_counts", recv_counts, "recv_offsets", recv_offsets}, size,
                         dtype, &blocks->incoming));
    Collective collective = collective_of(Kind::kAlltoallv, send, recv, 0, dtype, 0, stream);
    return issue_blocks(call, *on, collective, std::move(blocks), true, kNowhere, out_work);
  });
}

dt_status dt_gather(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                    int32_t root, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_gather", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int32_t size = on->comm->size();
    DT_TRY(check_elements(call, count, dtype, size));
    DT_TRY(check_rank(call, "root", root, size));
    DT_TRY(check_buffer(call, "send", send, count));
    const bool receives = root == on->comm->rank();
    if (receives) {
      DT_TRY(check_buffer(call, "recv", recv, count));
      const int64_t bytes = count * dtype_bytes(static_cast<Dtype>(dtype));
      DT_TRY(check_overlap(call, recv, size * bytes, send, bytes, root * bytes));
    }
    Collective collective =
        collective_of(Kind::kGather, send, receives ? recv : nullptr, count, dtype, root, stream);
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_gatherv(dt_comm* comm, const void* send, int64_t send_count, void* recv,
                     const int64_t* counts, const int64_t* offsets, dt_dtype dtype, int32_t root,
                     dt_stream stream, dt_work** out_work) {
  return on_comm("dt_gatherv", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int32_t size = on->comm->size();
    DT_TRY(check_count(call, "send_count", send_count, dtype));
    DT_TRY(check_rank(call, "root", root, size));
    auto blocks = std::make_shared<Blocks>();
    blocks->outgoing.assign(static_cast<size_t>(size), {});
    blocks->outgoing[static_cast<size_t>(root)].count = send_count;
    const bool receives = root == on->comm->rank();
    int64_t place = kNowhere;
    if (receives) {
      DT_TRY(read_incoming(call, {"counts", counts, "offsets", offsets}, size, dtype,
                           &blocks->incoming));
      place = blocks->incoming[static_cast<size_t>(root)].offset;
    } else {
      blocks->incoming.assign(static_cast<size_t>(size), {});
    }
    Collective collective =
        collective_of(Kind::kGatherv, send, receives ? recv : nullptr, 0, dtype, root, stream);
    return issue_blocks(call, *on, collective, std::move(blocks), false, place, out_work);
  });
}

dt_status dt_scatter(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                     int32_t root, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_scatter", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int32_t size = on->comm->size();
    DT_TRY(check_elements(call, count, dtype, size));
    DT_TRY(check_rank(call, "root", root, size));
    const bool sends = root == on->comm->rank();
    DT_TRY(check_buffer(call, "recv", recv, count));
    if (sends) {
      DT_TRY(check_buffer(call, "send", send, count));
      const int64_t bytes = count * dtype_bytes(static_cast<Dtype>(dtype));
      DT_TRY(check_overlap(call, send, size * bytes, recv, bytes, root * bytes));
    }
    Collective collective =
        collective_of(Kind::kScatter, sends ? send : nullptr, recv, count, dtype, root, stream);
    return issue(call, *on, collective, out_work);
  });
}

dt_status dt_scatterv(dt_comm* comm, const void* send, const int64_t* counts,
                      const int64_t* offsets, void* recv, int64_t recv_count, dt_dtype dtype,
                      int32_t root, dt_stream stream, dt_work** out_work) {
  return on_comm("dt_scatterv", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int32_t size = on->comm->size();
    DT_TRY(check_count(call, "recv_count", recv_count, dtype));
    DT_TRY(check_rank(call, "root", root, size));
    auto blocks = std::make_shared<Blocks>();
    blocks->incoming.assign(static_cast<size_t>(size), {});
    blocks->incoming[static_cast<size_t>(root)].count = recv_count;
    const bool sends = root == on->comm->rank();
    int64_t place = kNowhere;
    if (sends) {
      DT_TRY(
          read_table(call, {"counts", counts, "offsets", offsets}, size, dtype, &blocks->outgoing));
      place = blocks->outgoing[static_cast<size_t>(root)].offset;
    } else {
      blocks->outgoing.assign(static_cast<size_t>(size), {});
    }
    Collective collective =
        collective_of(Kind::kScatterv, sends ? send : nullptr, recv, 0, dtype, root, stream);
    return issue_blocks(call, *on, collective, std::move(blocks), true, place, out_work);
  });
}

dt_status dt_allgatherv(dt_comm* comm, const void* send, void* recv, const int64_t* counts,
                        const int64_t* offsets, dt_dtype dtype, dt_stream stream,
                        dt_work** out_work) {
  return on_comm("dt_allgatherv", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const int32_t size = on->comm->size();
    DT_TRY(check_elements(call, 0, dtype, 1));
    auto blocks = std::make_shared<Blocks>();
    DT_TRY(read_incoming(call, {"counts", counts, "offsets", offsets}, size, dtype,
                         &blocks->incoming));
    const Extent own = blocks->incoming[static_cast<size_t>(on->comm->rank())];
    blocks->outgoing.assign(static_cast<size_t>(size), {0, own.count});
    Collective collective = collective_of(Kind::kAllgatherv, send, recv, 0, dtype, 0, stream);
    return issue_blocks(call, *on, collective, std::move(blocks), false, own.offset, out_work);
  });
}

}  // extern "C"
