// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/config.h"
#include "store/server.h"

namespace dt::job {

/// What the configuration says about a store, whoever serves it.
store::ServerOptions store_options(const Config& config);

}  // namespace dt::job
