// SPDX-License-Identifier: Apache-2.0
// The example's checkpoint. Where the first byte is odd the head and the hash are put right, so
// that the fuzzer comes to what lies between. Properties: no crash, a refusal that names the file
// and leaves the caller's checkpoint as it was, and what is accepted is saved to the same bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "checkpoint.h"

namespace {

using namespace fashion;

void require_checkpoint(bool holds) {
  if (!holds) std::abort();
}

std::string with_head_and_hash(const std::string& body) {
  std::string file = "dt-fmnst";
  file += std::string("\1\0\0\0", 4) + body;
  const uint64_t hash = hash_bytes(file.data(), file.size());
  file.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return file;
}

std::string saved(const Checkpoint& checkpoint) {
  char folder[] = "/dev/shm/dt-fuzz-XXXXXX";
  require_checkpoint(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/checkpoint";
  require_checkpoint(save_checkpoint(path, checkpoint).empty());
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  unlink(path.c_str());
  rmdir(folder);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string given(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  const std::string file = data[0] % 2 == 1 ? with_head_and_hash(given) : given;
  const int fd = memfd_create("checkpoint", MFD_CLOEXEC);
  require_checkpoint(fd >= 0 &&
                     write(fd, file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  Checkpoint checkpoint;
  checkpoint.step = 4711;
  const Error error = load_checkpoint(path, {2, 3}, &checkpoint);
  close(fd);
  if (!error.empty()) {
    require_checkpoint(error.find(path) != std::string::npos && checkpoint.step == 4711 &&
                       checkpoint.parameters.empty());
    return 0;
  }
  require_checkpoint(checkpoint.parameters.size() == 5 &&
                     checkpoint.history.size() == static_cast<size_t>(checkpoint.step));
  require_checkpoint(saved(checkpoint) == file);
  return 0;
}
