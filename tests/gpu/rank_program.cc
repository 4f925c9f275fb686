// SPDX-License-Identifier: Apache-2.0
// A rank of a job over GPU memory, or over host memory, where the program itself is tested.
//   rank_program cuda|host check
//     verifies each collective, the reducer, and parameters in shards, and prints "right".
//   rank_program cuda|host lose VICTIM SIGNAL MS
//     One rank sends itself a signal amid operations, of which each may take MS; the others print
//     the error that they get, and after how long, and end with code 9. A later attempt is "check".
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../bench/session.h"
#include "../fake/elements.h"
#include "batch_checks.h"
#include "join_checks.h"
#include "shard_checks.h"
#include "wire_checks.h"

using namespace dt::test;

namespace {

constexpr unsigned kLimitS = 240;
constexpr int64_t kCount = 100'003;  // of no round number
constexpr int64_t kFewer = 1003;     // for each type
constexpr int kOperationsBefore = 20;

/// Small whole numbers, which f32 sums exactly, another one for each rank and index.
float value_of(int rank, int64_t index) {
  return static_cast<float>((index * 7 + rank * 13) % 61 - 30);
}

float sum_of(int ranks, int64_t index) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, index);
  return sum;
}

/// What a rank gives to a reduction: whole numbers that every type holds, as it does the results.
int64_t part_of(dt_reduce_op op, int rank, int ranks, int64_t index) {
  if (op == DT_PROD) return (index + rank) % 2 + 1;
  if (op == DT_AVG) return ranks * ((index + rank) % 4);
  return (index * 7 + rank * 3) % 11;
}

double result_of(dt_reduce_op op, int ranks, int64_t index) {
  int64_t result = part_of(op, 0, ranks, index);
  for (int rank = 1; rank < ranks; ++rank) {
    const int64_t part = part_of(op, rank, ranks, index);
    if (op == DT_SUM || op == DT_AVG) result += part;
    if (op == DT_PROD) result *= part;
    if (op == DT_MIN) result = std::min(result, part);
    if (op == DT_MAX) result = std::max(result, part);
  }
  return static_cast<double>(op == DT_AVG ? result / ranks : result);
}

class Checks {
 public:
  explicit Checks(Session* session)
      : session_(session),
        all_(kCount * session->ranks()),
        send_(static_cast<float*>(session->memory(all_ * 4))),
        recv_(static_cast<float*>(session->memory(all_ * 4))) {}

  void run() {
    const int rank = session_->rank();
    const int ranks = session_->ranks();
    dt_comm* const comm = session_->comm();
    const dt_stream stream = session_->stream();
    const auto own = [&](int64_t i) { return value_of(rank, i); };
    fill(own);
    need(dt_allreduce(comm, send_, recv_, kCount, DT_F32, DT_SUM, stream, nullptr));
    compare("allreduce", kCount, [&](int64_t i) { return sum_of(ranks, i); });
    fill(own);
    need(dt_reduce_scatter(comm, send_, recv_, kCount, DT_F32, DT_SUM, stream, nullptr));
    compare("reduce_scatter", kCount, [&](int64_t i) { return sum_of(ranks, rank * kCount + i); });
    fill(own);
    need(dt_allgather(comm, send_, recv_, kCount, DT_F32, stream, nullptr));
    compare("allgather", all_,
            [&](int64_t i) { return value_of(static_cast<int>(i / kCount), i % kCount); });
    need(dt_broadcast(comm, send_, kCount, DT_F32, ranks - 1, stream, nullptr));
    std::swap(send_, recv_);
    compare("broadcast", kCount, [&](int64_t i) { return value_of(ranks - 1, i); });
    std::swap(send_, recv_);
    if (ranks > 1) pass_on();
    if (ranks > 1) pass_on_in_group();
    reduce<int8_t>(DT_I8);
    reduce<uint8_t>(DT_U8);
    reduce<int32_t>(DT_I32);
    reduce<uint32_t>(DT_U32);
    reduce<int64_t>(DT_I64);
    reduce<uint64_t>(DT_U64);
    reduce<F16>(DT_F16);
    reduce<Bf16>(DT_BF16);
    reduce<float>(DT_F32);
    reduce<double>(DT_F64);
    gather_reversed();
  }

 private:
  template <class T>
  void reduce(dt_dtype dtype) {
    const int64_t bytes = kFewer * int64_t{sizeof(T)};
    std::vector<char> data(static_cast<size_t>(bytes));
    for (const dt_reduce_op op : {DT_SUM, DT_AVG, DT_PROD, DT_MIN, DT_MAX}) {
      for (int64_t i = 0; i < kFewer; ++i) {
        store<T>(data.data(), i,
                 static_cast<Arithmetic<T>>(part_of(op, session_->rank(), session_->ranks(), i)));
      }
      session_->write(send_, data.data(), bytes);
      need(dt_allreduce(session_->comm(), send_, recv_, kFewer, dtype, op, session_->stream(),
                        nullptr));
      need(session_->finish());
      session_->read(data.data(), recv_, bytes);
      const std::string what =
          dt::format("allreduce of type %d, reduction %d", static_cast<int>(dtype), int(op));
      for (int64_t i = 0; i < kFewer; ++i) {
        const auto is = static_cast<double>(load<T>(data.data(), i));
        const double wanted = result_of(op, session_->ranks(), i);
        // The mean is a sum of rounded quotients.
        if (std::abs(is - wanted) > (op == DT_AVG ? 0.02 : 0)) wrong(what.c_str(), i, is, wanted);
      }
    }
  }

  /// Every rank sends before it receives.
  void pass_on_in_group() {
    const int rank = session_->rank();
    const int ranks = session_->ranks();
    const int before = (rank + ranks - 1) % ranks;
    dt_comm* const comm = session_->comm();
    fill([&](int64_t i) { return value_of(rank, i); });
    need(dt_group_begin(comm));
    need(dt_send(comm, send_, kCount, DT_F32, (rank + 1) % ranks, session_->stream(), nullptr));
    need(dt_recv(comm, recv_, kCount, DT_F32, before, session_->stream(), nullptr));
    need(dt_group_end(comm, nullptr));
    compare("group", kCount, [&](int64_t i) { return value_of(before, i); });
  }

  /// On a communicator of the same ranks in the other order.
  void gather_reversed() {
    const int ranks = session_->ranks();
    dt_comm* part = nullptr;
    need(dt_comm_split(session_->comm(), 0, -session_->rank(), &part));
    fill([&](int64_t i) { return value_of(session_->rank(), i); });
    need(dt_allgather(part, send_, recv_, kCount, DT_F32, session_->stream(), nullptr));
    compare("allgather of a split communicator", all_, [&](int64_t i) {
      return value_of(ranks - 1 - static_cast<int>(i / kCount), i % kCount);
    });
    dt_comm_destroy(part);
  }

  /// To the next rank, from the one before.
  void pass_on() {
    const int rank = session_->rank();
    const int ranks = session_->ranks();
    const int before = (rank + ranks - 1) % ranks;
    fill([&](int64_t i) { return value_of(rank, i); });
    const auto send = [&] {
      need(dt_send(session_->comm(), send_, kCount, DT_F32, (rank + 1) % ranks, session_->stream(),
                   nullptr));
    };
    if (rank == 0) send();  // the others receive first
    need(dt_recv(session_->comm(), recv_, kCount, DT_F32, before, session_->stream(), nullptr));
    if (rank != 0) send();
    compare("send and receive", kCount, [&](int64_t i) { return value_of(before, i); });
  }

  template <class F>
  void fill(F&& value) {
    std::vector<float> values(static_cast<size_t>(all_));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<int64_t>(i));
    session_->write(send_, values.data(), all_ * 4);
    std::fill(values.begin(), values.end(), -999.0f);
    session_->write(recv_, values.data(), all_ * 4);
  }

  template <class F>
  void compare(const char* what, int64_t count, F&& wanted) {
    need(session_->finish());
    std::vector<float> got(static_cast<size_t>(count));
    session_->read(got.data(), recv_, count * 4);
    for (int64_t i = 0; i < count; ++i) {
      const float is = got[static_cast<size_t>(i)];
      if (is != wanted(i)) wrong(what, i, static_cast<double>(is), static_cast<double>(wanted(i)));
    }
  }

  [[noreturn]] void wrong(const char* what, int64_t index, double is, double wanted) {
    std::fprintf(stderr, "rank %d: %s: element %lld is %g, not %g\n", session_->rank(), what,
                 static_cast<long long>(index), is, wanted);
    std::_Exit(1);
  }

  Session* const session_;
  const int64_t all_;
  float* send_;
  float* recv_;
};

int check(Session* session) {
  Checks(session).run();
  check_shards(session);
  check_wire(session);
  check_join(session);
  check_batch_statistics(session);
  session->leave();
  std::printf("rank %d: right\n", session->rank());
  return 0;
}

[[noreturn]] void report(int rank, double since_us) {
  dt_error_info info;
  dt_error_info_init(&info);
  dt_last_error_info(&info);
  std::printf("rank %d saw %s of rank %d after %.0f ms: %s\n", rank, dt_status_name(info.status),
              info.rank, (now_us() - since_us) * 1e-3, info.message);
  std::fflush(stdout);
  _exit(9);
}

void operate(Session* session, float* memory, double since_us) {
  dt_work* work = nullptr;
  int32_t done = 0;
  const dt_status status = dt_allreduce(session->comm(), memory, memory, kCount, DT_F32, DT_MAX,
                                        session->stream(), &work);
  if (status != DT_OK || dt_work_wait(work, -1, &done) != DT_OK) report(session->rank(), since_us);
  dt_work_destroy(work);
}

/// The victim ends by `signal`; without one it leaves with dt_finalize.
int lose(Session* session, int victim, int signal, int64_t limit_ms) {
  auto* const memory = static_cast<float*>(session->memory(kCount * 4));
  double since_us = now_us();
  for (int i = 0; i < kOperationsBefore; ++i) operate(session, memory, since_us);
  need(dt_comm_set_timeout(session->comm(), limit_ms));  // the first ones may take longer
  session->barrier();
  std::printf("ready %d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  for (int i = 0;; ++i) {
    since_us = now_us();
    if (i == kOperationsBefore && session->rank() == victim) {
      if (signal == 0) {
        session->leave();
        return 0;
      }
      raise(signal);
    }
    operate(session, memory, since_us);
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string device = argument_count > 1 ? arguments[1] : "";
  const std::string mode = argument_count > 2 ? arguments[2] : "";
  if ((device != "cuda" && device != "host") ||
      !((mode == "check" && argument_count == 3) || (mode == "lose" && argument_count == 6))) {
    std::fprintf(stderr, "rank_program cuda|host check | lose VICTIM KILL|STOP|LEAVE MS\n");
    return 2;
  }
  const auto session = Session::join("rank_program", device == "cuda", kLimitS);
  if (mode == "check" || session->place().attempt > 0) return check(session.get());
  const std::string end = arguments[4];
  const int signal = end == "LEAVE" ? 0 : end == "STOP" ? SIGSTOP : SIGKILL;
  return lose(session.get(), std::atoi(arguments[3]), signal, std::atoll(arguments[5]));
}
