// SPDX-License-Identifier: Apache-2.0
// In a program of its own: a library that is loaded stays so.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include "backend/nccl/library.h"

using dt::nccl::Library;

TEST_CASE("a copy that the process has loaded wins over the loader's search") {
  REQUIRE(dlopen(DT_FAKE_NCCL_NAMESAKE, RTLD_NOW | RTLD_LOCAL) != nullptr);
  const auto found = Library::open("");
  REQUIRE(found.ok());
  CHECK(found.value()->origin() == "already loaded");
  CHECK(found.value()->path() == DT_FAKE_NCCL_NAMESAKE);
  const auto named = Library::open(DT_FAKE_NCCL);
  REQUIRE(named.ok());
  CHECK(named.value()->path() == DT_FAKE_NCCL);
  CHECK((named.value()->functions().get_version != found.value()->functions().get_version));
}
