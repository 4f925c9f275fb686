// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace gpt {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// Steele, Lea, Flood, OOPSLA 2014.
uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Regular files alone: a link would give the same text again.
void add_matches(const char* pattern, std::vector<std::string>* paths) {
  glob_t matches = {};
  if (glob(pattern, GLOB_NOSORT, nullptr, &matches) == 0) {
    for (size_t i = 0; i < matches.gl_pathc; ++i) {
      struct stat status = {};
      if (lstat(matches.gl_pathv[i], &status) == 0 && S_ISREG(status.st_mode)) {
        paths->push_back(matches.gl_pathv[i]);
      }
    }
  }
  globfree(&matches);
}

}  // namespace

std::vector<std::string> default_files() {
  std::vector<std::string> paths;
  add_matches("/usr/share/common-licenses/*", &paths);
  add_matches("/usr/share/doc/*/copyright", &paths);
  std::sort(paths.begin(), paths.end());  // by bytes, whatever the locale
  return paths;
}

Error read_text(const std::vector<std::string>& paths, int64_t limit_bytes, std::string* out) {
  out->clear();
  const auto limit = static_cast<size_t>(limit_bytes);
  for (const std::string& path : paths) {
    if (out->size() >= limit) break;
    const std::string what = "cannot read " + path + ": ";
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
      return what + "it is a directory; name its files";
    }
    const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rbe"));
    if (!file) return what + std::strerror(errno) + "; name text files that you may read";
    char buffer[65536];
    while (out->size() < limit) {
      const size_t wanted = std::min(sizeof buffer, limit - out->size());
      const size_t got = std::fread(buffer, 1, wanted, file.get());
      out->append(buffer, got);
      if (got == wanted) continue;
      if (std::ferror(file.get()) != 0) return what + std::strerror(errno);
      break;
    }
  }
  return {};
}

Error check_length(int64_t text_bytes, int64_t length) {
  if (text_bytes > length) return {};
  return "the text has " + std::to_string(text_bytes) + " bytes, and --length " +
         std::to_string(length) + " needs at least " + std::to_string(length + 1) +
         "; name more files or choose a smaller --length";
}

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t start) {
  constexpr uint64_t kPrime = 0x100000001b3u;
  const auto* cursor = static_cast<const unsigned char*>(data);
  uint64_t hash = start;
  for (; bytes >= 8; bytes -= 8, cursor += 8) {
    uint64_t word;
    std::memcpy(&word, cursor, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;  // a product alone never moves high bits down
  }
  for (; bytes > 0; --bytes, ++cursor) hash = (hash ^ *cursor) * kPrime;
  return hash;
}

int64_t sequence_start(uint64_t seed, int64_t step, int64_t index, int64_t places) {
  const uint64_t drawn =
      mix(mix(mix(seed) ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(index));
  return static_cast<int64_t>(drawn % static_cast<uint64_t>(places));
}

std::vector<uint8_t> cut_batch(const std::string& text, uint64_t seed, int64_t step, int64_t first,
                               int64_t count, int64_t length) {
  const int64_t places = static_cast<int64_t>(text.size()) - length;
  std::vector<uint8_t> batch;
  batch.reserve(static_cast<size_t>(count * (length + 1)));
  for (int64_t i = first; i < first + count; ++i) {
    const auto begin = text.begin() + sequence_start(seed, step, i, places);
    batch.insert(batch.end(), begin, begin + length + 1);
  }
  return batch;
}

}  // namespace gpt
