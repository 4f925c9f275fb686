// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "cli/doctor/machine.h"

namespace dt::cli::doctor {

/// How a finding is judged, the worst last.
enum class Grade { kGood, kWarning, kBad };
const char* grade_name(Grade grade);

struct Finding {
  Grade grade = Grade::kGood;
  std::string text;    ///< what was found
  std::string advice;  ///< what to do; empty when good
  /// What must be equal on all ranks; empty: `text`.
  std::string compared;
};

/// Differs between ranks by nature.
inline constexpr char kNotCompared[] = "-";

/// Bad. Of an error's message, the last clause is the advice.
Finding finding_of(const Status& status);

/// Whether a job here uses GPUs: it asks for them, or a program would see some.
bool wants_gpus(const Machine& machine);

/// One line of the report. `look` is pure but for files below the machine's roots.
struct Check {
  const char* name;
  Finding (*look)(const Machine& machine);
};

/// In the order of the report.
std::span<const Check> checks();

Finding look_at_version(const Machine& machine);
Finding look_at_settings(const Machine& machine);
Finding look_at_launcher(const Machine& machine);
Finding look_at_place(const Machine& machine);
Finding look_at_interface(const Machine& machine);
Finding look_at_rendezvous(const Machine& machine);
Finding look_at_store_port(const Machine& machine);
Finding look_at_security(const Machine& machine);
Finding look_at_open_files(const Machine& machine);
Finding look_at_locked_memory(const Machine& machine);
Finding look_at_processes(const Machine& machine);
Finding look_at_backlog(const Machine& machine);
Finding look_at_processors(const Machine& machine);
Finding look_at_memory(const Machine& machine);
Finding look_at_shared_memory(const Machine& machine);
Finding look_at_gpus(const Machine& machine);
Finding look_at_cuda(const Machine& machine);
Finding look_at_nccl(const Machine& machine);
Finding look_at_nccl_faults(const Machine& machine);
Finding look_at_nccl_settings(const Machine& machine);
Finding look_at_nccl_files(const Machine& machine);
Finding look_at_infiniband(const Machine& machine);

}  // namespace dt::cli::doctor
