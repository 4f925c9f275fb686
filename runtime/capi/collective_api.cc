// SPDX-License-Identifier: Apache-2.0
// Every operation of a communicator is one dt_collective, checked by the traits of its kind.
#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>

#include "base/kinds.h"
#include "capi/objects.h"
#include "capi/operation.h"
#include "collective/blocks.h"
#include "training/equality.h"

namespace dt::capi {
namespace {

using backend::Collective;
using collective::Blocks;
using collective::Extent;

// The buffers may not coincide anywhere.
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::min();

/// Where blocks lie, by rank; null offsets: one behind the other.
struct Table {
  const char* counts_name;
  const int64_t* counts;
  const char* offsets_name;
  const int64_t* offsets;
};

Table send_table(const dt_collective& given) {
  return {"send_counts", given.send_counts, "send_offsets", given.send_offsets};
}

Table recv_table(const dt_collective& given) {
  return {"recv_counts", given.recv_counts, "recv_offsets", given.recv_offsets};
}

Status read_table(const Call& call, const Table& table, int32_t size, int64_t element,
                  std::vector<Extent>* out) {
  DT_TRY(call.not_null(table.counts, table.counts_name));
  const int64_t most = std::numeric_limits<int64_t>::max() / element;
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

/// One operation on its way from the caller's description to the core's.
class Launch {
 public:
  /// `buffer`: how the caller's one buffer is called in messages; null: send and recv.
  Launch(const Call& call, const CommObject& on, const dt_collective& given, const char* buffer)
      : call_(call),
        on_(on),
        given_(given),
        kind_(traits(static_cast<Kind>(given.kind))),
        send_name_(buffer != nullptr ? buffer : "send"),
        recv_name_(buffer != nullptr ? buffer : "recv"),
        size_(on.comm->size()),
        rank_(on.comm->rank()) {}

  Status run(dt_work** out_work) {
    DT_TRY(read());
    if (kind_.kind == Kind::kReduceScatterv) return reduce_scatterv(out_work);
    const bool custom = out_.op == ReduceOp::kCustom;
    if (kind_.kind == Kind::kReduceScatter && custom) return custom_reduce_scatter(out_work);
    return issue(call_, on_, out_, out_work);
  }

  /// Checks the arguments.
  Status read() {
    out_.kind = kind_.kind;
    out_.stream = stream_of(given_.stream);
    out_.timeout_ms = given_.timeout_ms;
    if (given_.caller_waits != 0 && given_.caller_waits != 1)
      return call_.invalid("caller_waits is %d; it must be 0 or 1", given_.caller_waits);
    out_.caller_waits = given_.caller_waits == 1;
    if (given_.name != nullptr) out_.name = given_.name;
    DT_TRY(refuse_tables());
    if (kind_.kind == Kind::kBarrier) return {};
    const bool per_rank =
        kind_.send.holds == Holds::kCountPerRank || kind_.recv.holds == Holds::kCountPerRank;
    const bool counted =
        kind_.send.holds == Holds::kCount || kind_.recv.holds == Holds::kCount || per_rank;
    const bool custom = given_.combine != nullptr;
    if (custom) DT_TRY(read_combine());
    const dt_dtype dtype = custom ? DT_U8 : given_.dtype;
    DT_TRY(check_elements(call_, counted ? given_.count : 0, dtype, per_rank ? size_ : 1,
                          out_.custom.element_bytes));
    out_.dtype = static_cast<Dtype>(dtype);
    element_ = out_.element_bytes();
    if (kind_.reduces && !custom) {
      DT_TRY(check_op(call_, given_.op));
      out_.op = static_cast<ReduceOp>(given_.op);
      DT_TRY(check_reduction(call_, on_.comm->backend(), out_.dtype, out_.op));
    }
    DT_TRY(read_peer());
    out_.count = given_.count;
    sends_ = has(kind_.send);
    receives_ = has(kind_.recv);
    out_.send = sends_ ? given_.send : nullptr;
    out_.recv = receives_ ? given_.recv : nullptr;
    if (is_irregular(kind_.kind)) DT_TRY(read_blocks());
    if (kind_.kind == Kind::kBroadcast) return read_broadcast();
    DT_TRY(check_buffer(call_, send_name_, out_.send, elements(kind_.send, true)));
    DT_TRY(check_buffer(call_, recv_name_, out_.recv, elements(kind_.recv, false)));
    return check_shared();
  }
  backend::Collective& collective() { return out_; }

 private:
  bool has(const KindBuffer& buffer) const {
    return buffer.holds != Holds::kNothing && (!buffer.root_only || given_.peer == rank_);
  }

  Status read_combine() {
    if (!kind_.reduces) return call_.invalid("combine is set, but %s reduces nothing", kind_.name);
    if (given_.element_bytes < 1 || given_.element_bytes > Combine::kMaxElementBytes) {
      return call_.invalid("element_bytes is %lld; it must be in [1, %lld]",
                           static_cast<long long>(given_.element_bytes),
                           static_cast<long long>(Combine::kMaxElementBytes));
    }
    if (on_.comm->backend().device() != nullptr) {
      return Status(
          Code::kUnsupported,
          format("%s: combine works in host memory only; use dt_comm_host", call_.function()));
    }
    out_.op = ReduceOp::kCustom;
    out_.custom = {given_.combine, given_.combine_data, given_.element_bytes};
    return {};
  }

  /// A table that the kind would not read is a mistake: the caller meant another kind.
  Status refuse_tables() const {
    const auto refuse = [&](const char* name, const void* table) -> Status {
      if (table == nullptr) return {};
      return call_.invalid("%s is not NULL, but %s has no such table", name, kind_.name);
    };
    if (kind_.send.holds != Holds::kTable) {
      DT_TRY(refuse("send_counts", given_.send_counts));
      DT_TRY(refuse("send_offsets", given_.send_offsets));
    }
    if (kind_.recv.holds == Holds::kTable) return {};
    DT_TRY(refuse("recv_counts", given_.recv_counts));
    return refuse("recv_offsets", given_.recv_offsets);
  }

  Status read_peer() {
    if (kind_.peer == PeerRole::kNone) return {};
    const bool is_root = kind_.peer == PeerRole::kRoot;
    DT_TRY(check_rank(call_, is_root ? "root" : "peer", given_.peer, size_));
    if (!is_root && given_.peer == rank_)
      return call_.invalid("peer %d is this rank itself", given_.peer);
    out_.root = given_.peer;
    return {};
  }

  Status read_blocks() {
    auto blocks = std::make_shared<Blocks>();
    DT_TRY(read_side(kind_.send, send_table(given_), &blocks->outgoing));
    DT_TRY(read_side(kind_.recv, recv_table(given_), &blocks->incoming));
    const auto own = static_cast<size_t>(rank_);
    if (kind_.send.holds == Holds::kOwnEntry)
      blocks->outgoing.assign(static_cast<size_t>(size_), {0, blocks->incoming[own].count});
    if (kind_.recv.holds == Holds::kOwnEntry)
      blocks->incoming[own] = {0, blocks->outgoing[own].count};
    if (kind_.recv.holds == Holds::kTable && receives_)
      DT_TRY(check_apart(call_, recv_table(given_), blocks->incoming));
    const int64_t sent = blocks->outgoing[own].count;
    const int64_t expected = blocks->incoming[own].count;
    if (sent != expected) {
      return call_.invalid("this rank, %d, sends %lld elements to itself and expects %lld", rank_,
                           static_cast<long long>(sent), static_cast<long long>(expected));
    }
    out_.count = total(blocks->incoming);
    // A block that goes to all ranks lies in `send` once.
    if (!is_multicast(kind_.kind)) out_.count = std::max(out_.count, total(blocks->outgoing));
    out_.blocks = std::move(blocks);
    return {};
  }
  /// The blocks of one buffer: of a table, or the one that goes to the root or comes from it.
  Status read_side(const KindBuffer& buffer, const Table& table, std::vector<Extent>* out) const {
    if (buffer.holds == Holds::kTable && has(buffer))
      return read_table(call_, table, size_, element_, out);
    out->assign(static_cast<size_t>(size_), {});
    if (buffer.holds == Holds::kCount)
      (*out)[static_cast<size_t>(given_.peer)].count = given_.count;
    return {};
  }

  /// On root `send` is the result, too.
  Status read_broadcast() {
    if (sends_) {
      out_.recv = const_cast<void*>(out_.send);
    } else {
      out_.send = out_.recv;
    }
    return check_buffer(call_, sends_ ? send_name_ : recv_name_, out_.recv, given_.count);
  }

  /// So that a piece of each rank need not fit into a slot together with those of all others.
  Status custom_reduce_scatter(dt_work** out_work) {
    auto blocks = std::make_shared<Blocks>();
    for (int32_t rank = 0; rank < size_; ++rank)
      blocks->outgoing.push_back({rank * given_.count, given_.count});
    out_.blocks = std::move(blocks);
    return reduce_scatterv(out_work);
  }

  /// One reduce for each rank, of which the last one's work is that of all: works of a communicator
  /// complete in their order, and after an error later ones fail with the same. On a device they
  /// are one launch.
  Status reduce_scatterv(dt_work** out_work) {
    comm::Communicator& comm = *on_.comm;
    const bool groups = comm.backend().device() != nullptr && !comm.grouping();
    if (groups) DT_TRY(comm.begin_group());
    out_.deadline = comm.deadline_of(out_);
    out_.has_deadline = true;  // of all parts together
    Status status;
    for (int32_t root = 0; root < size_ && status.ok(); ++root) {
      Collective part = collective::reduce_for(out_, root, rank_);
      if (part.name.empty()) part.name = kind_.name;
      if (root + 1 == size_) {
        status = issue(call_, on_, part, out_work);
      } else if (out_work == nullptr) {
        status = comm.run_or_group(part);
      } else {
        status = comm.submit(part, comm.new_work());
      }
    }
    if (!groups) return status;
    const Status ended = comm.end_group();
    return status.ok() ? ended : status;
  }

  /// From the buffer's begin to the end of its last block.
  int64_t elements(const KindBuffer& buffer, bool is_send) const {
    if (!has(buffer)) return 0;
    if (out_.blocks != nullptr)
      return end_of(is_send ? out_.blocks->outgoing : out_.blocks->incoming);
    return buffer.holds == Holds::kCountPerRank ? size_ * given_.count : given_.count;
  }

  Status check_shared() const {
    if (!sends_ || !receives_) return {};
    const int64_t send_bytes = elements(kind_.send, true) * element_;
    const int64_t recv_bytes = elements(kind_.recv, false) * element_;
    const bool send_is_whole =
        kind_.send.holds == Holds::kCountPerRank || kind_.send.holds == Holds::kTable;
    int64_t allowed = kind_.in_place == InPlace::kNever ? kNowhere : 0;
    if (kind_.in_place == InPlace::kOwnBlock) {
      const auto own = static_cast<size_t>(rank_);
      const int64_t place = out_.blocks == nullptr ? rank_ * given_.count
                            : send_is_whole        ? out_.blocks->outgoing[own].offset
                                                   : out_.blocks->incoming[own].offset;
      allowed = place * element_;
    }
    if (kind_.kind == Kind::kReduceScatterv) DT_TRY(check_own_block(allowed, recv_bytes));
    return send_is_whole
               ? check_overlap(call_, out_.send, send_bytes, out_.recv, recv_bytes, allowed)
               : check_overlap(call_, out_.recv, recv_bytes, out_.send, send_bytes, allowed);
  }

  /// In place, the result of this rank's reduce would change what a later one reads.
  Status check_own_block(int64_t own_offset, int64_t own_bytes) const {
    if (own_bytes == 0 || static_cast<const char*>(out_.send) + own_offset != out_.recv) return {};
    const std::vector<collective::Extent>& blocks = out_.blocks->outgoing;
    const collective::Extent& own = blocks[static_cast<size_t>(rank_)];
    for (int32_t rank = 0; rank < size_; ++rank) {
      const collective::Extent& other = blocks[static_cast<size_t>(rank)];
      if (rank == rank_ || other.count == 0) continue;
      if (other.offset >= own.end() || own.offset >= other.end()) continue;
      return call_.invalid(
          "%s is in place, and this rank's block, %lld elements at %lld, overlaps that of rank %d, "
          "%lld at %lld; give another array for the result",
          recv_name_, static_cast<long long>(own.count), static_cast<long long>(own.offset), rank,
          static_cast<long long>(other.count), static_cast<long long>(other.offset));
    }
    return {};
  }

  const Call& call_;
  const CommObject& on_;
  const dt_collective& given_;
  const KindTraits& kind_;
  const char* const send_name_;
  const char* const recv_name_;
  const int32_t size_;
  const int32_t rank_;
  int64_t element_ = 1;
  bool sends_ = false;
  bool receives_ = false;
  Collective out_;
};

/// By kind.
constexpr const char* kFunctions[] = {
    "dt_allreduce",      "dt_reduce",    "dt_broadcast",  "dt_allgather",
    "dt_reduce_scatter", "dt_barrier",   "dt_send",       "dt_recv",
    "dt_alltoall",       "dt_alltoallv", "dt_gather",     "dt_gatherv",
    "dt_scatter",        "dt_scatterv",  "dt_allgatherv", "dt_reduce_scatterv"};
static_assert(std::ranges::equal(kFunctions, kKindTraits,
                                 [](const char* function, const auto& row) {
                                   return std::string_view(function).substr(3) == row.name;
                                 }));

/// What dt_collective_launch() is called in messages: as the function of the kind. The bindings run
/// all kinds by it, and their users know only those.
const char* launch_name(const dt_collective* given) {
  constexpr size_t end = offsetof(dt_collective, kind) + sizeof given->kind;
  if (given == nullptr || given->struct_size < end || !is_valid(static_cast<Kind>(given->kind))) {
    return "dt_collective_launch";
  }
  return kFunctions[given->kind];
}

dt_status launch_as(const char* function, dt_comm* comm, const dt_collective& given,
                    dt_work** out_work, const char* buffer = nullptr) {
  return on_comm(function, comm, [&](const Call& call, const CommPtr& on) -> Status {
    return Launch(call, *on, given, buffer).run(out_work);
  });
}

dt_collective describe(dt_kind kind, const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_stream stream) {
  dt_collective given;
  dt_collective_init(&given);
  given.kind = kind;
  given.dtype = dtype;
  given.send = send;
  given.recv = recv;
  given.count = count;
  given.stream = stream;
  return given;
}

/// With the fields that this library knows.
Result<dt_collective> read_fields(const Call& call, const dt_collective* collective) {
  DT_TRY(call.not_null(collective, "collective"));
  dt_collective given;
  DT_TRY(read_options(call, collective, "collective", "dt_collective_init", &given));
  if (is_valid(static_cast<Kind>(given.kind))) return given;
  return call.invalid("kind is %d, which is no dt_kind", given.kind);
}

}  // namespace

Result<backend::Collective> read_collective(const Call& call, const CommObject& on,
                                            const dt_collective* collective) {
  DT_TRY_VALUE(const dt_collective given, read_fields(call, collective));
  Launch launch(call, on, given, nullptr);
  DT_TRY(launch.read());
  return std::move(launch.collective());
}

}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_group_begin(dt_comm* comm) {
  return on_comm("dt_group_begin", comm,
                 [](const Call&, const CommPtr& on) -> Status { return on->comm->begin_group(); });
}

dt_status dt_group_end(dt_comm* comm, dt_work** out_work) {
  return on_comm("dt_group_end", comm, [&](const Call& call, const CommPtr& on) -> Status {
    if (out_work == nullptr) return on->comm->end_group();
    return give_work(call, *on, out_work, [&](const std::shared_ptr<backend::Work>& whole) {
      return on->comm->end_group(whole);
    });
  });
}

dt_status dt_collective_launch(dt_comm* comm, const dt_collective* collective, dt_work** out_work) {
  return on_comm(launch_name(collective), comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY_VALUE(const dt_collective given, read_fields(call, collective));
    return Launch(call, *on, given, nullptr).run(out_work);
  });
}

dt_status dt_allreduce(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_reduce_op op, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_ALLREDUCE, send, recv, count, dtype, stream);
  given.op = op;
  return launch_as("dt_allreduce", comm, given, out_work);
}

dt_status dt_reduce(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                    dt_reduce_op op, int32_t root, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_REDUCE, send, recv, count, dtype, stream);
  given.op = op;
  given.peer = root;
  return launch_as("dt_reduce", comm, given, out_work);
}

dt_status dt_broadcast(dt_comm* comm, void* buffer, int64_t count, dt_dtype dtype, int32_t root,
                       dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_BROADCAST, buffer, buffer, count, dtype, stream);
  given.peer = root;
  return launch_as("dt_broadcast", comm, given, out_work, "buffer");
}

dt_status dt_allgather(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_stream stream, dt_work** out_work) {
  const dt_collective given = describe(DT_KIND_ALLGATHER, send, recv, count, dtype, stream);
  return launch_as("dt_allgather", comm, given, out_work);
}

dt_status dt_reduce_scatter(dt_comm* comm, const void* send, void* recv, int64_t count,
                            dt_dtype dtype, dt_reduce_op op, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_REDUCE_SCATTER, send, recv, count, dtype, stream);
  given.op = op;
  return launch_as("dt_reduce_scatter", comm, given, out_work);
}

dt_status dt_reduce_scatterv(dt_comm* comm, const void* send, const int64_t* send_counts,
                             const int64_t* send_offsets, void* recv, dt_dtype dtype,
                             dt_reduce_op op, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_REDUCE_SCATTERV, send, recv, 0, dtype, stream);
  given.op = op;
  given.send_counts = send_counts;
  given.send_offsets = send_offsets;
  return launch_as("dt_reduce_scatterv", comm, given, out_work);
}

dt_status dt_alltoall(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                      dt_stream stream, dt_work** out_work) {
  const dt_collective given = describe(DT_KIND_ALLTOALL, send, recv, count, dtype, stream);
  return launch_as("dt_alltoall", comm, given, out_work);
}

dt_status dt_alltoallv(dt_comm* comm, const void* send, const int64_t* send_counts,
                       const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                       const int64_t* recv_offsets, dt_dtype dtype, dt_stream stream,
                       dt_work** out_work) {
  dt_collective given = describe(DT_KIND_ALLTOALLV, send, recv, 0, dtype, stream);
  given.send_counts = send_counts;
  given.send_offsets = send_offsets;
  given.recv_counts = recv_counts;
  given.recv_offsets = recv_offsets;
  return launch_as("dt_alltoallv", comm, given, out_work);
}

dt_status dt_gather(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                    int32_t root, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_GATHER, send, recv, count, dtype, stream);
  given.peer = root;
  return launch_as("dt_gather", comm, given, out_work);
}

dt_status dt_gatherv(dt_comm* comm, const void* send, int64_t count, void* recv,
                     const int64_t* recv_counts, const int64_t* recv_offsets, dt_dtype dtype,
                     int32_t root, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_GATHERV, send, recv, count, dtype, stream);
  given.recv_counts = recv_counts;
  given.recv_offsets = recv_offsets;
  given.peer = root;
  return launch_as("dt_gatherv", comm, given, out_work);
}

dt_status dt_scatter(dt_comm* comm, const void* send, void* recv, int64_t count, dt_dtype dtype,
                     int32_t root, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_SCATTER, send, recv, count, dtype, stream);
  given.peer = root;
  return launch_as("dt_scatter", comm, given, out_work);
}

dt_status dt_scatterv(dt_comm* comm, const void* send, const int64_t* send_counts,
                      const int64_t* send_offsets, void* recv, int64_t count, dt_dtype dtype,
                      int32_t root, dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_SCATTERV, send, recv, count, dtype, stream);
  given.send_counts = send_counts;
  given.send_offsets = send_offsets;
  given.peer = root;
  return launch_as("dt_scatterv", comm, given, out_work);
}

dt_status dt_allgatherv(dt_comm* comm, const void* send, void* recv, const int64_t* recv_counts,
                        const int64_t* recv_offsets, dt_dtype dtype, dt_stream stream,
                        dt_work** out_work) {
  dt_collective given = describe(DT_KIND_ALLGATHERV, send, recv, 0, dtype, stream);
  given.recv_counts = recv_counts;
  given.recv_offsets = recv_offsets;
  return launch_as("dt_allgatherv", comm, given, out_work);
}

dt_status dt_barrier(dt_comm* comm, dt_stream stream, dt_work** out_work) {
  const dt_collective given = describe(DT_KIND_BARRIER, nullptr, nullptr, 0, DT_U8, stream);
  return launch_as("dt_barrier", comm, given, out_work);
}

dt_status dt_send(dt_comm* comm, const void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                  dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_SEND, buffer, nullptr, count, dtype, stream);
  given.peer = peer;
  return launch_as("dt_send", comm, given, out_work, "buffer");
}

dt_status dt_recv(dt_comm* comm, void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                  dt_stream stream, dt_work** out_work) {
  dt_collective given = describe(DT_KIND_RECV, nullptr, buffer, count, dtype, stream);
  given.peer = peer;
  return launch_as("dt_recv", comm, given, out_work, "buffer");
}

dt_status dt_check_equal(dt_comm* comm, const void* data, int64_t bytes, const char* name,
                         dt_stream stream) {
  return on_comm("dt_check_equal", comm, [&](const Call& call, const CommPtr& on) -> Status {
    if (bytes < 0) return call.invalid("bytes is %lld", static_cast<long long>(bytes));
    if (bytes > 0) DT_TRY(call.not_null(data, "data"));
    return training::check_equal(on->comm, data, bytes, name != nullptr ? name : "",
                                 stream_of(stream));
  });
}

}  // extern "C"
