// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/cast.h"

#include "kernels/host/isa.h"

namespace dt::kernels {
namespace {

struct Functions {
  CastFunction cast;
  NormFunction squared_norm;
};

Functions functions_of(Isa isa) {
  if (isa_available(isa)) {
    switch (isa) {
      case Isa::kPortable: break;
      case Isa::kAvx2: return {cast_avx2, squared_norm_avx2};
      case Isa::kAvx512: return {cast_avx512, squared_norm_avx512};
    }
  }
  return {cast_portable, squared_norm_portable};  // the same bits
}

}  // namespace

void cast(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
          double scale) {
  cast_with(chosen_isa(), from_dtype, from, to_dtype, to, count, scale);
}

double squared_norm(Dtype dtype, const void* data, int64_t count) {
  return squared_norm_with(chosen_isa(), dtype, data, count);
}

void cast_with(Isa isa, Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
               double scale) {
  functions_of(isa).cast(from_dtype, from, to_dtype, to, count, scale);
}

double squared_norm_with(Isa isa, Dtype dtype, const void* data, int64_t count) {
  return functions_of(isa).squared_norm(dtype, data, count);
}

}  // namespace dt::kernels
