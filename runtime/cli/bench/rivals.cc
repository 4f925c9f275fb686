// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/rivals.h"

#include <dirent.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

namespace dt::cli::bench {
namespace {

constexpr int64_t kCompileMs = 120'000;

// Open MPI's temporary buffers then stay with the process instead of being mapped and zeroed anew
// at each operation: halves its time at 100 MiB and above.
constexpr const char* kTunedMalloc[] = {"MALLOC_MMAP_THRESHOLD_=17179869184",
                                        "MALLOC_TRIM_THRESHOLD_=17179869184",
                                        "MALLOC_TOP_PAD_=67108864", "MALLOC_MMAP_MAX_=0"};

Result<std::string> read_text(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), fclose);
  if (file == nullptr) {
    return Status(Code::kSystem, "cannot read " + path + ": " + errno_text(errno) +
                                     "; dt's installation is not complete");
  }
  std::string text;
  char buffer[4096];
  size_t bytes = 0;
  while ((bytes = fread(buffer, 1, sizeof buffer, file.get())) > 0) text.append(buffer, bytes);
  return text;
}

// FNV-1a: names the program by its source, so that a new dt compiles a new one.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

Status make_directories(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return Status(Code::kSystem, "cannot make " + part + ": " + errno_text(errno) +
                                       "; set XDG_CACHE_HOME to a directory that can be written");
    }
    if (at == std::string::npos) return {};
  }
}

Result<std::string> cache_directory() {
  const char* const cache = getenv("XDG_CACHE_HOME");
  const char* const home = getenv("HOME");
  std::string directory;
  if (cache != nullptr && cache[0] == '/') {
    directory = cache;
  } else if (home != nullptr && home[0] == '/') {
    directory = std::string(home) + "/.cache";
  } else {
    return Status(Code::kSystem,
                  "no place for the compiled MPI program: set XDG_CACHE_HOME or HOME");
  }
  directory += "/dt/bench";
  DT_TRY(make_directories(directory));
  return directory;
}

Status missing(const std::string& program, const std::string& rival) {
  const char* const packages =
      rival == "openmpi" ? "openmpi-bin libopenmpi-dev" : "mpich libmpich-dev";
  return Status(Code::kSystem, "--compare " + rival + " needs " + program +
                                   ", which is not in PATH; install it (Debian: apt install " +
                                   packages + ") or leave " + rival + " out");
}

int usable_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Cores, each counted once whatever number of hardware threads it has: Open MPI's slots.
int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string path =
        format("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    const Result<std::string> siblings = read_text(path);
    cores.insert(siblings.ok() ? siblings.value() : std::to_string(cpu));
  }
  return static_cast<int>(cores.size());
}

// Open MPI's own binding while each rank has a core; none where ranks share cores, as binding would
// only hinder it there.
void add_openmpi_options(int ranks, std::vector<std::string>* command) {
  if (geteuid() == 0) command->push_back("--allow-run-as-root");
  if (ranks > usable_threads()) {
    command->insert(command->end(), {"--oversubscribe", "--bind-to", "none"});
  } else if (ranks > usable_cores()) {
    command->push_back("--use-hwthread-cpus");
  }
}

}  // namespace

Result<Rival> prepare_rival(const std::string& name, const std::string& source_directory) {
  Rival rival{name, "mpirun." + name, {}};
  const std::string compiler = "mpicc." + name;
  for (const std::string& program : {compiler, rival.mpirun}) {
    if (program_path(program).empty()) return missing(program, name);
  }
  const std::string source = source_directory + "/rival_mpi.c";
  DT_TRY_VALUE(std::string text, read_text(source));
  DT_TRY_VALUE(const std::string method, read_text(source_directory + "/method.h"));
  text += method;
  DT_TRY_VALUE(const std::string directory, cache_directory());
  rival.program =
      directory + "/" + name + format("-%016llx", static_cast<unsigned long long>(hash_of(text)));
  if (access(rival.program.c_str(), X_OK) == 0) return rival;
  // Two dt bench at once: each compiles its own file, the last one stays.
  const std::string fresh = rival.program + format(".%d", getpid());
  ChildPlan plan;
  plan.command = {compiler, "-std=c99", "-O2", source, "-o", fresh};
  plan.timeout_ms = kCompileMs;
  if (const Result<std::string> compiled = run_child(plan); !compiled.ok()) {
    return compiled.status();
  }
  if (rename(fresh.c_str(), rival.program.c_str()) != 0) {
    return Status(Code::kSystem, "cannot make " + rival.program + ": " + errno_text(errno));
  }
  return rival;
}

ChildPlan rival_run(const Rival& rival, const Options& options, bool tuned) {
  ChildPlan plan;
  plan.command = {rival.mpirun};
  if (rival.name == "openmpi") add_openmpi_options(options.ranks, &plan.command);
  plan.command.insert(
      plan.command.end(),
      {"-n", std::to_string(options.ranks), rival.program, std::to_string(options.collective),
       std::to_string(options.dtype), std::to_string(options.op), std::to_string(options.warmup),
       std::to_string(options.iterations), std::to_string(options.budget_ms * int64_t{1000}),
       std::to_string(options.timeout_s)});
  for (const int64_t bytes : options.sizes_bytes) plan.command.push_back(std::to_string(bytes));
  if (tuned) plan.environment.assign(std::begin(kTunedMalloc), std::end(kTunedMalloc));
  plan.timeout_ms = options.timeout_s * int64_t{1000};
  return plan;
}

}  // namespace dt::cli::bench
