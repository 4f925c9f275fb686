// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/checks.h"

#include <fstream>
#include <iterator>

namespace dt::cli::doctor {
namespace {

constexpr Check kChecks[] = {
    {"version", look_at_version},
    {"settings", look_at_settings},
    {"launcher", look_at_launcher},
    {"place", look_at_place},
    {"interface", look_at_interface},
    {"rendezvous", look_at_rendezvous},
    {"store port", look_at_store_port},
    {"security", look_at_security},
    {"open files", look_at_open_files},
    {"processes", look_at_processes},
    {"locked memory", look_at_locked_memory},
    {"backlog", look_at_backlog},
    {"processors", look_at_processors},
    {"memory", look_at_memory},
    {"shared memory", look_at_shared_memory},
    {"GPUs", look_at_gpus},
    {"CUDA", look_at_cuda},
    {"NCCL", look_at_nccl},
    {"NCCL faults", look_at_nccl_faults},
    {"NCCL settings", look_at_nccl_settings},
    {"NCCL files", look_at_nccl_files},
    {"InfiniBand", look_at_infiniband},
};

}  // namespace

std::span<const Check> checks() { return kChecks; }

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

const char* grade_name(Grade grade) {
  switch (grade) {
    case Grade::kGood: return "good";
    case Grade::kWarning: return "warning";
    case Grade::kBad: return "bad";
  }
  return "?";
}

}  // namespace dt::cli::doctor
