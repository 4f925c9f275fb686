// SPDX-License-Identifier: Apache-2.0
#include "cli/run/devices.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cli/run/fleet.h"

namespace dt::cli {
namespace {

constexpr const char* kDeviceName = "nvidia";  // /dev/nvidia0; nvidiactl and nvidia-uvm are none

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 6 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

int count_present(const std::string& dev_root) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dev_root, error)) {
    const std::string name = entry.path().filename();
    if (name.rfind(kDeviceName, 0) == 0 && is_number(name.substr(6))) ++count;
  }
  return count;
}

}  // namespace

int count_gpus(const std::string& dev_root, const char* visible) {
  const int present = count_present(dev_root);
  if (visible == nullptr) return present;
  // As the CUDA driver reads it: what follows the first entry that names nothing does not count.
  // UUIDs may name parts of a device.
  const std::string list = visible;
  int count = 0;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    const bool uuid = entry.rfind("GPU-", 0) == 0 || entry.rfind("MIG-", 0) == 0;
    if (!uuid && (!is_number(entry) || atoi(entry.c_str()) >= present)) break;
    ++count;
    begin = end + 1;
  }
  return present == 0 ? 0 : count;
}

Result<int> count_ranks(const std::string& text, int gpus, int processors) {
  if (text == "gpu" && gpus == 0) {
    return Status(Code::kConfig,
                  "-n gpu: this node has no GPU (/dev/nvidia*, CUDA_VISIBLE_DEVICES); give a "
                  "number, or -n auto for one rank per processor; dt doctor says what is missing");
  }
  const int count = text == "gpu" || (text == "auto" && gpus > 0) ? gpus
                    : text == "auto"                              ? processors
                    : is_number(text)                             ? atoi(text.c_str())
                                                                  : 0;
  if (count >= 1 && count <= kMaxLocalRanks) return count;
  return Status(Code::kInvalidArgument,
                format("-n %s: the number of ranks on one machine is 1 to %d, or gpu, or auto",
                       text.c_str(), kMaxLocalRanks));
}

Status check_gpus(int local_size, int gpus, const Config& config) {
  if (config.text("backend.name") != "nccl" || local_size <= gpus) return {};
  if (gpus == 0) {
    return Status(
        Code::kConfig,
        format("backend.name is nccl, and for %d ranks this node has no GPU (/dev/nvidia*, "
               "CUDA_VISIBLE_DEVICES); dt doctor says what is missing",
               local_size));
  }
  if (config.text("backend.shared_gpu") == "host") return {};
  return Status(
      Code::kConfig,
      format(
          "%d ranks on this node, but it has %d %s (/dev/nvidia*, "
          "CUDA_VISIBLE_DEVICES), and NCCL wants one for each; start %d with -n, or share them by "
          "backend.shared_gpu = \"host\"",
          local_size, gpus, gpus == 1 ? "GPU" : "GPUs", gpus));
}

}  // namespace dt::cli
