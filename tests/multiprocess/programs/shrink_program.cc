// SPDX-License-Identifier: Apache-2.0
// A rank that goes on with whoever is left: shrink_program MODE [ARGUMENT].
//   survive RANKS  checked sums until so many ranks are left, then a few more, then everything else
//   until FILE     checked sums until the file is there
//   quit RANK      as survive 2, but that rank ends when it sees a failure
//   absent RANK    that rank does not call dt_comm_shrink when it sees a failure
// The digit of $HOSTS at the rank's place names the host that it pretends to be on, that of
// $LOCAL_RANKS its local rank. What dt reports otherwise is printed, and ends it with code 9; a
// wrong value with 8.
#include <dt/dt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int64_t kSmall = 1'000;
constexpr int64_t kLarge = 70'000;
constexpr int kStepsMore = 20;

int own_rank = -1;
dt_job* job = nullptr;

[[noreturn]] void fail() {
  dt_error_info info;
  dt_error_info_init(&info);
  dt_last_error_info(&info);
  printf("rank %d saw %s of rank %d host %s pid %lld: %s\n", own_rank, dt_status_name(info.status),
         info.rank, info.host[0] != '\0' ? "named" : "unknown", static_cast<long long>(info.pid),
         info.message);
  fflush(stdout);
  _exit(9);
}

void check(dt_status status) {
  if (status != DT_OK) fail();
}

[[noreturn]] void wrong(const char* what, int step, int64_t index) {
  printf("rank %d: %s, step %d: element %lld is wrong\n", own_rank, what, step,
         static_cast<long long>(index));
  fflush(stdout);
  _exit(8);
}

/// The communicator of today, and memory of each kind on it.
struct Comm {
  dt_comm* comm = nullptr;
  int32_t rank = 0;
  int32_t size = 0;
  int64_t ranks = 0;  ///< the sum of the members' world ranks
  float* shared = nullptr;

  explicit Comm(dt_comm* given) : comm(given) {
    check(dt_comm_rank(comm, &rank));
    check(dt_comm_size(comm, &size));
    int32_t before = -1;
    for (int32_t each = 0; each < size; ++each) {
      int32_t world_rank = -1;
      check(dt_comm_world_rank(comm, each, &world_rank));
      ranks += world_rank;
      if (each == rank && world_rank != own_rank) wrong("world rank", 0, each);
      if (world_rank <= before) wrong("order of world ranks", 0, each);
      before = world_rank;
    }
    void* memory = nullptr;
    check(dt_mem_alloc(comm, kLarge * static_cast<int64_t>(sizeof(float)), &memory));
    shared = static_cast<float*>(memory);
  }
};

/// Sums of which each rank and element is another number. False: the communicator failed.
bool sum(const Comm& comm, const char* what, float* values, int64_t count, int step, bool* flag) {
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>((step + i) % 100 + own_rank);
  values[0] = *flag ? 1 : 0;
  if (dt_allreduce(comm.comm, values, values, count, DT_F32, DT_SUM, nullptr, nullptr) != DT_OK) {
    return false;
  }
  for (int64_t i = 1; i < count; ++i) {
    const int64_t expected = comm.size * ((step + i) % 100) + comm.ranks;
    if (values[i] != static_cast<float>(expected)) wrong(what, step, i);
  }
  *flag = values[0] != 0;
  return true;
}

/// The memory of earlier communicators, which is only ours now.
struct Relics {
  std::vector<float*> memory;

  static float pattern(size_t which, int64_t i) {
    return static_cast<float>(1000 * own_rank + static_cast<int64_t>(which) * 100 + i % 97);
  }
  void add(float* values) {
    for (int64_t i = 0; i < kLarge; ++i) values[i] = pattern(memory.size(), i);
    memory.push_back(values);
  }
  void check_all(int step) const {
    for (size_t which = 0; which < memory.size(); ++which) {
      for (int64_t i = 0; i < kLarge; ++i) {
        if (memory[which][i] != pattern(which, i)) wrong("memory of before", step, i);
      }
    }
  }
};

/// All ranks go on with the step of the one that is farthest.
bool meet(const Comm& comm, int* step) {
  int32_t mine = *step;
  if (dt_allreduce(comm.comm, &mine, &mine, 1, DT_I32, DT_MAX, nullptr, nullptr) != DT_OK) {
    return false;
  }
  *step = mine;
  return true;
}

/// Blocks lie, and roots are found, in the order of the communicator's ranks.
void follow_ranks(const Comm& comm) {
  const auto size = static_cast<size_t>(comm.size);
  std::vector<int32_t> mine(size, own_rank);
  std::vector<int32_t> all(size, -1);
  check(dt_allgather(comm.comm, mine.data(), all.data(), 1, DT_I32, nullptr, nullptr));
  for (int32_t each = 0; each < comm.size; ++each) {
    int32_t world_rank = -1;
    check(dt_comm_world_rank(comm.comm, each, &world_rank));
    if (all[static_cast<size_t>(each)] != world_rank) wrong("allgather", 0, each);
    int32_t root = own_rank;
    check(dt_broadcast(comm.comm, &root, 1, DT_I32, each, nullptr, nullptr));
    if (root != world_rank) wrong("broadcast", 0, each);
    mine[static_cast<size_t>(each)] = 100 * own_rank + each;
  }
  std::vector<int32_t> swapped(size, -1);
  check(dt_alltoall(comm.comm, mine.data(), swapped.data(), 1, DT_I32, nullptr, nullptr));
  for (size_t each = 0; each < size; ++each) {
    if (swapped[each] != 100 * all[each] + comm.rank) {
      wrong("alltoall", 0, static_cast<int64_t>(each));
    }
  }
}

/// What else a job can do goes on with the ranks that are left.
void use_all(const Comm& comm) {
  dt_comm* world = nullptr;
  int32_t size = 0;
  check(dt_comm_world(job, &world));
  check(dt_comm_size(world, &size));
  if (size != comm.size) wrong("world", 0, size);
  dt_comm_destroy(world);
  const std::string key = "left/" + std::to_string(comm.rank);
  check(dt_store_set(job, key.c_str(), "x", 1, -1));
  check(dt_store_barrier(job, "left", comm.size, -1));
  int64_t bytes = 0;
  char value = 0;
  check(
      dt_store_get(job, ("left/" + std::to_string(comm.size - 1)).c_str(), -1, &value, 1, &bytes));
  if (bytes != 1 || value != 'x') wrong("store", 0, bytes);
  int32_t agreed = -1;
  check(dt_agree(job, 1, &agreed));
  if (agreed != 1) wrong("dt_agree", 0, agreed);
  follow_ranks(comm);

  dt_comm* half = nullptr;
  check(dt_comm_split(comm.comm, comm.rank % 2, 0, &half));
  float one = 1;
  check(dt_allreduce(half, &one, &one, 1, DT_F32, DT_SUM, nullptr, nullptr));
  if (one != static_cast<float>((comm.size + 1 - comm.rank % 2) / 2)) wrong("split", 0, 0);
  dt_comm_destroy(half);

  if (comm.size > 1) {
    const int32_t next = (comm.rank + 1) % comm.size;
    const int32_t before = (comm.rank + comm.size - 1) % comm.size;
    int32_t sent = 7 * comm.rank;
    int32_t received = -1;
    dt_work* sending = nullptr;
    check(dt_send(comm.comm, &sent, 1, DT_I32, next, nullptr, &sending));
    check(dt_recv(comm.comm, &received, 1, DT_I32, before, nullptr, nullptr));
    int32_t done = 0;
    check(dt_work_wait(sending, -1, &done));
    dt_work_destroy(sending);
    if (received != 7 * before) wrong("recv", 0, received);
  }

  const dt_param params[] = {{kLarge, "a", DT_F32, 0}, {kSmall, "b", DT_F32, 0}};
  dt_reducer* reducer = nullptr;
  check(dt_reducer_create(comm.comm, params, 2, nullptr, &reducer));
  for (int step = 0; step < 3; ++step) {
    for (int32_t index = 1; index >= 0; --index) {
      void* memory = nullptr;
      check(dt_reducer_grad(reducer, index, nullptr, &memory));
      float* const gradient = static_cast<float*>(memory);
      for (int64_t i = 0; i < params[index].count; ++i) {
        gradient[i] = static_cast<float>(i % 50 + step);
      }
      check(dt_reducer_ready(reducer, index, nullptr, nullptr));
    }
    check(dt_reducer_finish(reducer, nullptr));
    void* memory = nullptr;
    check(dt_reducer_grad(reducer, 0, nullptr, &memory));
    const float* const mean = static_cast<const float*>(memory);
    for (int64_t i = 0; i < kLarge; ++i) {
      // 1/n of each is rounded before the sum.
      const float difference = mean[i] - static_cast<float>(i % 50 + step);
      if (difference > 1e-3F || difference < -1e-3F) wrong("reducer", step, i);
    }
  }
  dt_reducer_destroy(reducer);
}

/// What is whole, or failed though nobody died, gives a communicator of the same ranks.
void renew(const Comm& comm) {
  dt_comm* same = nullptr;
  check(dt_comm_shrink(comm.comm, &same));
  check(dt_barrier(comm.comm, nullptr, nullptr));  // which goes on
  if (comm.size > 1) {
    check(dt_comm_set_timeout(same, 50));
    if (comm.rank == 0) check(dt_store_barrier(job, "late", comm.size, -1));
    if (dt_barrier(same, nullptr, nullptr) != DT_ERR_TIMEOUT) fail();
    if (comm.rank != 0) check(dt_store_barrier(job, "late", comm.size, -1));
    check(dt_comm_set_timeout(same, -1));
  }
  dt_comm* again = nullptr;
  check(dt_comm_shrink(same, &again));
  dt_comm_destroy(same);
  const Comm renewed(again);
  if (renewed.size != comm.size || renewed.rank != comm.rank) wrong("renewed", 0, renewed.size);
  std::vector<float> values(kSmall);
  bool no = false;
  if (!sum(renewed, "renewed", values.data(), kSmall, 0, &no)) fail();
  dt_comm_destroy(again);
}

std::string own_digit(const std::string& of_ranks) {
  return of_ranks.substr(static_cast<size_t>(atoi(getenv("DT_RANK"))), 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 99;
  const std::string mode = argv[1];
  const int number = atoi(argv[2]);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const char* hosts = getenv("HOSTS")) {
    setenv("DT_HOST_ID", ("host" + own_digit(hosts)).c_str(), 1);
  }
  if (const char* local_ranks = getenv("LOCAL_RANKS")) {
    setenv("DT_LOCAL_RANK", own_digit(local_ranks).c_str(), 1);
  }
  dt_place place;
  dt_place_init(&place);
  check(dt_init(nullptr, &job));
  check(dt_rank_info(job, &place));
  own_rank = place.rank;
  dt_comm* world = nullptr;
  check(dt_comm_world(job, &world));
  Comm comm(world);
  follow_ranks(comm);
  check(dt_barrier(world, nullptr, nullptr));
  printf("ready %d\n", static_cast<int>(getpid()));

  const int last = mode == "survive" ? number : mode == "quit" ? 2 : -1;
  Relics relics;
  std::vector<float> small(kSmall);
  std::vector<float> large(kLarge);
  int more = 0;
  for (int step = 0; more < kStepsMore; ++step) {
    bool over = mode == "until" && comm.rank == 0 && access(argv[2], F_OK) == 0;
    bool no = false;
    const bool good = sum(comm, "small", small.data(), kSmall, step, &over) &&
                      sum(comm, "large", large.data(), kLarge, step, &no) &&
                      sum(comm, "shared", comm.shared, kLarge, step, &no);
    if (good && over) break;
    if (good && comm.size == last) ++more;
    if (good) continue;
    if (mode == "absent") check(dt_comm_set_timeout(comm.comm, 10000));
    if ((mode == "quit" || mode == "absent") && own_rank == number) {
      printf("stays away\n");
      while (mode == "absent") pause();
      _exit(3);
    }
    printf("asks\n");
    std::vector<float*> left;  // until all have come, others may still write there
    for (bool together = false; !together;) {
      left.push_back(comm.shared);
      dt_comm* smaller = nullptr;
      check(dt_comm_shrink(comm.comm, &smaller));
      dt_comm_destroy(comm.comm);
      comm = Comm(smaller);
      together = meet(comm, &step);
    }
    for (float* const values : left) relics.add(values);
    relics.check_all(step);
    printf("shrunk to %d\n", comm.size);
  }
  relics.check_all(-1);
  use_all(comm);
  renew(comm);
  relics.check_all(-2);
  printf("good with %d\n", comm.size);
  dt_comm_destroy(comm.comm);
  check(dt_finalize(job, -1));
  dt_job_destroy(job);
  return 0;
}
