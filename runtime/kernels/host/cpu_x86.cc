// SPDX-License-Identifier: Apache-2.0
#include <cpuid.h>

#include "kernels/host/isa.h"

namespace dt::kernels {
namespace {

// Asked here, because clang 14 does not know the name in __builtin_cpu_supports.
bool has_f16c() {
  constexpr unsigned int kF16cBit = 1U << 29;  // CPUID leaf 1, ECX
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16cBit) != 0;
}

}  // namespace

// __builtin_cpu_supports asks the operating system too, whether it saves the wide registers.
bool can_run_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && has_f16c();
}

bool can_run_avx512() {
  __builtin_cpu_init();
  return can_run_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
}

}  // namespace dt::kernels
