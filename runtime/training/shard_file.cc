// SPDX-License-Identifier: Apache-2.0
#include "training/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/xxh64.h"
#include "config/value.h"

namespace dt::training {
namespace {

constexpr char kVersionOfFile[] = "1";
constexpr char kMetadata[] = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 8;     // of the first tensor, as safetensors asks
constexpr size_t kShownBytes = 120;  // of a text of the file, in a message

struct DtypeText {
  Dtype dtype;
  const char* text;
};
constexpr DtypeText kDtypeTexts[] = {
    {Dtype::kI8, "I8"},     {Dtype::kU8, "U8"},          {Dtype::kI16, "I16"},
    {Dtype::kU16, "U16"},   {Dtype::kI32, "I32"},        {Dtype::kU32, "U32"},
    {Dtype::kI64, "I64"},   {Dtype::kU64, "U64"},        {Dtype::kF16, "F16"},
    {Dtype::kBf16, "BF16"}, {Dtype::kF32, "F32"},        {Dtype::kF64, "F64"},
    {Dtype::kBool, "BOOL"}, {Dtype::kF8E4M3, "F8_E4M3"}, {Dtype::kF8E5M2, "F8_E5M2"},
};
static_assert(std::size(kDtypeTexts) == kDtypeCount);

const char* text_of(Dtype dtype) {
  for (const DtypeText& each : kDtypeTexts) {
    if (each.dtype == dtype) return each.text;
  }
  return "?";
}

std::optional<Dtype> dtype_of(const std::string& text) {
  for (const DtypeText& each : kDtypeTexts) {
    if (text == each.text) return each.dtype;
  }
  return std::nullopt;
}

Status unusable(std::string why) { return Status(Code::kInvalidArgument, std::move(why)); }

/// For a message: what a file or a caller called it, cut.
std::string shown(const std::string& name) {
  return '"' + (name.size() <= kShownBytes ? name : name.substr(0, kShownBytes) + "...") + '"';
}

/// "parameter #3 "weight"", or of a tensor of the optimizer its name.
std::string owner_of(const FileTensor& tensor, std::span<const Param> params) {
  if (tensor.role == FileTensor::Role::kParam || tensor.role == FileTensor::Role::kState) {
    const Param& param = params[static_cast<size_t>(tensor.param)];
    return format("parameter #%d %s", tensor.param, shown(param.name).c_str());
  }
  return "the optimizer's " + shown(tensor.name);
}

Status check_names(const std::vector<FileTensor>& tensors, std::span<const Param> params) {
  std::map<std::string_view, const FileTensor*> known;
  for (const FileTensor& tensor : tensors) {
    if (config::find_bad_utf8(tensor.name)) {
      return unusable(format("the name of parameter #%d is not UTF-8", tensor.param));
    }
    const auto [place, is_new] = known.emplace(tensor.name, &tensor);
    if (!is_new || tensor.name == kMetadata) {
      return unusable(
          format("%s would be called %s in the file, like %s; give each parameter a name "
                 "of its own",
                 owner_of(tensor, params).c_str(), shown(tensor.name).c_str(),
                 is_new ? "the file's metadata" : owner_of(*place->second, params).c_str()));
    }
  }
  return {};
}

std::string name_of(std::span<const Param> params, int32_t index) {
  const std::string& name = params[static_cast<size_t>(index)].name;
  return name.empty() ? format("param.%d", index) : name;
}

std::vector<FileTensor> list_tensors(std::span<const Param> params,
                                     const FileOptimizer* optimizer) {
  using Role = FileTensor::Role;
  std::vector<FileTensor> tensors;
  const auto add_all = [&](Role role, const char* kind) {
    if (kind == nullptr) return;
    for (int32_t i = 0; i < static_cast<int32_t>(params.size()); ++i) {
      const Param& param = params[static_cast<size_t>(i)];
      const Dtype wide = param.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
      if (role == Role::kMaster && param.dtype == wide) continue;
      if (role == Role::kParam) {
        tensors.push_back({role, i, name_of(params, i), param.dtype, param.count});
      } else {
        const bool is_step = role == Role::kStep;
        tensors.push_back({role, i, format("optimizer.%s.", kind) + name_of(params, i),
                           is_step ? Dtype::kI64 : wide, is_step ? 1 : param.count});
      }
    }
  };
  add_all(Role::kParam, "");
  if (optimizer == nullptr) return tensors;
  add_all(Role::kFirst, optimizer->first);
  add_all(Role::kSecond, optimizer->second);
  add_all(Role::kMaster, "master");
  add_all(Role::kStep, "step");
  return tensors;
}

/// "3,4". A tensor with as many elements as its parameter has the same shape.
std::string shape_of(const FileTensor& tensor, std::span<const Param> params) {
  const Param& param = params[static_cast<size_t>(tensor.param)];
  if (tensor.role == FileTensor::Role::kStep || tensor.count != param.count ||
      param.shape.empty()) {
    return format("%lld", static_cast<long long>(tensor.count));
  }
  std::string text;
  for (const int64_t size : param.shape) {
    text += format(text.empty() ? "%lld" : ",%lld", static_cast<long long>(size));
  }
  return text;
}

std::string quoted_json(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

Result<FilePlan> plan_file(std::span<const Param> params, const FileOptimizer* optimizer,
                           int64_t longest_header) {
  return plan_tensors(list_tensors(params, optimizer), params,
                      {{"optimizer", optimizer != nullptr ? optimizer->kind : "none"}},
                      longest_header);
}

Result<FilePlan> plan_tensors(std::vector<FileTensor> tensors, std::span<const Param> params,
                              std::map<std::string, std::string> metadata, int64_t longest_header) {
  FilePlan plan;
  plan.tensors = std::move(tensors);
  DT_TRY(check_names(plan.tensors, params));
  std::stable_sort(plan.tensors.begin(), plan.tensors.end(),
                   [](const FileTensor& left, const FileTensor& right) {
                     return dtype_bytes(left.dtype) > dtype_bytes(right.dtype);
                   });
  metadata["dt"] = kVersionOfFile;
  std::string json = format("{\"%s\":", kMetadata) + nlohmann::json(metadata).dump();
  int64_t at = 0;
  for (FileTensor& tensor : plan.tensors) {
    tensor.begin = at;
    at += tensor.count * dtype_bytes(tensor.dtype);
    json += ',' + quoted_json(tensor.name) +
            format(":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}",
                   text_of(tensor.dtype), shape_of(tensor, params).c_str(),
                   static_cast<long long>(tensor.begin), static_cast<long long>(at));
  }
  json += '}';
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (static_cast<int64_t>(json.size()) > longest_header) {
    return Status(
        Code::kUnsupported,
        format("the names and sizes of %zu tensors take %zu bytes, more than the %lld of a "
               "header that safetensors reads; give shorter names",
               plan.tensors.size(), json.size(), static_cast<long long>(longest_header)));
  }
  for (size_t i = 0; i < kLengthBytes; ++i) {
    plan.head.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
  }
  plan.head += json;
  for (FileTensor& tensor : plan.tensors) tensor.begin += static_cast<int64_t>(plan.head.size());
  plan.bytes = static_cast<int64_t>(plan.head.size()) + at;
  return plan;
}

namespace {

/// Takes the header apart as the parser comes to it; false ends the parser. The object has two
/// levels, and lists below them.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  FileTable table;
  std::string error;  ///< empty: none so far

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is no integer of 64 bits");
  }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_ || value > INT64_MAX) return refuse("a number");
    const auto number = static_cast<int64_t>(value);
    if (field_ == "shape") {
      if (__builtin_mul_overflow(entry_->count, number, &entry_->count)) {
        return refuse("a shape of more than 2^63 elements");
      }
    } else if (numbers_ == 0) {
      entry_->begin = number;
    } else {
      entry_->end = number;
    }
    ++numbers_;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      table.metadata[field_] = value;
      return true;
    }
    if (depth_ != 2 || in_list_ || field_ != "dtype") return refuse("a text");
    entry_->dtype_text = value;
    entry_->dtype = dtype_of(value);
    return true;
  }
  bool start_object(size_t) override {
    if (in_list_ || ++depth_ > 2) return refuse("an object");
    if (depth_ == 2) seen_ = 0;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 0 || in_metadata_) {
      in_metadata_ = false;
      return true;
    }
    return seen_ == 7 || fail("lacks dtype, shape or data_offsets");
  }
  bool key(string_t& value) override {
    if (depth_ == 1) return begin_tensor(value);
    field_ = value;
    if (in_metadata_) return true;
    const unsigned bit = value == "dtype"          ? 1
                         : value == "shape"        ? 2
                         : value == "data_offsets" ? 4
                                                   : 0;
    if (bit == 0 || (seen_ & bit) != 0) return refuse("a field too many");
    seen_ |= bit;
    return true;
  }
  bool start_array(size_t) override {
    if (in_list_ || depth_ != 2 || in_metadata_ || field_ == "dtype") return refuse("a list");
    in_list_ = true;
    numbers_ = 0;
    if (field_ == "shape") entry_->count = 1;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return field_ == "shape" || numbers_ == 2 || fail("has no two data_offsets");
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    if (error.empty()) error = format("the header is not JSON at byte %zu", position);
    return false;
  }

 private:
  bool begin_tensor(const std::string& name) {
    tensor_ = name;
    field_.clear();
    in_metadata_ = name == kMetadata;
    if (in_metadata_) return true;
    const auto [place, is_new] = table.tensors.emplace(name, FileTable::Entry{});
    entry_ = &place->second;
    return is_new || fail("is there twice");
  }
  bool fail(const char* what) {
    error = format("tensor %s of the header %s", shown(tensor_).c_str(), what);
    return false;
  }
  bool refuse(const char* what) {
    error = field_.empty() ? format("the header has %s where an object belongs", what)
                           : format("tensor %s of the header has %s at %s", shown(tensor_).c_str(),
                                    what, shown(field_).c_str());
    return false;
  }

  int depth_ = 0;  // objects that are open
  bool in_list_ = false;
  bool in_metadata_ = false;
  unsigned seen_ = 0;  // fields of the tensor: dtype 1, shape 2, data_offsets 4
  int numbers_ = 0;    // of the list
  std::string tensor_;
  std::string field_;
  FileTable::Entry* entry_ = nullptr;  // of the tensor
};

Status check_offsets(const FileTable& table, int64_t data_bytes) {
  using Named = std::pair<const std::string, FileTable::Entry>;
  std::vector<const Named*> sorted;
  for (const Named& each : table.tensors) {
    const FileTable::Entry& entry = each.second;
    const int64_t element = entry.dtype ? dtype_bytes(*entry.dtype) : 0;
    int64_t bytes = entry.end - entry.begin;  // both are >= 0
    if (bytes < 0 || (entry.dtype && (__builtin_mul_overflow(entry.count, element, &bytes) ||
                                      bytes != entry.end - entry.begin))) {
      return unusable(
          format("tensor %s lies from byte %lld to %lld, which is not the size of %lld "
                 "elements of %s",
                 shown(each.first).c_str(), static_cast<long long>(entry.begin),
                 static_cast<long long>(entry.end), static_cast<long long>(entry.count),
                 shown(entry.dtype_text).c_str()));
    }
    sorted.push_back(&each);
  }
  std::sort(sorted.begin(), sorted.end(), [](const Named* left, const Named* right) {
    return std::pair(left->second.begin, left->second.end) <
           std::pair(right->second.begin, right->second.end);
  });
  int64_t at = 0;
  for (const Named* each : sorted) {
    if (each->second.begin != at) {
      return unusable(format("tensor %s begins at byte %lld, but the one before it ends at %lld",
                             shown(each->first).c_str(), static_cast<long long>(each->second.begin),
                             static_cast<long long>(at)));
    }
    at = each->second.end;
  }
  if (at == data_bytes) return {};
  return unusable(
      format("it has %lld bytes of tensors, but its header describes %lld: the file was "
             "cut short or changed",
             static_cast<long long>(data_bytes), static_cast<long long>(at)));
}

Status check_kind(const FileTable& table, const FileOptimizer& optimizer) {
  const auto found = table.metadata.find("optimizer");
  if (found == table.metadata.end() || found->second == optimizer.kind) return {};
  if (found->second == "none") {
    return unusable(std::string("it has no state of an optimizer; ") + optimizer.without);
  }
  return unusable(format(
      "it has the state of the optimizer %s, not of %s; make an optimizer of that kind, or %s",
      shown(found->second).c_str(), optimizer.kind, optimizer.without));
}

Status check_entry(const FileTensor& wanted, const FileTable::Entry& entry) {
  if (entry.dtype == wanted.dtype && entry.count == wanted.count) return {};
  return unusable(
      format("its %s has %lld elements of %s, this model's %lld of %s; load it into the "
             "model that was saved",
             shown(wanted.name).c_str(), static_cast<long long>(entry.count),
             entry.dtype_text.substr(0, kShownBytes).c_str(), static_cast<long long>(wanted.count),
             text_of(wanted.dtype)));
}

}  // namespace

Result<FileTable> parse_header(std::string_view json, int64_t data_bytes) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return unusable(reader.error.empty() ? "the header is not JSON" : reader.error);
  }
  DT_TRY(check_offsets(reader.table, data_bytes));
  return std::move(reader.table);
}

Status check_version(const FileTable& table) {
  const auto version = table.metadata.find("dt");
  if (version == table.metadata.end() || version->second == kVersionOfFile) return {};
  return Status(Code::kVersion,
                format("it has version %s of the format, this library reads %s; use the library "
                       "that saved it",
                       shown(version->second).c_str(), kVersionOfFile));
}

Status find_tensors(const FileTable& table, int64_t data_begin, const FileOptimizer* optimizer,
                    std::vector<FileTensor>* tensors) {
  using Role = FileTensor::Role;
  DT_TRY(check_version(table));
  if (optimizer != nullptr) DT_TRY(check_kind(table, *optimizer));
  for (FileTensor& wanted : *tensors) {
    const auto found = table.tensors.find(wanted.name);
    if (found == table.tensors.end()) {
      if (wanted.role == Role::kMaster) {
        wanted.begin = -1;
        continue;
      }
      return unusable(format("it has no tensor %s; %s", shown(wanted.name).c_str(),
                             wanted.role == Role::kParam ? "load it into the model that was saved"
                                                         : optimizer->without));
    }
    DT_TRY(check_entry(wanted, found->second));
    wanted.begin = data_begin + found->second.begin;
  }
  std::erase_if(*tensors, [](const FileTensor& each) { return each.begin < 0; });
  return {};
}

Result<FileTable> read_table(const std::string& path, const char* wrote, FileDescriptor* file,
                             int64_t* data_begin, int64_t* digest) {
  file->reset(open_file(path, O_RDONLY));
  struct stat status = {};
  if (file->get() < 0 || fstat(file->get(), &status) != 0) {
    return failed_io("open", path, errno);
  }
  const std::string where = "cannot load " + quoted_path(path);
  const auto bad = [&](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  where + ": " + why + "; give a file that " + wrote + " wrote");
  };
  if (!S_ISREG(status.st_mode)) return bad("it is not a file");
  unsigned char length[8];
  const int64_t bytes = status.st_size;
  if (bytes < static_cast<int64_t>(sizeof length)) {
    return bad(format("it has %lld bytes only", static_cast<long long>(bytes)));
  }
  int error = read_all(file->get(), {reinterpret_cast<char*>(length), 0, sizeof length});
  if (error != 0) return failed_io("read", path, error);
  uint64_t header_bytes = 0;
  for (size_t i = sizeof length; i-- > 0;) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > static_cast<uint64_t>(kLongestHeader)) {
    return bad(format("its header would have %llu bytes, and may have %lld",
                      static_cast<unsigned long long>(header_bytes),
                      static_cast<long long>(kLongestHeader)));
  }
  *data_begin = static_cast<int64_t>(sizeof length + header_bytes);
  if (*data_begin > bytes) {
    return bad(format("its header would end at byte %lld, but it has %lld",
                      static_cast<long long>(*data_begin), static_cast<long long>(bytes)));
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  error = read_all(file->get(), {header.data(), sizeof length, static_cast<int64_t>(header_bytes)});
  if (error != 0) return failed_io("read", path, error);
  *digest = static_cast<int64_t>(xxh64(header.data(), header.size()));
  auto table = parse_header(header, bytes - *data_begin);
  if (!table.ok()) return bad(table.status().message());
  return table;
}

}  // namespace dt::training
