// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>

#include <cstdint>

#include "capi/call.h"
#include "capi/objects.h"

/// What the operations of dt.h share: checks of their arguments, and the way into a communicator.
namespace dt::capi {

/// `parts`: how many times `count` elements the larger buffer holds.
Status check_elements(const Call& call, int64_t count, dt_dtype dtype, int64_t parts);
Status check_op(const Call& call, dt_reduce_op op);
Status check_rank(const Call& call, const char* argument, int32_t rank, int32_t size);
Status check_buffer(const Call& call, const char* argument, const void* buffer, int64_t count);
/// Regions of `a_bytes` and `b_bytes` may not overlap, unless b begins `allowed` bytes after a.
Status check_overlap(const Call& call, const void* a, int64_t a_bytes, const void* b,
                     int64_t b_bytes, int64_t allowed);

/// Runs now, or enqueues and gives a handle.
Status issue(const Call& call, const CommObject& on, backend::Collective& collective,
             dt_work** out_work);

}  // namespace dt::capi
