// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "capi/call.h"
#include "capi/objects.h"
#include "store/protocol.h"

namespace dt::capi {
namespace {

constexpr int32_t kMaxKeys = 65536;

Status check_key(const Call& call, const char* argument, const char* key) {
  DT_TRY(call.not_null(key, argument));
  const size_t bytes = strlen(key);
  if (bytes >= 1 && bytes <= store::kMaxKeyBytes) return {};
  return call.invalid("%s has %zu bytes; 1 to %zu are allowed", argument, bytes,
                      static_cast<size_t>(store::kMaxKeyBytes));
}

Status check_value(const Call& call, const char* argument, const void* value, int64_t bytes) {
  if (bytes < 0 || bytes > static_cast<int64_t>(store::kMaxValueBytes)) {
    return call.invalid("%s has %lld bytes; 0 to %lld are allowed", argument,
                        static_cast<long long>(bytes),
                        static_cast<long long>(store::kMaxValueBytes));
  }
  if (bytes > 0) return call.not_null(value, argument);
  return {};
}

Result<std::vector<std::string>> read_keys(const Call& call, const char* const* keys,
                                           int32_t count) {
  DT_TRY(call.not_null(keys, "keys"));
  if (count < 1 || count > kMaxKeys) {
    return call.invalid("count is %d; it must be in [1, %d]", count, kMaxKeys);
  }
  std::vector<std::string> read;
  for (int32_t i = 0; i < count; ++i) {
    DT_TRY(check_key(call, format("keys[%d]", i).c_str(), keys[i]));
    read.emplace_back(keys[i]);
  }
  return read;
}

std::string bytes_of(const void* value, int64_t bytes) {
  return bytes == 0 ? std::string()
                    : std::string(static_cast<const char*>(value), static_cast<size_t>(bytes));
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_store_set(dt_job* job, const char* key, const void* value, int64_t value_bytes,
                       int64_t timeout_ms) {
  return guard("dt_store_set", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(check_key(call, "key", key));
    DT_TRY(check_value(call, "value", value, value_bytes));
    const Wait wait = object->job->store_wait(timeout_ms);
    return object->job->with_store(
        [&](auto& store) { return store.set(key, bytes_of(value, value_bytes), wait); });
  });
}

dt_status dt_store_get(dt_job* job, const char* key, int64_t timeout_ms, void* buffer,
                       int64_t capacity_bytes, int64_t* out_bytes) {
  return guard("dt_store_get", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(check_key(call, "key", key));
    DT_TRY(copy_out(call, {}, buffer, capacity_bytes, out_bytes, /*check_only=*/true));
    const Wait wait = object->job->store_wait(timeout_ms);
    DT_TRY_VALUE(const std::string value,
                 object->job->with_store([&](auto& store) { return store.get(key, wait); }));
    return copy_out(call, value, buffer, capacity_bytes, out_bytes);
  });
}

dt_status dt_store_add(dt_job* job, const char* key, int64_t delta, int64_t timeout_ms,
                       int64_t* out_value) {
  return guard("dt_store_add", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(check_key(call, "key", key));
    DT_TRY(call.not_null(out_value, "out_value"));
    const Wait wait = object->job->store_wait(timeout_ms);
    DT_TRY_VALUE(*out_value,
                 object->job->with_store([&](auto& store) { return store.add(key, delta, wait); }));
    return {};
  });
}

dt_status dt_store_wait(dt_job* job, const char* const* keys, int32_t count, int64_t timeout_ms) {
  return guard("dt_store_wait", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY_VALUE(const auto read, read_keys(call, keys, count));
    const Wait wait = object->job->store_wait(timeout_ms);
    return object->job->with_store([&](auto& store) { return store.wait_for(read, wait); });
  });
}

dt_status dt_store_compare_set(dt_job* job, const char* key, const void* expected,
                               int64_t expected_bytes, const void* desired, int64_t desired_bytes,
                               int64_t timeout_ms, int32_t* out_swapped) {
  return guard("dt_store_compare_set", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(check_key(call, "key", key));
    DT_TRY(check_value(call, "desired", desired, desired_bytes));
    DT_TRY(call.not_null(out_swapped, "out_swapped"));
    std::optional<std::string> wanted;
    if (expected == nullptr && expected_bytes != 0) {
      return call.invalid("expected is NULL with expected_bytes %lld; give 0 for an absent key",
                          static_cast<long long>(expected_bytes));
    }
    if (expected != nullptr) {
      DT_TRY(check_value(call, "expected", expected, expected_bytes));
      wanted = bytes_of(expected, expected_bytes);
    }
    const Wait wait = object->job->store_wait(timeout_ms);
    DT_TRY_VALUE(const store::Swap swap, object->job->with_store([&](auto& store) {
      return store.compare_set(key, wanted, bytes_of(desired, desired_bytes), wait);
    }));
    *out_swapped = swap.swapped ? 1 : 0;
    return {};
  });
}

dt_status dt_store_delete(dt_job* job, const char* key, int64_t timeout_ms, int32_t* out_existed) {
  return guard("dt_store_delete", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(check_key(call, "key", key));
    const Wait wait = object->job->store_wait(timeout_ms);
    DT_TRY_VALUE(const bool existed,
                 object->job->with_store([&](auto& store) { return store.erase(key, wait); }));
    if (out_existed != nullptr) *out_existed = existed ? 1 : 0;
    return {};
  });
}

dt_status dt_store_list(dt_job* job, const char* prefix, int64_t timeout_ms, char* buffer,
                        int64_t capacity_bytes, int64_t* out_bytes) {
  return guard("dt_store_list", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(prefix, "prefix"));
    DT_TRY(copy_out(call, {}, buffer, capacity_bytes, out_bytes, /*check_only=*/true));
    const Wait wait = object->job->store_wait(timeout_ms);
    DT_TRY_VALUE(const auto keys,
                 object->job->with_store([&](auto& store) { return store.list(prefix, wait); }));
    std::string text;
    for (const std::string& key : keys) {
      text += key;
      text.push_back('\0');
    }
    return copy_out(call, text, buffer, capacity_bytes, out_bytes);
  });
}

dt_status dt_store_multi_set(dt_job* job, const char* const* keys, const void* const* values,
                             const int64_t* value_bytes, int32_t count, int64_t timeout_ms) {
  return guard("dt_store_multi_set", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY_VALUE(const auto read, read_keys(call, keys, count));
    DT_TRY(call.not_null(values, "values"));
    DT_TRY(call.not_null(value_bytes, "value_bytes"));
    std::vector<std::pair<std::string, std::string>> pairs;
    for (int32_t i = 0; i < count; ++i) {
      DT_TRY(check_value(call, format("values[%d]", i).c_str(), values[i], value_bytes[i]));
      pairs.emplace_back(read[static_cast<size_t>(i)], bytes_of(values[i], value_bytes[i]));
    }
    const Wait wait = object->job->store_wait(timeout_ms);
    return object->job->with_store([&](auto& store) { return store.multi_set(pairs, wait); });
  });
}

dt_status dt_store_multi_get(dt_job* job, const char* const* keys, int32_t count,
                             int64_t timeout_ms, void* buffer, int64_t capacity_bytes,
                             int64_t* out_value_bytes, int64_t* out_bytes) {
  return guard("dt_store_multi_get", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY_VALUE(const auto read, read_keys(call, keys, count));
    DT_TRY(call.not_null(out_value_bytes, "out_value_bytes"));
    DT_TRY(copy_out(call, {}, buffer, capacity_bytes, out_bytes, /*check_only=*/true));
    const Wait wait = object->job->store_wait(timeout_ms);
    DT_TRY_VALUE(const auto values,
                 object->job->with_store([&](auto& store) { return store.multi_get(read, wait); }));
    std::string all;
    for (size_t i = 0; i < values.size(); ++i) {
      out_value_bytes[i] = values[i].has_value() ? static_cast<int64_t>(values[i]->size()) : -1;
      if (values[i].has_value()) all += *values[i];
    }
    return copy_out(call, all, buffer, capacity_bytes, out_bytes);
  });
}

dt_status dt_store_barrier(dt_job* job, const char* name, int32_t count, int64_t timeout_ms) {
  return guard("dt_store_barrier", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(check_key(call, "name", name));
    if (count < 0) return call.invalid("count is %d; it must be >= 0", count);
    const int32_t callers = count == 0 ? object->job->place().world_size : count;
    const Wait wait = object->job->store_wait(timeout_ms);
    return object->job->with_store([&](auto& store) { return store.barrier(name, callers, wait); });
  });
}

}  // extern "C"
