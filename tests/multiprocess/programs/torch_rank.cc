// SPDX-License-Identifier: Apache-2.0
// torch_rank PYTHON_RANKS: a rank that exchanges keys with ranks of PyTorch. Each says "cpp N" or
// "python N" under from_cpp/N and from_python/N, all count themselves, and all read all the others.
#include <dt/dt.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int64_t kTimeoutMs = 60'000;

void check(dt_status status) {
  if (status == DT_OK) return;
  dt_error_info info;
  dt_error_info_init(&info);
  dt_last_error_info(&info);
  fprintf(stderr, "torch_rank: %s: %s\n", dt_status_name(info.status), info.message);
  exit(9);
}

void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "torch_rank: %s\n", what);
  exit(8);
}

std::string get(dt_job* job, const std::string& key) {
  char value[4096];
  int64_t bytes = 0;
  check(dt_store_get(job, key.c_str(), kTimeoutMs, value, sizeof value, &bytes));
  return std::string(value, static_cast<size_t>(bytes));
}

void set(dt_job* job, const std::string& key, const std::string& value) {
  check(
      dt_store_set(job, key.c_str(), value.data(), static_cast<int64_t>(value.size()), kTimeoutMs));
}

// Every other call, on keys that PyTorch's ranks could see too.
void try_all_calls(dt_job* job, int rank) {
  const std::string mine = "torch/mine/" + std::to_string(rank);
  const std::string second = mine + "/second";
  int32_t flag = -1;
  check(dt_store_compare_set(job, mine.c_str(), nullptr, 0, "a", 1, kTimeoutMs, &flag));
  require(flag == 1, "compare_set of an absent key");
  check(dt_store_compare_set(job, mine.c_str(), "x", 1, "b", 1, kTimeoutMs, &flag));
  require(flag == 0 && get(job, mine) == "a", "compare_set with another value");
  check(dt_store_compare_set(job, mine.c_str(), "a", 1, "b", 1, kTimeoutMs, &flag));
  require(flag == 1 && get(job, mine) == "b", "compare_set with the value");
  const char* keys[] = {mine.c_str(), second.c_str(), "torch/nobody"};
  const void* values[] = {"one", "two"};
  const int64_t sizes[] = {3, 3};
  check(dt_store_multi_set(job, keys, values, sizes, 2, kTimeoutMs));
  check(dt_store_wait(job, keys, 2, kTimeoutMs));
  char buffer[16];
  int64_t read[3];
  int64_t total = 0;
  check(dt_store_multi_get(job, keys, 3, kTimeoutMs, buffer, sizeof buffer, read, &total));
  require(std::string(buffer, 6) == "onetwo" && read[1] == 3 && read[2] == -1, "multi_get");
  check(dt_store_delete(job, second.c_str(), kTimeoutMs, &flag));
  require(flag == 1, "delete");
  check(dt_store_delete(job, second.c_str(), kTimeoutMs, &flag));
  require(flag == 0, "second delete");
  require(dt_store_wait(job, keys + 2, 1, 50) == DT_ERR_TIMEOUT, "a wait that times out");
  require(get(job, mine) == "one", "a get after a wait that timed out");
}

}  // namespace

int main(int argc, char** argv) {
  const int python_ranks = argc > 1 ? atoi(argv[1]) : 0;
  dt_job* job = nullptr;
  dt_comm* world = nullptr;
  dt_place place;
  dt_place_init(&place);
  check(dt_init(nullptr, &job));
  check(dt_rank_info(job, &place));
  check(dt_comm_world(job, &world));
  set(job, "own/" + std::to_string(place.rank), "not for PyTorch");
  set(job, "torch/from_cpp/" + std::to_string(place.rank), "cpp " + std::to_string(place.rank));
  for (int i = 0; i < python_ranks; ++i) {
    require(get(job, "torch/from_python/" + std::to_string(i)) == "python " + std::to_string(i),
            "the word of a rank of PyTorch");
  }
  try_all_calls(job, place.rank);
  int64_t sum = 0;
  check(dt_store_add(job, "torch/arrived", 1, kTimeoutMs, &sum));
  if (sum == python_ranks + place.world_size) set(job, "torch/all_arrived", "yes");
  require(get(job, "torch/all_arrived") == "yes", "the last one's word");
  float number = static_cast<float>(place.rank + 1);
  check(dt_allreduce(world, &number, &number, 1, DT_F32, DT_SUM, nullptr, nullptr));
  const int n = place.world_size;
  require(number == static_cast<float>(n * (n + 1) / 2), "the sum over the ranks of dt");
  dt_comm_destroy(world);
  check(dt_finalize(job, -1));
  dt_job_destroy(job);
  printf("cpp rank %d of %d: exchanged\n", place.rank, place.world_size);
  return 0;
}
