// SPDX-License-Identifier: Apache-2.0
// `dt run`: puts the parts together, in the order that forking demands.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "cli/command.h"
#include "cli/run/environment.h"
#include "cli/run/options.h"
#include "cli/run/supervisor.h"
#include "config/config.h"
#include "net/loop.h"
#include "store/server.h"

namespace dt::cli {
namespace {

constexpr rlim_t kFdsPerRank = 4;  // two pipes, two log files
constexpr rlim_t kFdsOfAgent = 64;

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name[0] != '\0' ? name : "localhost";
}

// Room for the agent's descriptors; the connections of the store count too. The ranks get `before`.
Result<rlimit> raise_open_files(int ranks) {
  rlimit before{};
  if (getrlimit(RLIMIT_NOFILE, &before) != 0) {
    return Status(Code::kSystem, "cannot read the limit of open files: " + errno_text(errno));
  }
  const rlim_t needed = kFdsOfAgent + (kFdsPerRank + 1) * static_cast<rlim_t>(ranks);
  rlimit raised = before;
  raised.rlim_cur = std::max(before.rlim_cur, std::min(needed, before.rlim_max));
  if (raised.rlim_cur < needed || setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    return Status(Code::kSystem,
                  format("%d ranks need %llu open files, the hard limit is %llu; raise it "
                         "(ulimit -Hn), or start fewer ranks on this machine",
                         ranks, static_cast<unsigned long long>(needed),
                         static_cast<unsigned long long>(before.rlim_max)));
  }
  return before;
}

// Options win over dt.toml and DT_RUN_*.
void settle(const RunOptions& options, const Config& config, SupervisorPlan* plan,
            OutputOptions* output) {
  plan->grace_ms = options.grace_ms.value_or(config.integer("run.grace_ms"));
  if (options.grace_ms || config.given("run.grace_ms")) plan->stop_grace_ms = plan->grace_ms;
  output->ranks = options.nproc;
  output->prefix = options.prefix.value_or(options.nproc > 1 && config.boolean("run.prefix"));
  output->shown = options.shown;
  output->log_dir = options.log_dir;
  output->tail_lines =
      options.show_lines.value_or(static_cast<int>(config.integer("run.show_lines")));
}

// The store of the job, served by this process.
struct ServedStore {
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<store::Server> server;  // ends before the loop
};

Result<ServedStore> serve_store(const SupervisorPlan& plan, const Config& config) {
  store::ServerOptions options;
  options.torch_compat = config.boolean("store.torch_compat");
  options.job_id = plan.place.job_id;
  options.world_size = plan.place.local_size;
  options.host = plan.host;
  options.pid = plan.place.agent_pid;
  ServedStore served;
  DT_TRY_VALUE(served.loop, net::Loop::start("dt-store"));
  DT_TRY_VALUE(served.server, store::Server::start(served.loop.get(), options));
  return served;
}

void say_what_is_set_up(const SupervisorPlan& plan, Output* output) {
  const JobPlace& place = plan.place;
  output->message(format("dt run: job %s, %d ranks on %s, store 127.0.0.1:%d, MASTER_PORT %d",
                         place.job_id.c_str(), place.local_size, plan.host.c_str(),
                         place.store_port, place.master_port));
  if (place.omp_num_threads == 0) return;
  output->message(format("dt run: OMP_NUM_THREADS=%d, as it was not set: %d cores for %d ranks",
                         place.omp_num_threads, usable_cores(), place.local_size));
}

Result<int> run_job(const RunOptions& options, const std::string& program) {
  SupervisorPlan plan;
  plan.program = program;
  plan.args = options.command;
  plan.host = host_name();
  OutputOptions output_options;
  DT_TRY_VALUE(const Config config, Config::load(process_environment()));
  settle(options, config, &plan, &output_options);
  DT_TRY_VALUE(plan.open_files, raise_open_files(options.nproc));

  // Before any thread exists: the signal mask, which threads inherit, and the fork of the guardian.
  DT_TRY_VALUE(Signals signals, Signals::block());
  DT_TRY_VALUE(const std::unique_ptr<Guardian> guardian, Guardian::start());
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  DT_TRY_VALUE(const std::unique_ptr<Output> output,
               Output::create(output_options, STDOUT_FILENO, STDERR_FILENO));

  DT_TRY_VALUE(const ReservedPort master, reserve_port());
  plan.place.local_size = options.nproc;
  DT_TRY_VALUE(plan.place.job_id, random_job_id());
  plan.place.master_port = master.port;
  plan.place.agent_pid = getpid();
  DT_TRY_VALUE(const ServedStore served, serve_store(plan, config));
  plan.place.store_port = served.server->port();
  // PyTorch's ranks then find a store there that is served already.
  plan.place.torch_store = config.boolean("store.torch_compat");
  if (plan.place.torch_store) plan.place.master_port = plan.place.store_port;
  plan.first_failed_rank = [&served] { return served.server->first_failed_rank(); };
  plan.place.terminal = output->is_terminal(Stream::kStdout);
  if (getenv("OMP_NUM_THREADS") == nullptr) {
    plan.place.omp_num_threads = std::max(1, usable_cores() / options.nproc);
  }
  if (options.verbose) say_what_is_set_up(plan, output.get());
  return Supervisor(plan, signals, *guardian, *output).run();
}

}  // namespace

int run_command(int argument_count, char** arguments) {
  const ParsedRun parsed = parse_run(argument_count, arguments);
  if (parsed.exit_code) return *parsed.exit_code;
  const Result<std::string> program = find_program(parsed.options.command.front());
  if (!program.ok()) return fail("run", program.status(), kExitNotFound);
  const Result<int> exit_code = run_job(parsed.options, program.value());
  return exit_code.ok() ? exit_code.value() : fail("run", exit_code.status());
}

}  // namespace dt::cli
