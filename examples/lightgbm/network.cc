// SPDX-License-Identifier: Apache-2.0
/**
 * LightGBM over dt: the two functions that LGBM_NetworkInitWithFunctions() takes, on a communicator
 * of dt.
 *
 * A failed operation is thrown as std::runtime_error. It passes through C++ code of LightGBM only:
 * each function of its C API catches all exceptions, returns -1, and keeps the text for
 * LGBM_GetLastError(). The booster that was training is then good for its finished trees only.
 */
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "dt/dt.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// As in LightGBM's include/LightGBM/meta.h, which its wheel does not ship. Sizes and starts are
// bytes.
using Reducer = void (*)(const char* input, char* output, int type_bytes, int32_t bytes);

// LightGBM keeps its network for each thread, so each thread may be a rank of its own.
struct Network {
  dt_comm* comm = nullptr;
  int32_t rank = 0;
  std::vector<int64_t> counts;
  std::vector<int64_t> starts;
};
thread_local Network network;

constexpr int64_t kMaxElementBytes = 4095;  // of dt_collective.element_bytes

struct Reduction {
  Reducer reducer;
  int type_bytes;
  int64_t element_bytes;
};

void combine(void* reduction, const void* in, void* inout, int64_t count) {
  const auto* by = static_cast<const Reduction*>(reduction);
  by->reducer(static_cast<const char*>(in), static_cast<char*>(inout), by->type_bytes,
              static_cast<int32_t>(count * by->element_bytes));
}

[[noreturn]] void fail() { throw std::runtime_error(dt_last_error()); }

// Blocks in bytes become blocks in elements.
void set_table(const int32_t* block_start, const int32_t* block_bytes, int blocks,
               int64_t element_bytes) {
  network.counts.resize(static_cast<std::size_t>(blocks));
  network.starts.resize(static_cast<std::size_t>(blocks));
  for (int i = 0; i < blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    network.counts[at] = block_bytes[i] / element_bytes;
    network.starts[at] = block_start[i] / element_bytes;
  }
}

bool whole(const int32_t* block_start, const int32_t* block_bytes, int blocks,
           int64_t element_bytes) {
  for (int i = 0; i < blocks; ++i) {
    if (block_start[i] % element_bytes != 0 || block_bytes[i] % element_bytes != 0) return false;
  }
  return true;
}

dt_collective make(dt_kind kind, const char* name) {
  dt_collective one;
  dt_collective_init(&one);
  one.kind = kind;
  one.dtype = DT_U8;
  one.name = name;
  return one;
}

}  // namespace

/** The communicator of this thread's network; NULL: none. It stays the caller's.
    @return 0; -1: dt refuses it, and dt_last_error() says why. */
EXPORTED int dt_lightgbm_use(dt_comm* comm) {
  network.comm = nullptr;
  if (comm != nullptr && dt_comm_rank(comm, &network.rank) != DT_OK) return -1;
  network.comm = comm;
  return 0;
}

/** Each rank gets its block of the combined input. As LightGBM's own network it writes into
 * `input`. */
EXPORTED void dt_lightgbm_reduce_scatter(char* input, int32_t, int type_bytes,
                                         const int32_t* block_start, const int32_t* block_bytes,
                                         int blocks, char* output, int32_t,
                                         const Reducer& reducer) {
  // The reducers of quantized histograms add a gradient and a hessian as one number of twice the
  // type's size, so a pair must stay together.
  const int64_t pair_bytes = 2 * static_cast<int64_t>(type_bytes);
  const bool pairs =
      pair_bytes <= kMaxElementBytes && whole(block_start, block_bytes, blocks, pair_bytes);
  Reduction reduction{reducer, type_bytes, pairs ? pair_bytes : type_bytes};
  set_table(block_start, block_bytes, blocks, reduction.element_bytes);

  dt_collective one = make(DT_KIND_REDUCE_SCATTERV, "lightgbm.reduce_scatter");
  char* own = input + block_start[network.rank];
  one.send = input;
  one.recv = own;
  one.send_counts = network.counts.data();
  one.send_offsets = network.starts.data();
  one.combine = combine;
  one.combine_data = &reduction;
  one.element_bytes = reduction.element_bytes;
  if (dt_collective_launch(network.comm, &one, nullptr) != DT_OK) fail();
  std::memmove(output, own, static_cast<std::size_t>(block_bytes[network.rank]));
}

/** Every rank gets all blocks. LightGBM also calls it with input = output, where input is this
   rank's block alone; so the block is brought to its place first. */
EXPORTED void dt_lightgbm_allgather(char* input, int32_t, const int32_t* block_start,
                                    const int32_t* block_bytes, int blocks, char* output, int32_t) {
  set_table(block_start, block_bytes, blocks, 1);
  char* own = output + block_start[network.rank];
  std::memmove(own, input, static_cast<std::size_t>(block_bytes[network.rank]));

  dt_collective one = make(DT_KIND_ALLGATHERV, "lightgbm.allgather");
  one.send = own;
  one.recv = output;
  one.recv_counts = network.counts.data();
  one.recv_offsets = network.starts.data();
  if (dt_collective_launch(network.comm, &one, nullptr) != DT_OK) fail();
}
