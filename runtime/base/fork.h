// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt {

/// Descriptors of dt must not live on in a forked child: a copy of a socket hides a death, because
/// the peer sees no end of file while any copy is open. Close-on-exec covers exec only; this covers
/// fork alone. Any thread; lock-free, because a fork may come at any moment.
///
/// `fd` is closed in every later forked child, until released.
void guard_fd_from_fork(int fd);
/// Call before close(fd): the number may be the host's a moment later.
void release_fd_from_fork_guard(int fd);

/// How many forks lie between this process and the one that first asked. A handle remembers the
/// value of its birth; where it differs, the handle's threads and descriptors are not here.
uint32_t fork_generation();

}  // namespace dt
