// SPDX-License-Identifier: Apache-2.0
// Finds out which rank holds something else than the others, by hashes.
#include "training/equality.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr size_t kListedRanks = 8;  // in a message

template <size_t N>
void put_cut(char (&field)[N], const std::string& text) {
  std::memcpy(field, text.data(), std::min(text.size(), N - 1));
}

std::string who(const comm::Communicator& comm, const std::vector<Exhibit>& all, size_t rank) {
  const int32_t world_rank = comm.world_rank(static_cast<int32_t>(rank));
  std::string text = format("rank %zu (", rank);
  if (world_rank != static_cast<int32_t>(rank)) text += format("world rank %d, ", world_rank);
  return text + format("%s, pid %lld)", all[rank].host, static_cast<long long>(all[rank].pid));
}

ErrorInfo about(const comm::Communicator& comm, const std::vector<Exhibit>& all, size_t rank,
                const char* operation) {
  ErrorInfo info;
  info.operation = operation;
  info.rank = comm.world_rank(static_cast<int32_t>(rank));
  info.host = all[rank].host;
  info.pid = all[rank].pid;
  return info;
}

Status unreadable(const comm::Communicator& comm, const std::vector<Exhibit>& all, size_t rank,
                  const char* operation) {
  ErrorInfo info = about(comm, all, rank, operation);
  info.code = Code::kSystem;
  info.message = format(
      "dt_%s on comm \"%s\", rank %d: %s could not read what it holds; its own "
      "error says why",
      operation, comm.name().c_str(), comm.rank(), who(comm, all, rank).c_str());
  return Status(std::move(info));
}

}  // namespace

bool Exhibit::same(const Exhibit& other) const {
  return hash == other.hash && bytes == other.bytes && std::strcmp(name, other.name) == 0;
}

std::string Exhibit::text() const {
  std::string text = name[0] == '\0' ? "" : format("\"%s\", ", name);
  return text + format("%lld bytes, hash %016llx", static_cast<long long>(bytes),
                       static_cast<unsigned long long>(hash));
}

Result<std::vector<char>> gather_rows(comm::Communicator& comm, const void* mine, size_t bytes,
                                      const char* label) {
  std::vector<char> all(bytes * static_cast<size_t>(comm.size()));
  Collective collective;
  collective.kind = Kind::kAllgather;
  collective.dtype = Dtype::kU8;
  collective.send = mine;
  collective.recv = all.data();
  collective.count = static_cast<int64_t>(bytes);
  collective.name = label;
  DT_TRY(comm.run_on_host(collective));
  return all;
}

Exhibit own_exhibit(const std::string& name) {
  Exhibit exhibit;
  exhibit.pid = getpid();
  put_cut(exhibit.name, name);
  char host[256] = "";  // a name that does not fit would be an error
  put_cut(exhibit.host, gethostname(host, sizeof host - 1) == 0 ? host : "unknown");
  return exhibit;
}

Result<std::vector<Exhibit>> show(comm::Communicator& comm, Exhibit exhibit, const Status& mine,
                                  const char* operation) {
  exhibit.failed = mine.ok() ? 0 : 1;
  const auto gathered = gather_rows(comm, &exhibit, sizeof exhibit, operation);
  DT_TRY(mine);
  DT_TRY(gathered.status());
  std::vector<Exhibit> all(static_cast<size_t>(comm.size()));
  std::memcpy(all.data(), gathered.value().data(), gathered.value().size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed != 0) return unreadable(comm, all, rank, operation);
  }
  return all;
}

Status compare(const comm::Communicator& comm, const std::vector<Exhibit>& all,
               const char* operation, const std::string& where) {
  // A few kinds at most, each by its first rank: no need for an order.
  struct Camp {
    size_t first;
    size_t ranks;
  };
  std::vector<Camp> camps;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto own = std::find_if(camps.begin(), camps.end(), [&](const Camp& camp) {
      return all[camp.first].same(all[rank]);
    });
    if (own != camps.end()) {
      ++own->ranks;
    } else {
      camps.push_back({rank, 1});
    }
  }
  if (camps.size() == 1) return {};
  const Camp most = *std::max_element(
      camps.begin(), camps.end(), [](const Camp& a, const Camp& b) { return a.ranks < b.ranks; });
  const bool majority = std::count_if(camps.begin(), camps.end(), [&](const Camp& camp) {
                          return camp.ranks == most.ranks;
                        }) == 1;
  // With a majority those outside it have diverged; else every side is shown by its first rank.
  std::string text;
  size_t listed = 0;
  size_t total = 0;
  size_t culprit = all.size();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const bool shown = majority ? !all[rank].same(all[most.first])
                                : std::any_of(camps.begin(), camps.end(),
                                              [&](const Camp& camp) { return camp.first == rank; });
    if (!shown) continue;
    ++total;
    if (culprit == all.size()) culprit = rank;
    if (listed == kListedRanks) continue;
    ++listed;
    text += format("%s%s has %s", text.empty() ? "" : ", ", who(comm, all, rank).c_str(),
                   all[rank].text().c_str());
  }
  if (total > listed) text += format(", and %zu more", total - listed);
  if (majority) {
    text += format(", while %s%s: %s", who(comm, all, most.first).c_str(),
                   most.ranks > 1 ? format(" and %zu more have", most.ranks - 1).c_str() : " has",
                   all[most.first].text().c_str());
  }
  ErrorInfo info;
  info.operation = operation;
  if (majority) info = about(comm, all, culprit, operation);
  info.code = Code::kMismatch;
  info.message = where + ": ranks hold different data: " + text +
                 "; give all ranks the same again, by a broadcast or from a checkpoint, and look "
                 "for what only some of them do";
  return Status(std::move(info));
}

Status check_equal(const std::shared_ptr<comm::Communicator>& comm, const void* data, int64_t bytes,
                   const std::string& name, cuda::Stream stream) {
  DT_TRY(comm->check_ungrouped("dt_check_equal"));
  Digester digester(comm);
  const Result<uint64_t> hash = digester.hash(data, bytes, stream);
  const std::string where = format("dt_check_equal%s on comm \"%s\", rank %d",
                                   name.empty() ? "" : format(" \"%s\"", name.c_str()).c_str(),
                                   comm->name().c_str(), comm->rank());
  Exhibit exhibit = own_exhibit(name);
  exhibit.bytes = bytes;
  if (hash.ok()) exhibit.hash = hash.value();
  DT_TRY_VALUE(const auto all, show(*comm, exhibit, hash.status().within(where), "check_equal"));
  return compare(*comm, all, "check_equal", where);
}

}  // namespace dt::training
