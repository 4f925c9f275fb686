// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "training/file_io.h"
#include "training/reducer.h"

namespace dt::training {

// A checkpoint in the layout of safetensors: the header's length as 8 bytes, little-endian, the
// header in JSON, filled up with spaces to a multiple of 8 bytes, then the tensors without holes.
// Source: https://github.com/huggingface/safetensors#format. Everything here is arithmetic on the
// model alone, so that every rank of every world size finds the same places.

/// The longest header, in bytes, that the library safetensors reads.
inline constexpr int64_t kLongestHeader = 100'000'000;
inline constexpr int64_t kMostSteps = int64_t{1} << 53;  // in a file; that a double tells apart

/// What the optimizer's tensors are called: "optimizer.<first>.<parameter>". Null: not there.
struct FileOptimizer {
  const char* kind = "";
  const char* first = nullptr;
  const char* second = nullptr;
  /// What to do with a file that lacks these.
  const char* without = "load parameters alone, without an optimizer";
};

struct FileTensor {
  enum class Role { kParam, kFirst, kSecond, kMaster, kStep, kState };

  Role role = Role::kParam;
  int32_t param = 0;
  std::string name;
  Dtype dtype = Dtype::kF32;
  int64_t count = 0;  ///< elements
  int64_t begin = 0;  ///< bytes from the file's start
};

struct FilePlan {
  std::vector<FileTensor> tensors;  ///< in the order of the file
  std::string head;                 ///< what stands before the tensors
  int64_t bytes = 0;                ///< of the file
};

/// Where each tensor goes. A tensor is aligned to its elements. INVALID_ARGUMENT for names that a
/// file cannot have or that two tensors have, UNSUPPORTED for a header that is too long.
/// @param optimizer null: parameters alone
/// @param longest_header in bytes
Result<FilePlan> plan_file(std::span<const Param> params, const FileOptimizer* optimizer,
                           int64_t longest_header = kLongestHeader);

/// The same for any tensors, whose `begin` is not read. In the file the wider dtypes come first.
/// @param metadata of the header, to which the version of the format is added
Result<FilePlan> plan_tensors(std::vector<FileTensor> tensors, std::span<const Param> params,
                              std::map<std::string, std::string> metadata, int64_t longest_header);

/// What a header says.
struct FileTable {
  struct Entry {
    std::string dtype_text;
    std::optional<Dtype> dtype;  ///< none: dt has no such dtype
    int64_t count = 0;           ///< elements, of whatever shape
    int64_t begin = 0;           ///< bytes from the end of the header
    int64_t end = 0;
  };
  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Of untrusted bytes. INVALID_ARGUMENT unless its tensors fill `data_bytes` bytes without holes,
/// and each has the size that its dtype and shape say.
Result<FileTable> parse_header(std::string_view json, int64_t data_bytes);

/// VERSION where this library does not read the file's format.
Status check_version(const FileTable& table);

/// Gives the tensors of a plan their places in the file of `table`, and drops f32 values of
/// parameters that it does not have. INVALID_ARGUMENT for what is missing or of another kind.
/// @param data_begin where the header ends, in bytes from the file's start
Status find_tensors(const FileTable& table, int64_t data_begin, const FileOptimizer* optimizer,
                    std::vector<FileTensor>* tensors);

/// Opens the file and reads its header. Returns INVALID_ARGUMENT if the file has another layout or
/// is cut short, and SYSTEM with the system's reason if it cannot be read.
/// @param wrote      "dt_shard_save", in messages
/// @param data_begin gives where the header ends
/// @param digest     gives that of the header
Result<FileTable> read_table(const std::string& path, const char* wrote, FileDescriptor* file,
                             int64_t* data_begin, int64_t* digest);

}  // namespace dt::training
