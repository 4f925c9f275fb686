// SPDX-License-Identifier: Apache-2.0
// Whether the parameters are still the same on all ranks, every now and then.
#include <algorithm>
#include <cstring>

#include "base/xxh64.h"
#include "training/equality.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

/// A watched parameter, as every rank shows it to the others.
struct Print {
  uint64_t hash = 0;
  int64_t bytes = 0;
  int64_t index = -1;  ///< -1: none
};
static_assert(sizeof(Print) == 24);

constexpr char kCheckParams[] = "reducer_finish";

}  // namespace

void Reducer::watch(int32_t index, const void* data, int64_t bytes) {
  watched_[static_cast<size_t>(index)] = {data, bytes};
}

/// One word per rank tells whether all agree; the hash of each parameter travels only when they do
/// not.
Status Reducer::check_watched(cuda::Stream stream) {
  ++finished_steps_;
  const int64_t every = options_.check_steps;
  if (every == 0 || (finished_steps_ != 1 && finished_steps_ % every != 0)) return {};
  std::vector<Print> prints;
  Status mine;
  for (size_t i = 0; i < watched_.size() && mine.ok(); ++i) {
    if (watched_[i].data == nullptr) continue;
    const auto hash = digester_.hash(watched_[i].data, watched_[i].bytes, stream);
    mine = hash.status().within(format("dt_reducer_finish on comm \"%s\": parameter #%zu \"%s\"",
                                       comm_->name().c_str(), i, params_[i].name.c_str()));
    if (!mine.ok()) break;
    prints.push_back({hash.value(), watched_[i].bytes, static_cast<int64_t>(i)});
  }
  Exhibit exhibit = own_exhibit({});
  exhibit.hash = xxh64(prints.data(), prints.size() * sizeof(Print));
  exhibit.bytes = static_cast<int64_t>(prints.size());  // to begin with, a count
  DT_TRY_VALUE(auto all, show(*comm_, exhibit, mine, kCheckParams));
  if (std::all_of(all.begin(), all.end(), [&](const Exhibit& e) { return e.same(all[0]); })) {
    return {};
  }
  int64_t longest = 0;
  for (const Exhibit& each : all) longest = std::max(longest, each.bytes);
  prints.resize(static_cast<size_t>(longest));
  const size_t table = prints.size() * sizeof(Print);
  DT_TRY_VALUE(const auto tables, gather_rows(*comm_, prints.data(), table, "parameter hashes"));
  return first_difference(tables, prints.size(), &all);
}

Status Reducer::first_difference(const std::vector<char>& tables, size_t length,
                                 std::vector<Exhibit>* all) const {
  const std::string where =
      format("dt_reducer_finish, step %lld on comm \"%s\", rank %d",
             static_cast<long long>(finished_steps_), comm_->name().c_str(), comm_->rank());
  for (size_t i = 0; i < length; ++i) {
    std::vector<Print> row(all->size());
    for (size_t rank = 0; rank < row.size(); ++rank) {
      std::memcpy(&row[rank], tables.data() + (rank * length + i) * sizeof(Print), sizeof(Print));
    }
    for (size_t rank = 0; rank < row.size(); ++rank) {
      Exhibit& each = (*all)[rank];
      const bool known = row[rank].index >= 0 && row[rank].index < param_count();
      const std::string text =
          !known ? "no more"
                 : format("#%lld %s", static_cast<long long>(row[rank].index),
                          params_[static_cast<size_t>(row[rank].index)].name.c_str());
      std::memset(each.name, 0, sizeof each.name);
      std::memcpy(each.name, text.data(), std::min(text.size(), sizeof each.name - 1));
      each.hash = row[rank].hash;
      each.bytes = row[rank].bytes;
    }
    DT_TRY(compare(*comm_, *all, kCheckParams, where + ", parameter"));
  }
  return Status(Code::kMismatch, where + ": ranks watch different parameters");
}

}  // namespace dt::training
