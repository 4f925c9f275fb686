// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "comm/communicator.h"
#include "training/sampler.h"

namespace dt::training {

/// Collective: MISMATCH with the first difference unless the ranks deal out the same data set in
/// the same order and each has another part. The communicator stays whole.
Status check_samplers(comm::Communicator& comm, const Sampler& sampler);

}  // namespace dt::training
