// SPDX-License-Identifier: Apache-2.0
// Parameters of whose gradient a step has some rows only.
#include <algorithm>
#include <new>

#include "training/equality.h"
#include "training/reducer.h"

namespace dt::training {

Status Reducer::not_dense(int32_t index, const char* call) const {
  return Status(Code::kInvalidState,
                format("%s: the gradient of parameter #%d \"%s\" comes as rows; use "
                       "dt_reducer_ready_rows and dt_reducer_rows",
                       call, index, params_[static_cast<size_t>(index)].name.c_str()));
}

Status Reducer::ready_rows(int32_t index, std::span<const int64_t> rows, const void* values) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  const Param& param = params_[static_cast<size_t>(index)];
  if (slot.rows == nullptr) {
    return Status(Code::kInvalidState,
                  format("dt_reducer_ready_rows: parameter #%d \"%s\" was made without "
                         "row_elements; use dt_reducer_ready",
                         index, param.name.c_str()));
  }
  const auto bad = std::find_if(rows.begin(), rows.end(),
                                [&](int64_t row) { return row < 0 || row >= param.rows; });
  if (bad != rows.end()) {
    return Status(
        Code::kInvalidArgument,
        format("dt_reducer_ready_rows: rows[%td] is %lld; parameter #%d \"%s\" has rows 0 "
               "to %lld",
               bad - rows.begin(), static_cast<long long>(*bad), index, param.name.c_str(),
               static_cast<long long>(param.rows - 1)));
  }
  if (device_ != nullptr && !rows.empty()) {
    DT_TRY_VALUE(const bool is_there, device_->is_device_memory(values));
    if (is_there) {
      return Status(Code::kInvalidArgument,
                    format("dt_reducer_ready_rows: values of parameter #%d \"%s\" are in a GPU's "
                           "memory; copy them to the host, where rows are summed",
                           index, param.name.c_str()));
    }
  }
  std::lock_guard lock(slot.mutex);
  begun_.store(true, std::memory_order_relaxed);
  slot.rows->add(rows, values);
  return {};
}

Result<RowGradient*> Reducer::rows(int32_t index) const {
  const Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.rows == nullptr) {
    return Status(Code::kInvalidState,
                  format("dt_reducer_rows: parameter #%d \"%s\" was made without row_elements",
                         index, params_[static_cast<size_t>(index)].name.c_str()));
  }
  if (!has_results()) {
    return Status(Code::kInvalidState,
                  "dt_reducer_rows on comm \"" + comm_->name() +
                      "\": there are no results; call it between dt_reducer_finish and the next "
                      "step");
  }
  return slot.rows.get();
}

/// Between the launch of the buckets and the wait for them, in the order of parameters. Every rank
/// learns here of gradients that one lacks, before any row moves; likewise of one without memory.
Status Reducer::reduce_rows() {
  if (dense_ == param_count()) return {};
  std::vector<int64_t> mine;
  Status without_memory;
  std::string missing;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.rows == nullptr) continue;
    if (!slot.rows->given() && !has_users()) {
      missing += format("%s #%zu \"%s\"", missing.empty() ? "no rows for" : ",", i,
                        params_[i].name.c_str());
    }
    try {
      slot.rows->coalesce();
    } catch (const std::bad_alloc&) {
      without_memory = no_memory_for_rows(i);
    }
    slot.unused = slot.rows->row_count() == 0;
    mine.push_back(slot.rows->row_count());
  }
  if (!missing.empty()) {
    missing +=
        "; call dt_reducer_ready_rows in each step, with row_count 0 if there are none, or "
        "make the reducer with find_unused";
  }
  if (!without_memory.ok()) missing = without_memory.message();
  const auto size = static_cast<size_t>(comm_->size());
  std::vector<int64_t> all(mine.size() * size);
  backend::Collective tell;
  tell.kind = backend::Kind::kAllgather;
  tell.dtype = Dtype::kI64;
  tell.send = mine.data();
  tell.recv = all.data();
  tell.count = static_cast<int64_t>(mine.size());
  tell.name = "numbers of rows";
  if (!missing.empty()) tell.withheld = std::make_shared<const std::string>(missing);
  const Status told = comm_->run_on_host(tell);
  DT_TRY(without_memory);
  DT_TRY(told);
  row_bytes_ = 0;
  size_t at = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.rows == nullptr) continue;
    std::vector<int64_t> counts;
    for (size_t rank = 0; rank < size; ++rank) counts.push_back(all[rank * mine.size() + at]);
    ++at;
    DT_TRY(reduce_rows(i, counts));
    row_bytes_ += slot.rows->elements() * dtype_bytes(params_[i].dtype);
  }
  if (device_ != nullptr) {
    statistics_.with([&](Statistics&) { uncounted_row_bytes_ += row_bytes_; });
  }
  return {};
}

Status Reducer::reduce_rows(size_t index, std::span<const int64_t> counts) {
  const auto users = static_cast<int32_t>(
      std::count_if(counts.begin(), counts.end(), [](int64_t n) { return n > 0; }));
  if (learnt_) users_[index] = users;  // steps of a static graph may have other rows
  const int32_t divisor = options_.sum               ? 0
                          : options_.divide_by_users ? std::max(users, 1)
                                                     : comm_->size();
  RowGradient& rows = *slots_[index].rows;
  Status without_memory;
  try {
    rows.prepare(counts);
  } catch (const std::bad_alloc&) {
    without_memory = no_memory_for_rows(index);
  }
  std::shared_ptr<const std::string> withheld;
  if (!without_memory.ok()) {
    withheld = std::make_shared<const std::string>(without_memory.message());
  }
  const Status reduced =
      rows.reduce(*comm_, counts, divisor, withheld,
                  format("gradient #%zu \"%s\"", index, params_[index].name.c_str()));
  return without_memory.ok() ? reduced : without_memory;
}

Status Reducer::no_memory_for_rows(size_t index) const {
  return Status(Code::kOutOfMemory,
                format("dt_reducer_finish: no memory for the rows of parameter #%zu \"%s\"", index,
                       params_[index].name.c_str()));
}

}  // namespace dt::training
