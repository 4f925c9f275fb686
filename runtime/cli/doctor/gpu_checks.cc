// SPDX-License-Identifier: Apache-2.0
// Drivers, CUDA and what carries NCCL's data.
#include <algorithm>
#include <filesystem>

#include "cli/doctor/checks.h"
#include "cli/run/devices.h"

namespace dt::cli::doctor {
namespace {

int gpus_of(const Machine& machine) {
  const auto visible = machine.environment.find("CUDA_VISIBLE_DEVICES");
  return count_gpus(machine.roots.dev,
                    visible == machine.environment.end() ? nullptr : visible->second.c_str());
}

bool asks_for_gpus(const Machine& machine) { return machine.config.text("backend.name") == "nccl"; }

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...": the first word that is
/// digits and dots.
std::string driver_version(const Machine& machine) {
  const std::string text = read_text(machine.roots.proc + "/driver/nvidia/version");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const bool version = word.find('.') != std::string::npos &&
                         word.find_first_not_of("0123456789.") == std::string::npos;
    if (version) return word;
    begin = end + 1;
  }
  return text.empty() ? "" : "of unknown version";
}

struct Port {
  std::string name;  ///< "mlx5_0/1"
  bool active = false;
};

std::vector<Port> infiniband_ports(const Machine& machine) {
  namespace fs = std::filesystem;
  std::vector<Port> ports;
  std::error_code error;
  for (const auto& device :
       fs::directory_iterator(machine.roots.sys + "/class/infiniband", error)) {
    std::error_code inner;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", inner)) {
      const std::string state = read_text(port.path() / "state");  // "4: ACTIVE"
      ports.push_back({device.path().filename().string() + "/" + port.path().filename().string(),
                       state.find("ACTIVE") != std::string::npos});
    }
  }
  std::sort(ports.begin(), ports.end(),
            [](const Port& a, const Port& b) { return a.name < b.name; });
  return ports;
}

}  // namespace

bool wants_gpus(const Machine& machine) { return asks_for_gpus(machine) || gpus_of(machine) > 0; }

Finding look_at_gpus(const Machine& machine) {
  const int gpus = gpus_of(machine);
  const std::string driver = driver_version(machine);
  Finding finding;
  if (driver.empty() && gpus == 0) {
    finding.text = "none: the host backend computes on the processors";
    // Where CUDA has devices without /dev/nvidia*, as in WSL, it knows better.
    const bool ready = cuda::judge(machine.cuda_answers) == cuda::State::kReady;
    if (ready || !asks_for_gpus(machine)) return finding;
    return {Grade::kBad,
            "none, while backend.name is nccl",
            "use a machine with GPUs, or leave backend.name out",
            {}};
  }
  finding.text = format("%d visible, driver %s", gpus, driver.empty() ? "missing" : driver.c_str());
  if (driver.empty()) {
    finding.grade = Grade::kBad;
    finding.advice =
        "there are /dev/nvidia* but no driver: load it, or start the container with "
        "the NVIDIA runtime";
  } else if (gpus == 0) {
    finding.grade = Grade::kWarning;
    finding.advice =
        "the driver is there but no device: ask the scheduler for GPUs, and look at "
        "CUDA_VISIBLE_DEVICES";
  }
  return finding;
}

Finding look_at_cuda(const Machine& machine) {
  const Library& library = machine.cuda;
  const cuda::Answers& answers = machine.cuda_answers;
  const cuda::State state = cuda::judge(answers);
  const bool wanted = wants_gpus(machine);
  Finding finding;
  if (state == cuda::State::kReady) {
    finding.compared = cuda::version_text(answers.driver_version);
    finding.text = "driver API " + finding.compared + ", dt is built with " +
                   cuda::version_text(answers.runtime_version) + ", " + library.path;
    return finding;
  }
  if ((answers.built && (wanted || library.found)) || asks_for_gpus(machine)) {
    finding = finding_of(cuda::explain(answers));
    if (wanted) return finding;
    return {Grade::kGood, finding.text + "; there is no GPU that needs it", {}, {}};
  }
  if (!library.found) {
    finding.text = "no libcuda.so.1" + std::string(wanted ? "" : ", and no GPU that needs it");
    if (!wanted) return finding;
    finding.grade = Grade::kBad;
    finding.advice = "install the driver's libraries; in a container use the NVIDIA runtime";
    return finding;
  }
  finding.text = "driver API " + cuda::version_text(library.version) + ", " + library.path;
  finding.compared = cuda::version_text(library.version);
  if (library.error.empty()) return finding;
  finding.grade = wanted ? Grade::kBad : Grade::kGood;
  finding.text = library.path + ": " + library.error;
  if (wanted) finding.advice = "the driver and its libraries do not fit: nvidia-smi says more";
  return finding;
}

Finding look_at_infiniband(const Machine& machine) {
  const std::vector<Port> ports = infiniband_ports(machine);
  if (ports.empty()) return {Grade::kGood, "none: NCCL uses sockets between hosts", {}, {}};
  std::string active;
  size_t down = 0;
  for (const Port& port : ports) {
    if (port.active) {
      active += (active.empty() ? "" : ", ") + port.name;
    } else {
      ++down;
    }
  }
  Finding finding;
  finding.text = active.empty() ? "no port is active" : active + " active";
  if (down > 0) finding.text += format(", %zu of %zu ports down", down, ports.size());
  const auto disabled = machine.environment.find("NCCL_IB_DISABLE");
  std::string obstacle;
  if (active.empty()) {
    obstacle = "see ibstat and the cables";
  } else if (disabled != machine.environment.end() && disabled->second == "1") {
    obstacle = "NCCL_IB_DISABLE=1: unset it";
  } else if (!machine.ibverbs) {
    obstacle = "libibverbs.so.1 is missing: install rdma-core";
  } else if (!std::filesystem::exists(machine.roots.dev + "/infiniband")) {
    obstacle = "/dev/infiniband is missing: pass it to the container";
  }
  finding.text += obstacle.empty() ? "; NCCL uses it" : "; NCCL uses sockets instead";
  if (obstacle.empty()) return finding;
  finding.grade = Grade::kWarning;
  finding.advice = obstacle;
  return finding;
}

}  // namespace dt::cli::doctor
