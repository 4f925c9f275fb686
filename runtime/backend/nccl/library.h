// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/nccl/api.h"
#include "base/status.h"

namespace dt::nccl {

inline constexpr int32_t kOldestVersion = 21800;       ///< 2.18: communicators with a config
inline constexpr int32_t kRecommendedVersion = 22200;  ///< 2.22: several aborted in one group
inline constexpr char kSoname[] = "libnccl.so.2";

/// NCCL, opened at run time: an object, so that one process may hold two copies. Never closed: its
/// threads live in it. Any thread.
class Library {
 public:
  /// Opens `path` and nothing else where it is not empty: who names a file does not want another.
  /// Else a copy that the process has loaded already (PyTorch's, say); else `soname` as the dynamic
  /// loader finds it. NCCL with every place that was tried and the loader's words, with the names
  /// of functions that are missing, or because it is too old.
  static Result<std::shared_ptr<const Library>> open(const std::string& path,
                                                     const std::string& soname = kSoname);

  const Functions& functions() const { return functions_; }
  int32_t version() const { return version_; }       ///< 22809
  std::string version_text() const;                  ///< "2.28.9"
  const std::string& path() const { return path_; }  ///< of the file, as the loader knows it
  /// How it was found: "nccl.library", "already loaded", "libnccl.so.2".
  const std::string& origin() const { return origin_; }
  /// Optional functions that are missing: "ncclMemAlloc".
  const std::vector<std::string>& missing() const { return missing_; }

  /// "NCCL 2.17.1 (/lib/libnccl.so.2, already loaded)"
  std::string description() const;

  /// NCCL for an answer that is no success: "ncclAllReduce: unhandled cuda error (NCCL says: ...)",
  /// and what to do next. Ok for kSuccess.
  Status error(const char* call, Answer answer) const;
  /// The same of ncclMemAlloc, or OUT_OF_MEMORY if that is what NCCL's words say: CUDA's errors all
  /// have one answer.
  Status no_memory(Answer answer, int64_t bytes) const;

 private:
  Library() = default;
  Status read_version(void* handle);
  Status read_functions(void* handle);

  Functions functions_;
  int32_t version_ = 0;
  std::string path_;
  std::string origin_;
  std::vector<std::string> missing_;
};

/// "2.28.9" of 22809, "2.8.4" of 2804.
std::string version_text(int32_t version);

/// What is known to be wrong with a release.
struct Fault {
  std::string text;      ///< one sentence: what a user of dt would notice
  int32_t fixed_in = 0;  ///< 23007; 0: in no release so far
};
/// Pure.
std::vector<Fault> known_faults(int32_t version);

}  // namespace dt::nccl
