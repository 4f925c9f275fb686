// SPDX-License-Identifier: Apache-2.0
// A rank that saves or loads a checkpoint. All elements of its model are one number, so that a file
// that is a mixture of two shows.
//
//   save PATH           for ever, with 1, 2, 3 and so on
//   once PATH NUMBER    once, with this number
//   limit PATH NUMBER   the same, while no file of rank 1 may be longer than 4 KiB
//   load PATH           prints the number
//   offload PATH        makes a shard of stage 3 and an AdamW of it, in files of this directory
#include <dt/dt.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int64_t kCounts[] = {400'000, 1, 100'000, 33};

[[noreturn]] void fail() {
  printf("failed: %s\n", dt_last_error());
  _exit(9);
}

void check(dt_status status) {
  if (status != DT_OK) fail();
}

void fill(dt_shard* shard, float number) {
  int32_t index = 0;
  for (const int64_t count : kCounts) {
    const std::vector<float> values(static_cast<size_t>(count), number);
    check(dt_shard_set(shard, index++, values.data(), nullptr));
  }
}

/// The number that all elements are; -1: they are not one.
float number_of(dt_shard* shard) {
  check(dt_shard_gather(shard, 0, nullptr));
  float number = -1;
  int32_t index = 0;
  for (const int64_t count : kCounts) {
    void* values = nullptr;
    check(dt_shard_param(shard, index++, &values));
    for (int64_t i = 0; i < count; ++i) {
      const float each = static_cast<float*>(values)[i];
      if (index == 1 && i == 0) number = each;
      if (each < number || each > number) return -1;
    }
  }
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 99;
  const std::string mode = argv[1];
  const char* const path = argv[2];
  const float number = argc > 3 ? static_cast<float>(atof(argv[3])) : 0;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dt_job* job = nullptr;
  dt_comm* world = nullptr;
  dt_place place;
  dt_place_init(&place);
  check(dt_init(nullptr, &job));
  check(dt_rank_info(job, &place));
  check(dt_comm_world(job, &world));
  std::vector<dt_param> params;
  for (const int64_t count : kCounts) params.push_back({count, nullptr, DT_F32, 0});
  dt_shard_options options;
  dt_shard_options_init(&options);
  if (mode == "offload") {
    options.stage = 3;
    options.offload = path;
  }
  dt_shard* shard = nullptr;
  check(
      dt_shard_create(world, params.data(), static_cast<int32_t>(params.size()), &options, &shard));
  printf("ready %d\n", static_cast<int>(getpid()));

  if (mode == "save") {
    for (int round = 1;; ++round) {
      fill(shard, static_cast<float>(round));
      check(dt_shard_save(shard, nullptr, path));
      if (place.rank == 0) printf("saved %d\n", round);
    }
  }
  if (mode == "limit" && place.rank == 1) {
    const rlimit limit = {4096, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 98;
  }
  if (mode == "offload") {
    dt_optimizer* optimizer = nullptr;
    check(dt_optimizer_adamw(shard, nullptr, &optimizer));
    printf("made\n");
    dt_optimizer_destroy(optimizer);
  } else if (mode == "load") {
    check(dt_shard_load(shard, nullptr, path));
    printf("loaded %g\n", static_cast<double>(number_of(shard)));
  } else {
    fill(shard, number);
    check(dt_shard_save(shard, nullptr, path));
    printf("saved %g\n", static_cast<double>(number));
  }
  dt_shard_destroy(shard);
  check(dt_finalize(job, 10000));
  return 0;
}
