// SPDX-License-Identifier: Apache-2.0
#include "capi/turns.h"

#include <doctest/doctest.h>

using namespace dt;
using namespace dt::capi;

TEST_CASE("Turns: calls share the object, or one has it alone") {
  Turns turns;
  const Call ready("dt_reducer_ready");
  const Call finish("dt_reducer_finish");
  {
    const auto first = turns.shared(ready);
    const auto second = turns.shared(ready);
    CHECK(first.ok());
    CHECK(second.ok());
    const auto refused = turns.alone(finish);
    CHECK(refused.status().code() == Code::kInvalidState);
    CHECK(refused.status().message() ==
          "dt_reducer_finish: another thread is inside a call on the same handle that allows no "
          "other beside it; let one thread make these calls");
  }
  {
    auto alone = turns.alone(finish);
    REQUIRE(alone.ok());
    const auto moved = std::move(alone).value();
    CHECK(turns.alone(finish).status().code() == Code::kInvalidState);
    CHECK(turns.shared(ready).status().code() == Code::kInvalidState);
  }
  CHECK(turns.alone(finish).ok());
  CHECK(turns.shared(ready).ok());
}
