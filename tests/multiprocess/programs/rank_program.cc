// SPDX-License-Identifier: Apache-2.0
// A rank of a real job. The mode says what it does for ever; when dt reports an error it prints it
// and ends with code 9.
#include <dt/dt.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(int rank) {
  dt_error_info info;
  dt_error_info_init(&info);
  dt_last_error_info(&info);
  printf("rank %d saw %s of rank %d host %s pid %lld: %s\n", rank, dt_status_name(info.status),
         info.rank, info.host[0] != '\0' ? "named" : "unknown", static_cast<long long>(info.pid),
         info.message);
  fflush(stdout);
  _exit(9);
}

void check(dt_status status, int rank) {
  if (status != DT_OK) fail(rank);
}

/// Holds copies of this process's descriptors and outlives it.
void leave_a_child_behind() {
  const pid_t child = fork();
  if (child == 0) {
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    for (;;) pause();
  }
}

void train(dt_comm* world, int rank) {
  const dt_param params[] = {{100'000, "a", DT_F32, 0}, {50'000, "b", DT_F32, 0}};
  dt_reducer* reducer = nullptr;
  check(dt_reducer_create(world, params, 2, nullptr, &reducer), rank);
  for (;;) {
    check(dt_reducer_ready(reducer, 1, nullptr, nullptr), rank);
    check(dt_reducer_ready(reducer, 0, nullptr, nullptr), rank);
    check(dt_reducer_finish(reducer, nullptr), rank);
  }
}

/// One kind of call after the other, so that a death finds the others in any of them.
void reduce_for_ever(dt_comm* world, int rank) {
  std::vector<float> small(16);
  std::vector<float> large(1 << 20);
  for (;;) {
    check(dt_allreduce(world, small.data(), small.data(), 16, DT_F32, DT_SUM, nullptr, nullptr),
          rank);
    check(
        dt_allreduce(world, large.data(), large.data(), 1 << 20, DT_F32, DT_MAX, nullptr, nullptr),
        rank);
    check(dt_broadcast(world, large.data(), 1 << 18, DT_F32, 0, nullptr, nullptr), rank);
    check(dt_barrier(world, nullptr, nullptr), rank);
  }
}

/// Leaves no thread unstarted that operations need, and nothing under way.
void use_all_once(dt_comm* world, int rank) {
  std::vector<float> data(1 << 18);
  int32_t fd = -1;
  check(dt_work_fd(world, &fd), rank);
  for (const int64_t count : {16, 1 << 18}) {
    check(dt_allreduce(world, data.data(), data.data(), count, DT_F32, DT_SUM, nullptr, nullptr),
          rank);
    dt_work* work = nullptr;
    check(dt_allreduce(world, data.data(), data.data(), count, DT_F32, DT_SUM, nullptr, &work),
          rank);
    int32_t done = 0;
    check(dt_work_wait(work, -1, &done), rank);
    dt_work_destroy(work);
  }
}

dt_job* stoppable = nullptr;  // for the signal handler

void on_signal(int) { (void)dt_request_stop(stoppable); }

/// Steps until all are asked to stop.
void step_until_stop(dt_job* job, int rank) {
  stoppable = job;
  signal(SIGUSR1, on_signal);
  for (int step = 0;; ++step) {
    int32_t stop = 0;
    check(dt_stop_requested(job, &stop), rank);
    if (step == 0) printf("asked %d\n", rank);
    if (stop == 0) continue;
    printf("stopped at %d\n", step);
    return;
  }
}

/// Sums that are checked, until the file `stop` is there: rank 0 looks, and all end with the same
/// one.
void reduce_until(dt_comm* world, int rank, int world_size, const char* stop) {
  constexpr int64_t kCount = 1000;
  std::vector<float> values(kCount);
  for (int step = 0;; ++step) {
    for (int64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>((step + i) % 100 + rank);
    values[0] = rank == 0 && access(stop, F_OK) == 0 ? 1 : 0;
    check(
        dt_allreduce(world, values.data(), values.data(), kCount, DT_F32, DT_SUM, nullptr, nullptr),
        rank);
    const int ranks = world_size * (world_size - 1) / 2;
    for (int64_t i = 1; i < kCount; ++i) {
      if (values[i] == static_cast<float>(world_size * ((step + i) % 100) + ranks)) continue;
      printf("rank %d: element %lld of step %d is wrong\n", rank, static_cast<long long>(i), step);
      _exit(8);
    }
    if (values[0] == 0) continue;
    printf("good to the end\n");
    return;
  }
}

void end_job(dt_job* job, int rank) {
  check(dt_finalize(job, -1), rank);
  dt_job_destroy(job);
}

/// Another job of the same ranks. Its sums are its own, and its store holds no key of another.
dt_job* begin_job(int number, int rank, int world_size) {
  dt_job* job = nullptr;
  dt_comm* world = nullptr;
  check(dt_init(nullptr, &job), rank);
  check(dt_comm_world(job, &world), rank);
  int64_t sum = number * (rank + 1);
  check(dt_allreduce(world, &sum, &sum, 1, DT_I64, DT_SUM, nullptr, nullptr), rank);
  int64_t count = 0;
  check(dt_store_add(job, "came", 1, -1, &count), rank);
  check(dt_store_barrier(job, "came", 0, -1), rank);
  check(dt_store_add(job, "came", 0, -1, &count), rank);
  const bool good = sum == number * world_size * (world_size + 1) / 2 && count == world_size;
  printf("job %d is %s\n", number, good ? "good" : "wrong");
  dt_comm_destroy(world);
  return job;
}

constexpr int64_t kStayMs = 700;  // in a job that another rank has left

/// Jobs 1 to `count`, where job 0 is the one of main(). `oddly`: in each of them another rank gives
/// up waiting at its goodbye, and asks for the next one long before the others leave.
void one_after_the_other(dt_job* job, const dt_place& place, int count, bool oddly) {
  for (int number = 1; number <= count; ++number) {
    const bool odd = oddly && number % place.world_size == place.rank;
    if (oddly && !odd && dt_store_barrier(job, "never", place.world_size, kStayMs) == DT_OK) {
      printf("the odd rank came\n");
    }
    if (odd && dt_finalize(job, 50) != DT_ERR_TIMEOUT) printf("nobody was missing\n");
    if (odd) {
      dt_job_destroy(job);
    } else {
      end_job(job, place.rank);
    }
    job = begin_job(number, place.rank, place.world_size);
  }
  end_job(job, place.rank);
}

/// Ends the job of the launcher and joins one whose store rank 0 serves.
void join_next(dt_job* job, const dt_place& place) {
  const int rank = place.rank;
  dt_store_server* server = nullptr;
  if (rank == 0) {
    dt_config* config = nullptr;
    int32_t port = 0;
    check(dt_config_create(nullptr, &config), rank);
    check(dt_config_set(config, "job.id", "next"), rank);
    check(dt_config_set(config, "job.world_size", std::to_string(place.world_size).c_str()), rank);
    check(dt_config_set(config, "job.master_port", "0"), rank);
    check(dt_store_serve(config, &server), rank);
    check(dt_store_server_port(server, &port), rank);
    const std::string text = std::to_string(port);
    check(dt_store_set(job, "port", text.data(), static_cast<int64_t>(text.size()), -1), rank);
    dt_config_destroy(config);
  }
  char port[16] = "";
  int64_t bytes = 0;
  check(dt_store_get(job, "port", -1, port, sizeof port - 1, &bytes), rank);
  check(dt_finalize(job, -1), rank);
  dt_job_destroy(job);

  dt_config* config = nullptr;
  dt_comm* world = nullptr;
  check(dt_config_create(nullptr, &config), rank);
  check(dt_config_set(config, "job.id", "next"), rank);
  check(dt_config_set(config, "job.master_port", port), rank);
  check(dt_init(config, &job), rank);
  dt_config_destroy(config);
  check(dt_comm_world(job, &world), rank);
  int64_t sum = rank + 1;
  check(dt_allreduce(world, &sum, &sum, 1, DT_I64, DT_SUM, nullptr, nullptr), rank);
  printf("next %lld\n", static_cast<long long>(sum));
  dt_comm_destroy(world);
  check(dt_finalize(job, -1), rank);
  dt_job_destroy(job);
  dt_store_server_destroy(server);
}

/// By name: one tensor after the other, and one that rank 1 never submits.
void submit_for_ever(dt_comm* world, int rank) {
  dt_named* named = nullptr;
  check(dt_named_create(world, nullptr, &named), rank);
  std::vector<float> values(1000, 1);
  dt_collective collective;
  dt_collective_init(&collective);
  collective.kind = DT_KIND_ALLREDUCE;
  collective.dtype = DT_F32;
  collective.op = DT_MAX;
  collective.send = collective.recv = values.data();
  collective.count = 1000;
  for (int i = 0; i < 100; ++i) check(dt_named_submit(named, "x", &collective, nullptr), rank);
  if (rank != 1) check(dt_named_submit(named, "never", &collective, nullptr), rank);
  for (;;) check(dt_named_submit(named, "rank 1", &collective, nullptr), rank);
}

/// Rank 1 stops rank 0, and lets it go on once its own operation has ended; prints how each ended.
void submit_to_a_stopped_rank(dt_job* job, dt_comm* world, int rank) {
  int64_t coordinator = rank == 0 ? getpid() : 0;
  check(dt_broadcast(world, &coordinator, 1, DT_I64, 0, nullptr, nullptr), rank);
  dt_named* named = nullptr;
  check(dt_named_create(world, nullptr, &named), rank);
  float value = 1;
  dt_collective collective;
  dt_collective_init(&collective);
  collective.kind = DT_KIND_ALLREDUCE;
  collective.dtype = DT_F32;
  collective.op = DT_SUM;
  collective.send = collective.recv = &value;
  collective.count = 1;
  collective.timeout_ms = rank == 1 ? 100 : -1;
  if (rank == 1) kill(static_cast<pid_t>(coordinator), SIGSTOP);
  const dt_status status = dt_named_submit(named, rank == 1 ? "one" : "zero", &collective, nullptr);
  printf("rank %d: %s: %s\n", rank, dt_status_name(status), dt_last_error());
  if (rank == 1) kill(static_cast<pid_t>(coordinator), SIGCONT);
  dt_named_destroy(named);
  dt_comm_destroy(world);
  check(dt_finalize(job, -1), rank);
  dt_job_destroy(job);
  exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dt_job* job = nullptr;
  dt_place place;
  dt_place_init(&place);
  check(dt_init(nullptr, &job), -1);
  check(dt_rank_info(job, &place), -1);
  const int rank = place.rank;
  dt_comm* world = nullptr;
  check(dt_comm_world(job, &world), rank);
  check(dt_barrier(world, nullptr, nullptr), rank);
  if (mode == "children") leave_a_child_behind();
  printf("ready %d\n", static_cast<int>(getpid()));
  if (mode == "until") {
    printf("store %s:%s\n", getenv("DT_MASTER_ADDR"), getenv("DT_MASTER_PORT"));
    reduce_until(world, rank, place.world_size, argv[2]);
  }
  if (mode == "idle") {  // with all threads that a job has
    use_all_once(world, rank);
    check(dt_barrier(world, nullptr, nullptr), rank);
    printf("idle\n");
    for (;;) pause();
  }
  if (mode == "train") train(world, rank);
  if (mode == "reduce" || mode == "children") reduce_for_ever(world, rank);
  if (mode == "store") {  // the others wait in the store for what rank 1 never sets
    int64_t bytes = 0;
    if (rank != 1) check(dt_store_get(job, "never", -1, nullptr, 0, &bytes), rank);
    for (;;) pause();
  }
  if (mode == "wait") {  // the others wait in an operation that rank 1 never enters
    if (rank != 1) check(dt_barrier(world, nullptr, nullptr), rank);
    for (;;) pause();
  }
  if (mode == "named") submit_for_ever(world, rank);
  if (mode == "named-stop") submit_to_a_stopped_rank(job, world, rank);
  if (mode == "finalize") {  // the others wait in the goodbye
    if (rank != 1) check(dt_finalize(job, -1), rank);
    for (;;) pause();
  }
  if (mode == "stop") step_until_stop(job, rank);
  if (mode == "heed-not") {  // asks once, and then works on
    int32_t stop = 0;
    check(dt_stop_requested(job, &stop), rank);
    printf("asked %d\n", rank);
    for (;;) pause();
  }
  // Rank 1 votes so many seconds after the others, and first makes a call that is none.
  if (mode == "refused-vote") {
    int64_t bytes = 0;
    int32_t all = 0;
    if (rank == 1 && dt_agree(job, 1, nullptr) != DT_ERR_INVALID_ARGUMENT) return 1;
    if (rank == 1) (void)dt_store_get(job, "never", 1000 * atoi(argv[2]), nullptr, 0, &bytes);
    check(dt_agree(job, 1, &all), rank);
  }
  // Rank 1 enters the barrier so many seconds after the others, or first makes a call that is none.
  if (mode == "late" || mode == "refused") {
    int64_t bytes = 0;
    if (rank == 1 && mode == "refused" &&
        dt_allreduce(world, &bytes, &bytes, -1, DT_I64, DT_SUM, nullptr, nullptr) !=
            DT_ERR_INVALID_ARGUMENT) {
      return 1;
    }
    if (rank == 1) (void)dt_store_get(job, "never", 1000 * atoi(argv[2]), nullptr, 0, &bytes);
    check(dt_barrier(world, nullptr, nullptr), rank);
  }
  if (mode == "leaves" && rank != 1) {  // rank 1 leaves, the others still need it
    const bool failed = dt_barrier(world, nullptr, nullptr) == DT_ERR_PEER_LOST;
    printf("rank %d %s: %s\n", rank, failed ? "heard" : "did not hear", dt_last_error());
  }
  dt_comm_destroy(world);
  if (mode == "next") {
    join_next(job, place);
    return 0;
  }
  if (mode == "jobs" || mode == "early") {
    one_after_the_other(job, place, 3, mode == "early");
    return 0;
  }
  if (mode == "lost" && rank == 1) _exit(5);  // in the job
  if (mode == "lost") {
    if (dt_finalize(job, -1) != DT_ERR_PEER_LOST) printf("rank 1 was not missed\n");
    dt_job_destroy(job);
    begin_job(1, rank, place.world_size);
  }
  end_job(job, rank);
  if (mode == "fewer" && rank != 1) begin_job(1, rank, place.world_size);
  return 0;
}
