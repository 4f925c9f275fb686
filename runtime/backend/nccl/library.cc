// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/library.h"

#include <dlfcn.h>

#include <cstddef>
#include <type_traits>

namespace dt::nccl {
namespace {

// As nccl.h of 2.28 lays them out on every 64-bit system.
static_assert(sizeof(UniqueId) == 128 && std::is_trivially_copyable_v<UniqueId>);
static_assert(sizeof(Config) == 80 && std::is_standard_layout_v<Config>);
static_assert(offsetof(Config, magic) == 8 && offsetof(Config, version) == 12);
static_assert(offsetof(Config, blocking) == 16 && offsetof(Config, cga_cluster_size) == 20);
static_assert(offsetof(Config, min_ctas) == 24 && offsetof(Config, max_ctas) == 28);
static_assert(offsetof(Config, net_name) == 32 && offsetof(Config, split_share) == 40);
static_assert(offsetof(Config, traffic_class) == 44 && offsetof(Config, comm_name) == 48);
static_assert(offsetof(Config, collnet_enable) == 56 && offsetof(Config, cta_policy) == 60);
static_assert(offsetof(Config, shrink_share) == 64 && offsetof(Config, nvls_ctas) == 68);
static_assert(offsetof(Config, channels_per_net_peer) == 72);
static_assert(offsetof(Config, nvlink_centric_sched) == 76);
static_assert(sizeof(Answer) == sizeof(int) && sizeof(Type) == sizeof(int) &&
              sizeof(Op) == sizeof(int));

constexpr char kInstall[] = "pip install nvidia-nccl-cu13, or give nccl.library";

struct Symbol {
  const char* name;
  bool required;
  void (*set)(Functions* functions, void* symbol);
};

template <auto kMember>
void set(Functions* functions, void* symbol) {
  auto& function = functions->*kMember;
  function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
}

constexpr Symbol kSymbols[] = {
    {"ncclGetVersion", true, set<&Functions::get_version>},
    {"ncclGetErrorString", true, set<&Functions::get_error_string>},
    {"ncclGetLastError", true, set<&Functions::get_last_error>},
    {"ncclGetUniqueId", true, set<&Functions::get_unique_id>},
    {"ncclCommInitRankConfig", true, set<&Functions::comm_init_rank_config>},
    {"ncclCommGetAsyncError", true, set<&Functions::comm_get_async_error>},
    {"ncclCommFinalize", true, set<&Functions::comm_finalize>},
    {"ncclCommDestroy", true, set<&Functions::comm_destroy>},
    {"ncclCommAbort", true, set<&Functions::comm_abort>},
    {"ncclAllReduce", true, set<&Functions::all_reduce>},
    {"ncclBroadcast", true, set<&Functions::broadcast>},
    {"ncclReduce", true, set<&Functions::reduce>},
    {"ncclAllGather", true, set<&Functions::all_gather>},
    {"ncclReduceScatter", true, set<&Functions::reduce_scatter>},
    {"ncclSend", true, set<&Functions::send>},
    {"ncclRecv", true, set<&Functions::recv>},
    {"ncclGroupStart", true, set<&Functions::group_start>},
    {"ncclGroupEnd", true, set<&Functions::group_end>},
    {"ncclMemAlloc", false, set<&Functions::mem_alloc>},
    {"ncclMemFree", false, set<&Functions::mem_free>},
    {"ncclCommRegister", false, set<&Functions::comm_register>},
    {"ncclCommDeregister", false, set<&Functions::comm_deregister>},
};

/// The loader's words about what just failed.
std::string loader_words() {
  const char* words = dlerror();
  return words != nullptr ? std::string("the loader says \"") + words + "\"" : "no reason given";
}

struct Opened {
  void* handle = nullptr;
  std::string origin;
};

Result<Opened> open_named(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return Opened{handle, "nccl.library"};
  return Status(Code::kNccl, "nccl.library (" + path + ") cannot be opened: " + loader_words() +
                                 "; correct nccl.library, or leave it out, so that " + kSoname +
                                 " is looked for");
}

Result<Opened> open_found(const std::string& soname) {
  void* handle = dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle != nullptr) return Opened{handle, "already loaded"};
  dlerror();
  handle = dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return Opened{handle, soname};
  return Status(Code::kNccl,
                "there is no NCCL: nccl.library is not set; this process has not "
                "loaded " +
                    soname + "; " + loader_words() + "; " + kInstall);
}

std::string path_of(void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

/// What to do about an answer.
const char* next_step(Answer answer) {
  switch (answer) {
    case Answer::kInvalidArgument:
    case Answer::kInvalidUsage:
      return "see that all ranks have a GPU of their own, the same NCCL and the same [nccl] "
             "settings (dt doctor --cluster)";
    case Answer::kRemoteError:
    case Answer::kTimeout:
      return "a peer is gone or the network to it is broken: go on with dt_comm_shrink, or start "
             "the job again";
    default: return "nccl.debug = \"WARN\" makes NCCL tell more";
  }
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::open(const std::string& path,
                                                     const std::string& soname) {
  DT_TRY_VALUE(Opened opened, path.empty() ? open_found(soname) : open_named(path));
  const std::shared_ptr<Library> library(new Library);
  library->origin_ = std::move(opened.origin);
  // First, as the others may be missing in one that is too old.
  DT_TRY(library->read_version(opened.handle));
  DT_TRY(library->read_functions(opened.handle));
  return std::shared_ptr<const Library>(library);
}

Status Library::read_version(void* handle) {
  void* symbol = dlsym(handle, "ncclGetVersion");
  if (symbol == nullptr) {
    return Status(Code::kNccl, format("the library found as \"%s\" is no NCCL: %s; %s",
                                      origin_.c_str(), loader_words().c_str(), kInstall));
  }
  path_ = path_of(symbol);
  set<&Functions::get_version>(&functions_, symbol);
  int version = 0;
  const Answer answer = functions_.get_version(&version);
  if (answer != Answer::kSuccess) {
    return Status(Code::kNccl, format("%s (%s): ncclGetVersion answers %d; %s", path_.c_str(),
                                      origin_.c_str(), static_cast<int>(answer), kInstall));
  }
  version_ = version;
  if (version_ >= kOldestVersion) return {};
  return Status(Code::kNccl, description() + " is too old: dt needs " +
                                 nccl::version_text(kOldestVersion) + " or newer; " + kInstall);
}

Status Library::read_functions(void* handle) {
  std::string lacking;
  for (const Symbol& each : kSymbols) {
    void* symbol = dlsym(handle, each.name);
    if (symbol != nullptr) {
      each.set(&functions_, symbol);
    } else if (each.required) {
      lacking += (lacking.empty() ? "" : ", ") + std::string(each.name);
    } else {
      missing_.push_back(each.name);
    }
  }
  if (lacking.empty()) return {};
  return Status(Code::kNccl, description() + " lacks " + lacking + "; " + kInstall);
}

std::string Library::description() const {
  return "NCCL " + version_text() + " (" + path_ + ", " + origin_ + ")";
}

std::string Library::version_text() const { return nccl::version_text(version_); }

Status Library::error(const char* call, Answer answer) const {
  if (answer == Answer::kSuccess) return {};
  const char* name = functions_.get_error_string(answer);
  std::string text = format("%s: %s", call, name != nullptr ? name : "unknown answer");
  const char* words = functions_.get_last_error(nullptr);
  std::string detail = words != nullptr ? words : "";
  while (!detail.empty() && (detail.back() == '\n' || detail.back() == ' ')) detail.pop_back();
  if (!detail.empty()) text += " (NCCL says: " + detail + ")";
  return Status(Code::kNccl, text + "; " + next_step(answer));
}

Status Library::no_memory(Answer answer, int64_t bytes) const {
  const Status failed = error("ncclMemAlloc", answer);
  if (failed.message().find("out of memory") == std::string::npos) return failed;
  return Status(Code::kOutOfMemory,
                format("%s. %lld bytes were asked for; use smaller batches or buckets, or look for "
                       "other processes in nvidia-smi",
                       failed.message().c_str(), static_cast<long long>(bytes)));
}

std::string version_text(int32_t version) {
  const int32_t major = version < 10000 ? 1000 : 10000;  // changed with 2.9
  return format("%d.%d.%d", version / major, version % major / 100, version % 100);
}

std::vector<Fault> known_faults(int32_t version) {
  struct Known {
    int32_t since;  // 0: as long as dt can use it
    int32_t fixed_in;
    const char* text;
  };
  static constexpr Known kKnown[] = {
      {0, 22200,
       "After a failure the communicators of a device are aborted one by one, and an abort can "
       "hang "
       "while another communicator's operation still runs (nccl issue 992)."},
      {22700, 22900,
       "Where NVLS memory runs out on some ranks only, making a communicator hangs until "
       "nccl.init_timeout_ms; nccl.nvls_enable = false avoids it."},
      {22700, 22902,
       "A query of NCCL's RAS service (ncclras) about a job with lost ranks can crash the process "
       "(nccl issue 1762)."},
      {0, 22907,
       "An average on one rank leaves up to 31 elements at the end unwritten (nccl issue 1950): dt "
       "does not call NCCL there, but other software in this process may."},
      {0, 23007,
       "While so many operations are enqueued that NCCL's queue is full, an abort has no effect: "
       "after a failure the process may have to be ended."},
      {0, 0,
       "On GPUs joined by NVSwitch, sums by NVLS can differ in their last bits between runs (nccl "
       "issues 1497 and 2360); nccl.nvls_enable = false gives equal bits."},
  };
  std::vector<Fault> faults;
  for (const Known& each : kKnown) {
    const bool there = version >= each.since && (each.fixed_in == 0 || version < each.fixed_in);
    if (there) faults.push_back({each.text, each.fixed_in});
  }
  return faults;
}

}  // namespace dt::nccl
