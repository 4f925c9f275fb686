// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/placement.h"

#include <unistd.h>

#include "cli/run/binding.h"

namespace dt::cli::bench {

std::vector<std::vector<int>> cpus_of_ranks(const Options& options) {
  if (options.bind != "cores") return {};
  return plan_binding(Bind::kCores, read_topology("/sys", allowed_cpus()), options.ranks).cpus;
}

const char* binding_of(const Options& options) {
  return cpus_of_ranks(options).empty() ? "none" : "cores";
}

std::vector<std::string> own_launcher(const Options& options, const Files& files) {
  return {files.dt,
          "run",
          "-n",
          std::to_string(options.ranks),
          "--no-prefix",
          "--bind",
          binding_of(options),
          "--"};
}

// Slots are cores unless it is told otherwise.
std::vector<std::string> openmpi_options(const Options& options) {
  std::vector<std::string> words;
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  const auto ranks = static_cast<size_t>(options.ranks);
  if (ranks > allowed_cpus().size()) {
    words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  } else if (!cpus_of_ranks(options).empty()) {
    words.insert(words.end(), {"--bind-to", "core:if-supported"});
  } else {
    words.insert(words.end(), {"--use-hwthread-cpus", "--bind-to", "none"});
  }
  words.insert(words.end(), {"-n", std::to_string(ranks)});
  return words;
}

std::vector<std::string> mpich_options(const Options& options) {
  std::vector<std::string> words;
  std::string list;
  for (const std::vector<int>& cpus : cpus_of_ranks(options)) {
    if (!list.empty()) list += ',';
    for (size_t i = 0; i < cpus.size(); ++i) list += (i == 0 ? "" : "+") + std::to_string(cpus[i]);
  }
  if (!list.empty()) words = {"-bind-to", "user:" + list};
  words.insert(words.end(), {"-n", std::to_string(options.ranks)});
  return words;
}

}  // namespace dt::cli::bench
