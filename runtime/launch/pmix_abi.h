// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of PMIx's ABI that is called here, which is fixed since PMIx 3: the library is opened
/// at run time, so that neither its header nor itself is needed to build or to start. A test
/// compares with the real header where that is installed.
namespace dt::launch::pmix {

constexpr int kSuccess = 0;
constexpr uint16_t kBool = 1;
constexpr uint16_t kString = 3;
constexpr uint8_t kGlobal = 3;  // scope: ranks of this host and others
constexpr const char* kCollect = "pmix.collect";

struct Proc {
  char name_space[256];
  uint32_t rank;
};

struct Value {
  uint16_t type;
  union {
    bool flag;
    char* text;
    void* words[3];
  } data;
};

struct Info {
  char key[512];
  uint32_t flags;
  Value value;
};

static_assert(sizeof(Proc) == 260 && sizeof(Value) == 32 && sizeof(Info) == 552);
static_assert(offsetof(Value, data) == 8 && offsetof(Info, value) == 520);

using Init = int (*)(Proc* out_proc, Info* info, size_t count);
using Put = int (*)(uint8_t scope, const char* key, Value* value);
using Commit = int (*)();
using Fence = int (*)(const Proc* procs, size_t proc_count, const Info* info, size_t info_count);
using Get = int (*)(const Proc* proc, const char* key, const Info* info, size_t count,
                    Value** out_value);
using Finalize = int (*)(const Info* info, size_t count);
using ErrorText = const char* (*)(int status);

}  // namespace dt::launch::pmix
