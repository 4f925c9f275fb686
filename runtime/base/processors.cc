// SPDX-License-Identifier: Apache-2.0
#include "base/processors.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/thread.h"

namespace dt {
namespace {

constexpr int64_t kProcessorsMax = 8192;  // of Linux: CONFIG_NR_CPUS

/// As the system takes them.
class ProcessorSet {
 public:
  explicit ProcessorSet(const std::vector<int32_t>& processors) : set_(CPU_ALLOC(kProcessorsMax)) {
    if (set_ == nullptr) return;
    CPU_ZERO_S(kBytes, set_);
    for (const int32_t each : processors) CPU_SET_S(static_cast<size_t>(each), kBytes, set_);
  }
  ~ProcessorSet() { CPU_FREE(set_); }
  ProcessorSet(const ProcessorSet&) = delete;
  ProcessorSet& operator=(const ProcessorSet&) = delete;

  cpu_set_t* get() const { return set_; }  ///< null: no memory
  static constexpr size_t kBytes = CPU_ALLOC_SIZE(kProcessorsMax);

 private:
  cpu_set_t* const set_;
};

/// Reads digits from `*at` on. False: there are none, or they say too much.
bool take_number(const char** at, int64_t* out) {
  *out = 0;
  const char* const begin = *at;
  for (; **at >= '0' && **at <= '9' && *out < kProcessorsMax; ++*at)
    *out = 10 * *out + (**at - '0');
  return *at != begin && *out < kProcessorsMax;
}

}  // namespace

Result<std::vector<int32_t>> parse_processors(const std::string& text) {
  std::vector<int32_t> found;
  const char* at = text.c_str();
  while (*at != '\0') {
    const char* const begin = at;
    int64_t first = 0;
    bool good = take_number(&at, &first);
    int64_t last = first;
    if (good && *at == '-') {
      ++at;
      good = take_number(&at, &last) && first <= last;
    }
    // A comma stands between two, and not at the end.
    if (!good || (*at != '\0' && (*at != ',' || at[1] == '\0'))) {
      return Status(Code::kConfig,
                    format("\"%s\" is no list of processors from \"%s\" on; write it as \"1,3-5\", "
                           "with numbers below %lld",
                           text.c_str(), begin, static_cast<long long>(kProcessorsMax)));
    }
    for (int64_t each = first; each <= last; ++each) found.push_back(static_cast<int32_t>(each));
    if (*at == ',') ++at;
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

Status check_processors(const std::vector<int32_t>& processors) {
  if (processors.empty()) return {};
  Status status;
  // Signals of the host program are not for this thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto thread = start_thread("looks for processors", [&] {
    for (const int32_t each : processors) {
      const int error = restrict_to({each});
      if (error == 0) continue;
      status = Status(
          Code::kConfig,
          format("processor %d: %s; this machine has no such processor, or the group of this "
                 "process (cpuset) may not use it: look at nproc --all and "
                 "/sys/fs/cgroup/cpuset.cpus.effective",
                 each, errno_text(error).c_str()));
      return;
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.ok()) return thread.status();
  thread.value().join();
  return status;
}

int restrict_to(const std::vector<int32_t>& processors, pthread_attr_t* attributes) {
  if (processors.empty()) return 0;
  const ProcessorSet set(processors);
  if (set.get() == nullptr) return ENOMEM;
  return pthread_attr_setaffinity_np(attributes, ProcessorSet::kBytes, set.get());
}

int restrict_to(const std::vector<int32_t>& processors) {
  if (processors.empty()) return 0;
  const ProcessorSet set(processors);
  if (set.get() == nullptr) return ENOMEM;
  return pthread_setaffinity_np(pthread_self(), ProcessorSet::kBytes, set.get());
}

}  // namespace dt
