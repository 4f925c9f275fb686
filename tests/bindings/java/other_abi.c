/* SPDX-License-Identifier: Apache-2.0 */
/* A libdt of another ABI, as far as a loader looks at it. */
#include <stdint.h>

__attribute__((visibility("default"))) int32_t dt_abi_version(void) { return 4711; }
