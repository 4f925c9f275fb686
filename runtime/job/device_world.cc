// SPDX-License-Identifier: Apache-2.0
#include "job/device_world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "backend/device/device_backend.h"
#include "backend/nccl/conf.h"
#include "backend/nccl/nccl_carrier.h"
#include "backend/nccl/settings.h"
#include "backend/staged/staged_carrier.h"

namespace dt::job {
namespace {

using backend::Backend;
using backend::Collective;
using backend::Kind;

/// A card as it travels.
struct Letter {
  char host[256] = {};
  int64_t pid = 0;
  int32_t code = 0;
  int32_t nccl_code = 0;
  int32_t nccl_version = 0;
  char reason[768] = {};
  char nccl_reason[768] = {};
  char uuid[96] = {};
  char device[256] = {};
  char nccl_host[128] = {};
};

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  strncpy(to, text.c_str(), N - 1);
}
template <size_t N>
std::string get(const char (&from)[N]) {
  return std::string(from, strnlen(from, N));
}

Letter letter_of(const DeviceCard& card) {
  Letter letter;
  put(letter.host, card.host);
  letter.pid = card.pid;
  letter.code = static_cast<int32_t>(card.problem.code());
  letter.nccl_code = static_cast<int32_t>(card.nccl_problem.code());
  letter.nccl_version = card.nccl_version;
  put(letter.reason, card.problem.message());
  put(letter.nccl_reason, card.nccl_problem.message());
  put(letter.uuid, card.uuid);
  put(letter.device, card.device);
  put(letter.nccl_host, card.nccl_host);
  return letter;
}

Status status_of(int32_t code, const std::string& reason) {
  return code == 0 ? Status() : Status(static_cast<Code>(code), reason);
}

DeviceCard card_of(const Letter& letter) {
  DeviceCard card;
  card.host = get(letter.host);
  card.pid = letter.pid;
  card.problem = status_of(letter.code, get(letter.reason));
  card.nccl_problem = status_of(letter.nccl_code, get(letter.nccl_reason));
  card.nccl_version = letter.nccl_version;
  card.uuid = get(letter.uuid);
  card.device = get(letter.device);
  card.nccl_host = get(letter.nccl_host);
  return card;
}

std::string who(const std::vector<DeviceCard>& cards, size_t rank) {
  return format("rank %zu (%s pid %lld)", rank, cards[rank].host.c_str(),
                static_cast<long long>(cards[rank].pid));
}

Status complaint(const std::vector<DeviceCard>& cards, size_t rank, Code code,
                 std::string message) {
  ErrorInfo info;
  info.code = code;
  info.message = std::move(message);
  info.rank = static_cast<int32_t>(rank);
  info.host = cards[rank].host;
  info.pid = cards[rank].pid;
  info.operation = "dt_init";
  return Status(std::move(info));
}

/// What this rank has.
struct Equipment {
  std::shared_ptr<cuda::Runtime> runtime;
  std::shared_ptr<backend::DeviceEngine> engine;
  std::shared_ptr<kernels::TensorKernels> kernels;
  std::shared_ptr<const nccl::Library> library;
  nccl::Settings settings;
};

Status take_device(const Config& config, const DeviceWorldOptions& options, Equipment* out) {
  const cuda::Answers answers = options.devices.ask();
  DT_TRY(cuda::explain(answers));
  DT_TRY_VALUE(const int32_t index,
               choose_device(static_cast<int32_t>(config.integer("backend.device")),
                             options.place.local_rank, options.place.local_size,
                             answers.device_count, config.text("backend.shared_gpu") == "host"));
  DT_TRY_VALUE(out->runtime, options.devices.open(index));
  DT_TRY_VALUE(out->kernels, options.devices.kernels(out->runtime));
  const auto priority = config.text("nccl.stream_priority") == "normal"
                            ? cuda::StreamPriority::kNormal
                            : cuda::StreamPriority::kHigh;
  DT_TRY_VALUE(out->engine, backend::DeviceEngine::start({out->runtime, priority, options.logger}));
  return {};
}

/// The files that NCCL reads by itself.
Status look_at_conf(const nccl::Settings& settings, const Environment& environment,
                    const DeviceWorldOptions& options) {
  const auto lines = nccl::read_conf(environment, nccl::conf_places());
  const auto found = nccl::conf_obstacles(settings, environment, lines);
  if (found.empty()) return {};
  if (found.front().fatal) return Status(Code::kConfig, found.front().text);
  if (options.logger == nullptr || options.place.local_rank != 0) return {};
  const std::string text = nccl::conf_text(settings, environment, lines);
  options.logger->log(LogLevel::kWarning, "%s", text.c_str());
  return {};
}

void tell_of(const nccl::Library& library, const nccl::Settings& settings, Logger* logger) {
  logger->log(LogLevel::kInfo, "%s", library.description().c_str());
  for (const nccl::Fault& fault : nccl::known_faults(library.version())) {
    logger->log(LogLevel::kInfo, "NCCL %s: %s", library.version_text().c_str(), fault.text.c_str());
  }
  for (const std::string& text : nccl::ignored_by(settings, library.version())) {
    logger->log(LogLevel::kWarning, "%s", text.c_str());
  }
}

Status take_nccl(const Config& config, const DeviceWorldOptions& options, Equipment* out) {
  DT_TRY_VALUE(out->settings, nccl::Settings::read(config));
  const Environment environment = process_environment();
  for (const nccl::Obstacle& obstacle : nccl::obstacles(environment)) {
    if (obstacle.fatal) return Status(Code::kConfig, obstacle.text);
  }
  DT_TRY(look_at_conf(out->settings, environment, options));
  const nccl::Plan plan = nccl::plan_environment(out->settings, environment);
  for (const nccl::Variable& each : plan.write) setenv(each.name.c_str(), each.value.c_str(), 1);
  if (!plan.warning.empty() && options.logger != nullptr && options.place.local_rank == 0) {
    options.logger->log(LogLevel::kWarning, "%s", plan.warning.c_str());
  }
  if (options.place.world_size == 1) return {};  // NCCL is not asked
  DT_TRY_VALUE(out->library, nccl::Library::open(config.text("nccl.library")));
  if (options.logger != nullptr && options.place.local_rank == 0) {
    tell_of(*out->library, out->settings, options.logger.get());
  }
  return {};
}

Result<std::vector<DeviceCard>> exchange(const DeviceWorldOptions& options, const DeviceCard& mine,
                                         const Wait& wait) {
  const Letter letter = letter_of(mine);
  std::vector<Letter> letters(static_cast<size_t>(options.place.world_size));
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.send = &letter;
  gather.recv = letters.data();
  gather.count = sizeof letter;
  gather.deadline = wait.deadline;
  gather.name = "GPUs";
  DT_TRY(backend::run_on_host(*options.on_host, gather, wait.interrupt));
  std::vector<DeviceCard> cards;
  for (const Letter& each : letters) cards.push_back(card_of(each));
  return cards;
}

}  // namespace

bool wants_device(const Config& config) { return config.text("backend.name") == "nccl"; }

Result<int32_t> choose_device(int32_t wanted, int32_t local_rank, int32_t local_size,
                              int32_t device_count, bool share) {
  if (wanted >= device_count) {
    return Status(Code::kConfig, format("backend.device is %d, and this process sees %d %s; count "
                                        "from 0, within CUDA_VISIBLE_DEVICES where that is set",
                                        wanted, device_count, device_count == 1 ? "GPU" : "GPUs"));
  }
  if (wanted >= 0) return wanted;
  if (local_rank < device_count) return local_rank;
  // A launcher that gives each rank its own GPU shows it one, as number 0.
  if (share || device_count == 1) return local_rank % device_count;
  return Status(Code::kConfig,
                format("%d ranks on this host and %d GPUs: start at most one rank per GPU, or set "
                       "backend.shared_gpu = \"host\", where ranks share a GPU and exchange "
                       "through host memory, slowly",
                       local_size, device_count));
}

Result<DeviceKind> judge(const std::vector<DeviceCard>& cards, bool share) {
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const Status& problem = cards[rank].problem;
    if (problem.ok()) continue;
    return complaint(cards, rank, problem.code(),
                     who(cards, rank) + ": backend.name is nccl, but " + problem.message());
  }
  std::map<std::string, size_t> holders;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    // NCCL compares the GPU and what it believes to be the host.
    const std::string key = share ? cards[rank].uuid : cards[rank].uuid + cards[rank].nccl_host;
    const auto [holder, is_new] = holders.emplace(key, rank);
    if (is_new) continue;
    if (share) return DeviceKind::kStaged;
    return complaint(
        cards, rank, Code::kConfig,
        format(
            "%s and %s hold the same GPU (%s, %s), which NCCL refuses; start one rank per GPU "
            "(each takes the GPU of its local rank), or set backend.shared_gpu = \"host\", where "
            "they exchange through host memory, slowly",
            who(cards, holder->second).c_str(), who(cards, rank).c_str(),
            cards[rank].device.c_str(), cards[rank].uuid.c_str()));
  }
  if (cards.size() == 1) return DeviceKind::kNccl;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const Status& problem = cards[rank].nccl_problem;
    if (problem.ok()) continue;
    return complaint(cards, rank, problem.code(), who(cards, rank) + ": " + problem.message());
  }
  for (size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].nccl_version == cards[0].nccl_version) continue;
    return complaint(
        cards, rank, Code::kVersion,
        format("NCCL is %s on %s and %s on %s, and all ranks need the same; install "
               "one version everywhere, or name its file by nccl.library",
               nccl::version_text(cards[0].nccl_version).c_str(), who(cards, 0).c_str(),
               nccl::version_text(cards[rank].nccl_version).c_str(), who(cards, rank).c_str()));
  }
  return DeviceKind::kNccl;
}

backend::Check check_of(const Config& config) {
  const std::string& check = config.text("watchdog.check");
  if (check == "off") return backend::Check::kOff;
  return check == "strict" ? backend::Check::kStrict : backend::Check::kLazy;
}

Result<std::shared_ptr<Backend>> make_device_world(const Config& config, DeviceWorldOptions options,
                                                   const Wait& wait) {
  Equipment equipment;
  DeviceCard card;
  card.host = options.host_name;
  card.pid = getpid();
  card.problem = take_device(config, options, &equipment);
  card.nccl_problem = take_nccl(config, options, &equipment);
  if (card.problem.ok()) {
    const cuda::DeviceInfo& device = equipment.runtime->device();
    card.uuid = device.uuid;
    card.device = device.name + " at " + device.bus_id;
  }
  if (const char* host = getenv("NCCL_HOSTID"); host != nullptr) card.nccl_host = host;
  if (equipment.library != nullptr) card.nccl_version = equipment.library->version();
  DT_TRY_VALUE(const auto cards, exchange(options, card, wait));
  DT_TRY_VALUE(const DeviceKind kind, judge(cards, config.text("backend.shared_gpu") == "host"));
  if (kind == DeviceKind::kNccl && options.place.rank == 0 && options.place.node_count > 1) {
    options.logger->log(
        LogLevel::kInfo,
        "NCCL's own connections between the hosts are neither authenticated nor "
        "encrypted, whatever security.mode is: keep them in a network of their own");
  }

  backend::DeviceOptions device;
  device.name = options.name;
  device.rank = options.place.rank;
  device.size = options.place.world_size;
  device.self = format("rank %d (%s)", options.place.rank, options.host_name.c_str());
  device.world_rank = options.place.rank;
  device.host = options.host_name;
  device.check = check_of(config);
  if (device.check == backend::Check::kLazy) device.order_book = options.order_book;
  device.on_host = options.on_host;
  device.on_broken = options.on_broken;
  device.note_last = options.note_last;
  device.engine = equipment.engine;
  device.kernels = equipment.kernels;
  const auto device_thread = device.engine->device_thread();
  device.open_timeout_ms = config.integer("nccl.init_timeout_ms");
  device.carries_on_host = kind == DeviceKind::kStaged;
  if (kind == DeviceKind::kStaged) {
    device.backend_name = "staged";
    device.make_carrier = [device_thread](const backend::DeviceOptions::Seat& seat) {
      return backend::make_staged_carrier(device_thread, {seat.rank, seat.size, seat.on_host});
    };
  } else {
    device.make_carrier = [device_thread, kernels = equipment.kernels, library = equipment.library,
                           registers = config.text("nccl.register") == "on",
                           settings = std::make_shared<const nccl::Settings>(equipment.settings)](
                              const backend::DeviceOptions::Seat& seat) {
      return backend::make_nccl_carrier(device_thread,
                                        {seat.name, seat.rank, seat.size, seat.on_host, library,
                                         settings->fields(), kernels, settings, registers});
    };
  }
  return backend::create_device_backend(std::move(device), wait);
}

}  // namespace dt::job
