// SPDX-License-Identifier: Apache-2.0
// `dt trace`: asks a job for what its ranks did last, and reads what they wrote.
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/tool.h"
#include "cli/trace/load.h"
#include "cli/trace/report.h"
#include "cli/trace/verdict.h"
#include "config/config.h"
#include "net/address.h"
#include "net/host_port.h"
#include "net/loop.h"
#include "store/client.h"

namespace dt::cli {
namespace {

constexpr int64_t kMaxTimeoutMs = 86'400'000;

struct TraceOptions {
  std::string address;  ///< host:port; empty: DT_MASTER_ADDR and DT_MASTER_PORT
  std::string directory;
  std::string output;  ///< of the timeline; empty: stdout
  int64_t timeout_ms = 10'000;
  int64_t slow_ms = 1'000;
  std::optional<int32_t> attempt;  ///< none: the last one
  bool json = false;
};

Result<net::HostPort> store_of(const std::string& address, const Config& config) {
  if (!address.empty()) return net::parse_host_port(address);
  net::HostPort found{config.text("job.master_addr"),
                      static_cast<uint16_t>(config.integer("job.master_port"))};
  if (!found.host.empty() && found.port != 0) return found;
  return Status(Code::kInvalidArgument,
                "no store is known here; name it as host:port, or set DT_MASTER_ADDR and "
                "DT_MASTER_PORT as the job's ranks have them");
}

const char* outcome_text(store::DumpAnswer::Outcome outcome) {
  switch (outcome) {
    case store::DumpAnswer::Outcome::kWritten: return "wrote";
    case store::DumpAnswer::Outcome::kFailed: return "could not:";
    case store::DumpAnswer::Outcome::kSilent: return "did not answer: stopped, or cut off";
    case store::DumpAnswer::Outcome::kAbsent: return "is not there:";
  }
  return "?";
}

Status dump_traces(const TraceOptions& options) {
  const Wait wait{Deadline::after_ms(options.timeout_ms), nullptr};
  DT_TRY_VALUE(const Config config, tool_config("trace"));
  DT_TRY_VALUE(const net::HostPort address, store_of(options.address, config));
  DT_TRY_VALUE(store::ClientOptions as_tool, tool_options(config, address));
  DT_TRY_VALUE(const auto loop, net::Loop::start("dt-trace"));
  DT_TRY_VALUE(const auto client, store::Client::connect(loop.get(), std::move(as_tool), wait));
  std::string directory = options.directory;
  if (!directory.empty() && directory[0] != '/') {
    // The ranks have other working directories.
    char* const here = getcwd(nullptr, 0);
    if (here == nullptr) return Status(Code::kSystem, "getcwd: " + errno_text(errno));
    directory = std::string(here) + "/" + directory;
    free(here);
  }
  DT_TRY_VALUE(const auto answers, client->dump_traces(directory, wait));
  size_t written = 0;
  for (const store::DumpAnswer& each : answers) {
    const bool wrote = each.outcome == store::DumpAnswer::Outcome::kWritten;
    written += wrote ? 1 : 0;
    const std::string who =
        each.member.host.empty() ? format("rank %d", each.member.rank) : each.member.text();
    printf("%s %s%s%s\n", who.c_str(), outcome_text(each.outcome), each.text.empty() ? "" : " ",
           each.text.c_str());
  }
  if (written == answers.size()) return {};
  fflush(stdout);
  return Status(Code::kTimeout,
                format("%zu of %zu ranks wrote their traces within %.1f s", written, answers.size(),
                       static_cast<double>(options.timeout_ms) / 1e3));
}

void print_problems(const trace::Loaded& loaded) {
  for (const std::string& problem : loaded.problems) {
    fprintf(stderr, "dt trace: not used: %s\n", problem.c_str());
  }
  std::string others;
  for (const int32_t attempt : loaded.other_attempts) {
    others += format("%s%d", others.empty() ? "" : ", ", attempt);
  }
  if (others.empty()) return;
  fprintf(stderr, "dt trace: this is attempt %d; there are traces of attempt %s, too (--attempt)\n",
          loaded.traces.front().identity.attempt, others.c_str());
}

Status print_report(const TraceOptions& options) {
  DT_TRY_VALUE(const trace::Loaded loaded, trace::load(options.directory, options.attempt));
  trace::JudgeOptions judging;
  judging.slow_ns = options.slow_ms * 1'000'000;
  const trace::Verdict verdict = trace::judge(loaded.traces, judging);
  if (!options.json) print_problems(loaded);
  const std::string text =
      options.json ? trace::report_json(verdict, loaded) : trace::report_text(verdict);
  fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

Status write_timeline(const TraceOptions& options) {
  DT_TRY_VALUE(const trace::Loaded loaded, trace::load(options.directory, options.attempt));
  print_problems(loaded);
  const std::string text = trace::timeline_json(loaded.traces);
  if (options.output.empty() || options.output == "-") {
    fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  FILE* const file = fopen(options.output.c_str(), "we");
  if (file == nullptr) return Status(Code::kSystem, options.output + ": " + errno_text(errno));
  const bool whole = fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (fclose(file) == 0 && whole) return {};
  return Status(Code::kSystem,
                "writing " + options.output + ": " + errno_text(whole ? errno : error));
}

}  // namespace

int trace_command(int argument_count, char** arguments) {
  CLI::App app("What the ranks of a job did last, from their flight recorders.", "dt trace");
  TraceOptions options;
  Status (*action)(const TraceOptions&) = nullptr;
  const auto add = [&](const char* name, const char* summary,
                       Status (*function)(const TraceOptions&)) {
    CLI::App* sub = app.add_subcommand(name, summary);
    sub->callback([&action, function] { action = function; });
    return sub;
  };
  app.require_subcommand(1);
  CLI::App* sub = add("dump", "let every rank of a job write its trace", dump_traces);
  sub->add_option("store", options.address,
                  "host:port of the job's store (DT_MASTER_ADDR and DT_MASTER_PORT)");
  sub->add_option("--dir", options.directory, "on the ranks' hosts (their trace.dir)")
      ->check(refuse_no_name);
  sub->add_option("--timeout-ms", options.timeout_ms, "how long to wait for the ranks (10000)")
      ->check(CLI::Range(int64_t{1}, kMaxTimeoutMs));
  sub = add("report", "say in a sentence what went wrong, then show the ranks", print_report);
  sub->add_option("directory", options.directory, "where the traces of all ranks are")->required();
  sub->add_option("--attempt", options.attempt, "of the job (the last one)")
      ->check(CLI::Range(0, INT32_MAX));
  sub->add_option("--slow-ms", options.slow_ms,
                  "a rank that comes so much after the others is slow (1000)")
      ->check(CLI::Range(int64_t{1}, kMaxTimeoutMs));
  sub->add_flag("--json", options.json, "the same for programs");
  sub = add("timeline", "write Chrome's trace format, for ui.perfetto.dev", write_timeline);
  sub->add_option("directory", options.directory, "where the traces of all ranks are")->required();
  sub->add_option("--attempt", options.attempt, "of the job (the last one)")
      ->check(CLI::Range(0, INT32_MAX));
  sub->add_option("-o,--output", options.output, "file (standard output)")->check(refuse_no_name);
  if (const auto over = parse(&app, argument_count, arguments)) return *over;
  const Status status = action(options);
  return status.ok() ? 0 : fail("trace", status);
}

}  // namespace dt::cli
