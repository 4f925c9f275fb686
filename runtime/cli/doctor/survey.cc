// SPDX-License-Identifier: Apache-2.0
// What `dt doctor` finds out by asking the system; the judgements are in the checks.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "backend/nccl/library.h"
#include "base/numa.h"
#include "cli/doctor/machine.h"
#include "cli/run/fd.h"
#include "job/settings.h"
#include "job/store_options.h"
#include "net/address.h"
#include "net/interfaces.h"
#include "net/loop.h"
#include "transport/tcp/socket.h"

namespace dt::cli::doctor {
namespace {

std::vector<InterfaceAddress> describe(const std::vector<net::Interface>& interfaces,
                                       const std::string& sys) {
  std::vector<InterfaceAddress> found;
  for (const net::Interface& each : interfaces) {
    std::error_code error;
    const bool bridge = std::filesystem::exists(sys + "/class/net/" + each.name + "/bridge", error);
    found.push_back({each.name, each.address.host(), net::is_loopback(each.address), bridge});
  }
  return found;
}

Result<std::vector<net::Address>> resolve(const std::string& host, uint16_t port,
                                          Deadline deadline) {
  struct Answer {
    Event done;
    Result<std::vector<net::Address>> addresses = Status(Code::kTimeout, "");
  };
  // A broken resolver answers late or never; the answer outlives this call.
  const auto answer = std::make_shared<Answer>();
  DT_TRY_VALUE(const std::unique_ptr<net::Loop> loop, net::Loop::start("dt-doctor"));
  loop->run([&] {
    net::resolve(loop.get(), host, port, [answer](Result<std::vector<net::Address>> addresses) {
      answer->addresses = std::move(addresses);
      answer->done.set();
    });
  });
  if (!answer->done.wait({deadline})) {
    return Status(Code::kTimeout, "the resolver does not answer for \"" + host + "\"");
  }
  return answer->addresses;
}

/// 0, or the errno of connecting; ETIMEDOUT at the deadline.
int try_connect(const net::Address& to, Deadline deadline) {
  const Fd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd ready{fd.get(), POLLOUT, 0};
  const int64_t left_ms = std::max<int64_t>(deadline.remaining_ms(), 0);
  if (poll(&ready, 1, static_cast<int>(std::min<int64_t>(left_ms, INT32_MAX))) != 1) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

Reach reach(const std::string& host, uint16_t port, Deadline deadline) {
  const auto addresses = resolve(host, port, deadline);
  if (!addresses.ok()) return {Reach::kUnresolved, addresses.status().message(), {}};
  return reach_any(addresses.value(), deadline);
}

Status try_listen(const std::string& host, uint16_t port) {
  DT_TRY_VALUE(const std::vector<net::Address> addresses, net::resolve_now(host, port, true));
  int error = 0;
  for (const net::Address& address : addresses) {
    const Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 &&
        listen(fd.get(), 1) == 0) {
      return {};
    }
    error = errno;
  }
  return Status(Code::kSystem, errno_text(error));
}

std::string library_path(void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

/// The first of `names` that loads, and what its `version_function` says.
Library open_library(const std::vector<std::string>& names, const char* version_function) {
  Library library;
  void* handle = nullptr;
  for (const std::string& name : names) {
    handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    const char* reason = dlerror();
    library.error = reason != nullptr ? reason : name + " cannot be loaded";
  }
  if (handle == nullptr) return library;
  library.error.clear();
  library.found = true;
  void* symbol = dlsym(handle, version_function);
  if (symbol == nullptr) {
    library.error = std::string("it has no ") + version_function;
    return library;
  }
  library.path = library_path(symbol);
  const int error = reinterpret_cast<int (*)(int*)>(symbol)(&library.version);
  if (error != 0) library.error = format("%s fails with %d", version_function, error);
  return library;  // stays loaded: CUDA does not like to be unloaded
}

bool can_load(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_LOCAL) != nullptr; }

/// The one that a job would open.
Library find_nccl(const std::string& path) {
  Library library;
  const auto opened = nccl::Library::open(path);
  if (!opened.ok()) {
    library.error = opened.status().message();
    library.found = can_load(path.empty() ? nccl::kSoname : path.c_str());
    return library;
  }
  const nccl::Library& nccl = *opened.value();
  return {true, nccl.path(), nccl.version(), {}, nccl.origin(), nccl.missing()};
}

/// What the keys of the network choose here, whether or not this job will need it.
void look_at_network(const std::vector<net::Interface>& interfaces, Machine* machine) {
  const auto ports = tcp::parse_port_range(machine->config.text("network.port_range"));
  machine->network_error = ports.status();
  const std::string& wanted = machine->config.text("network.interface");
  if (wanted.empty() || !ports.ok()) return;
  const auto chosen = net::choose_address(wanted, net::Address(), interfaces);
  machine->network_error = chosen.status();
  if (!chosen.ok()) return;
  machine->chosen_address = chosen.value().host();
  machine->network_error = tcp::listen_on(chosen.value(), ports.value()).status();
}

void look_for_others(Deadline deadline, Machine* machine) {
  const launch::Place& place = *machine->place;
  machine->serves_store = place.rank == 0 && !place.store_served;
  const std::string& bind = machine->config.text("store.bind");
  const bool exchange = place.exchange != launch::Exchange::kNone &&
                        machine->config.text("store.torch_address").empty();
  const auto meeting = exchange ? Result<Meeting>(Meeting()) : meeting_of(*machine);
  if (!meeting.ok()) return;  // said by the check
  const Meeting& at = meeting.value();
  if (!exchange) machine->rendezvous = reach(at.host, at.port, deadline);
  if (!machine->serves_store) return;
  if (exchange || at.torch) {
    if (!bind.empty()) machine->store_port = try_listen(bind, 0);
  } else if (!bind.empty() || machine->rendezvous->kind != Reach::kUnresolved) {
    const auto host = job::bind_address(machine->config, place);
    machine->store_port = host.ok() ? try_listen(host.value(), at.port) : host.status();
  }
}

}  // namespace

Reach reach_any(const std::vector<net::Address>& addresses, Deadline deadline) {
  Reach best{Reach::kUnresolved, "it has no address", {}};
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto source = net::route_source(addresses[i]);
    Reach found;
    if (source.ok()) found.local_address = source.value().host();
    // A silent one leaves time for those behind it.
    const auto left = static_cast<int64_t>(addresses.size() - i);
    const int64_t share_ms = std::max<int64_t>(deadline.remaining_ms(), 0) / left;
    const int error = try_connect(addresses[i], Deadline::after_ms(share_ms));
    if (error == 0) return found;
    found.detail = errno_text(error);
    found.kind = error == ECONNREFUSED ? Reach::kRefused
                 : error == ETIMEDOUT  ? Reach::kSilent
                                       : Reach::kUnroutable;
    if (i == 0 || found.kind < best.kind) best = found;
  }
  return best;
}

Machine survey(Deadline deadline) {
  Machine machine;
  utsname system{};
  if (uname(&system) == 0) {
    machine.kernel = format("%s %s %s", system.sysname, system.release, system.machine);
  }
  machine.environment = process_environment();
  auto config = Config::load(machine.environment);
  machine.config_error = config.status();
  const bool configured = config.ok();
  if (configured) {
    machine.config = std::move(config).value();
    machine.config_error = job::check_settings(machine.config);
  }
  auto place = launch::resolve_place(machine.config, machine.environment);
  machine.place_error = place.status();
  if (place.ok()) {
    machine.place = std::move(place).value();
    job::prefer_loopback(&*machine.place);
  }
  if (configured) {
    const bool may_come =
        machine.place && (machine.place->exchange != launch::Exchange::kNone ||
                          machine.place->token_exchange != launch::Exchange::kNone);
    auto found = launch::find_credentials(machine.config, machine.environment, may_come);
    machine.credentials_error = found.status();
    if (found.ok()) machine.credentials = std::move(found).value();
  }
  machine.cpus = allowed_cpus();
  getrlimit(RLIMIT_NOFILE, &machine.open_files);
  getrlimit(RLIMIT_MEMLOCK, &machine.locked_memory);
  getrlimit(RLIMIT_NPROC, &machine.processes);
  const std::vector<net::Interface> interfaces = net::list_interfaces();
  machine.interfaces = describe(interfaces, machine.roots.sys);
  if (configured) look_at_network(interfaces, &machine);
  if (machine.place && machine.place->world_size > 1) look_for_others(deadline, &machine);
  machine.cuda = open_library({"libcuda.so.1"}, "cuDriverGetVersion");
  machine.cuda_answers = cuda::ask();
  machine.nccl = find_nccl(machine.config.text("nccl.library"));
  machine.nccl_conf = nccl::read_conf(machine.environment, nccl::conf_places());
  machine.ibverbs = can_load("libibverbs.so.1");
  return machine;
}

}  // namespace dt::cli::doctor
