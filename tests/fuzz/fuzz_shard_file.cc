// SPDX-License-Identifier: Apache-2.0
// The header of a checkpoint, which may come from anywhere. The first two bytes are how many bytes
// of tensors follow it. Properties: no crash, what is accepted fills these bytes without holes, and
// tensors that are found lie within the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "training/shard_file.h"

namespace {

using namespace dt::training;

void require_file(bool holds) {
  if (!holds) std::abort();
}

void check_table(const FileTable& table, int64_t data_bytes) {
  int64_t total = 0;
  for (const auto& [name, entry] : table.tensors) {
    require_file(entry.begin >= 0 && entry.begin <= entry.end && entry.end <= data_bytes);
    if (entry.dtype) {
      require_file(entry.count == (entry.end - entry.begin) / dt::dtype_bytes(*entry.dtype));
    }
    total += entry.end - entry.begin;
  }
  require_file(total == data_bytes);
}

void check_found(const FileTable& table, int64_t data_bytes) {
  constexpr int64_t kHead = 80;
  std::vector<Param> params(2);
  params[0].name = "a";
  params[0].count = 2;
  params[1].count = 1;
  params[1].dtype = dt::Dtype::kBf16;
  const FileOptimizer sgd = {"sgd", "momentum_buffer", nullptr};
  for (const FileOptimizer* optimizer : {static_cast<const FileOptimizer*>(nullptr), &sgd}) {
    auto plan = plan_file(params, optimizer);
    require_file(plan.ok());
    const size_t planned = plan.value().tensors.size();
    if (!find_tensors(table, kHead, optimizer, &plan.value().tensors).ok()) continue;
    require_file(planned - plan.value().tensors.size() <= 1);  // the f32 values of the second
    for (const FileTensor& each : plan.value().tensors) {
      require_file(each.begin >= kHead &&
                   each.begin + each.count * dt::dtype_bytes(each.dtype) <= kHead + data_bytes);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const int64_t data_bytes = data[0] + 256 * data[1];
  const std::string_view json(reinterpret_cast<const char*>(data) + 2, bytes - 2);
  const auto table = parse_header(json, data_bytes);
  if (!table.ok()) {
    require_file(!table.status().message().empty());
    return 0;
  }
  check_table(table.value(), data_bytes);
  check_found(table.value(), data_bytes);
  return 0;
}
