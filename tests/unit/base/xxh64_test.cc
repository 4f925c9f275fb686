// SPDX-License-Identifier: Apache-2.0
#include "base/xxh64.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

using namespace dt;

namespace {

constexpr uint64_t kSeed = 0x9e3779b1;  // of the published values: PRIME32_1

/// The buffer of the published values: bytes 56 to 63 of growing powers.
std::vector<unsigned char> sanity_buffer(size_t bytes) {
  std::vector<unsigned char> buffer(bytes);
  uint64_t generator = 2654435761u;
  for (unsigned char& byte : buffer) {
    byte = static_cast<unsigned char>(generator >> 56);
    generator *= 11400714785074694797u;
  }
  return buffer;
}

}  // namespace

TEST_CASE("xxh64: the values that its author published") {
  // xxHash, cli/xsum_sanity_check.c.
  struct Vector {
    size_t bytes;
    uint64_t seed;
    uint64_t hash;
  };
  const Vector vectors[] = {
      {0, 0, 0xef46db3751d8e999},       {0, kSeed, 0xac75fda2929b17ef},
      {1, 0, 0xe934a84adb052768},       {1, kSeed, 0x5014607643a9b4c3},
      {4, 0, 0x9136a0dca57457ee},       {14, 0, 0x8282dcc4994e35c8},
      {14, kSeed, 0xc3bd6bf63deb6df0},  {222, 0, 0xb641ae8cb691c174},
      {222, kSeed, 0x20cb8ab7ae10c14a},
  };
  const auto buffer = sanity_buffer(222);
  for (const Vector& each : vectors) {
    CAPTURE(each.bytes);
    CAPTURE(each.seed);
    CHECK(xxh64(buffer.data(), each.bytes, each.seed) == each.hash);
  }
  const auto of_text = [](const char* text) { return xxh64(text, strlen(text)); };
  CHECK(of_text("a") == 0xd24ec4f1a98c6e5b);
  CHECK(of_text("abc") == 0x44bc2cf5ad770999);
}

TEST_CASE("xxh64: however the bytes are cut, the hash is the same") {
  const auto buffer = sanity_buffer(200);
  for (size_t length = 0; length <= 100; ++length) {
    const uint64_t whole = xxh64(buffer.data(), length);
    for (size_t piece = 1; piece <= length; ++piece) {
      Xxh64 hash;
      for (size_t at = 0; at < length; at += piece) {
        hash.update(buffer.data() + at, std::min(piece, length - at));
      }
      REQUIRE(hash.digest() == whole);
      REQUIRE(hash.digest() == whole);  // looking changes nothing
    }
  }
}

TEST_CASE("xxh64: one flipped bit anywhere is another hash") {
  auto buffer = sanity_buffer(77);
  const uint64_t before = xxh64(buffer.data(), buffer.size());
  for (size_t bit = 0; bit < 8 * buffer.size(); ++bit) {
    buffer[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    CHECK(xxh64(buffer.data(), buffer.size()) != before);
    buffer[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
}
