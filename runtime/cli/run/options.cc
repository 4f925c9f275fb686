// SPDX-License-Identifier: Apache-2.0
#include "cli/run/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/command.h"
#include "cli/run/fleet.h"
#include "store/messages.h"

namespace dt::cli {
namespace {

// How often each parameter server is started again: more would not help one that always fails.
constexpr int kServerRestarts = 3;

constexpr char kFooter[] =
    "Options after PROG are PROG's own; \"--\" ends those of dt run.\n"
    "\n"
    "Each rank gets DT_RANK, DT_WORLD_SIZE, DT_LOCAL_RANK, ... and, for programs that do not use\n"
    "dt, torchrun's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. DT_RUN_TTY=1 says\n"
    "that dt run's output is a terminal: rank 0's unfinished line is then shown live, those of\n"
    "other ranks are not. A reader that is slow slows the ranks down; no line is lost.\n"
    "\n"
    "The first rank that fails ends the job: the others get half of the grace (at most 2 s) to "
    "end\n"
    "by themselves, then SIGTERM, then SIGKILL; with --on-failure continue they go on, as "
    "programs\n"
    "that call dt_comm_shrink can. dt run ends with the exit code of the rank that failed first, "
    "or\n"
    "with 128 + signal; with 0 where others went on and the last of them ended well; with 1 where\n"
    "that rank was stopped or hung. One that is stopped gets SIGKILL, after the grace, when no "
    "other\n"
    "rank is left on its host.\n"
    "SIGINT and SIGTERM are passed on, and SIGKILL follows only when --grace-ms or run.grace_ms "
    "is\n"
    "given, or at once on a second SIGINT.\n"
    "\n"
    "--servers N starts N more processes of PROG, parameter servers: they call dt_ps_serve, with\n"
    "DT_PS_INDEX in the place of DT_RANK, and every process gets DT_PS_SERVERS, their addresses.\n"
    "One that fails is started again at its address, and the ranks are left alone. They end by\n"
    "themselves when all workers have said goodbye; otherwise, some seconds after the last rank, "
    "they\n"
    "get SIGTERM. A rank that fails does not end the others then, unless --on-failure end is "
    "given.\n"
    "\n"
    "Several nodes: start dt run once on each, with the same --nnodes and --rendezvous and each "
    "with\n"
    "its own --node-rank; under srun --ntasks-per-node=1, and where a platform starts one process\n"
    "per node, all three are known. Ranks count node by node. The first failure, a signal, or the "
    "loss of a node ends all nodes, which all report "
    "it.\n"
    "With --min-nodes the loss of a node, and a node that comes, only end the attempt: the next "
    "one\n"
    "begins with those that are there, if they are a majority of those that were. --max-restarts\n"
    "counts failures of ranks alone.";

// CLI11 takes an empty word for an optional number as if the option were not there, and a variable
// of the caller's shell that is not set would go unnoticed.
std::string refuse_empty(const std::string& text) {
  return text.empty() ? "it is empty; give a number" : "";
}

// A whole non-negative number that fits, or -1.
int to_number(const std::string& text) {
  if (text.empty() || text.size() > 9) return -1;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
  }
  return atoi(text.c_str());
}

int usage_error(const std::string& text) {
  fprintf(stderr, "dt run: %s; see dt run --help\n", text.c_str());
  return kExitUsage;
}

/// With parameter servers other values are usual.
void settle_servers(bool restarts_given, bool on_failure_given, RunOptions* options) {
  if (options->servers == 0) return;
  options->server_restarts = restarts_given ? options->max_restarts : kServerRestarts;
  if (!on_failure_given) options->end_on_failure = false;
  if (!options->end_on_failure) options->max_restarts = 0;  // it counts for the servers alone
}

}  // namespace

Result<std::vector<bool>> parse_show(const std::string& text, int ranks) {
  const auto size = static_cast<size_t>(ranks);
  if (text == "all") return std::vector<bool>(size, true);
  if (text == "errors") return std::vector<bool>(size, false);
  std::vector<bool> shown(size, false);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t dash = item.find('-');
    const int first = to_number(item.substr(0, dash));
    const int last = dash == std::string::npos ? first : to_number(item.substr(dash + 1));
    if (first < 0 || last < first) {
      return Status(Code::kInvalidArgument, "--show \"" + text +
                                                "\" is neither all, errors, nor a list of ranks "
                                                "such as 0 or 0,4-7");
    }
    if (last >= ranks) {
      return Status(Code::kInvalidArgument,
                    format("--show names rank %d, but the ranks are 0 to %d", last, ranks - 1));
    }
    for (int rank = first; rank <= last; ++rank) shown[static_cast<size_t>(rank)] = true;
    begin = end + 1;
  }
  return shown;
}

ParsedRun parse_run(int argument_count, char** arguments) {
  ParsedRun parsed;
  RunOptions& options = parsed.options;
  CLI::App app(
      "Starts N ranks of PROG on this node and ends with the first failure.\n"
      "dt run [-n N] [options] PROG [ARGS...]",
      "dt run");
  bool no_prefix = false;
  bool always_prefix = false;
  app.footer(kFooter);
  app.prefix_command();
  app.add_option("-n,--nproc", options.nproc,
                 "how many ranks to start on this node; gpu: one per GPU, auto: or per processor "
                 "where there is none (1)");
  app.add_option("--nnodes", options.node.node_count,
                 "how many nodes; dt run is started once on each (1, or what Slurm's step or the "
                 "platform says)")
      ->check(refuse_empty);
  app.add_option("--node-rank", options.node.node_rank,
                 "which of them this is (by Slurm's step or the platform, JOB_COMPLETION_INDEX, "
                 "NODE_RANK)")
      ->check(refuse_empty);
  app.add_option(
      "--rendezvous", options.node.rendezvous,
      "HOST:PORT of node 0 (MASTER_ADDR and MASTER_PORT, or by Slurm's step or the platform); "
      "HOST:PORT,HOST:PORT of node 0, node 1, ...: the next one serves when the one "
      "before is lost");
  app.add_option("--min-nodes", options.node.min_nodes,
                 "go on with so many of the nodes when others are lost or do not come, and with "
                 "those that come later (all of them)")
      ->check(refuse_empty);
  app.add_flag("--allow-minority", options.allow_minority,
               "also without a majority of the nodes that were there before (run.allow_minority)");
  app.add_option("--job-id", options.node.job_id, "agents that give another one are refused");
  app.add_option("--servers", options.servers,
                 "how many parameter servers to start on this node, next to the ranks (0)")
      ->check(CLI::Range(0, kMaxLocalRanks));
  app.add_option("--max-restarts", options.max_restarts,
                 "start all ranks again so many times after a failure (0), and each parameter "
                 "server by itself (3)")
      ->check(CLI::Range(0, 1'000'000));
  std::string on_failure = "end";
  app.add_option(
         "--on-failure", on_failure,
         "what the other ranks do then: end, or continue by themselves (end; with --servers: "
         "continue)")
      ->check(CLI::IsMember({"end", "continue"}).description(""))
      ->type_name("end|continue");
  auto* prefix = app.add_flag("--prefix", always_prefix,
                              "put \"[rank] \" before each line with one rank, too");
  app.add_flag("--no-prefix", no_prefix, "pass lines on as they are")->excludes(prefix);
  app.add_option("--show", options.show,
                 "whose output to pass on: all, errors, or ranks such as 0 or 0,4-7");
  app.add_option("--log-dir", options.log_dir,
                 "write DIR/rank-0000.out and .err, whole; with restarts DIR/attempt-0/...")
      ->check(refuse_no_name);
  app.add_option(
         "--grace-ms", options.grace_ms,
         "from the first failure to SIGKILL (run.grace_ms: 15000); if given, also from when "
         "SIGINT or SIGTERM is passed on to the ranks")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  app.add_option("--show-lines", options.show_lines,
                 "last lines of the failed rank in the report (run.show_lines: 30)")
      ->check(CLI::Range(0, 10'000));
  std::string bind = "none";
  app.add_option("--bind", bind,
                 "processors of each rank: none (all), cores (its own), numa (of one node)")
      ->check(CLI::IsMember({"none", "cores", "numa"}).description(""))
      ->type_name("none|cores|numa");
  app.add_flag("-v,--verbose", options.verbose, "say what is set up");
  parsed.exit_code = parse(&app, argument_count, arguments);
  if (parsed.exit_code) return parsed;

  options.bind = bind == "cores" ? Bind::kCores : bind == "numa" ? Bind::kNuma : Bind::kNone;
  options.end_on_failure = on_failure == "end";
  settle_servers(app.count("--max-restarts") > 0, app.count("--on-failure") > 0, &options);
  if (!options.end_on_failure && options.max_restarts > 0) {
    parsed.exit_code = usage_error(
        "--on-failure continue and --max-restarts exclude each other: after a failure either the "
        "others go on, or all start again");
    return parsed;
  }
  if (always_prefix || no_prefix) options.prefix = always_prefix;
  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--") {
    options.command.erase(options.command.begin());
  } else if (!options.command.empty() && options.command.front()[0] == '-') {
    parsed.exit_code = usage_error("unknown option " + options.command.front());
    return parsed;
  }
  if (const auto shown = parse_show(options.show, kMaxWorldSize); !shown.ok()) {
    parsed.exit_code = usage_error(shown.status().message());
  }
  if (options.command.empty()) parsed.exit_code = usage_error("no program to run");
  return parsed;
}

}  // namespace dt::cli
