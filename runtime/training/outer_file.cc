// SPDX-License-Identifier: Apache-2.0
// What an outer optimizer keeps, in a file like those of shards.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/xxh64.h"
#include "training/file_call.h"
#include "training/file_io.h"
#include "training/outer.h"
#include "training/shard_file.h"

namespace dt::training {
namespace {

FileOptimizer kept_with(double momentum) {
  return {"outer", momentum != 0 ? "momentum_buffer" : nullptr, nullptr,
          "give a file that dt_outer_save wrote with a momentum"};
}

/// The global parameters are of f32, whatever the caller's are.
std::vector<Param> as_file_params(const std::vector<OuterParam>& params) {
  std::vector<Param> result;
  for (const OuterParam& param : params) {
    Param& each = result.emplace_back();
    each.count = param.count;
    each.name = param.name;
  }
  return result;
}

/// Where tensors are in memory and in the file; `counts` has how many steps and means there were.
std::vector<Extent> extents_of_outer(const std::vector<FileTensor>& tensors,
                                     const std::vector<OuterParam>& params, float* global,
                                     float* momentum, std::vector<int64_t>* counts) {
  std::vector<int64_t> starts;
  int64_t total = 0;
  for (const OuterParam& param : params) {
    starts.push_back(total);
    total += param.count;
  }
  std::vector<Extent> extents;
  for (const FileTensor& tensor : tensors) {
    const auto index = static_cast<size_t>(tensor.param);
    void* memory = &(*counts)[index];
    if (tensor.role == FileTensor::Role::kParam) memory = global + starts[index];
    if (tensor.role == FileTensor::Role::kFirst) memory = momentum + starts[index];
    extents.push_back(
        {static_cast<char*>(memory), tensor.begin, tensor.count * dtype_bytes(tensor.dtype)});
  }
  return extents;
}

}  // namespace

Status Outer::save(const std::string& path) const {
  const std::string where = "dt_outer_save on comm \"" + comm_->name() + "\"";
  if (pending_ >= 0) {
    return Status(Code::kInvalidState,
                  where +
                      ": a mean is under way; call it where dt_outer_step has changed "
                      "parameters, or behind dt_outer_sync");
  }
  const FileOptimizer kept = kept_with(options_.momentum);
  auto planned = plan_file(as_file_params(params_), &kept);
  if (!planned.ok()) return planned.status().within(where);
  FilePlan& plan = planned.value();
  std::vector<int64_t> counts(params_.size(), steps_);
  std::vector<Extent> extents =  // which are only read
      extents_of_outer(plan.tensors, params_, const_cast<float*>(state_.global.data()),
                       const_cast<float*>(state_.momentum.data()), &counts);
  extents.push_back({plan.head.data(), 0, static_cast<int64_t>(plan.head.size())});
  return replace_file(path, plan.bytes, extents).within(where);
}

Status Outer::load(const std::string& path) {
  DT_TRY(comm_->check_ungrouped("dt_outer_load"));
  const FileOptimizer kept = kept_with(options_.momentum);
  State found;
  std::vector<int64_t> counts(params_.size());
  int64_t digest = 0;
  const auto read = [&]() -> Status {
    DT_TRY(allocate(&found));
    DT_TRY_VALUE(FilePlan plan, plan_file(as_file_params(params_), &kept));
    FileDescriptor file;
    int64_t data_begin = 0;
    DT_TRY_VALUE(const FileTable table,
                 read_table(path, "dt_outer_save", &file, &data_begin, &digest));
    const std::string cannot = "cannot load " + quoted_path(path);
    DT_TRY(find_tensors(table, data_begin, &kept, &plan.tensors).within(cannot));
    for (const Extent& extent : extents_of_outer(plan.tensors, params_, found.global.data(),
                                                 found.momentum.data(), &counts)) {
      if (const int error = read_all(file.get(), extent)) return failed_io("read", path, error);
    }
    for (const auto* each : {&found.global, &found.momentum}) {
      digest = static_cast<int64_t>(
          xxh64(each->data(), each->size() * sizeof(float), static_cast<uint64_t>(digest)));
    }
    // Between two turns nothing else of the file changes.
    digest = static_cast<int64_t>(
        xxh64(counts.data(), counts.size() * sizeof counts[0], static_cast<uint64_t>(digest)));
    if (counts[0] >= 0 && counts[0] <= kMostSteps &&
        counts == std::vector<int64_t>(counts.size(), counts[0])) {
      return {};
    }
    return Status(Code::kInvalidArgument,
                  cannot +
                      ": its parameters have taken different numbers of steps, or one that cannot "
                      "be; give a file that dt_outer_save wrote");
  };
  const Status mine = read();
  DT_TRY(FileCall(*comm_, "outer_load")
             .agree_on({mine}, digest, "read different files; give the same one on all ranks"));
  DT_TRY_VALUE(mean_, make_mean(*comm_, "outer_load"));  // nothing is under way in a new one
  pending_ = -1;
  state_ = std::move(found);
  steps_ = counts[0];
  ++means_;  // move() prefers it to what a rank had that has not loaded it
  copy_from_global(0, total_, 0);
  return {};
}

}  // namespace dt::training
