// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/optimize.h"

#include "kernels/host/isa.h"

namespace dt::kernels {
namespace {

struct Steps {
  AdamWFunction adamw;
  SgdFunction sgd;
};

Steps steps_of(Isa isa) {
  if (isa_available(isa)) {
    switch (isa) {
      case Isa::kPortable: break;
      case Isa::kAvx2: return {adamw_avx2, sgd_avx2};
      case Isa::kAvx512: return {adamw_avx512, sgd_avx512};
    }
  }
  return {adamw_portable, sgd_portable};
}

}  // namespace

void adamw(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays) {
  adamw_with(chosen_isa(), dtype, step, arrays);
}

void sgd(Dtype dtype, const SgdStep& step, const SgdArrays& arrays) {
  sgd_with(chosen_isa(), dtype, step, arrays);
}

void adamw_with(Isa isa, Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays) {
  steps_of(isa).adamw(dtype, step, arrays);
}

void sgd_with(Isa isa, Dtype dtype, const SgdStep& step, const SgdArrays& arrays) {
  steps_of(isa).sgd(dtype, step, arrays);
}

}  // namespace dt::kernels
