// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/worker/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "cli/bench/worker/buffers.h"

namespace dt::cli::bench {
namespace {

constexpr int kMaxLines = 64;

std::string key_of(int rank) { return "dt-bench/gpu/" + std::to_string(rank); }

Status tell(dt_job* job, int rank, const std::string& text) {
  return check(
      dt_store_set(job, key_of(rank).c_str(), text.data(), static_cast<int64_t>(text.size()), -1));
}

Result<std::string> hear(dt_job* job, int rank) {
  std::string text(1024, '\0');
  int64_t bytes = 0;
  DT_TRY(check(dt_store_get(job, key_of(rank).c_str(), -1, text.data(),
                            static_cast<int64_t>(text.size()), &bytes)));
  text.resize(std::min(text.size(), static_cast<size_t>(bytes)));
  return text;
}

}  // namespace

Result<Gpus> look_at_gpus(dt_job* job, dt_comm* comm, const dt_place& place) {
  Gpus gpus;
  DT_TRY_VALUE(gpus.own, gpu_of(comm));
  const cuda::DeviceInfo& device = gpus.own->device();
  const char* const nccl_host = getenv("NCCL_HOSTID");  // by which NCCL tells hosts apart
  DT_TRY(tell(job, place.rank,
              device.uuid + (nccl_host != nullptr ? nccl_host : "") + "\n" + device.name + " at " +
                  device.bus_id + " on " + place.host));
  if (place.rank != 0) return gpus;
  std::vector<std::string> uuids;
  for (int rank = 0; rank < place.world_size; ++rank) {
    DT_TRY_VALUE(const std::string text, hear(job, rank));
    const size_t end = std::min(text.find('\n'), text.size());
    uuids.push_back(text.substr(0, end));
    if (rank < kMaxLines) {
      gpus.lines.push_back("rank " + std::to_string(rank) + ": " +
                           text.substr(std::min(end + 1, text.size())));
    }
  }
  gpus.backend = backend_of(uuids);
  return gpus;
}

std::string backend_of(const std::vector<std::string>& uuids) {
  if (uuids.size() == 1) return "nccl (one rank: a copy)";
  const std::set<std::string> different(uuids.begin(), uuids.end());
  return different.size() == uuids.size() ? "nccl" : "staged";
}

}  // namespace dt::cli::bench
