// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "fake_nccl.h"
#include "harness.h"

/// What the tests of communicators over device memory share.
namespace conformance {

inline constexpr int64_t kDeviceCount = 1000;

inline dt::test::FakeNccl& fake() { return *dt::test::fake_nccl(DT_FAKE_NCCL); }

inline Setup over(const char* backend, int32_t size) {
  Setup one;
  one.backend = backend;
  one.size = size;
  return one;
}

/// As just loaded, whatever an earlier case did.
inline Setup over_nccl(int32_t size) {
  fake().reset();
  return over("nccl", size);
}

inline void require_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) FAIL_CHECK(failure);
}

inline void require_no_misuse() {
  for (const std::string& misuse : fake().misuses()) FAIL_CHECK(misuse);
}

inline Collective sum(std::vector<float>* data, int64_t deadline_ms = 60'000) {
  Collective collective =
      allreduce_f32(data->data(), data->data(), static_cast<int64_t>(data->size()));
  collective.deadline = Deadline::after_ms(deadline_ms);
  return collective;
}

inline bool contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

}  // namespace conformance
