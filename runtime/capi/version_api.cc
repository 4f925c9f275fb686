// SPDX-License-Identifier: Apache-2.0
#include <dt/dt.h>

#include <string>

#include "base/status.h"
#include "build_info.h"
#include "cuda/runtime.h"
#include "kernels/host/reduce.h"

extern "C" {

int32_t dt_abi_version(void) { return DT_ABI_VERSION; }

const char* dt_version(void) { return DT_VERSION; }

const char* dt_build_info(void) {
  // Made at the first call and never destroyed: threads may outlive main().
  const std::string cuda = dt::cuda::build_text();
  static const std::string* const text = new std::string(
      std::string("version: " DT_VERSION "\n") + dt::format("abi: %d\n", DT_ABI_VERSION) +
      "compiler: " DT_BUILD_COMPILER
      "\n"
      "build type: " DT_BUILD_TYPE
      "\n"
      "backends: self, host, multihost" +
      (cuda.empty() ? "" : ", nccl") +
      "\n"
      "cuda: " +
      (cuda.empty() ? "not built" : cuda) +
      "\n"
      "kernels: " +
      dt::kernels::isa_name(dt::kernels::chosen_isa()) +
      "\n"
      "libuv: " DT_BUILD_LIBUV "\n");
  return text->c_str();
}

}  // extern "C"
