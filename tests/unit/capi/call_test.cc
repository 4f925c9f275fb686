// SPDX-License-Identifier: Apache-2.0
#include "capi/call.h"

#include <doctest/doctest.h>

#include <new>
#include <string>

using namespace dt;
using namespace dt::capi;

TEST_CASE("guard: an exception is this call's error, not the one before") {
  const auto fails = [](const Call&) { return Status(Code::kTimeout, "the one before"); };
  REQUIRE(guard("dt_first", fails) == DT_ERR_TIMEOUT);
  CHECK(guard("dt_second", [](const Call&) -> Status { throw 1; }) == DT_ERR_INTERNAL);
  CHECK(std::string(dt_last_error()) == "bug: exception");
  REQUIRE(guard("dt_first", fails) == DT_ERR_TIMEOUT);
  CHECK(guard("dt_third", [](const Call&) -> Status { throw std::bad_alloc(); }) ==
        DT_ERR_OUT_OF_MEMORY);
  dt_error_info info;
  dt_error_info_init(&info);
  CHECK(dt_last_error_info(&info) == DT_OK);
  CHECK(info.status == DT_ERR_OUT_OF_MEMORY);
  CHECK(std::string(info.message) == "out of memory");
  CHECK(dt_last_error_info(nullptr) == DT_ERR_INVALID_ARGUMENT);
  CHECK(std::string(dt_last_error()) == "dt_last_error_info: out_info is NULL");
}
