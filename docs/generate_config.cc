// SPDX-License-Identifier: Apache-2.0
// Writes docs/config.md to stdout; with a file name, tells whether that file is up to date.
#include <cstdio>
#include <string>

#include "config/keys.h"

namespace {

bool read_file(const char* name, std::string* text) {
  std::FILE* file = std::fopen(name, "rb");
  if (file == nullptr) return false;
  char buffer[4096];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof buffer, file)) > 0) text->append(buffer, got);
  const bool good = std::ferror(file) == 0;
  std::fclose(file);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string page = dt::config::reference_page(dt::config::keys());
  if (argc == 1) return std::fputs(page.c_str(), stdout) < 0 ? 1 : 0;
  std::string committed;
  if (!read_file(argv[1], &committed)) {
    std::fprintf(stderr, "%s: cannot be read\n", argv[1]);
    return 1;
  }
  if (committed == page) return 0;
  std::fprintf(stderr, "%s is out of date; run: build/docs/generate_config > docs/config.md\n",
               argv[1]);
  return 1;
}
