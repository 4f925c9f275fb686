// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "net/security.h"

namespace dt::net {

/// What one is told that speaks without a guard to a side that has one: "it uses security.mode =
/// auth, and this side sent a plain hello: ...". For a protocol that stands behind a guard.
std::string plain_refusal(SecurityMode mode);

}  // namespace dt::net
