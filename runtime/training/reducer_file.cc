// SPDX-License-Identifier: Apache-2.0
// What a reducer carries from step to step, in a file like those of shards: the errors of 8 bits,
// and what PowerSGD keeps.
#include <algorithm>
#include <charconv>
#include <new>

#include "base/xxh64.h"
#include "training/file_call.h"
#include "training/reducer.h"
#include "training/shard_file.h"

namespace dt::training {
namespace {

/// A number of the metadata; -1: it has none.
int64_t number_in(const FileTable& table, const char* key) {
  const auto found = table.metadata.find(key);
  int64_t number = -1;
  if (found == table.metadata.end()) return -1;
  const char* const end = found->second.data() + found->second.size();
  const auto [at, error] = std::from_chars(found->second.data(), end, number);
  return error == std::errc() && at == end && number >= 0 ? number : -1;
}

std::string text_in(const FileTable& table, const char* key) {
  const auto found = table.metadata.find(key);
  return found != table.metadata.end() ? found->second.substr(0, 40) : "";
}

}  // namespace

const char* Reducer::kind_of_state() const {
  return options_.wire_8bit ? "8 bits" : power_sgd_ != nullptr ? "PowerSGD" : "none";
}

std::vector<Reducer::StateTensor> Reducer::list_state(std::vector<std::vector<float>>* errors,
                                                      PowerSgd::Kept* kept) const {
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Param& param = params_[i];
    const std::string name =
        param.name.empty() ? "param." + std::to_string(i) : param.name;  // as in shards' files
    const auto index = static_cast<int32_t>(i);
    if (is_quantized(param.dtype)) {
      tensors.push_back({"error." + name, index, (*errors)[i].data(), param.count});
    }
    if (power_sgd_ == nullptr || !power_sgd_->compresses(i)) continue;
    const PowerSgd::Place& place = power_sgd_->place(i);
    uint8_t* const drawn = &kept->drawn[i];
    if (place.error_count > 0) {
      float* const error = kept->data + place.error;
      tensors.push_back({"error." + name, index, error, place.error_count, drawn});
    }
    tensors.push_back({"q." + name, index, kept->data + place.q, place.q_count, drawn});
  }
  return tensors;
}

Status Reducer::save(const std::string& path) {
  const std::string where = "dt_reducer_save on comm \"" + comm_->name() + "\"";
  if (begun_.load(std::memory_order_acquire)) {
    return Status(Code::kInvalidState, where + ": inside a step; call it after dt_reducer_finish");
  }
  PowerSgd::Kept kept;
  if (power_sgd_ != nullptr) {
    auto found = power_sgd_->kept();
    if (!found.ok()) return found.status().within(where);
    kept = std::move(found).value();
  }
  std::vector<std::vector<float>> errors;
  if (device_ != nullptr) DT_TRY(copy_errors(&errors, /*up=*/false).within(where));
  const auto listed = list_state(device_ != nullptr ? &errors : &errors_, &kept);
  std::vector<FileTensor> tensors;
  for (const StateTensor& each : listed) {
    tensors.push_back({FileTensor::Role::kState, each.param, each.name, Dtype::kF32, each.saved()});
  }
  auto planned = plan_tensors(std::move(tensors), params_,
                              {{"reducer", kind_of_state()},
                               {"rank", std::to_string(comm_->rank())},
                               {"ranks", std::to_string(comm_->size())},
                               {"steps", std::to_string(state_steps_)},
                               {"power_sgd_step", std::to_string(kept.step + 1)}},
                              kLongestHeader);
  if (!planned.ok()) return planned.status().within(where);
  FilePlan& plan = planned.value();
  std::vector<Extent> extents = {{plan.head.data(), 0, static_cast<int64_t>(plan.head.size())}};
  for (size_t i = 0; i < listed.size(); ++i) {  // all of f32: in the order of the list
    extents.push_back({reinterpret_cast<char*>(listed[i].values), plan.tensors[i].begin,
                       plan.tensors[i].count * static_cast<int64_t>(sizeof(float))});
  }
  return replace_file(path, plan.bytes, extents).within(where);
}

Status Reducer::check_state(const FileTable& table) const {
  DT_TRY(check_version(table));
  const std::string kind = text_in(table, "reducer");
  if (kind.empty()) {
    return Status(Code::kInvalidArgument,
                  "it has no state of a reducer; give a file that dt_reducer_save wrote");
  }
  if (kind != kind_of_state()) {
    return Status(Code::kMismatch,
                  format("it has the state of a reducer with compression \"%s\", this one's is "
                         "\"%s\"; make the reducer as in the job that saved it",
                         kind.c_str(), kind_of_state()));
  }
  const int64_t ranks = number_in(table, "ranks");
  const int64_t rank = number_in(table, "rank");
  if (ranks != comm_->size() || rank != comm_->rank()) {
    return Status(Code::kMismatch,
                  format("rank %lld of %lld saved it, this is rank %d of %d; errors are a rank's "
                         "own: give each rank its file, or begin without one",
                         static_cast<long long>(rank), static_cast<long long>(ranks), comm_->rank(),
                         comm_->size()));
  }
  if (number_in(table, "steps") >= 0 && number_in(table, "power_sgd_step") >= 0) return {};
  return Status(Code::kInvalidArgument,
                "it does not say its number of steps; give a file that dt_reducer_save wrote");
}

Status Reducer::read_state(const std::string& path, State* state, int64_t* steps) const {
  FileDescriptor file;
  int64_t data_begin = 0;
  int64_t digest = 0;
  DT_TRY_VALUE(const FileTable table,
               read_table(path, "dt_reducer_save", &file, &data_begin, &digest));
  const std::string cannot = "cannot load " + quoted_path(path);
  DT_TRY(check_state(table).within(cannot));
  *steps = number_in(table, "steps");
  state->power_sgd.step = number_in(table, "power_sgd_step") - 1;
  const auto listed = list_state(&state->errors, &state->power_sgd);
  const auto differs = [&](const std::string& what) {
    return Status(Code::kMismatch,
                  cannot + ": " + what + "; load it into the model that was saved");
  };
  for (const StateTensor& each : listed) {
    const auto found = table.tensors.find(each.name);
    if (found == table.tensors.end()) return differs("it has no tensor \"" + each.name + "\"");
    const FileTable::Entry& entry = found->second;
    const bool fits = entry.count == each.count || (each.is_there != nullptr && entry.count == 0);
    if (!fits || entry.dtype != Dtype::kF32) {
      return differs(format("its \"%s\" has %lld elements of %s, this model's %lld of F32",
                            each.name.c_str(), static_cast<long long>(entry.count),
                            entry.dtype_text.substr(0, 40).c_str(),
                            static_cast<long long>(each.count)));
    }
    if (each.is_there != nullptr) *each.is_there = entry.count > 0;  // the last one is of q
    const Extent extent{reinterpret_cast<char*>(each.values), data_begin + entry.begin,
                        entry.end - entry.begin};
    if (const int error = read_all(file.get(), extent)) return failed_io("read", path, error);
  }
  for (const auto& named : table.tensors) {
    const std::string& name = named.first;
    const bool known = std::any_of(listed.begin(), listed.end(),
                                   [&](const StateTensor& each) { return each.name == name; });
    if (!known) return differs("this model has no tensor \"" + name.substr(0, 120) + "\"");
  }
  return {};
}

Status Reducer::load(const std::string& path) {
  DT_TRY(comm_->check_ungrouped("dt_reducer_load"));
  State found;
  int64_t steps = 0;
  const auto read = [&]() -> Status {
    if (begun_.load(std::memory_order_acquire)) {
      return Status(Code::kInvalidState, "dt_reducer_load on comm \"" + comm_->name() +
                                             "\": inside a step; call it after dt_reducer_finish");
    }
    try {
      found.errors.resize(params_.size());
      for (size_t i = 0; i < params_.size(); ++i) {
        if (!is_quantized(params_[i].dtype)) continue;
        found.errors[i].resize(static_cast<size_t>(params_[i].count));
      }
      if (power_sgd_ != nullptr) found.power_sgd = power_sgd_->empty();
      return read_state(path, &found, &steps);
    } catch (const std::bad_alloc&) {
      return Status(Code::kOutOfMemory, "no memory to load " + quoted_path(path));
    }
  };
  const Status mine = read();
  Xxh64 common;  // what is the same on all ranks
  common.update(&steps, sizeof steps);
  common.update(&found.power_sgd.step, sizeof found.power_sgd.step);
  for (size_t i = 0; i < found.power_sgd.drawn.size(); ++i) {
    if (found.power_sgd.drawn[i] == 0) continue;
    const PowerSgd::Place& place = power_sgd_->place(i);
    common.update(found.power_sgd.data + place.q,
                  static_cast<size_t>(place.q_count) * sizeof(float));
  }
  FileCall call(*comm_, "reducer_load");
  DT_TRY(call.agree_on({mine}, static_cast<int64_t>(common.digest()),
                       "read files of different steps; give each rank the file that it saved "
                       "behind the same step"));
  Status set;
  if (power_sgd_ != nullptr) set = power_sgd_->set_kept(std::move(found.power_sgd));
  if (device_ == nullptr) {
    errors_ = std::move(found.errors);
  } else {  // a copy to a GPU may fail
    if (set.ok()) set = copy_errors(&found.errors, /*up=*/true);
    DT_TRY(call.agree({set}));
  }
  state_steps_ = steps;
  return {};
}

}  // namespace dt::training
