// SPDX-License-Identifier: Apache-2.0
#include "base/xxh64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dt {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5;

template <class T>
uint64_t load_little(const unsigned char* from) {
  static_assert(std::endian::native == std::endian::little, "ranks compare hashes of their bytes");
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

uint64_t mix_lane(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

uint64_t merge_lane(uint64_t hash, uint64_t lane) {
  return (hash ^ mix_lane(0, lane)) * kPrime1 + kPrime4;
}

}  // namespace

Xxh64::Xxh64(uint64_t seed)
    : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Xxh64::consume(const unsigned char* stripe) {
  for (int i = 0; i < 4; ++i)
    lanes_[i] = mix_lane(lanes_[i], load_little<uint64_t>(stripe + 8 * i));
}

void Xxh64::update(const void* data, size_t bytes) {
  if (bytes == 0) return;  // memcpy() takes no null pointer
  const auto* from = static_cast<const unsigned char*>(data);
  const size_t held = total_bytes_ % kStripeBytes;
  total_bytes_ += bytes;
  if (held > 0) {
    const size_t taken = std::min(bytes, kStripeBytes - held);
    memcpy(rest_ + held, from, taken);
    if (held + taken < kStripeBytes) return;
    consume(rest_);
    from += taken;
    bytes -= taken;
  }
  for (; bytes >= kStripeBytes; from += kStripeBytes, bytes -= kStripeBytes) consume(from);
  if (bytes > 0) memcpy(rest_, from, bytes);
}

uint64_t Xxh64::digest() const {
  uint64_t hash = seed_ + kPrime5;
  if (total_bytes_ >= kStripeBytes) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merge_lane(hash, lane);
  }
  hash += total_bytes_;
  const unsigned char* from = rest_;
  size_t left = total_bytes_ % kStripeBytes;
  for (; left >= 8; from += 8, left -= 8) {
    hash = std::rotl(hash ^ mix_lane(0, load_little<uint64_t>(from)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ load_little<uint32_t>(from) * kPrime1, 23) * kPrime2 + kPrime3;
    from += 4;
    left -= 4;
  }
  for (; left > 0; ++from, --left) hash = std::rotl(hash ^ *from * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace dt
