// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "capi/operation.h"
#include "job/host_identity.h"
#include "job/job.h"
#include "launch/credentials.h"
#include "launch/ps_place.h"
#include "net/interfaces.h"
#include "ps/client.h"
#include "ps/server.h"

namespace dt::capi {
namespace {

static_assert(DT_PS_SGD == static_cast<int>(ps::Method::kSgd));
static_assert(DT_PS_MOMENTUM == static_cast<int>(ps::Method::kMomentum));
static_assert(DT_PS_ADAGRAD == static_cast<int>(ps::Method::kAdagrad));
static_assert(DT_PS_ADAM == static_cast<int>(ps::Method::kAdam));
static_assert(DT_PS_CONSTANT == static_cast<int>(ps::Initial::kConstant));
static_assert(DT_PS_UNIFORM == static_cast<int>(ps::Initial::kUniform));
static_assert(DT_PS_NORMAL == static_cast<int>(ps::Initial::kNormal));
static_assert(DT_PS_WORKER == static_cast<int>(launch::PsRole::kWorker));
static_assert(DT_PS_SERVER == static_cast<int>(launch::PsRole::kServer));
static_assert(DT_PS_EVALUATOR == static_cast<int>(launch::PsRole::kEvaluator));

/// The eventfd of dt_ps_fd(), once somebody has asked for it.
class PsBell {
 public:
  ~PsBell() {
    const int fd = fd_.load();
    release_fd_from_fork_guard(fd);
    if (fd >= 0) close(fd);
  }
  void ring() const {
    if (const int fd = fd_.load(); fd >= 0) (void)eventfd_write(fd, 1);
  }
  Result<int32_t> fd() {
    int known = fd_.load();
    if (known >= 0) return known;
    const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made < 0) return Status(Code::kSystem, "eventfd: " + errno_text(errno));
    guard_fd_from_fork(made);
    if (fd_.compare_exchange_strong(known, made)) return made;
    release_fd_from_fork_guard(made);
    close(made);
    return known;
  }

 private:
  std::atomic<int> fd_{-1};
};

struct PsObject {
  static constexpr HandleKind kKind = HandleKind::kPs;
  int64_t timeout_ms = -1;
  const std::shared_ptr<PsBell> bell = std::make_shared<PsBell>();
  std::unique_ptr<ps::Client> client;

  Wait wait() const { return Wait{Deadline::after_ms(timeout_ms), nullptr}; }
};

struct PsServerObject {
  static constexpr HandleKind kKind = HandleKind::kPsServer;
  std::unique_ptr<ps::Server> server;
};

/// What both sides need to know.
struct PsSetting {
  ConfigObject::State state;
  launch::PsPlace place;
  launch::Credentials credentials;
  LoggerPtr logger;
  int64_t sign_ms = 0;
  int64_t silence_ms = 0;
};

Result<PsSetting> ps_setting(const Call& call, const dt_config* config) {
  PsSetting setting;
  DT_TRY_VALUE(setting.state, config_of(call, config));
  Config& settings = setting.state.config;
  setting.logger = job::make_logger(settings, std::move(setting.state.sink));
  DT_TRY(settings.check_together());
  const auto place = launch::resolve_ps_place(settings, process_environment());
  if (!place.ok()) return place.status().within(call.function());
  setting.place = place.value();
  DT_TRY_VALUE(setting.credentials,
               launch::find_credentials(settings, process_environment(), false));
  setting.sign_ms = settings.integer("heartbeat.interval_ms");
  setting.silence_ms = setting.sign_ms == 0 ? 0 : settings.integer("heartbeat.timeout_ms");
  return setting;
}

Status check_at_least(const Call& call, const char* field, int64_t value, int64_t least) {
  if (value >= least) return {};
  return call.invalid("options->%s is %lld; it must be at least %lld", field,
                      static_cast<long long>(value), static_cast<long long>(least));
}

/// Whether it listens, or did until its agent shut it because all workers have ended.
bool is_listener(int fd) {
  int listens = 0;
  int protocol = 0;
  socklen_t length = sizeof listens;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) return false;
  if (listens != 0) return true;
  sockaddr_storage peer{};
  socklen_t peer_length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 &&
         protocol == IPPROTO_TCP &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0;
}

Result<tcp::Socket> ps_listener_of_agent(int given) {
  if (!is_listener(given)) {
    return Status(Code::kConfig,
                  format("DT_PS_LISTEN_FD=%d is no listening socket: a program between dt run and "
                         "this one has closed it; let it pass the descriptor on (Python: pass_fds)",
                         given));
  }
  // The agent's stays as it is; another server of this process, after this one, has it again.
  const int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0) return tcp::Socket(fd);
  return Status(Code::kSystem,
                "cannot use the socket that dt run gave this server: " + errno_text(errno));
}

/// Where a server listens: the agent's socket, or at its own place in the list.
Result<tcp::Socket> ps_listener(const PsSetting& setting) {
  if (setting.place.listen_fd >= 0) return ps_listener_of_agent(setting.place.listen_fd);
  const std::string& own = setting.place.servers[static_cast<size_t>(setting.place.index)];
  net::HostPort at;
  if (own.compare(own.size() - 2, 2, ":0") == 0) {
    at.host = net::parse_host(own.substr(0, own.size() - 2)).value_or("");
  } else {
    DT_TRY_VALUE(at, net::parse_host_port(own));
  }
  // Its name may lead to a service in front of this host, or in its own /etc/hosts to loopback
  // (Debian has 127.0.1.1): other hosts come to other addresses.
  const bool on_loopback = net::means_loopback(at.host);
  auto addresses = net::resolve_now(on_loopback ? at.host : "", at.port, true);
  DT_TRY(addresses.status());
  if (!on_loopback) {
    // That of IPv6 stands for both; that of IPv4 remains for a host without IPv6.
    std::stable_partition(addresses.value().begin(), addresses.value().end(),
                          [](const net::Address& each) { return each.family() == AF_INET6; });
  }
  Status status(Code::kConfig, own + " has no address");
  for (const net::Address& address : addresses.value()) {
    DT_TRY(net::check_exposure(setting.credentials.security, address, "the parameter server"));
    tcp::Socket listener;
    const int error = tcp::listen_at(address, &listener);
    if (error == 0) return listener;
    status = Status(Code::kSystem,
                    format("parameter server %d cannot listen at %s: %s; %s", setting.place.index,
                           address.text().c_str(), errno_text(error).c_str(),
                           error == EMFILE || error == ENFILE
                               ? "raise the limit of open files (ulimit -n)"
                               : "end what uses the port, or give another in ps.servers"));
    // Where its clients may reach another program, no other address helps.
    if (error == EADDRINUSE) return status;
  }
  return status;
}

Status read_ps_server_options(const Call& call, const dt_ps_server_options* options,
                              ps::Server::Options* out) {
  dt_ps_server_options standard;
  dt_ps_server_options_init(&standard);
  dt_ps_server_options asked;
  DT_TRY(read_options(call, options != nullptr ? options : &standard, "options",
                      "dt_ps_server_options_init", &asked));
  DT_TRY(check_at_least(call, "save_every_ms", asked.save_every_ms, 0));
  DT_TRY(check_at_least(call, "absent_ms", asked.absent_ms, 0));
  DT_TRY(check_at_least(call, "arrival_ms", asked.arrival_ms, 0));
  if (asked.checkpoint != nullptr) {
    out->directory = asked.checkpoint;
    if (out->directory.empty()) return call.invalid("options->checkpoint is empty");
    if (access(asked.checkpoint, W_OK | X_OK) != 0) {
      return Status(Code::kSystem,
                    format("%s: the directory \"%s\" cannot be written: %s; make it, or give "
                           "another",
                           call.function(), asked.checkpoint, errno_text(errno).c_str()));
    }
  }
  constexpr int64_t kMostMs = int64_t{1} << 40;  // decades
  out->save_every_ms = std::min(asked.save_every_ms, kMostMs);
  out->absent_ms = std::min(asked.absent_ms, kMostMs);
  out->arrival_ms = std::min(asked.arrival_ms, kMostMs);
  return {};
}

Result<ps::Variable> read_spec(const Call& call, const dt_ps_spec* spec) {
  DT_TRY(call.not_null(spec, "spec"));
  dt_ps_spec asked;
  DT_TRY(read_options(call, spec, "spec", "dt_ps_spec_init", &asked));
  DT_TRY(call.not_null(asked.name, "spec->name"));
  if (asked.nesterov != 0 && asked.nesterov != 1) {
    return call.invalid("spec->nesterov is %d; it must be 0 or 1", asked.nesterov);
  }
  ps::Variable variable;
  variable.name = asked.name;
  variable.rows = asked.rows;
  variable.columns = asked.columns;
  variable.method = static_cast<ps::Method>(asked.optimizer);
  variable.rate = asked.rate;
  variable.momentum = asked.momentum;
  variable.nesterov = asked.nesterov == 1;
  variable.beta1 = asked.beta1;
  variable.beta2 = asked.beta2;
  variable.epsilon = asked.epsilon;
  variable.initial = static_cast<ps::Initial>(asked.initial);
  variable.initial_value = asked.initial_value;
  variable.seed = asked.seed;
  if (const Status status = check(variable); !status.ok()) {
    return call.invalid("spec->%s", status.message().c_str());
  }
  return variable;
}

template <class F>
dt_status on_ps(const char* function, dt_ps* ps, F&& body) noexcept {
  return guard(function, [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsObject>(ps, "ps"));
    return Status(body(call, *object)).within(function);
  });
}

/// A call for rows: `issue(client, work)`.
template <class F>
Status ask_for_rows(const Call& call, PsObject& object, int32_t variable, const int64_t* rows,
                    int64_t row_count, const void* values, const char* argument, dt_work** out_work,
                    F&& issue) {
  DT_TRY_VALUE(const ps::Variable known, object.client->variable(variable));
  constexpr int64_t kMostRowsAtOnce = INT64_MAX / 4 / ps::kMostColumns;
  if (row_count < -1 || row_count > kMostRowsAtOnce) {
    return Status(
        Code::kInvalidArgument,
        format("row_count is %lld; it must be -1, or in [0, %lld]",
               static_cast<long long>(row_count), static_cast<long long>(kMostRowsAtOnce)));
  }
  if (row_count > 0 && rows == nullptr) {
    return Status(Code::kInvalidArgument, "rows is NULL; give -1 as row_count for all rows");
  }
  if (row_count < 0 && rows != nullptr) {
    return Status(Code::kInvalidArgument, "row_count is -1, but rows is not NULL");
  }
  if (row_count != 0 && values == nullptr) {
    return Status(Code::kInvalidArgument, std::string(argument) + " is NULL");
  }
  auto work = std::make_shared<WorkObject>();
  work->work = std::make_shared<backend::Work>();
  NewWork handle;
  if (out_work != nullptr) {
    work->bell = object.bell;
    work->work->then([bell = object.bell](const Status&) { bell->ring(); });
    DT_TRY(handle.give(call, work));
  }
  DT_TRY(issue(*object.client, work->work));
  if (out_work != nullptr) {
    handle.keep(out_work);
    return {};
  }
  (void)wait_for(work, Deadline::never());  // the client ends it
  return work->work->status();
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_ps_info(const dt_config* config, dt_ps_place* out_place) {
  return guard("dt_ps_info", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(out_place, "out_place"));
    DT_TRY(call.known_size(out_place->struct_size, sizeof(dt_ps_place), "out_place",
                           "dt_ps_place_init"));
    DT_TRY_VALUE(auto state, config_of(call, config));
    DT_TRY(state.config.check_together());
    const auto place = launch::resolve_ps_place(state.config, process_environment());
    if (!place.ok()) return place.status().within(call.function());
    const launch::PsPlace& found = place.value();
    dt_ps_place filled;
    dt_ps_place_init(&filled);
    filled.struct_size = out_place->struct_size;
    filled.role = static_cast<dt_ps_role>(found.role);
    filled.index = found.index;
    filled.servers = static_cast<int32_t>(found.servers.size());
    filled.workers = found.workers;
    filled.attempt = found.attempt;
    memcpy(out_place, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
    return {};
  });
}

dt_status dt_ps_serve(const dt_config* config, const dt_ps_server_options* options,
                      dt_ps_server** out_server) {
  return guard("dt_ps_serve", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(out_server, "out_server"));
    ps::Server::Options chosen;
    DT_TRY(read_ps_server_options(call, options, &chosen));
    DT_TRY_VALUE(PsSetting setting, ps_setting(call, config));
    if (setting.place.role != launch::PsRole::kServer) {
      return Status(Code::kConfig, std::string(call.function()) +
                                       ": this process is no parameter server of its job; call "
                                       "dt_ps_connect in it");
    }
    auto listener = ps_listener(setting);
    if (!listener.ok()) return listener.status().within(call.function());
    chosen.index = setting.place.index;
    chosen.servers = static_cast<int32_t>(setting.place.servers.size());
    chosen.workers = setting.place.workers;
    chosen.job_id = setting.place.job_id;
    chosen.host = job::host_name();
    chosen.pid = getpid();
    chosen.security = setting.credentials.security;
    chosen.silence_ms = setting.silence_ms;
    chosen.logger = setting.logger;
    auto object = std::make_shared<PsServerObject>();
    auto started = ps::Server::start(std::move(listener).value(), std::move(chosen));
    if (!started.ok()) return started.status().within(call.function());
    object->server = std::move(started).value();
    return call.give(std::move(object), out_server);
  });
}

dt_status dt_ps_server_port(dt_ps_server* server, int32_t* out_port) {
  return guard("dt_ps_server_port", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsServerObject>(server, "server"));
    DT_TRY(call.not_null(out_port, "out_port"));
    *out_port = object->server->port();
    return {};
  });
}

dt_status dt_ps_server_wait(dt_ps_server* server, int64_t timeout_ms, int32_t* out_ended) {
  return guard("dt_ps_server_wait", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsServerObject>(server, "server"));
    const auto ended = object->server->wait(Wait{Deadline::after_ms(timeout_ms), nullptr});
    if (!ended.ok()) return ended.status().within(call.function());
    if (out_ended != nullptr) *out_ended = ended.value() ? 1 : 0;
    return {};
  });
}

dt_status dt_ps_server_stats(dt_ps_server* server, dt_ps_server_statistics* out_statistics) {
  return guard("dt_ps_server_stats", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsServerObject>(server, "server"));
    DT_TRY(call.not_null(out_statistics, "out_statistics"));
    DT_TRY(call.known_size(out_statistics->struct_size, sizeof(dt_ps_server_statistics),
                           "out_statistics", "dt_ps_server_statistics_init"));
    const ps::Server::Statistics& from = object->server->statistics();
    dt_ps_server_statistics filled;
    dt_ps_server_statistics_init(&filled);
    filled.struct_size = out_statistics->struct_size;
    filled.workers = static_cast<int32_t>(from.workers);
    filled.pushes = from.pushes;
    filled.pulls = from.pulls;
    filled.pushed_rows = from.pushed_rows;
    filled.pulled_rows = from.pulled_rows;
    filled.saves = from.saves;
    filled.busy_ns = from.busy_ns;
    memcpy(out_statistics, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
    return {};
  });
}

void dt_ps_server_destroy(dt_ps_server* server) {
  // A call of another thread keeps the object, and must end as well.
  (void)guard("dt_ps_server_destroy", [&](const Call&) -> Status {
    const auto found = handle_table().find(server, HandleKind::kPsServer);
    if (found.ok()) std::static_pointer_cast<PsServerObject>(found.value())->server->stop();
    return {};
  });
  destroy<PsServerObject>(server);
}

dt_status dt_ps_connect(const dt_config* config, const dt_ps_options* options, dt_ps** out_ps) {
  return guard("dt_ps_connect", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(out_ps, "out_ps"));
    dt_ps_options standard;
    dt_ps_options_init(&standard);
    dt_ps_options asked;
    DT_TRY(read_options(call, options != nullptr ? options : &standard, "options",
                        "dt_ps_options_init", &asked));
    DT_TRY(check_at_least(call, "worker", asked.worker, -1));
    DT_TRY(check_at_least(call, "connect_ms", asked.connect_ms, 0));
    DT_TRY(check_at_least(call, "queue_bytes", asked.queue_bytes, 1));
    DT_TRY_VALUE(const PsSetting setting, ps_setting(call, config));
    if (setting.place.role == launch::PsRole::kServer) {
      return Status(Code::kInvalidState,
                    format("%s: this process is parameter server %d; call dt_ps_serve in it",
                           call.function(), setting.place.index));
    }
    ps::Client::Options chosen;
    for (const std::string& server : setting.place.servers) {
      DT_TRY_VALUE(net::HostPort at, net::parse_host_port(server));
      chosen.servers.push_back(std::move(at));
    }
    chosen.worker = asked.worker >= 0                                  ? asked.worker
                    : setting.place.role == launch::PsRole::kEvaluator ? -1
                                                                       : setting.place.index;
    chosen.job_id = setting.place.job_id;
    chosen.host = job::host_name();
    chosen.pid = getpid();
    chosen.security = setting.credentials.security;
    chosen.timeout_ms = asked.timeout_ms;
    chosen.sign_ms = setting.sign_ms;
    chosen.silence_ms = setting.silence_ms;
    chosen.most_bytes = asked.queue_bytes;
    chosen.logger = setting.logger;
    auto object = std::make_shared<PsObject>();
    object->timeout_ms = asked.timeout_ms;
    auto connected =
        ps::Client::connect(std::move(chosen), Wait{Deadline::after_ms(asked.connect_ms), nullptr});
    if (!connected.ok()) return connected.status().within(call.function());
    object->client = std::move(connected).value();
    return call.give(std::move(object), out_ps);
  });
}

dt_status dt_ps_variable(dt_ps* ps, const dt_ps_spec* spec, int32_t* out_variable) {
  return guard("dt_ps_variable", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsObject>(ps, "ps"));
    DT_TRY(call.not_null(out_variable, "out_variable"));
    DT_TRY_VALUE(const ps::Variable variable, read_spec(call, spec));
    const auto number = object->client->open(variable, object->wait());
    if (!number.ok()) return number.status().within(call.function());
    *out_variable = number.value();
    return {};
  });
}

dt_status dt_ps_push(dt_ps* ps, int32_t variable, const int64_t* rows, int64_t row_count,
                     const float* gradients, double rate, dt_work** out_work) {
  return on_ps("dt_ps_push", ps, [&](const Call& call, PsObject& object) -> Status {
    if (!(rate < HUGE_VAL)) {
      return Status(Code::kInvalidArgument,
                    format("rate is %g; it must be finite, or negative for spec.rate", rate));
    }
    return ask_for_rows(call, object, variable, rows, row_count, gradients, "gradients", out_work,
                        [&](ps::Client& client, const auto& work) {
                          return client.push(variable, rows, row_count, gradients, rate, work);
                        });
  });
}

dt_status dt_ps_pull(dt_ps* ps, int32_t variable, const int64_t* rows, int64_t row_count,
                     float* values, dt_work** out_work) {
  return on_ps("dt_ps_pull", ps, [&](const Call& call, PsObject& object) -> Status {
    return ask_for_rows(call, object, variable, rows, row_count, values, "values", out_work,
                        [&](ps::Client& client, const auto& work) {
                          return client.pull(variable, rows, row_count, values, work);
                        });
  });
}

dt_status dt_ps_set(dt_ps* ps, int32_t variable, const int64_t* rows, int64_t row_count,
                    const float* values, dt_work** out_work) {
  return on_ps("dt_ps_set", ps, [&](const Call& call, PsObject& object) -> Status {
    return ask_for_rows(call, object, variable, rows, row_count, values, "values", out_work,
                        [&](ps::Client& client, const auto& work) {
                          return client.set(variable, rows, row_count, values, work);
                        });
  });
}

dt_status dt_ps_clock(dt_ps* ps, int64_t ahead) {
  return on_ps("dt_ps_clock", ps, [&](const Call&, PsObject& object) -> Status {
    if (ahead < -1) {
      return Status(Code::kInvalidArgument,
                    format("ahead is %lld; it must be at least -1", static_cast<long long>(ahead)));
    }
    return object.client->clock(ahead, object.wait());
  });
}

dt_status dt_ps_save(dt_ps* ps) {
  return on_ps("dt_ps_save", ps,
               [](const Call&, PsObject& object) { return object.client->save(object.wait()); });
}

dt_status dt_ps_fd(dt_ps* ps, int32_t* out_fd) {
  return guard("dt_ps_fd", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsObject>(ps, "ps"));
    DT_TRY(call.not_null(out_fd, "out_fd"));
    const auto fd = object->bell->fd();
    if (!fd.ok()) return fd.status().within(call.function());
    *out_fd = fd.value();
    return {};
  });
}

dt_status dt_ps_stats(dt_ps* ps, dt_ps_statistics* out_statistics) {
  return guard("dt_ps_stats", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<PsObject>(ps, "ps"));
    DT_TRY(call.not_null(out_statistics, "out_statistics"));
    DT_TRY(call.known_size(out_statistics->struct_size, sizeof(dt_ps_statistics), "out_statistics",
                           "dt_ps_statistics_init"));
    const ps::Client::Statistics from = object->client->statistics();
    dt_ps_statistics filled;
    dt_ps_statistics_init(&filled);
    filled.struct_size = out_statistics->struct_size;
    filled.pushes = from.pushes;
    filled.pulls = from.pulls;
    filled.pushed_rows = from.pushed_rows;
    filled.pulled_rows = from.pulled_rows;
    filled.sent_bytes = from.sent_bytes;
    filled.received_bytes = from.received_bytes;
    filled.reconnects = from.reconnects;
    filled.clock = from.clock;
    filled.most_ahead = from.most_ahead;
    memcpy(out_statistics, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
    return {};
  });
}

dt_status dt_ps_leave(dt_ps* ps) {
  return on_ps("dt_ps_leave", ps,
               [](const Call&, PsObject& object) { return object.client->leave(object.wait()); });
}

void dt_ps_destroy(dt_ps* ps) {
  // A call of another thread keeps the object, and must end as well.
  (void)guard("dt_ps_destroy", [&](const Call&) -> Status {
    const auto found = handle_table().find(ps, HandleKind::kPs);
    if (found.ok()) std::static_pointer_cast<PsObject>(found.value())->client->abort();
    return {};
  });
  destroy<PsObject>(ps);
}

}  // extern "C"
