// SPDX-License-Identifier: Apache-2.0
#include "job/host_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

namespace dt::job {
namespace {

std::string boot_id() {
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "unknown";
  char text[64];
  const ssize_t length = read(fd, text, sizeof text);
  close(fd);
  std::string id(text, length > 0 ? static_cast<size_t>(length) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

std::string network_identity() {
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return format("%s/%llu", boot_id().c_str(), static_cast<unsigned long long>(network.st_ino));
}

std::string host_identity() { return host_name() + "/" + network_identity(); }

}  // namespace dt::job
