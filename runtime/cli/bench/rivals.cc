// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/rivals.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "cli/bench/placement.h"
#include "cli/bench/rival_facts.h"

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
                  "no place for the compiled programs of rivals: set XDG_CACHE_HOME or HOME");
  }
  directory += "/dt/bench";
  DT_TRY(make_directories(directory));
  return directory;
}

// `what`: "needs X, which is not in PATH".
Status missing(const std::string& rival, const std::string& what) {
  return Status(Code::kSystem, "--compare " + rival + " needs " + what +
                                   "; install it (Debian: apt install " + rival_packages(rival) +
                                   ") or leave " + rival + " out");
}

// Compiles `source` to a file that is named by what went into it, unless it is there. `command`:
// the compiler and its options before the source, `last` those behind it.
Result<std::string> compile(const std::string& name, std::vector<std::string> command,
                            const std::string& source, const std::vector<std::string>& last,
                            const Files& files) {
  const std::string path = files.source_directory + "/" + source;
  DT_TRY_VALUE(std::string text, read_text(path));
  DT_TRY_VALUE(const std::string method, read_text(files.source_directory + "/method.h"));
  text += method;
  DT_TRY_VALUE(const std::string directory, cache_directory());
  const std::string program =
      directory + "/" + name + format("-%016llx", static_cast<unsigned long long>(hash_of(text)));
  if (access(program.c_str(), X_OK) == 0) return program;
  // Two dt bench at once: each compiles its own file, the last one stays.
  const std::string fresh = program + format(".%d", getpid());
  ChildPlan plan;
  plan.command = std::move(command);
  plan.command.insert(plan.command.end(), {path, "-o", fresh});
  plan.command.insert(plan.command.end(), last.begin(), last.end());
  plan.timeout_ms = kCompileMs;
  if (const Result<std::string> compiled = run_child(plan); !compiled.ok()) {
    return compiled.status();
  }
  if (rename(fresh.c_str(), program.c_str()) != 0) {
    return Status(Code::kSystem, "cannot make " + program + ": " + errno_text(errno));
  }
  return program;
}

Result<Rival> prepare_mpi(Rival rival, const Files& files) {
  const std::string compiler = "mpicc." + rival.name;
  const std::string mpirun = "mpirun." + rival.name;
  for (const std::string& program : {compiler, mpirun}) {
    if (program_path(program).empty()) {
      return missing(rival.name, program + ", which is not in PATH");
    }
  }
  DT_TRY_VALUE(const std::string program,
               compile(rival.name, {compiler, "-std=c99", "-O2"}, "rival_mpi.c", {}, files));
  rival.mpirun = mpirun;
  rival.program = {program};
  rival.has_tuned = rival.name == "openmpi";
  return rival;
}

// `dt run` starts the ranks of gloo and PyTorch; nothing of dt is in what is measured.
Result<Rival> prepare_gloo(Rival rival, const Files& files, const std::string& meeting) {
  if (program_path("c++").empty()) return missing(rival.name, "c++, which is not in PATH");
  // -fsyntax-only of an empty program: whether headers are there is for the compiler to say.
  ChildPlan probe;
  probe.command = {"c++", "-x", "c++", "-include", "gloo/context.h", "-fsyntax-only", "/dev/null"};
  probe.timeout_ms = kCompileMs;
  if (!run_child(probe).ok()) {
    return missing(rival.name, "gloo/context.h, which the compiler does not find");
  }
  DT_TRY_VALUE(const std::string program, compile(rival.name, {"c++", "-std=c++17", "-O3"},
                                                  "rival_gloo.cc", {"-lgloo"}, files));
  rival.program = {program, meeting, "127.0.0.1"};
  rival.has_tuned = true;
  return rival;
}

Result<Rival> prepare_torch(Rival rival, const Files& files) {
  // The first in PATH may be one that Debian's package does not belong to.
  for (const char* const python : {"python3", "/usr/bin/python3"}) {
    if (program_path(python).empty()) continue;
    ChildPlan probe;
    probe.command = {python, "-c", "import torch.distributed as d; assert d.is_available()"};
    probe.timeout_ms = kCompileMs;
    if (!run_child(probe).ok()) continue;
    rival.program = {python, files.source_directory + "/rival_torch.py"};
    return rival;
  }
  return missing(rival.name, "a python3 that imports torch.distributed");
}

}  // namespace

Result<Rival> prepare_rival(const std::string& name, const Files& files,
                            const std::string& meeting) {
  Rival rival;
  rival.name = name;
  if (name == "gloo") return prepare_gloo(std::move(rival), files, meeting);
  if (name == "torch") return prepare_torch(std::move(rival), files);
  return prepare_mpi(std::move(rival), files);
}

ChildPlan rival_run(const Rival& rival, const Options& options, const Files& files, bool tuned) {
  ChildPlan plan;
  if (rival.mpirun.empty()) {
    plan.command = own_launcher(options, files);
  } else {
    plan.command = rival.name == "openmpi" ? openmpi_options(options) : mpich_options(options);
    plan.command.insert(plan.command.begin(), rival.mpirun);
  }
  plan.command.insert(plan.command.end(), rival.program.begin(), rival.program.end());
  if (rival.name == "gloo") plan.command.emplace_back(tuned ? "tuned" : "default");
  plan.command.insert(
      plan.command.end(),
      {std::to_string(options.collective), std::to_string(options.dtype),
       std::to_string(options.op), std::to_string(options.warmup),
       std::to_string(options.iterations), std::to_string(options.budget_ms * int64_t{1000}),
       std::to_string(options.timeout_s)});
  for (const int64_t bytes : options.sizes_bytes) plan.command.push_back(std::to_string(bytes));
  if (tuned && rival.name == "openmpi") {
    plan.environment.assign(std::begin(kTunedMalloc), std::end(kTunedMalloc));
  }
  plan.timeout_ms = options.timeout_s * int64_t{1000};
  return plan;
}

}  // namespace dt::cli::bench
