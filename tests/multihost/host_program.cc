// SPDX-License-Identifier: Apache-2.0
// A rank of a job over several hosts. The mode says what it does; when dt reports an error it
// prints that and ends with code 9.
#include <dt/dt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(int rank) {
  dt_error_info info;
  dt_error_info_init(&info);
  dt_last_error_info(&info);
  printf("rank %d saw %s of rank %d host %s pid %lld: %s\n", rank, dt_status_name(info.status),
         info.rank, info.host, static_cast<long long>(info.pid), info.message);
  fflush(stdout);
  _exit(9);
}

void check(dt_status status, int rank) {
  if (status != DT_OK) fail(rank);
}

[[noreturn]] void wrong(int rank, const std::string& what) {
  printf("rank %d got a wrong result: %s\n", rank, what.c_str());
  fflush(stdout);
  _exit(8);
}

/// Small whole numbers, which every dtype holds, as bits of the dtype.
void put(dt_dtype dtype, void* data, int64_t index, int value) {
  const auto single = static_cast<float>(value);
  uint32_t bits;
  memcpy(&bits, &single, sizeof bits);
  switch (dtype) {
    case DT_I8:
    case DT_U8: static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(value); return;
    case DT_I32:
    case DT_U32: static_cast<uint32_t*>(data)[index] = static_cast<uint32_t>(value); return;
    case DT_I64:
    case DT_U64: static_cast<uint64_t*>(data)[index] = static_cast<uint64_t>(value); return;
    case DT_F32: static_cast<float*>(data)[index] = single; return;
    case DT_F64: static_cast<double*>(data)[index] = value; return;
    case DT_BF16: static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(bits >> 16); return;
    case DT_F16: {  // normal numbers only: sign, exponent less 112, ten bits of fraction
      const uint32_t half = value == 0 ? 0 : ((bits >> 13) - (112u << 10)) & 0x7fff;
      static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
      return;
    }
    default: abort();
  }
}

constexpr int kBytes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};  // by dtype

/// Sums in which each rank and index differs, of every dtype; every element is compared with the
/// closed form.
void reduce_every_dtype(dt_comm* world, int rank, int size) {
  for (int type = 0; type < 10; ++type) {
    const auto dtype = static_cast<dt_dtype>(type);
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{5003}, int64_t{300'001}}) {
      const auto bytes = static_cast<size_t>(count * kBytes[type]);
      std::vector<uint8_t> send(bytes);
      std::vector<uint8_t> recv(bytes);
      std::vector<uint8_t> wanted(bytes);
      for (const dt_reduce_op op : {DT_SUM, DT_MAX}) {
        for (int64_t i = 0; i < count; ++i) {
          int total = 0;
          int most = 0;
          for (int r = 0; r < size; ++r) {
            const int value = static_cast<int>((r + size * i) % 13);
            total += value;
            if (value > most) most = value;
            if (r == rank) put(dtype, send.data(), i, value);
          }
          put(dtype, wanted.data(), i, op == DT_SUM ? total : most);
        }
        check(dt_allreduce(world, send.data(), recv.data(), count, dtype, op, nullptr, nullptr),
              rank);
        if (recv != wanted) {
          wrong(rank, "allreduce of dtype " + std::to_string(type) + " x " + std::to_string(count));
        }
      }
    }
  }
}

void others(dt_comm* world, int rank, int size) {
  std::vector<int32_t> all(static_cast<size_t>(size) * 1000);
  std::vector<int32_t> mine(1000, rank + 1);
  check(dt_allgather(world, mine.data(), all.data(), 1000, DT_I32, nullptr, nullptr), rank);
  for (int i = 0; i < size * 1000; ++i) {
    if (all[static_cast<size_t>(i)] != i / 1000 + 1) wrong(rank, "allgather");
  }
  check(dt_reduce_scatter(world, all.data(), mine.data(), 1000, DT_I32, DT_SUM, nullptr, nullptr),
        rank);
  if (mine[999] != size * (rank + 1)) wrong(rank, "reduce_scatter");
  check(dt_broadcast(world, mine.data(), 1000, DT_I32, size - 1, nullptr, nullptr), rank);
  if (mine[0] != size * size) wrong(rank, "broadcast");
  dt_work* work = nullptr;
  int32_t token = rank;
  int32_t got = -1;
  const int next = (rank + 1) % size;
  check(dt_send(world, &token, 1, DT_I32, next, nullptr, &work), rank);
  check(dt_recv(world, &got, 1, DT_I32, (rank + size - 1) % size, nullptr, nullptr), rank);
  int32_t done = 0;
  check(dt_work_wait(work, 30'000, &done), rank);
  dt_work_destroy(work);
  if (done == 0 || got != (rank + size - 1) % size) wrong(rank, "send and recv");
  dt_comm* half = nullptr;
  check(dt_comm_split(world, rank % 2, -rank, &half), rank);
  double one = 1;
  check(dt_allreduce(half, &one, &one, 1, DT_F64, DT_SUM, nullptr, nullptr), rank);
  if (one != (size + 1 - rank % 2) / 2) wrong(rank, "split");
  dt_comm_destroy(half);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dt_job* job = nullptr;
  dt_place place;
  dt_place_init(&place);
  const char* told = getenv("DT_RANK");
  check(dt_init(nullptr, &job), told != nullptr ? atoi(told) : -1);
  check(dt_rank_info(job, &place), -1);
  const int rank = place.rank;
  dt_comm* world = nullptr;
  check(dt_comm_world(job, &world), rank);
  if (mode == "check") {
    reduce_every_dtype(world, rank, place.world_size);
    others(world, rank, place.world_size);
  }
  if (mode == "bytes") {  // as many f32 elements as the argument says, once
    const int64_t count = atoll(argv[2]);
    std::vector<float> data(static_cast<size_t>(count), 1);
    check(dt_barrier(world, nullptr, nullptr), rank);
    printf("ready\n");
    (void)getchar();
    check(dt_allreduce(world, data.data(), data.data(), count, DT_F32, DT_SUM, nullptr, nullptr),
          rank);
  }
  if (mode == "loop") {
    std::vector<float> data(200'000);
    check(dt_barrier(world, nullptr, nullptr), rank);
    printf("ready\n");
    for (;;) {
      check(
          dt_allreduce(world, data.data(), data.data(), 200'000, DT_F32, DT_SUM, nullptr, nullptr),
          rank);
    }
  }
  printf("rank %d of %d is local %d of %d on node %d of %d\n", rank, place.world_size,
         place.local_rank, place.local_size, place.node_rank, place.node_count);
  dt_comm_destroy(world);
  check(dt_finalize(job, -1), rank);
  dt_job_destroy(job);
  return 0;
}
