// SPDX-License-Identifier: Apache-2.0
#include "training/shard_file.h"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "contains.h"

using dt::Code;
using dt::Dtype;
using dt::test::contains;
using dt::training::FileOptimizer;
using dt::training::FilePlan;
using dt::training::FileTable;
using dt::training::FileTensor;
using dt::training::find_tensors;
using dt::training::Param;
using dt::training::parse_header;
using dt::training::plan_file;

namespace {

using Role = FileTensor::Role;

constexpr FileOptimizer kAdamW = {"adamw", "exp_avg", "exp_avg_sq"};

Param param(int64_t count, Dtype dtype, const char* name) {
  Param made;
  made.count = count;
  made.dtype = dtype;
  made.name = name;
  return made;
}

std::string json_of(const FilePlan& plan) { return plan.head.substr(8); }

int64_t data_bytes(const FilePlan& plan) {
  return plan.bytes - static_cast<int64_t>(plan.head.size());
}

const FileTensor& find(const FilePlan& plan, Role role, int32_t index) {
  for (const FileTensor& each : plan.tensors) {
    if (each.role == role && each.param == index) return each;
  }
  FAIL("no such tensor");
  return plan.tensors[0];
}

void check_refused(const std::string& header, int64_t bytes, const std::string& text) {
  const auto table = parse_header(header, bytes);
  CAPTURE(header);
  REQUIRE(!table.ok());
  INFO(table.status().message());
  CHECK(table.status().code() == Code::kInvalidArgument);
  CHECK(contains(table.status().message(), text));
}

}  // namespace

TEST_CASE("shard file: a plan is the layout that safetensors describes") {
  std::vector<Param> params = {param(3, Dtype::kBf16, "a \"b\""), param(5, Dtype::kF32, ""),
                               param(0, Dtype::kF32, "none"), param(2, Dtype::kF64, "wide")};
  params[0].shape = {1, 3};
  params[3].shape = {2, 1, 1};
  const auto planned = plan_file(params, &kAdamW);
  REQUIRE(planned.ok());
  const FilePlan& plan = planned.value();

  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(plan.head[i]);
  CHECK(length + 8 == plan.head.size());
  CHECK(length % 8 == 0);
  const auto header = nlohmann::json::parse(json_of(plan));
  CHECK(header["__metadata__"]["dt"] == "1");
  CHECK(header["__metadata__"]["optimizer"] == "adamw");
  CHECK(header["a \"b\""]["dtype"] == "BF16");
  CHECK(header["param.1"]["shape"] == nlohmann::json::array({5}));
  CHECK(header["none"]["shape"] == nlohmann::json::array({0}));
  CHECK(header["optimizer.exp_avg.a \"b\""]["dtype"] == "F32");
  CHECK(header["optimizer.exp_avg_sq.wide"]["dtype"] == "F64");
  CHECK(header["a \"b\""]["shape"] == nlohmann::json::array({1, 3}));
  CHECK(header["optimizer.master.a \"b\""]["shape"] == nlohmann::json::array({1, 3}));
  CHECK(header["optimizer.exp_avg.wide"]["shape"] == nlohmann::json::array({2, 1, 1}));
  CHECK(header["optimizer.step.wide"]["shape"] == nlohmann::json::array({1}));
  CHECK(!header.contains("optimizer.master.wide"));
  CHECK(header["optimizer.step.none"]["shape"] == nlohmann::json::array({1}));
  CHECK(header["optimizer.step.none"]["dtype"] == "I64");
  // 4 parameters, 4 of each moment, an f32 value, 4 steps, the metadata.
  CHECK(header.size() == 18);

  int64_t at = static_cast<int64_t>(plan.head.size());
  for (const FileTensor& each : plan.tensors) {
    CAPTURE(each.name);
    CHECK(each.begin == at);
    CHECK(each.begin % dt::dtype_bytes(each.dtype) == 0);
    CHECK(header[each.name]["data_offsets"][0] ==
          each.begin - static_cast<int64_t>(plan.head.size()));
    at += each.count * dt::dtype_bytes(each.dtype);
  }
  CHECK(plan.bytes == at);
}

TEST_CASE("shard file: all of dt's dtypes are known there, and read again") {
  std::vector<Param> params;
  for (int i = 0; i < dt::kDtypeCount; ++i) params.push_back(param(i, static_cast<Dtype>(i), ""));
  const FilePlan plan = plan_file(params, nullptr).value();
  const auto table = parse_header(json_of(plan), data_bytes(plan));
  REQUIRE(table.ok());
  CHECK(table.value().metadata.at("optimizer") == "none");
  for (int i = 0; i < dt::kDtypeCount; ++i) {
    const FileTable::Entry& entry = table.value().tensors.at("param." + std::to_string(i));
    CHECK(entry.dtype == static_cast<Dtype>(i));
    CHECK(entry.count == i);
  }
  CHECK(find(plan, Role::kParam, 9).dtype == Dtype::kF64);
}

TEST_CASE("shard file: names that a file cannot have are refused with both sides") {
  const auto refused = [](const char* first, const char* second, const std::string& text) {
    const std::vector<Param> params = {param(1, Dtype::kF32, first), param(1, Dtype::kF32, second)};
    const auto plan = plan_file(params, &kAdamW);
    REQUIRE(!plan.ok());
    CHECK(plan.status().code() == Code::kInvalidArgument);
    INFO(plan.status().message());
    CHECK(contains(plan.status().message(), text));
  };
  refused("weight", "weight",
          "parameter #1 \"weight\" would be called \"weight\" in the file, like parameter #0 "
          "\"weight\"; give each parameter a name of its own");
  refused("", "param.0", "like parameter #0 \"\"");
  refused("optimizer.step.b", "b", "the optimizer's \"optimizer.step.b\"");
  refused("a", "optimizer.exp_avg.a", "like parameter #1");
  refused("__metadata__", "b", "like the file's metadata");
  refused("\xff", "b", "the name of parameter #0 is not UTF-8");
}

TEST_CASE("shard file: a header that is longer than safetensors reads is refused") {
  static_assert(dt::training::kLongestHeader == 100'000'000);
  const std::vector<Param> params = {param(1, Dtype::kF32, "a name")};
  const auto bytes = static_cast<int64_t>(json_of(plan_file(params, &kAdamW).value()).size());
  CHECK(plan_file(params, &kAdamW, bytes).ok());
  const auto plan = plan_file(params, &kAdamW, bytes - 1);
  REQUIRE(!plan.ok());
  CHECK(plan.status().code() == Code::kUnsupported);
  CHECK(contains(plan.status().message(), "give shorter names"));
}

TEST_CASE("shard file: headers that are none are refused") {
  const std::string tensor = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  REQUIRE(parse_header("{" + tensor + "}   ", 8).ok());
  REQUIRE(parse_header("{}", 0).ok());
  check_refused("", 0, "is not JSON");
  check_refused("{" + tensor, 8, "is not JSON at byte");
  check_refused("{" + tensor + "} x", 8, "is not JSON at byte");
  check_refused("[]", 0, "has a list where an object belongs");
  check_refused("7", 0, "has a number where an object belongs");
  check_refused("{" + tensor + "," + tensor + "}", 8, "\"a\" of the header is there twice");
  check_refused("{" + tensor + "}", 7, "it has 7 bytes of tensors, but its header describes 8");
  check_refused("{" + tensor + "}", 9, "cut short or changed");
  check_refused(R"({"a":{"dtype":"F32","shape":[2]}})", 8, "lacks dtype, shape or data_offsets");
  check_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8,
                "no two data_offsets");
  check_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                "not the size of 2 elements of \"F32\"");
  check_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "lies from byte 8");
  check_refused(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8,
                "a negative number at \"shape\"");
  check_refused(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8,
                "no integer of 64 bits");
  check_refused(R"({"a":{"dtype":"F32","shape":[9223372036854775807,3],"data_offsets":[0,8]}})", 8,
                "more than 2^63 elements");
  check_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4,
                "not the size");
  check_refused(R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8, "a list at");
  check_refused(R"({"a":{"dtype":{},"shape":[2],"data_offsets":[0,8]}})", 8, "an object at");
  check_refused(R"({"a":{"dtype":"F32","dtype":"F32"}})", 8, "a field too many");
  check_refused(R"({"a":{"dtype":null}})", 8, "has null at \"dtype\"");
  check_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                6, "\"b\" begins at byte 2, but the one before it ends at 4");
  check_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
                "begins at byte 4, but the one before it ends at 0");
  check_refused(R"({"__metadata__":{"dt":1}})", 0, "a number");
  check_refused(std::string(100'000, '['), 0, "a list");
  check_refused(R"({"a":)" + std::string(100'000, '{'), 0, "is not JSON");
}

TEST_CASE("shard file: tensors are found by name whatever lies between them") {
  const std::vector<Param> params = {param(2, Dtype::kBf16, "a"), param(6, Dtype::kF32, "b")};
  const auto entry = [](const char* dtype, const char* shape, int64_t begin, int64_t end) {
    return "{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  const std::string moments = ",\"optimizer.exp_avg.a\":" + entry("F32", "[2]", 32, 40) +
                              ",\"optimizer.exp_avg.b\":" + entry("F32", "[6]", 40, 64) +
                              ",\"optimizer.exp_avg_sq.a\":" + entry("F32", "[2]", 64, 72) +
                              ",\"optimizer.exp_avg_sq.b\":" + entry("F32", "[6]", 72, 96) +
                              ",\"optimizer.step.a\":" + entry("I64", "[]", 96, 104) +
                              ",\"optimizer.step.b\":" + entry("I64", "[1]", 104, 112);
  const std::string both = "\"b\":" + entry("F32", "[2,3]", 4, 28) +
                           ",\"a\":" + entry("BF16", "[2]", 28, 32) +
                           ",\"mine\":" + entry("F4", "[8]", 0, 4);
  const auto found = [&](const std::string& header, int64_t bytes, const FileOptimizer* optimizer,
                         std::vector<FileTensor>* tensors) {
    const auto table = parse_header("{" + header + "}", bytes);
    REQUIRE(table.ok());
    *tensors = plan_file(params, optimizer).value().tensors;
    return find_tensors(table.value(), 1000, optimizer, tensors);
  };
  std::vector<FileTensor> tensors;
  REQUIRE(found(both, 32, nullptr, &tensors).ok());
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].begin == 1004);
  CHECK(tensors[1].begin == 1028);
  REQUIRE(found(both + moments, 112, &kAdamW, &tensors).ok());  // without the f32 values of a
  CHECK(tensors.size() == 8);

  const auto refused = [&](const std::string& header, int64_t bytes, const FileOptimizer* optimizer,
                           const std::string& text) {
    const dt::Status status = found(header, bytes, optimizer, &tensors);
    REQUIRE(!status.ok());
    INFO(status.message());
    CHECK(contains(status.message(), text));
  };
  refused(both, 32, &kAdamW,
          "it has no tensor \"optimizer.step.a\"; load parameters alone, without an optimizer");
  refused("\"b\":" + entry("F32", "[6]", 0, 24), 24, nullptr,
          "it has no tensor \"a\"; load it into");
  refused("\"b\":" + entry("F32", "[5]", 0, 20) + ",\"a\":" + entry("BF16", "[2]", 20, 24), 24,
          nullptr, "its \"b\" has 5 elements of F32, this model's 6 of F32");
  refused("\"b\":" + entry("F32", "[6]", 0, 24) + ",\"a\":" + entry("F16", "[2]", 24, 28), 28,
          nullptr, "its \"a\" has 2 elements of F16, this model's 2 of BF16");
  const std::string head = R"("__metadata__":{"dt":"1","optimizer":)";
  refused(head + "\"none\"}," + both, 32, &kAdamW,
          "it has no state of an optimizer; load parameters alone");
  refused(head + "\"sgd\"}," + both, 32, &kAdamW, "the optimizer \"sgd\", not of adamw");
  refused(R"("__metadata__":{"dt":"2"},)" + both, 32, nullptr,
          "it has version \"2\" of the format");
}
