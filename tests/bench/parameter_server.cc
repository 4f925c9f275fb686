// SPDX-License-Identifier: Apache-2.0
// parameter_server ROUNDS TABLE ROWS: workers that compute nothing, and their servers; by `dt run
// --servers`. A step pulls ROWS random rows of 64 f32 of a variable of TABLE rows, and pushes as
// many gradients. Beside it, in the same rounds, what data parallelism does: an allreduce of the
// gradients of all rows. Rank 0 prints a line per round: the milliseconds of both, until the last
// rank is through, and their ratio.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dt/dt.hpp>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int32_t kColumns = 64;
constexpr int kSteps = 20;  // of a round

void check(dt_status status) {
  if (status != DT_OK) throw std::runtime_error(dt_last_error());
}

double time_of(dt::Comm* comm, const std::function<void()>& step) {
  comm->barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) step();
  double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() /
      kSteps;
  comm->allreduce({&ms, 1}, DT_MAX);
  return ms;
}

void serve() {
  dt_ps_server* server = nullptr;
  check(dt_ps_serve(nullptr, nullptr, &server));
  check(dt_ps_server_wait(server, -1, nullptr));
  dt_ps_server_destroy(server);
}

void work(int rounds, int64_t table, size_t rows) {
  dt::Job job;
  dt::Comm comm = job.world();
  dt_ps* ps = nullptr;
  check(dt_ps_connect(nullptr, nullptr, &ps));
  dt_ps_spec spec;
  dt_ps_spec_init(&spec);
  spec.name = "table";
  spec.rows = table;
  spec.columns = kColumns;
  spec.rate = 1;
  int32_t variable = 0;
  check(dt_ps_variable(ps, &spec, &variable));
  std::mt19937_64 random(static_cast<unsigned>(comm.rank()));
  std::vector<int64_t> chosen(rows);
  std::vector<float> values(rows * kColumns);
  const std::vector<float> gradients(rows * kColumns, 1);
  std::vector<float> dense(static_cast<size_t>(table) * kColumns, 1);
  const auto count = static_cast<int64_t>(rows);
  int64_t pushed = 0;
  for (int round = 0; round <= rounds; ++round) {
    const double served = time_of(&comm, [&] {
      for (int64_t& each : chosen) each = static_cast<int64_t>(random() % uint64_t(table));
      check(dt_ps_pull(ps, variable, chosen.data(), count, values.data(), nullptr));
      check(dt_ps_push(ps, variable, chosen.data(), count, gradients.data(), -1, nullptr));
      pushed += count;
    });
    const double reduced = time_of(&comm, [&] { comm.allreduce(dense, DT_AVG); });
    if (round > 0 && comm.rank() == 0)
      std::printf("%.3f %.3f %.3f\n", served, reduced, reduced / served);
  }
  // Every gradient took effect once.
  comm.allreduce({&pushed, 1}, DT_SUM);
  std::vector<float> all(dense.size());
  check(dt_ps_pull(ps, variable, nullptr, -1, all.data(), nullptr));
  double sum = 0;
  for (const float each : all) sum -= each;
  if (sum != static_cast<double>(pushed) * kColumns) throw std::runtime_error("gradients are lost");
  comm.barrier();
  check(dt_ps_leave(ps));
  dt_ps_destroy(ps);
  job.finalize();
}

}  // namespace

int main(int count, char** given) {
  if (count != 4) {
    std::fprintf(stderr, "usage: parameter_server ROUNDS TABLE ROWS\n");
    return 2;
  }
  try {
    dt_ps_place place;
    dt_ps_place_init(&place);
    check(dt_ps_info(nullptr, &place));
    if (place.role == DT_PS_SERVER) {
      serve();
    } else {
      work(std::atoi(given[1]), std::atoll(given[2]), static_cast<size_t>(std::atoll(given[3])));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parameter_server: %s\n", error.what());
    return 1;
  }
  return 0;
}
