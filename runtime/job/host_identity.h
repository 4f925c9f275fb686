// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dt::job {

/// Name of this host as the kernel tells it.
std::string host_name();

/// Equal for processes that can share memory by descriptor: boot id, host name and network
/// namespace.
std::string host_identity();

/// Equal for processes that share a network stack, whose loopback is one: boot id and network
/// namespace.
std::string network_identity();

}  // namespace dt::job
