// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "config/value.h"

using namespace dt::config;

TEST_CASE("keys: every default fits its own range") {
  for (const Key& key : keys()) {
    CAPTURE(std::string(key.name));
    const auto value = parse_value(key, key.fallback);
    REQUIRE(value.has_value());
    CHECK(value->text == key.fallback);
  }
}

TEST_CASE("keys: variables follow from the names, but for the place and the token") {
  const std::set<std::string> place = {
      "DT_JOB_ID",       "DT_RANK",       "DT_WORLD_SIZE",  "DT_LOCAL_RANK",  "DT_LOCAL_SIZE",
      "DT_NODE_RANK",    "DT_NODE_COUNT", "DT_MASTER_ADDR", "DT_MASTER_PORT", "DT_ATTEMPT",
      "DT_STORE_SERVED", "DT_HOST_ID",    "DT_TOKEN_FILE"};
  std::set<std::string> names;
  std::set<std::string> variables;
  size_t in_place = 0;
  for (const Key& key : keys()) {
    CAPTURE(std::string(key.name));
    CHECK(names.insert(key.name).second);
    CHECK(variables.insert(key.environment).second);
    if (place.count(key.environment) == 1) {
      ++in_place;
      continue;
    }
    std::string expected = "DT_";
    for (const char c : std::string(key.name)) {
      expected += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
    CHECK(key.environment == expected);
  }
  CHECK(in_place == place.size());
}

TEST_CASE("keys: sections are not scattered and descriptions are sentences") {
  std::set<std::string> closed;
  std::string current;
  for (const Key& key : keys()) {
    const std::string name = key.name;
    const std::string section = name.substr(0, name.find('.'));
    if (section != current) CHECK(closed.insert(current).second);
    current = section;
    CHECK(closed.count(section) == 0);
    CHECK(std::string(key.description).back() == '.');
  }
}

TEST_CASE("nearest_name: finds misspelled keys and sections, and only those") {
  CHECK(nearest_name(keys(), "reducer.bucket_cap_byte") == "reducer.bucket_cap_bytes");
  CHECK(nearest_name(keys(), "reducer.bucket_cap") == "reducer.bucket_cap_bytes");
  CHECK(nearest_name(keys(), "reduce.rebuild") == "reducer.rebuild");
  CHECK(nearest_name(keys(), "rendezvous.timeout") == "rendezvous.timeout_ms");
  CHECK(nearest_name(keys(), "training.spin_us") == "host.spin_us");
  CHECK(nearest_name(keys(), "reducr") == "reducer");
  CHECK(nearest_name(keys(), "bucket_cap_bytes") == "reducer.bucket_cap_bytes");
  CHECK(nearest_name(keys(), "weather.tomorrow_in_paris") == "");
  CHECK(nearest_name(keys(), "") == "");
  CHECK(nearest_name(keys(), std::string(1 << 20, 'x')) == "");
}

TEST_CASE("parse_value: integers are decimal, whole and in range") {
  const Key key{"t.n", "DT_T_N", Type::kInteger,    "bytes", -5, 1000,
                "0",   "",       Agreement::kEqual, false,   ""};
  CHECK(parse_value(key, "12")->integer == 12);
  CHECK(parse_value(key, "0098")->integer == 98);
  CHECK(parse_value(key, "-5")->integer == -5);
  CHECK(parse_value(key, "1000")->text == "1000");
  for (const char* bad : {"", " 1", "1 ", "+1", "0x10", "1e3", "1.0", "1001", "-6", "12MB", "--1",
                          "99999999999999999999", "one"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(parse_value(key, bad).has_value());
  }
  CHECK(expectation(key) == "an integer in bytes from -5 to 1000");
}

TEST_CASE("parse_value: bools, enums and strings") {
  const Key flag{"t.b", "DT_T_B", Type::kBool, "", 0, 0, "true", "", Agreement::kEqual, false, ""};
  CHECK(parse_value(flag, "True")->integer == 1);
  CHECK(parse_value(flag, "0")->text == "false");
  CHECK_FALSE(parse_value(flag, "yes").has_value());
  const Key choice{"t.e", "DT_T_E", Type::kEnum,       "",    0, 0,
                   "a",   "a, bc",  Agreement::kEqual, false, ""};
  CHECK(parse_value(choice, "bc")->text == "bc");
  for (const char* bad : {"", "b", "A", "a, bc", ","}) {
    CHECK_FALSE(parse_value(choice, bad).has_value());
  }
  const Key text{"t.s", "DT_T_S", Type::kString, "", 0, 4, "", "", Agreement::kEqual, false, ""};
  CHECK(parse_value(text, "abcd")->text == "abcd");
  CHECK_FALSE(parse_value(text, "abcde").has_value());
  CHECK_FALSE(parse_value(text, "\xff").has_value());
}

TEST_CASE("find_bad_utf8: line and column of the first bad byte") {
  CHECK_FALSE(find_bad_utf8("plain\n\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80").has_value());
  const auto bad = find_bad_utf8("ab\n\xc3\xa4x\xff");
  REQUIRE(bad.has_value());
  CHECK(bad->line == 2);
  CHECK(bad->column == 3);
  for (const char* each : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    CHECK(find_bad_utf8(each).has_value());
  }
}

TEST_CASE("parse_value: variables are sorted, whole words and there once") {
  const Key key{"t.v", "DT_T_V", Type::kVariables, "", 0, 20, "", "", Agreement::kEqual, false, ""};
  CHECK(parse_value(key, "B=2  A=x=y,z ")->text == "A=x=y,z B=2");
  CHECK(split_variables("A=x=y,z B=2") == Variables{{"A", "x=y,z"}, {"B", "2"}});
  CHECK(parse_value(key, "")->text == "");
  for (const char* bad :
       {"A", "A=", "=1", "A=1 A=2", "1A=1", "A-B=1", "A=1\t", "A=\xff", "ABCDEFGHIJ=0123456789"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(parse_value(key, bad).has_value());
  }
  CHECK_FALSE(make_variables(key, {{"A", "b c"}}).has_value());
  CHECK(expectation(key) == "names and values without blanks, as NAME=value, of at most 20 bytes");
}

TEST_CASE("parse_value: an enum with true and false takes booleans") {
  const Key key{
      "t.s", "DT_T_S", Type::kEnum, "", 0, 0, "auto", "auto, true, false", Agreement::kEqual,
      false, ""};
  CHECK(parse_value(key, "auto")->text == "auto");
  CHECK(parse_value(key, "1")->text == "true");
  CHECK(parse_value(key, "False")->text == "false");
  CHECK(make_bool(key, true)->text == "true");
  CHECK_FALSE(parse_value(key, "2").has_value());
  const Key other{"t.e", "DT_T_E", Type::kEnum,       "",    0, 0,
                  "a",   "a, bc",  Agreement::kEqual, false, ""};
  CHECK_FALSE(make_bool(other, true).has_value());
  CHECK_FALSE(parse_value(other, "1").has_value());
}
