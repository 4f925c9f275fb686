// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "cuda/runtime.h"

int main(int argument_count, char** arguments) {
  const dt::Status reason = dt::cuda::explain(dt::cuda::ask());
  if (!reason.ok()) {
    std::printf("skipped: %s\n", reason.message().c_str());
    return 77;
  }
  return doctest::Context(argument_count, arguments).run();
}
