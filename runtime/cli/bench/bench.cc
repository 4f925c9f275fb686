// SPDX-License-Identifier: Apache-2.0
// `dt bench`: finds its files and hands over. What measures is dt-bench-worker, a program of its
// own that links libdt.so: the command links the static core, and a figure should be that of the
// library that users link. Plain, the command becomes `dt run -n N dt-bench-worker ...`; as a rank
// of a job it becomes the worker; where several runs of ranks are needed (rivals, lists), it stays
// and starts them in turn.
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>

#include "cli/bench/compare.h"
#include "cli/bench/options.h"
#include "cli/bench/outputs.h"
#include "cli/bench/placement.h"
#include "cli/bench/report.h"
#include "cli/bench/tune.h"
#include "cli/command.h"
#include "config/config.h"
#include "cuda/runtime.h"
#include "launch/discover.h"

namespace dt::cli {
namespace {

using bench::Files;
using bench::Options;

Result<std::string> own_path() {
  char path[PATH_MAX];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof path);
  if (bytes <= 0 || bytes == static_cast<ssize_t>(sizeof path)) {
    return Status(Code::kSystem, "cannot find dt's own path in /proc: " + errno_text(errno));
  }
  return std::string(path, static_cast<size_t>(bytes));
}

// In the build tree the files lie beside the command; installed, in libexec/dt and share/dt of the
// same prefix, wherever that was moved to.
Result<Files> find_files() {
  Files files;
  DT_TRY_VALUE(files.dt, own_path());
  const std::string directory = files.dt.substr(0, files.dt.rfind('/'));
  const std::string installed = directory + "/" DT_BIN_TO_LIBEXEC "/dt-bench-worker";
  files.worker = directory + "/dt-bench-worker";
  files.source_directory = directory + "/bench";
  if (access(files.worker.c_str(), X_OK) == 0) return files;
  files.worker = installed;
  files.source_directory = directory + "/" DT_BIN_TO_DATA;
  if (access(files.worker.c_str(), X_OK) == 0) return files;
  return Status(Code::kSystem, "dt-bench-worker is neither beside " + files.dt + " nor at " +
                                   installed + "; install dt completely");
}

// Whether something started this process as a rank.
Result<bool> is_rank() {
  DT_TRY_VALUE(Config config, Config::load(process_environment()));
  DT_TRY_VALUE(const launch::Place place, launch::resolve_place(config, process_environment()));
  return place.launcher != "single";
}

Status become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  return Status(Code::kSystem, "cannot run " + command[0] + ": " + errno_text(errno));
}

Result<int> bench_with(const Options& options) {
  DT_TRY(bench::check_outputs(options));
  if (options.cuda) {
    DT_TRY(cuda::explain(cuda::ask()));  // before ranks are started
    // So that dt run counts GPUs and ranks; the worker decides by its own option.
    setenv("DT_BACKEND_NAME", "nccl", 1);
  }
  DT_TRY_VALUE(const Files files, find_files());
  DT_TRY_VALUE(const bool inside_job, is_rank());
  std::vector<std::string> command;
  Options worker_options = options;
  if (inside_job) {
    if (options.ranks_given || options.bind_given || options.tune || bench::is_campaign(options)) {
      const char* const option = options.tune                ? "--tune"
                                 : !options.rivals.empty()   ? "--compare"
                                 : options.ranks_given       ? "-n"
                                 : options.bind_given        ? "--bind"
                                 : options.dtypes.size() > 1 ? "a list of dtypes"
                                                             : "a list of collectives";
      std::string text = std::string(option) +
                         " starts ranks, but this process is itself a rank of a job; leave it out";
      if (!options.rivals.empty()) {
        text += " to measure dt in this job, or compare outside of jobs, on this host alone";
      }
      return Status(Code::kInvalidArgument, text);
    }
    worker_options.bound = "launcher";
    command = {files.worker};
  } else if (options.tune) {
    return bench::tune(options, files);
  } else if (bench::is_campaign(options)) {
    return bench::compare(options, files);
  } else {
    worker_options.bound = bench::binding_of(options);
    worker_options.cores = bench::read_machine().cores;
    command = bench::own_launcher(options, files);
    command.push_back(files.worker);
  }
  const std::vector<std::string> arguments = bench::worker_arguments(worker_options);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return become(command);
}

}  // namespace

int bench_command(int argument_count, char** arguments) {
  const bench::ParsedOptions parsed = bench::parse_options(argument_count, arguments);
  if (parsed.exit_code) return *parsed.exit_code;
  const Result<int> exit_code = bench_with(parsed.options);
  return exit_code.ok() ? exit_code.value() : fail("bench", exit_code.status());
}

}  // namespace dt::cli
