// SPDX-License-Identifier: Apache-2.0
#include <dt/dt.h>

#include <string>

#include "base/status.h"
#include "build_info.h"
#include "capi/call.h"
#include "cuda/runtime.h"
#include "kernels/host/reduce.h"

namespace {

std::string build_info() {
  const std::string cuda = dt::cuda::build_text();
  return std::string("version: " DT_VERSION "\n") + dt::format("abi: %d\n", DT_ABI_VERSION) +
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
         "libuv: " DT_BUILD_LIBUV "\n";
}

}  // namespace

extern "C" {

int32_t dt_abi_version(void) { return DT_ABI_VERSION; }

const char* dt_version(void) { return DT_VERSION; }

const char* dt_build_info(void) {
  const char* text = "version: " DT_VERSION "\n";  // all that it says without memory
  (void)dt::capi::guard("dt_build_info", [&](const dt::capi::Call&) -> dt::Status {
    // Made at the first call and never destroyed: threads may outlive main().
    static const std::string* const made = new std::string(build_info());
    text = made->c_str();
    return {};
  });
  return text;
}

}  // extern "C"
