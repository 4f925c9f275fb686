// SPDX-License-Identifier: Apache-2.0
#include "fake_nccl.h"

#include <dlfcn.h>

namespace dt::test {

FakeNccl* fake_nccl(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  void* symbol = dlsym(handle, "fake_nccl_helm");
  return symbol == nullptr ? nullptr : reinterpret_cast<FakeNccl* (*)()>(symbol)();
}

}  // namespace dt::test
