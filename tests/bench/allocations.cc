// SPDX-License-Identifier: Apache-2.0
#include "allocations.h"

#include <cstdlib>
#include <new>

namespace {

thread_local int64_t count = 0;

void* allocate_or_null(size_t bytes) {
  ++count;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate(size_t bytes) {
  void* const memory = allocate_or_null(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* allocate(size_t bytes, std::align_val_t alignment) {
  ++count;
  const auto step = static_cast<size_t>(alignment);
  void* const memory = std::aligned_alloc(step, (bytes + step - 1) / step * step);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

int64_t dt::test::allocations() { return count; }

// The others, for arrays, call these (C++ standard, [new.delete]). The one that does not throw
// would, too, but AddressSanitizer has its own, whose memory must not come to the delete below.
void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) { return allocate(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
