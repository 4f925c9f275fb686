// SPDX-License-Identifier: Apache-2.0
#include "ps/variable.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "../contains.h"
#include "base/byte_codec.h"
#include "ps/protocol.h"

using namespace dt;
using namespace dt::ps;
using dt::test::contains;

namespace {

Variable shaped(const char* name, int64_t rows, int32_t columns) {
  Variable variable;
  variable.name = name;
  variable.rows = rows;
  variable.columns = columns;
  return variable;
}

}  // namespace

TEST_CASE("each row has one place on one server") {
  for (const int32_t columns : {1, 3, 100, 1024, 5000}) {
    for (const int64_t rows : {1, 2, 1023, 1024, 1025, 5000}) {
      for (const int32_t servers : {1, 2, 3, 7}) {
        const Variable variable = shaped("x", rows, columns);
        const Partition partition(variable, servers);
        std::vector<std::vector<bool>> seen;
        int64_t all = 0;
        for (int32_t server = 0; server < servers; ++server) {
          seen.emplace_back(static_cast<size_t>(partition.count(server)), false);
          all += partition.count(server);
        }
        REQUIRE(all == rows);
        for (int64_t row = 0; row < rows; ++row) {
          const int32_t server = partition.server_of(row);
          const int64_t place = partition.place_of(row);
          REQUIRE(server >= 0);
          REQUIRE(server < servers);
          auto& mine = seen[static_cast<size_t>(server)];
          REQUIRE(place >= 0);
          REQUIRE(place < static_cast<int64_t>(mine.size()));
          REQUIRE_FALSE(mine[static_cast<size_t>(place)]);
          mine[static_cast<size_t>(place)] = true;
          REQUIRE(partition.row_at(server, place) == row);
        }
      }
    }
  }
}

TEST_CASE("small variables begin on different servers") {
  std::vector<int> first(4);
  for (int i = 0; i < 400; ++i) {
    ++first[static_cast<size_t>(
        Partition(shaped(format("bias.%d", i).c_str(), 1, 8), 4).server_of(0))];
  }
  for (const int each : first) CHECK(each > 50);
}

TEST_CASE("first values depend on the element and the seed alone") {
  Variable variable = shaped("x", 100, 50);
  variable.initial_value = 0.25;
  CHECK(initial_value(variable, 7, 3) == 0.25F);
  variable.initial = Initial::kUniform;
  double sum = 0;
  double squares = 0;
  for (int64_t row = 0; row < 100; ++row) {
    for (int32_t column = 0; column < 50; ++column) {
      const float value = initial_value(variable, row, column);
      CHECK(std::abs(value) <= 0.25F);
      sum += value;
      squares += double{value} * value;
    }
  }
  CHECK(std::abs(sum / 5000) < 0.01);
  CHECK(squares / 5000 == doctest::Approx(0.25 * 0.25 / 3).epsilon(0.05));
  variable.initial = Initial::kNormal;
  squares = 0;
  for (int64_t row = 0; row < 100; ++row) {
    for (int32_t column = 0; column < 50; ++column) {
      squares += std::pow(initial_value(variable, row, column), 2);
    }
  }
  CHECK(squares / 5000 == doctest::Approx(0.25 * 0.25).epsilon(0.1));
  const float before = initial_value(variable, 1, 1);
  CHECK(initial_value(variable, 1, 1) == before);
  variable.seed = 1;
  CHECK(initial_value(variable, 1, 1) != before);
}

TEST_CASE("what a variable cannot be") {
  const auto why = [](auto&& change) {
    Variable variable = shaped("x", 4, 2);
    change(variable);
    const Status status = check(variable);
    REQUIRE(status.code() == Code::kInvalidArgument);
    return status.message();
  };
  CHECK(check(shaped("x", 4, 2)).ok());
  CHECK(contains(why([](Variable& v) { v.name.clear(); }), "name has 0 bytes"));
  CHECK(contains(why([](Variable& v) { v.rows = 0; }), "rows is 0; it must be in [1, "));
  CHECK(contains(why([](Variable& v) { v.name = "updates.y"; }), "are those of a checkpoint"));
  CHECK(contains(why([](Variable& v) { v.name = "\xff"; }), "name is not UTF-8"));
  CHECK(contains(why([](Variable& v) {
                   v.rows = int64_t{1} << 40;
                   v.columns = 1 << 20;
                 }),
                 "rows is 1099511627776, of 1048576 columns"));
  CHECK(contains(why([](Variable& v) { v.columns = -1; }), "columns is -1"));
  CHECK(contains(why([](Variable& v) { v.method = static_cast<Method>(9); }), "optimizer is 9"));
  CHECK(contains(why([](Variable& v) { v.rate = -1; }), "rate is -1; it must be at least 0"));
  CHECK(contains(why([](Variable& v) { v.rate = NAN; }), "rate is"));
  CHECK(contains(why([](Variable& v) { v.momentum = 1; }),
                 "momentum is 1; it must be at least 0 and below 1"));
  CHECK(contains(why([](Variable& v) { v.initial_value = INFINITY; }), "initial_value is inf"));
}

TEST_CASE("parse_rows: the rate of a push is finite, or negative") {
  const auto parses = [](What what, double rate) {
    ByteWriter out;
    out.put(RowsHead{0, rate});
    out.put(1.0f);
    Rows rows;
    return parse_rows(what, out.take(), 1, 1, 4, &rows).ok();
  };
  CHECK(parses(What::kPush, 0.5));
  CHECK(parses(What::kPush, -1));
  CHECK_FALSE(parses(What::kPush, INFINITY));
  CHECK_FALSE(parses(What::kPush, NAN));
  CHECK(parses(What::kSet, -1));
}
