// SPDX-License-Identifier: Apache-2.0
// `dt store`: serves a store, or asks one.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/tool.h"
#include "config/config.h"
#include "job/host_identity.h"
#include "job/job.h"
#include "job/store_options.h"
#include "launch/credentials.h"
#include "net/address.h"
#include "net/host_port.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/server.h"

namespace dt::cli {
namespace {

struct StoreOptions {
  std::string address;  ///< host:port; empty: DT_MASTER_ADDR and DT_MASTER_PORT
  int64_t timeout_ms = 10'000;
  std::string key;
  std::string value;
  int64_t delta = 1;
  std::vector<std::string> keys;
  std::string bind;
  store::ServerOptions server;
};

Result<net::HostPort> address_of(const StoreOptions& options, const Config& config) {
  if (!options.address.empty()) return net::parse_host_port(options.address);
  net::HostPort found{config.text("job.master_addr"),
                      static_cast<uint16_t>(config.integer("job.master_port"))};
  if (found.host.empty() || found.port == 0) {
    return Status(Code::kInvalidArgument,
                  "no store is known here; say --store host:port, or set DT_MASTER_ADDR and "
                  "DT_MASTER_PORT");
  }
  return found;
}

// A connection that is no rank of any job.
struct Tool {
  std::unique_ptr<net::Loop> loop;
  std::shared_ptr<store::Client> client;  // ends before the loop
  Wait wait;
};

Result<Tool> connect(const StoreOptions& options) {
  Tool tool;
  tool.wait.deadline = Deadline::after_ms(options.timeout_ms);
  DT_TRY_VALUE(const Config config, tool_config("store"));
  DT_TRY_VALUE(const net::HostPort address, address_of(options, config));
  DT_TRY_VALUE(store::ClientOptions client, tool_options(config, address));
  DT_TRY_VALUE(tool.loop, net::Loop::start("dt-store"));
  DT_TRY_VALUE(tool.client, store::Client::connect(tool.loop.get(), std::move(client), tool.wait));
  return tool;
}

void print(const std::string& value) {
  fwrite(value.data(), 1, value.size(), stdout);
  fputc('\n', stdout);
}

// The signals are blocked before the loop's thread exists, so that only sigwait() gets them.
Status serve(const StoreOptions& options) {
  sigset_t end;
  sigemptyset(&end);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&end, signal);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  DT_TRY_VALUE(const Config config, tool_config("store"));
  DT_TRY(config.check_together());
  DT_TRY_VALUE(const launch::Credentials credentials,
               launch::find_credentials(config, process_environment(), false));
  store::ServerOptions server_options = job::store_options(config);
  const store::ServerOptions& given = options.server;
  server_options.port = given.port;
  server_options.job_id = given.job_id;
  server_options.attempt = given.attempt;
  server_options.world_size = given.world_size;
  server_options.torch_compat |= given.torch_compat;
  const std::string& bind = options.bind.empty() ? config.text("store.bind") : options.bind;
  if (!bind.empty()) server_options.bind_address = bind;
  server_options.host = job::host_name();
  server_options.pid = getpid();
  server_options.security = credentials.security;
  server_options.several_jobs = server_options.any_job = true;
  server_options.logger = std::make_shared<Logger>(job::log_level(config));
  DT_TRY_VALUE(const std::unique_ptr<net::Loop> loop, net::Loop::start("dt-store"));
  DT_TRY_VALUE(const std::unique_ptr<store::Server> server,
               store::Server::start(loop.get(), server_options));
  print(net::host_port_text(server->bound_address(), server->port()));
  fflush(stdout);
  int signal = 0;
  sigwait(&end, &signal);
  return {};
}

Status get(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  DT_TRY_VALUE(const std::string value, tool.client->get(options.key, tool.wait));
  print(value);
  return {};
}

Status set(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  return tool.client->set(options.key, options.value, tool.wait);
}

Status add(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  DT_TRY_VALUE(const int64_t sum, tool.client->add(options.key, options.delta, tool.wait));
  print(std::to_string(sum));
  return {};
}

Status erase(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  DT_TRY_VALUE(const bool was_there, tool.client->erase(options.key, tool.wait));
  if (was_there) return {};
  return Status(Code::kInvalidArgument, "there is no key \"" + options.key + "\"");
}

Status list(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  DT_TRY_VALUE(const std::vector<std::string> keys, tool.client->list(options.key, tool.wait));
  for (const std::string& key : keys) print(key);
  return {};
}

Status wait_for(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  return tool.client->wait_for(options.keys, tool.wait);
}

Status ping(const StoreOptions& options) {
  DT_TRY_VALUE(const Tool tool, connect(options));
  return tool.client->ping(tool.wait);
}

}  // namespace

int store_command(int argument_count, char** arguments) {
  CLI::App app("Serves a store of keys and values, or asks one.", "dt store");
  StoreOptions options;
  Status (*action)(const StoreOptions&) = nullptr;
  const auto add_action = [&](const char* name, const char* summary,
                              Status (*function)(const StoreOptions&)) {
    CLI::App* sub = app.add_subcommand(name, summary);
    sub->callback([&action, function] { action = function; });
    return sub;
  };
  const auto add_query = [&](const char* name, const char* summary,
                             Status (*function)(const StoreOptions&)) {
    CLI::App* sub = add_action(name, summary, function);
    sub->add_option("--store", options.address,
                    "host:port of the store (DT_MASTER_ADDR and DT_MASTER_PORT)");
    sub->add_option("--timeout-ms", options.timeout_ms, "for connecting and answering (10000)")
        ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
    return sub;
  };
  app.require_subcommand(1);
  CLI::App* sub = add_action("serve", "print the address and serve until a signal", serve);
  sub->add_option("--port", options.server.port, "0: the kernel chooses (0)");
  sub->add_option("--bind", options.bind, "address to listen on (store.bind, else 127.0.0.1)");
  sub->add_option("--job-id", options.server.job_id, "refuse ranks of other jobs");
  sub->add_option("--attempt", options.server.attempt, "how often the job was started before (0)")
      ->check(CLI::Range(0, INT32_MAX));
  sub->add_flag("--torch-compat", options.server.torch_compat,
                "answer clients of PyTorch's TCPStore too (store.torch_compat)");
  sub->add_option("--world-size", options.server.world_size, "ranks that will join (1)")
      ->check(CLI::PositiveNumber);
  sub = add_query("get", "print a value; waits until the key exists", get);
  sub->add_option("key", options.key)->required();
  sub = add_query("set", "set a value", set);
  sub->add_option("key", options.key)->required();
  sub->add_option("value", options.value)->required();
  sub = add_query("add", "add to a number and print the sum", add);
  sub->add_option("key", options.key)->required();
  sub->add_option("delta", options.delta);
  sub = add_query("delete", "delete a key", erase);
  sub->add_option("key", options.key)->required();
  sub = add_query("list", "print the keys that begin with a prefix", list);
  sub->add_option("prefix", options.key);
  sub = add_query("wait", "wait until all keys exist", wait_for);
  sub->add_option("keys", options.keys)->required();
  add_query("ping", "see whether the store answers", ping);
  if (const auto over = parse(&app, argument_count, arguments)) return *over;
  const Status status = action(options);
  return status.ok() ? 0 : fail("store", status);
}

}  // namespace dt::cli
