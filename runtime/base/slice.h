// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dt {

/// Asks Linux for short time slices of the calling thread, or gives it back those that it had. With
/// short ones a thread gets no more of a processor, but runs as soon as it is woken, where
/// otherwise it would first wait for the rest of a slice (some milliseconds) of a thread that
/// computes. For threads that wait often and then do little. Linux has them since 6.12; elsewhere,
/// and for threads with another policy than the usual one, nothing happens.
void use_short_slices(bool on);

}  // namespace dt
