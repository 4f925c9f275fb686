// SPDX-License-Identifier: Apache-2.0
#include "training/slabs.h"

#include <algorithm>

namespace dt::training {

Slabs::~Slabs() {
  for (const Slab& slab : slabs_) {
    if (!slab.lent) (void)comm_->backend().release(slab.data);
  }
}

Result<char*> Slabs::take(int64_t bytes) {
  const size_t found = best_free(bytes);
  if (found < slabs_.size()) {
    slabs_[found].lent = true;
    return slabs_[found].data;
  }
  DT_TRY_VALUE(void* const memory, comm_->backend().allocate(std::max<int64_t>(bytes, 1)));
  slabs_.push_back({static_cast<char*>(memory), bytes, true});
  bytes_ += bytes;
  return slabs_.back().data;
}

void Slabs::give(const char* block) {
  for (Slab& slab : slabs_) {
    if (slab.data == block) slab.lent = false;
  }
}

bool Slabs::contain(const void* address) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  return std::any_of(slabs_.begin(), slabs_.end(), [&](const Slab& slab) {
    const auto begin = reinterpret_cast<uintptr_t>(slab.data);
    return wanted >= begin && wanted - begin < static_cast<uintptr_t>(slab.bytes);
  });
}

/// The smallest; one more than twice as large is left to what needs that.
size_t Slabs::best_free(int64_t bytes) const {
  size_t best = slabs_.size();
  for (size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    if (slab.lent || slab.bytes < bytes || slab.bytes > 2 * bytes) continue;
    if (best == slabs_.size() || slab.bytes < slabs_[best].bytes) best = i;
  }
  return best;
}

}  // namespace dt::training
