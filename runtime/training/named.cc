// SPDX-License-Identifier: Apache-2.0
#include "training/named.h"

#include <cstring>
#include <utility>

#include "training/equality.h"
#include "training/file_call.h"
#include "training/named_thread.h"

namespace dt::training {
namespace {

/// What each rank shows the others at the creation.
struct NamedRow {
  int64_t fuse_bytes;
  int64_t stall_ms;
  int64_t cycle_us;
  int64_t cache;
  Exhibit exhibit;

  bool same(const NamedRow& other) const {
    return fuse_bytes == other.fuse_bytes && stall_ms == other.stall_ms &&
           cycle_us == other.cycle_us && cache == other.cache;
  }
  std::string text() const {
    return format("fuse_bytes %lld, cache %lld, stall_ms %lld, cycle_us %lld",
                  static_cast<long long>(fuse_bytes), static_cast<long long>(cache),
                  static_cast<long long>(stall_ms), static_cast<long long>(cycle_us));
  }
};

std::string named_member_text(const comm::Communicator& comm, int32_t rank,
                              const Exhibit& exhibit) {
  std::string text = format("rank %d (", rank);
  if (comm.world_rank(rank) != rank) text += format("world rank %d, ", comm.world_rank(rank));
  return text + format("%s, pid %lld)", exhibit.host, static_cast<long long>(exhibit.pid));
}

}  // namespace

Result<std::shared_ptr<Named>> Named::create(std::shared_ptr<comm::Communicator> comm,
                                             Options options) {
  const std::string where = "dt_named_create on comm \"" + comm->name() + "\"";
  if (comm->backend().device() != nullptr) {
    return Status(Code::kUnsupported,
                  where +
                      ": named submission is of host memory for now; use a communicator over "
                      "it (dt_comm_host)");
  }
  NamedRow mine{options.fuse_bytes, options.stall_ms, options.cycle_us, options.cache,
                own_exhibit({})};
  DT_TRY_VALUE(const std::vector<char> bytes,
               gather_rows(*comm, &mine, sizeof mine, "named_create"));
  std::vector<NamedRow> rows(static_cast<size_t>(comm->size()));
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  NamedThread::Parts parts;
  for (int32_t rank = 0; rank < comm->size(); ++rank) {
    const NamedRow& row = rows[static_cast<size_t>(rank)];
    parts.table.members.push_back(named_member_text(*comm, rank, row.exhibit));
    parts.table.hosts.emplace_back(row.exhibit.host);
    parts.table.world_ranks.push_back(comm->world_rank(rank));
    if (row.same(rows[0])) continue;
    ErrorInfo info;
    info.code = Code::kMismatch;
    info.rank = comm->world_rank(rank);
    info.host = row.exhibit.host;
    info.operation = "named_create";
    info.message = where + ": the options differ: " + parts.table.members[0] + " has " +
                   rows[0].text() + ", " + parts.table.members.back() + " has " + row.text() +
                   "; give the same on all ranks";
    return Status(std::move(info));
  }
  parts.table.where = "named submission on comm \"" + comm->name() + "\"";
  parts.table.fuse_bytes = options.fuse_bytes;
  parts.table.cache = options.cache;
  parts.table.stall_ms = options.stall_ms;
  parts.table.cycle_us = options.cycle_us;
  parts.options = std::move(options);
  DT_TRY_VALUE(parts.control, comm->split(0, comm->rank(), comm::Use::kBackground));
  DT_TRY_VALUE(parts.data, comm->split(0, comm->rank()));
  parts.comm = comm;
  auto thread = std::make_shared<NamedThread>(std::move(parts));
  auto started = thread->start();
  std::shared_ptr<Named> named(new Named(std::move(thread)));
  if (started.ok()) named->background_ = started.value();
  DT_TRY(FileCall(*comm, "named_create").agree({started.status()}));
  return named;
}

Named::~Named() { close(); }

Status Named::submit(std::vector<Submission> submissions, bool group) {
  return thread_->submit(std::move(submissions), group);
}

Result<int32_t> Named::join(const Wait& wait) { return thread_->join(wait); }

Result<std::string> Named::report(const Wait& wait) { return thread_->report(wait); }

Named::Statistics Named::statistics() const { return thread_->statistics(); }

void Named::close() { thread_->close(); }

}  // namespace dt::training
