// SPDX-License-Identifier: Apache-2.0
// How the ranks find the store of their job.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "job/job.h"
#include "job/settle_rank.h"
#include "job/store_options.h"
#include "launch/exchange.h"
#include "net/interfaces.h"
#include "store/join.h"

namespace dt::job {
namespace {

constexpr int64_t kFirstReturnMs = 100;
constexpr int64_t kLastReturnMs = 2'000;
constexpr int64_t kFirstGreetingMs = 2'000;
constexpr int64_t kLastGreetingMs = 10'000;
constexpr int64_t kTorchAnswerMs = 5'000;  // of a store of PyTorch that is there
constexpr int64_t kTorchKeyMs = 10'000;    // rank 0 comes there in the same moment

/// Where the processes of a job are restarted one by one, this one may come while the store still
/// serves the attempt that is over: that of the next one follows at the same address. Not where the
/// store is `served` for all attempts, or by dt run, which starts new processes for the next one.
Result<std::shared_ptr<store::Client>> connect_patiently(net::Loop* loop,
                                                         const store::ClientOptions& options,
                                                         bool served, bool by_dt_run,
                                                         const Wait& wait) {
  Status refused;
  for (int64_t pause_ms = kFirstReturnMs;; pause_ms = std::min(2 * pause_ms, kLastReturnMs)) {
    // The last try may have no time left for an answer.
    if (!refused.ok() && wait.deadline.passed()) return refused;
    auto client = store::Client::connect(loop, options, wait);
    if (client.ok()) return client;
    const std::string& operation = client.status().info().operation;
    if (operation != store::kAttemptOver && operation != store::kRankOver) {
      return refused.ok() || !wait.deadline.passed() ? client.status() : refused;
    }
    refused = client.status();
    if (served && operation == store::kRankOver) {
      if (!by_dt_run) return refused;
      ErrorInfo info = refused.info();
      info.message +=
          "; under dt run a rank may join another job of the same attempt after all ranks have "
          "left the "
          "one before with dt_finalize";
      return Status(std::move(info));
    }
    if (wait.interrupted()) return wait.interrupt->status();
    if (options.logger) {
      options.logger->log(LogLevel::kDebug, "%s; trying again until the next one begins",
                          refused.message().c_str());
    }
    Event nothing;
    nothing.wait({Deadline::after_ms(pause_ms).earlier(wait.deadline), wait.interrupt});
  }
}

}  // namespace

/// Where dt's own store is, served by rank 0 unless the launcher does.
Status Job::settle_store(const Config& config, const Wait& wait) {
  prefer_loopback(&place_);
  DT_TRY_VALUE(torch_, TorchMeeting::join(loop_.get(), config, place_, logger_, wait));
  const bool serves = place_.rank == 0 && !place_.store_served;
  if (!torch_.finds_store()) {
    if (place_.exchange != launch::Exchange::kNone) return exchange_address(config, wait);
    place_.master_port = launch::store_port(place_);  // another where a foreign agent holds it
    DT_TRY(exchange_token(wait));
    if (!serves) return {};
    const Status served = serve_store_for_all(config);
    if (served.ok() || served.message().find(errno_text(EADDRINUSE)) == std::string::npos ||
        !may_meet_torch()) {
      return served;
    }
    const Wait answer{wait.deadline.earlier(Deadline::after_ms(kTorchAnswerMs)), wait.interrupt};
    auto met = TorchMeeting::join_at_master(loop_.get(), place_, logger_, answer);
    if (!met.ok()) return wait.interrupted() ? wait.interrupt->status() : served;
    torch_ = std::move(met).value();
  }
  if (!serves) {
    DT_TRY_VALUE(const net::HostPort found, torch_.find(wait));
    place_.master_addr = found.host;
    place_.master_port = found.port;
    return {};
  }
  const TorchMeeting::Serving serving = torch_.serving(config);
  place_.master_addr = serving.host;
  place_.master_port = 0;
  DT_TRY(serve_store(config, serving.bind_address));
  place_.master_port = server_->port();
  return torch_.publish(serving.host, place_.master_port, wait);
}

/// Whether PyTorch may hold the port where rank 0 is to serve: the user or a launcher names it.
bool Job::may_meet_torch() const {
  return !torch_.finds_store() && !place_.store_served && !place_.port_taken &&
         place_.exchange == launch::Exchange::kNone;
}

/// At the address that all ranks were given, as far as other hosts can come there.
Status Job::serve_store_for_all(const Config& config) {
  const auto host = bind_address(config, place_);
  return host.ok() ? serve_store(config, host.value()) : cannot_serve(config, host.status());
}

Status Job::serve_store(const Config& config, const std::string& bind_address) {
  store::ServerOptions options = store_options(config);
  options.job_id = place_.job_id;
  options.attempt = place_.attempt;
  options.world_size = place_.world_size;
  options.bind_address =
      config.text("store.bind").empty() ? bind_address : config.text("store.bind");
  options.port = static_cast<uint16_t>(place_.master_port);
  options.server_rank = 0;
  options.host = host_name_;
  options.pid = getpid();
  options.security = credentials_.security;
  if (options.torch_compat) warn_of_dialect(options.bind_address);
  options.logger = logger_;
  auto server = store::Server::start(loop_.get(), std::move(options));
  if (!server.ok()) return cannot_serve(config, server.status());
  server_ = std::move(server).value();
  return {};
}

/// Says who could not listen, and what names the place.
Status Job::cannot_serve(const Config& config, const Status& why) const {
  ErrorInfo info = why.info();
  info.rank = 0;
  info.host = host_name_;
  const std::string& bind = config.text("store.bind");
  info.message = format("rank 0 (host %s) cannot serve the store on %s port %d: %s; ",
                        host_name_.c_str(), (bind.empty() ? place_.master_addr : bind).c_str(),
                        place_.master_port, why.message().c_str());
  info.message += bind.empty()
                      ? "MASTER_ADDR and MASTER_PORT must name an address of rank 0's host "
                        "and a free port there, the same on all ranks"
                      : "store.bind must be an address of rank 0's host";
  if (place_.launcher == "slurm") {
    info.message +=
        "; without MASTER_PORT the port follows from the number of the Slurm job, so steps that "
        "run at "
        "once on one node need a MASTER_PORT each, or srun --mpi=pmi2";
  }
  return Status(std::move(info));
}

/// Where nobody names an address and a port, rank 0 serves on a port of the kernel's choice and
/// tells the others through the launcher.
Status Job::exchange_address(const Config& config, const Wait& wait) {
  const Environment environment = process_environment();
  launch::StoreAddress mine;
  if (place_.rank == 0) {
    DT_TRY_VALUE(place_.master_addr,
                 launch::own_address(place_, environment, config.text("network.interface"), wait));
    if (credentials_.takes_token()) {
      DT_TRY_VALUE(net::Token token, net::Token::random());
      mine.token = token;
      credentials_.take(std::move(token), "rank 0, by the launcher's service");
    }
    DT_TRY(serve_store(config, place_.master_addr));
    const std::string bound = server_->bound_address();  // not the own address with store.bind
    if (bound != "0.0.0.0" && bound != "::") place_.master_addr = bound;
    mine.host = place_.master_addr;
    mine.port = server_->port();
  }
  DT_TRY_VALUE(const launch::StoreAddress store,
               launch::exchange_address(place_, environment, mine, wait));
  place_.master_addr = store.host;
  place_.master_port = store.port;
  if (store.token && credentials_.takes_token()) {
    credentials_.take(*store.token, "rank 0, by the launcher's service");
  }
  return {};
}

/// Where an address is given but no token. Without one rank 0 says that it listens on loopback
/// only.
Status Job::exchange_token(const Wait& wait) {
  const Status carried = launch::exchange_token(place_, process_environment(), &credentials_, wait);
  if (carried.code() != Code::kConfig) return carried;
  logger_->log(LogLevel::kWarning, "the launcher carries no token to the ranks of this job: %s",
               carried.message().c_str());
  return {};
}

/// PyTorch's protocol has no room for a proof.
void Job::warn_of_dialect(const std::string& bind_address) const {
  if (credentials_.security.mode == net::SecurityMode::kNone || net::means_loopback(bind_address)) {
    return;
  }
  logger_->log(LogLevel::kWarning,
               "store.torch_compat is on: whoever reaches the store's port on %s can read and "
               "change the keys of PyTorch's clients, without the token; all other connections of "
               "the job are guarded",
               bind_address.empty() ? "all interfaces" : bind_address.c_str());
}

/// Another rank than 0: its store is at the address, or the store of PyTorch that rank 0 found
/// there, too.
Result<std::shared_ptr<store::Client>> Job::connect_or_meet(store::ClientOptions options,
                                                            const Wait& wait) {
  if (place_.rank == 0 || !may_meet_torch()) {
    return connect_patiently(loop_.get(), options, place_.store_served, place_.launcher == "dt run",
                             wait);
  }
  Status stranger;
  for (options.greeting_ms = kFirstGreetingMs;;
       options.greeting_ms = std::min(2 * options.greeting_ms, kLastGreetingMs)) {
    auto client = connect_patiently(loop_.get(), options, false, false, wait);
    if (!client.ok() && client.status().code() == Code::kTimeout && !stranger.ok()) break;
    if (client.ok() || client.status().code() != Code::kUnsupported) return client;
    stranger = client.status();
    const Wait answer{wait.deadline.earlier(Deadline::after_ms(kTorchAnswerMs)), wait.interrupt};
    auto met = TorchMeeting::join_at_master(loop_.get(), place_, logger_, answer);
    if (met.ok()) {
      const Wait soon{wait.deadline.earlier(Deadline::after_ms(kTorchKeyMs)), wait.interrupt};
      const Result<net::HostPort> found = met.value().find(soon);
      if (found.ok()) {
        torch_ = std::move(met).value();
        options.host = place_.master_addr = found.value().host;
        options.port = static_cast<uint16_t>(place_.master_port = found.value().port);
        options.greeting_ms = 0;
        return connect_patiently(loop_.get(), options, false, false, wait);
      }
      stranger = found.status();
    }
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) break;
    Event nothing;
    nothing.wait({Deadline::after_ms(kFirstReturnMs).earlier(wait.deadline), wait.interrupt});
  }
  return Status(Code::kTimeout,
                stranger.message() +
                    "; MASTER_ADDR and MASTER_PORT must name the "
                    "host of rank 0 and a port there that is free, or where PyTorch's store of "
                    "this job listens");
}

/// Uses a connection of its own, because a connection that joins states its rank in the greeting.
Status Job::settle_rank(const Wait& wait) {
  store::ClientOptions options = client_options();
  options.rank = -1;
  DT_TRY_VALUE(const auto client, connect_or_meet(std::move(options), wait));
  const NodeProcess self{place_.node_rank, place_.local_rank, place_.world_size, host_name_,
                         getpid()};
  DT_TRY_VALUE(place_.rank, job::settle_rank(*client, self, wait));
  return {};
}

store::ClientOptions Job::client_options() const {
  store::ClientOptions options;
  options.host = place_.master_addr;
  options.port = static_cast<uint16_t>(place_.master_port);
  options.job_id = place_.job_id;
  options.attempt = place_.attempt;
  options.rank = place_.rank;
  options.world_size = place_.world_size;
  options.host_name = host_name_;
  options.pid = getpid();
  options.security = credentials_.security;
  options.logger = logger_;
  return options;
}

Status Job::connect(const Config& config, const Wait& wait) {
  store::ClientOptions options = client_options();
  if (place_.store_served) {
    options.relay_port = static_cast<uint16_t>(config.integer("job.store_relay_port"));
    options.store_address = config.text("job.store_relay_address");
  }
  if (config.boolean("store.relay") && options.relay_port == 0 && place_.rank == 0) {
    logger_->log(
        LogLevel::kWarning,
        "store.relay is on, but no agent of dt run started this job, so each rank connects "
        "to the store itself");
  }
  DT_TRY_VALUE(auto client, connect_or_meet(std::move(options), wait));
  client->on_failure([this](const store::Failure& failure) { hear_of(failure); });
  client->on_dump_request(
      [tracer = tracer_](const std::string& directory, store::Client::DumpAnswerer answer) {
        tracer->dump_soon(directory, std::move(answer));
      });
  control_->connect(std::move(client));
  return {};
}

}  // namespace dt::job
