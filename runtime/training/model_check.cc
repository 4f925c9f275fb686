// SPDX-License-Identifier: Apache-2.0
// Finds out, before any gradient moves, that ranks built different models.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "training/reducer.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

/// One parameter, or the options, as every rank shows it to the others.
struct Row {
  int64_t count = 0;
  int64_t granule = 1;
  int32_t dtype = 0;
  int32_t unit = 0;
  char name[56] = {};   // cut
  char shape[40] = {};  // that a file gives it, likewise; empty: one dimension

  bool operator==(const Row& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Row) == 120);

uint64_t fnv1a(uint64_t hash, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 1099511628211u;
  return hash;
}

Row option_row(const char* name, int64_t value) {
  Row row;
  row.count = value;
  row.dtype = -1;
  std::strncpy(row.name, name, sizeof row.name - 1);
  return row;
}

std::string row_text(const Row& row) {
  if (row.dtype == -1) return format("%s = %lld", row.name, static_cast<long long>(row.count));
  std::string text = format("\"%s\" %s x %lld", row.name, dtype_name(static_cast<Dtype>(row.dtype)),
                            static_cast<long long>(row.count));
  if (row.unit == -1) return text + format(" in rows of %lld", static_cast<long long>(row.granule));
  if (row.granule != 1) text += format(", granule %lld", static_cast<long long>(row.granule));
  if (row.unit != 0) text += format(", unit %d", row.unit);
  if (row.shape[0] != 0) text += format(", shape %s", row.shape);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) {
    text += format("%s%lld", text.empty() ? "(" : ", ", static_cast<long long>(size));
  }
  return text.empty() ? text : text + ")";
}

/// Everyone's `bytes` bytes, in rank order.
Result<std::vector<char>> gather(comm::Communicator& comm, const void* mine, size_t bytes) {
  std::vector<char> all(bytes * static_cast<size_t>(comm.size()));
  Collective collective;
  collective.kind = Kind::kAllgather;
  collective.dtype = Dtype::kU8;
  collective.send = mine;
  collective.recv = all.data();
  collective.count = static_cast<int64_t>(bytes);
  collective.name = "model check";
  DT_TRY(comm.run_on_host(collective));
  return all;
}

}  // namespace

/// One word per rank tells whether all agree; the rows travel only when they do not.
Status Reducer::check_model() {
  std::vector<Row> rows;
  rows.push_back(option_row("bucket_cap_bytes", options_.bucket_cap_bytes));
  rows.push_back(option_row("first_bucket_bytes", options_.first_bucket_bytes));
  rows.push_back(option_row("sum", options_.sum));
  rows.push_back(option_row("rebuild", options_.rebuild));
  rows.push_back(option_row("tune_steps", options_.tune_steps));
  rows.push_back(option_row("find_unused", options_.find_unused));
  rows.push_back(option_row("static_graph", options_.static_graph));
  rows.push_back(option_row("divide_by_users", options_.divide_by_users));
  rows.push_back(option_row("predivide, in millionths", std::llround(options_.predivide * 1e6)));
  rows.push_back(option_row("wire", options_.wire ? static_cast<int64_t>(*options_.wire) : -1));
  rows.push_back(option_row("wire in 8 bits", options_.wire_8bit));
  const uint64_t order =
      fnv1a(14695981039346656037u, options_.order.data(), options_.order.size() * sizeof(int32_t));
  rows.push_back(option_row("order, as a hash", static_cast<int64_t>(order)));
  rows.push_back(option_row("grads, given", !options_.places.empty()));
  rows.push_back(option_row("check_steps", options_.check_steps));
  if (options_.by_units()) {
    rows.push_back(option_row("stage", options_.stage));
    rows.push_back(option_row("prefetch", options_.prefetch));
    rows.push_back(option_row("shard_ranks", options_.shard_ranks));
  }
  const size_t option_rows = rows.size();
  uint64_t hash = 14695981039346656037u;
  for (const Param& param : params_) {
    Row row;
    row.count = param.count;
    row.granule = param.granule;
    if (param.row_elements > 0) {
      row.count = param.rows * param.row_elements;
      row.granule = param.row_elements;
    }
    row.dtype = static_cast<int32_t>(param.dtype);
    row.unit = param.row_elements > 0 ? -1 : param.unit;
    std::strncpy(row.name, param.name.c_str(), sizeof row.name - 1);
    std::strncpy(row.shape, shape_text(param.shape).c_str(), sizeof row.shape - 1);
    hash = fnv1a(hash, param.name.data(), param.name.size());
    hash = fnv1a(hash, param.shape.data(), param.shape.size() * sizeof(int64_t));
    rows.push_back(row);
  }
  hash = fnv1a(hash, rows.data(), rows.size() * sizeof(Row));

  struct Summary {
    uint64_t hash;
    int64_t rows;
  };
  const Summary mine = {hash, static_cast<int64_t>(rows.size())};
  DT_TRY_VALUE(const std::vector<char> bytes, gather(*comm_, &mine, sizeof mine));
  std::vector<Summary> all(static_cast<size_t>(comm_->size()));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  const bool equal = std::all_of(all.begin(), all.end(), [&](const Summary& other) {
    return other.hash == all[0].hash && other.rows == all[0].rows;
  });
  if (equal) return {};

  int64_t longest = 0;
  for (const Summary& each : all) longest = std::max(longest, each.rows);
  rows.resize(static_cast<size_t>(longest));
  const size_t table = rows.size() * sizeof(Row);
  DT_TRY_VALUE(const std::vector<char> tables, gather(*comm_, rows.data(), table));
  auto row_of = [&](size_t rank, size_t i) {
    Row row;
    std::memcpy(&row, tables.data() + rank * table + i * sizeof(Row), sizeof row);
    return row;
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const Row left = row_of(0, i);
      const Row right = row_of(rank, i);
      if (left == right &&
          (i < static_cast<size_t>(all[0].rows)) == (i < static_cast<size_t>(all[rank].rows)))
        continue;
      auto text = [&](size_t r, const Row& row) {
        return i < static_cast<size_t>(all[r].rows) ? row_text(row) : std::string("has none");
      };
      const std::string where =
          i < option_rows ? std::string("options") : format("parameter #%zu", i - option_rows);
      ErrorInfo info;
      info.code = Code::kMismatch;
      info.rank = comm_->world_rank(static_cast<int32_t>(rank));
      info.operation = options_.by_units() ? "shard_create" : "reducer_create";
      info.message = format(
          "dt_%s on comm \"%s\": the model differs between ranks, first at %s: rank 0 "
          "%s, rank %zu %s; build the same model with the same options on every rank",
          info.operation.c_str(), comm_->name().c_str(), where.c_str(), text(0, left).c_str(), rank,
          text(rank, right).c_str());
      return Status(std::move(info));
    }
  }
  return Status(Code::kMismatch,
                format("dt_%s on comm \"%s\": names or shapes of parameters differ between ranks "
                       "beyond their first %zu and %zu bytes",
                       options_.by_units() ? "shard_create" : "reducer_create",
                       comm_->name().c_str(), sizeof(Row::name) - 1, sizeof(Row::shape) - 1));
}

}  // namespace dt::training
