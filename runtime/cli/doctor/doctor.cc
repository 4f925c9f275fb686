// SPDX-License-Identifier: Apache-2.0
// `dt doctor`: what a job would find here, and what to mend.
#include <cstdio>

#include "cli/command.h"
#include "cli/doctor/cluster.h"
#include "cli/doctor/report.h"
#include "job/host_identity.h"

namespace dt::cli {
namespace {

constexpr int64_t kNetworkMs = 5'000;  // for names and connections that do not answer

constexpr char kDoctorFooter[] =
    "The exit code is 1 when something is bad, with --strict also when there is a warning, else "
    "0.\n"
    "With --cluster rank 0 prints and ends with that code for all ranks; the others end with 0.";

struct DoctorOptions {
  bool json = false;
  bool cluster = false;
  bool strict = false;
  int64_t timeout_ms = 60'000;
};

int exit_code(doctor::Grade grade, bool strict) {
  const bool bad = grade == doctor::Grade::kBad;
  return bad || (strict && grade == doctor::Grade::kWarning) ? kExitFailure : 0;
}

Result<int> examine_cluster(const doctor::Machine& machine, const doctor::Report& own,
                            const DoctorOptions& options) {
  const Wait wait{Deadline::after_ms(options.timeout_ms), nullptr};
  DT_TRY_VALUE(const std::vector<doctor::Report> reports, doctor::gather(machine, own, wait));
  if (reports.empty()) return 0;  // rank 0 has the word
  const std::string text =
      options.json ? doctor::differences_json(reports) : doctor::differences_text(reports);
  fputs(text.c_str(), stdout);
  return exit_code(doctor::worst(reports), options.strict);
}

}  // namespace

int doctor_command(int argument_count, char** arguments) {
  CLI::App app("Says what a job started here would find, and what to mend.", "dt doctor");
  DoctorOptions options;
  app.footer(kDoctorFooter);
  app.add_flag("--json", options.json, "print JSON");
  app.add_flag("--cluster", options.cluster,
               "as a rank of a job (dt run -n 8 dt doctor --cluster): print what differs");
  app.add_flag("--strict", options.strict, "warnings fail, too");
  app.add_option("--timeout-ms", options.timeout_ms, "how long --cluster waits for ranks (60000)")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}));
  if (const auto over = parse(&app, argument_count, arguments)) return *over;
  const doctor::Machine machine = doctor::survey(Deadline::after_ms(kNetworkMs));
  const doctor::Report own = doctor::examine(machine, job::host_name());
  if (options.cluster) {
    const Result<int> code = examine_cluster(machine, own, options);
    return code.ok() ? code.value() : fail("doctor", code.status());
  }
  fputs((options.json ? doctor::json_of(own) : doctor::text_of(own)).c_str(), stdout);
  return exit_code(doctor::worst(own), options.strict);
}

}  // namespace dt::cli
