// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/toml_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dt::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto content = parse_toml(keys(), text, "dt.toml", {true, true});
  if (!content.ok()) {
    if (content.status().message().rfind("dt.toml:", 0) != 0) abort();
    return 0;
  }
  for (const FileSetting& setting : content.value().settings) {
    // What was accepted must read back as the same value.
    const auto again = parse_value(keys()[setting.key], setting.value.text);
    if (!again || again->text != setting.value.text) abort();
  }
  return 0;
}
