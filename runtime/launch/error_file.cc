// SPDX-License-Identifier: Apache-2.0
#include "launch/error_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

namespace dt::launch {
namespace {

std::string_view variable(const Environment& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string_view() : found->second;
}

int32_t number(std::string_view text) {
  int32_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

/// In torchrun's folder of the attempt each local rank has one of its own.
std::string file_name(int32_t local_rank) {
  return "/" + std::to_string(local_rank) + "/error.json";
}

/// As PyTorch's @record writes it; torchrun shows py_callstack.
std::string text_of(const std::string& message, int64_t second) {
  const nlohmann::ordered_json json = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(second)}}}}}};
  return json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

/// All of it or nothing: torchrun itself fails over half a file.
void put(const std::string& path, const std::string& text, bool replace) {
  std::string draft = path + ".XXXXXX";
  const int file = mkostemp(draft.data(), O_CLOEXEC);
  if (file < 0) return;
  const bool whole = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  if (whole && replace && rename(draft.c_str(), path.c_str()) == 0) return;
  if (whole && !replace) (void)!link(draft.c_str(), path.c_str());
  unlink(draft.c_str());
}

}  // namespace

ErrorFile::ErrorFile(const Environment& variables, int32_t rank)
    : path_(variable(variables, "TORCHELASTIC_ERROR_FILE")), rank_(rank) {
  const int32_t local_rank = number(variable(variables, "LOCAL_RANK"));
  if (rank < 0 || local_rank < 0 || number(variable(variables, "RANK")) != rank) return;
  if (!std::string_view(path_).ends_with(file_name(local_rank))) return;
  local_rank_ = local_rank;
  local_size_ = number(variable(variables, "LOCAL_WORLD_SIZE"));
}

std::string ErrorFile::path_of(int32_t rank) const {
  const int64_t local_rank =
      int64_t{local_rank_} + rank - rank_;  // a torchrun's ranks are in a row
  if (local_rank_ < 0 || local_rank < 0 || local_rank >= local_size_) return {};
  return path_.substr(0, path_.size() - file_name(local_rank_).size()) +
         file_name(static_cast<int32_t>(local_rank));
}

void ErrorFile::write(const Status& status, int64_t now_s) const {
  if (!named() || status.ok()) return;
  const int32_t culprit = status.info().rank;
  const bool own = culprit < 0 || culprit == rank_;
  const std::string message = std::string(code_name(status.code())) + ": " + status.message();
  if (const std::string other = own ? std::string() : path_of(culprit); !other.empty()) {
    put(other, text_of(message, now_s - 1), false);
  }
  put(path_, text_of(message, own ? now_s - 1 : now_s), true);
}

}  // namespace dt::launch
