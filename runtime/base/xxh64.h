// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace dt {

/// XXH64, a hash against accidents, not against attackers: bytes come piece by piece and are hashed
/// at about the speed of memory. Source: Yann Collet, xxHash specification 0.1.1; held to its
/// published values by the unit tests.
class Xxh64 {
 public:
  explicit Xxh64(uint64_t seed = 0);
  void update(const void* data, size_t bytes);
  /// Of what came so far.
  uint64_t digest() const;

 private:
  static constexpr size_t kStripeBytes = 32;

  void consume(const unsigned char* stripe);

  const uint64_t seed_;
  uint64_t lanes_[4];
  uint64_t total_bytes_ = 0;
  unsigned char rest_[kStripeBytes];  // total_bytes_ % 32 of it are not in lanes_ yet
};

inline uint64_t xxh64(const void* data, size_t bytes, uint64_t seed = 0) {
  Xxh64 hash(seed);
  hash.update(data, bytes);
  return hash.digest();
}

}  // namespace dt
