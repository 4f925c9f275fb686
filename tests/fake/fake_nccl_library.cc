// SPDX-License-Identifier: Apache-2.0
// The shared library behind fake_nccl.h. Macros leave functions out:
//   DT_FAKE_WITHOUT_ABORT     ncclCommAbort and ncclReduceScatter, which dt needs
//   DT_FAKE_WITHOUT_OPTIONAL  those it can do without
//
// An *operation* is what is enqueued on a stream: the tasks of one group. What ranks then exchange
// is in fake_nccl_world.h.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "fake_nccl.h"
#include "fake_nccl_world.h"

namespace dt::test {
namespace {

using nccl::Answer;
using nccl::Comm;
using nccl::Config;
using nccl::Op;
using nccl::Type;
using nccl::UniqueId;
using Lock = std::unique_lock<std::mutex>;

constexpr auto kStuck = std::chrono::seconds(60);
constexpr int kVersion = 22809;
constexpr int kPolls = 1;

struct Communicator {
  Comm handle = nullptr;
  std::shared_ptr<World> world;
  int rank = 0;
  bool blocking = true;
  bool aborted = false;
  bool finalizing = false;
  bool initialised = false;
  Answer state = Answer::kSuccess;  // kInProgress: the last call has not ended
  Answer failure = Answer::kSuccess;
  int polls_left = 0;
  bool stays = false;  // in progress for ever
  int64_t next_sequence = 0;
  int running = 0;  // operations that were enqueued and have not ended
  std::vector<struct Operation> pending;
  std::set<std::thread::id> threads;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

struct Operation {
  CommunicatorPtr comm;
  cuda::Stream stream = nullptr;
  std::vector<Task> tasks;
};

/// Of the calling thread.
struct Group {
  int depth = 0;
  Answer failed = Answer::kSuccess;
  std::vector<std::pair<CommunicatorPtr, Task>> tasks;
  std::vector<CommunicatorPtr> joining;
  std::vector<CommunicatorPtr> aborting;
};
thread_local Group t_group;
thread_local std::string t_last_error;

class Library final : public FakeNccl {
 public:
  // ---- the helm ----

  void set_enqueue(Enqueue enqueue) override {
    const Lock lock(mutex_);
    enqueue_ = std::move(enqueue);
  }
  void set_version(int version) override {
    const Lock lock(mutex_);
    version_ = version;
  }
  void set_polls(int polls) override {
    const Lock lock(mutex_);
    polls_ = polls;
  }
  void set_peers_notice_abort(bool notice) override {
    const Lock lock(mutex_);
    peers_notice_abort_ = notice;
  }
  void set_abort_synchronises(bool synchronises) override {
    const Lock lock(mutex_);
    abort_synchronises_ = synchronises;
  }
  void set_destroy_waits_for_peers(bool waits) override {
    const Lock lock(mutex_);
    destroy_waits_for_peers_ = waits;
  }
  void set_eager_sends(bool eager) override {
    const Lock lock(mutex_);
    eager_sends_ = eager;
  }
  void order(const Order& order) override {
    const Lock lock(mutex_);
    orders_.push_back(order);
  }
  void release() override {
    const Lock lock(mutex_);
    orders_.clear();
    ++releases_;
    change_.notify_all();
  }
  void reset() override {
    release();
    const Lock lock(mutex_);
    enqueue_ = nullptr;
    version_ = kVersion;
    polls_ = kPolls;
    peers_notice_abort_ = false;
    abort_synchronises_ = false;
    destroy_waits_for_peers_ = false;
    eager_sends_ = false;
    calls_.clear();
    threads_ = 0;
    seen_.clear();
    misuses_.clear();
  }
  int hung() override {
    const Lock lock(mutex_);
    return hung_;
  }
  int64_t calls(const std::string& function) override {
    const Lock lock(mutex_);
    const auto found = calls_.find(function);
    return found == calls_.end() ? 0 : found->second;
  }
  int64_t communicators() override {
    const Lock lock(mutex_);
    return static_cast<int64_t>(communicators_.size());
  }
  int64_t threads() override {
    const Lock lock(mutex_);
    return threads_;
  }
  std::vector<Seen> initialised() override {
    const Lock lock(mutex_);
    return seen_;
  }
  std::vector<std::string> misuses() override {
    const Lock lock(mutex_);
    return misuses_;
  }

  // ---- NCCL's functions ----

  Answer get_version(int* version) {
    Lock lock(mutex_);
    Call call = begin(lock, "ncclGetVersion", nullptr);
    if (call.answered) return call.answer;
    *version = version_;
    return Answer::kSuccess;
  }

  Answer get_unique_id(UniqueId* id) {
    Lock lock(mutex_);
    Call call = begin(lock, "ncclGetUniqueId", nullptr);
    if (call.answered) return call.answer;
    *id = UniqueId();
    snprintf(id->bytes, sizeof id->bytes, "fake %d", ++unique_ids_);
    return Answer::kSuccess;
  }

  Answer init(Comm* out, int size, UniqueId id, int rank, Config* config) {
    Lock lock(mutex_);
    if (const Answer bad = check_init(size, rank, config); bad != Answer::kSuccess) return bad;
    const auto comm = std::make_shared<Communicator>();
    comm->rank = rank;
    comm->blocking = config == nullptr || config->blocking != 0;
    comm->handle = reinterpret_cast<Comm>(++handles_ << 4);  // never given twice
    // With its rank, before it can be called.
    Call call = begin(lock, "ncclCommInitRankConfig", comm.get());
    if (call.answered) return call.answer;
    auto& world = worlds_[std::string(id.bytes, sizeof id.bytes)];
    if (world == nullptr) world = std::make_shared<World>();
    if (world->joined.empty()) world->size = size;
    world->misuses = &misuses_;
    if (world->size != size || !world->joined.insert(rank).second) {
      return misuse(Answer::kInvalidUsage, text("rank %d of %d joins a communicator of %d where it "
                                                "is in already, or of another size",
                                                rank, size, world->size));
    }
    comm->world = world;
    if (static_cast<int>(world->joined.size()) == size) {
      worlds_.erase(std::string(id.bytes, sizeof id.bytes));  // an id serves once
    }
    communicators_[comm->handle] = comm;
    remember(*comm, config);
    *out = comm->handle;
    change_.notify_all();
    start_progress(*comm, call.stays);
    if (!comm->blocking) return Answer::kInProgress;
    if (t_group.depth > 0) {
      t_group.joining.push_back(comm);
      return Answer::kSuccess;
    }
    return await_join(lock, *comm);
  }

  Answer get_async_error(Comm handle, Answer* answer) {
    Lock lock(mutex_);
    CommunicatorPtr comm = find(handle, "ncclCommGetAsyncError");
    if (comm == nullptr) return Answer::kInvalidArgument;
    Call call = begin(lock, "ncclCommGetAsyncError", comm.get());
    if (call.answered) comm->failure = call.answer;
    if (comm->failure != Answer::kSuccess) {
      *answer = comm->failure;
      return Answer::kSuccess;
    }
    *answer = poll(lock, *comm);
    return Answer::kSuccess;
  }

  Answer finalize(Comm handle) {
    Lock lock(mutex_);
    CommunicatorPtr comm = find(handle, "ncclCommFinalize");
    if (comm == nullptr) return Answer::kInvalidArgument;
    Call call = begin(lock, "ncclCommFinalize", comm.get());
    if (call.answered) return call.answer;
    if (const Answer bad = check_ready(*comm, "ncclCommFinalize"); bad != Answer::kSuccess) {
      return bad;
    }
    comm->finalizing = true;
    comm->world->ended.insert(comm->rank);
    change_.notify_all();
    start_progress(*comm, call.stays);
    if (!comm->blocking) return Answer::kInProgress;
    await(lock, "ncclCommFinalize", [&] { return comm->aborted || comm->running == 0; });
    return comm->aborted ? Answer::kInternalError : Answer::kSuccess;
  }

  Answer destroy(Comm handle) {
    Lock lock(mutex_);
    CommunicatorPtr comm = find(handle, "ncclCommDestroy");
    if (comm == nullptr) return Answer::kInvalidArgument;
    Call call = begin(lock, "ncclCommDestroy", comm.get());
    if (call.answered) return call.answer;
    if (comm->failure != Answer::kSuccess) {
      misuses_.push_back("ncclCommDestroy after an error, where only an abort is safe");
    }
    if (comm->state == Answer::kInProgress) {
      misuses_.push_back("ncclCommDestroy while the previous call is in progress");
    }
    await(lock, "ncclCommDestroy", [&] { return comm->running == 0 && may_end(*comm); });
    communicators_.erase(handle);
    return Answer::kSuccess;
  }

  Answer abort(Comm handle) {
    Lock lock(mutex_);
    CommunicatorPtr comm = find(handle, "ncclCommAbort");
    if (comm == nullptr) return Answer::kInvalidArgument;
    comm->aborted = true;
    comm->world->ended.insert(comm->rank);
    communicators_.erase(handle);
    if (peers_notice_abort_) {
      for (const auto& [other, peer] : communicators_) {
        if (peer->world == comm->world) peer->failure = Answer::kRemoteError;
      }
    }
    change_.notify_all();
    Call call = begin(lock, "ncclCommAbort", comm.get());
    if (call.answered) return call.answer;
    if (t_group.depth > 0) {
      t_group.aborting.push_back(comm);
    } else {
      await_abort(lock, *comm);
    }
    return Answer::kSuccess;
  }

  Answer submit(Comm handle, Task task) {
    Lock lock(mutex_);
    const Answer answer = add_to_group(lock, handle, task);
    if (answer == Answer::kSuccess) return t_group.depth > 0 ? answer : end_group(lock);
    if (t_group.depth > 0) t_group.failed = answer;  // told again at its end
    return answer;
  }

  Answer group_start() {
    Lock lock(mutex_);
    Call call = begin(lock, "ncclGroupStart", nullptr);
    if (call.answered) return call.answer;
    if (t_group.depth++ == 0) t_group.failed = Answer::kSuccess;
    return Answer::kSuccess;
  }

  Answer group_end() {
    Lock lock(mutex_);
    Call call = begin(lock, "ncclGroupEnd", nullptr);
    if (call.answered) {
      t_group = Group();
      return call.answer;
    }
    if (t_group.depth == 0) return misuse(Answer::kInvalidUsage, "ncclGroupEnd without a start");
    if (--t_group.depth > 0) return Answer::kSuccess;
    if (t_group.failed != Answer::kSuccess) {
      const Answer failed = t_group.failed;
      t_group = Group();
      return failed;
    }
    return end_group(lock);
  }

  Answer count_call(const char* function) {
    Lock lock(mutex_);
    Call call = begin(lock, function, nullptr);
    return call.answered ? call.answer : Answer::kSuccess;
  }

 private:
  struct Call {
    bool answered = false;
    Answer answer = Answer::kSuccess;
    bool stays = false;
    bool spins = false;
  };

  template <class F>
  void await(Lock& lock, const char* what, F&& condition) {
    if (change_.wait_for(lock, kStuck, condition)) return;
    fprintf(stderr, "fake NCCL: %s has waited for a minute\n", what);
    std::abort();
  }

  Answer misuse(Answer answer, const std::string& what) {
    misuses_.push_back(what);
    t_last_error = what;
    return answer;
  }

  CommunicatorPtr find(Comm handle, const char* function) {
    const auto found = communicators_.find(handle);
    if (found != communicators_.end()) return found->second;
    misuse(Answer::kInvalidArgument, text("%s on a communicator that does not exist", function));
    return nullptr;
  }

  /// Counts the call and follows an order for it. `comm` may be null.
  Call begin(Lock& lock, const char* function, Communicator* comm) {
    ++calls_[function];
    const bool ends =
        strcmp(function, "ncclCommAbort") == 0 || strcmp(function, "ncclCommFinalize") == 0;
    if (comm != nullptr && !ends && !comm->finalizing) {
      comm->threads.insert(std::this_thread::get_id());
      threads_ = std::max(threads_, static_cast<int64_t>(comm->threads.size()));
    }
    Call call;
    for (Order& order : orders_) {
      if (order.function != function || order.times == 0) continue;
      if (order.rank >= 0 && (comm == nullptr || comm->rank != order.rank)) continue;
      if (order.after > 0) {
        --order.after;
        continue;
      }
      if (order.times > 0) --order.times;
      call.stays = order.fault == Fault::kStayInProgress;
      call.spins = order.fault == Fault::kSpin;
      call.answered = order.fault == Fault::kAnswer;
      call.answer = order.answer;
      if (call.answered) t_last_error = text("%s was ordered to fail", function);
      if (order.fault == Fault::kHang) {
        ++hung_;
        await(lock, function, [&, now = releases_] { return releases_ != now; });
        --hung_;
      }
      break;  // a wait may have changed the list
    }
    return call;
  }

  Answer add_to_group(Lock& lock, Comm handle, Task& task) {
    CommunicatorPtr comm = find(handle, task.function);
    if (comm == nullptr) return Answer::kInvalidArgument;
    const Call call = begin(lock, task.function, comm.get());
    if (call.answered) return call.answer;
    if (Answer bad = check_ready(*comm, task.function); bad != Answer::kSuccess) return bad;
    if (Answer bad = check_task(*comm, task); bad != Answer::kSuccess) return bad;
    task.spin = call.spins;
    comm->stays = comm->stays || call.stays;
    t_group.tasks.emplace_back(comm, task);
    return Answer::kSuccess;
  }

  Answer check_init(int size, int rank, const Config* config) {
    if (size < 1 || rank < 0 || rank >= size) {
      return misuse(Answer::kInvalidArgument, text("rank %d of %d", rank, size));
    }
    if (config == nullptr) return Answer::kSuccess;
    if (config->magic != 0xcafebeef || config->size < 24) {
      return misuse(Answer::kInvalidArgument, "the config was not initialised");
    }
    // As NCCL does, where one that is not set is INT_MIN.
    if (config->min_ctas > config->max_ctas || config->min_ctas == 0 || config->max_ctas == 0) {
      return misuse(Answer::kInvalidArgument, "min_ctas exceeds max_ctas, or one is 0");
    }
    return Answer::kSuccess;
  }

  void remember(const Communicator& comm, const Config* config) {
    Seen seen;
    seen.rank = comm.rank;
    seen.size = comm.world->size;
    if (config != nullptr) {
      seen.config = *config;
      if (config->net_name != nullptr) seen.net_name = config->net_name;
      if (config->comm_name != nullptr) seen.comm_name = config->comm_name;
      seen.config.net_name = seen.config.comm_name = nullptr;
    }
    seen_.push_back(seen);
  }

  Answer await_join(Lock& lock, Communicator& comm) {
    const World& world = *comm.world;
    await(lock, "ncclCommInitRankConfig",
          [&] { return comm.aborted || static_cast<int>(world.joined.size()) == world.size; });
    comm.initialised = true;
    return comm.aborted ? Answer::kInternalError : Answer::kSuccess;
  }

  void start_progress(Communicator& comm, bool stays) {
    if (comm.blocking) return;
    comm.state = Answer::kInProgress;
    comm.polls_left = polls_;
    comm.stays = stays;
  }

  /// Whether the communicator's peers let a destroy or an abort return.
  bool may_end(const Communicator& comm) const {
    return !destroy_waits_for_peers_ ||
           static_cast<int>(comm.world->ended.size()) == comm.world->size;
  }

  void await_abort(Lock& lock, const Communicator& comm) {
    await(lock, "ncclCommAbort",
          [&] { return (!abort_synchronises_ || comm.running == 0) && may_end(comm); });
  }

  /// How far the last call on a non-blocking communicator is; enqueues what it waits for.
  Answer poll(Lock& lock, Communicator& comm) {
    if (comm.state != Answer::kInProgress) return comm.state;
    if (comm.stays || comm.polls_left-- > 0) return Answer::kInProgress;
    const World& world = *comm.world;
    if (static_cast<int>(world.joined.size()) < world.size) return Answer::kInProgress;
    if (comm.finalizing && comm.running > 0) return Answer::kInProgress;
    comm.state = Answer::kSuccess;
    comm.initialised = true;
    enqueue(lock, std::exchange(comm.pending, {}));
    return Answer::kSuccess;
  }

  Answer check_ready(const Communicator& comm, const char* function) {
    if (comm.failure != Answer::kSuccess) return comm.failure;
    if (comm.finalizing) {
      return misuse(Answer::kInvalidArgument, text("%s after ncclCommFinalize", function));
    }
    if (comm.state == Answer::kInProgress || (comm.blocking && !comm.initialised)) {
      return misuse(Answer::kInvalidArgument,
                    text("%s before the previous operation returned ncclSuccess", function));
    }
    return Answer::kSuccess;
  }

  Answer check_task(const Communicator& comm, const Task& task) {
    const bool right = type_bytes(task.type) != 0 && task.op >= Op::kSum && task.op <= Op::kMin &&
                       task.root >= 0 && task.root < comm.world->size;
    return right ? Answer::kSuccess : misuse(Answer::kInvalidArgument, shown(task));
  }

  /// The group's tasks become operations: one for each communicator and stream.
  Answer end_group(Lock& lock) {
    const Group group = std::exchange(t_group, Group());
    for (const CommunicatorPtr& comm : group.joining) await_join(lock, *comm);
    for (const CommunicatorPtr& comm : group.aborting) await_abort(lock, *comm);
    std::vector<Operation> operations;
    for (const auto& [comm, given] : group.tasks) {
      Task task = given;
      const bool collective = task.kind != Kind::kSend && task.kind != Kind::kRecv;
      if (collective) task.sequence = comm->next_sequence++;
      if (task.kind == Kind::kSend) task.taken = std::make_shared<bool>(eager_sends_);
      const auto fits = [&, owner = comm](const Operation& each) {
        return each.comm == owner && each.stream == task.stream;
      };
      auto found = std::find_if(operations.begin(), operations.end(), fits);
      if (found == operations.end()) {
        found = operations.insert(operations.end(), Operation{comm, task.stream, {}});
      }
      found->tasks.push_back(task);
    }
    std::vector<Operation> now;
    Answer answer = Answer::kSuccess;
    for (Operation& operation : operations) {
      Communicator& comm = *operation.comm;
      if (comm.blocking) {
        now.push_back(std::move(operation));
        continue;
      }
      start_progress(comm, comm.stays);
      comm.pending.push_back(std::move(operation));
      answer = Answer::kInProgress;
    }
    enqueue(lock, std::move(now));
    return answer;
  }

  void enqueue(Lock& lock, std::vector<Operation> operations) {
    for (const Operation& each : operations) ++each.comm->running;
    const Enqueue enqueue = enqueue_;
    lock.unlock();
    if (enqueue) {
      for (Operation& each : operations) {
        const auto operation = std::make_shared<Operation>(std::move(each));
        const bool runs = enqueue(operation->stream, [this, operation] {
          const std::vector<Operation*> one = {operation.get()};
          run(one);
        });
        if (runs) continue;
        lock.lock();
        --operation->comm->running;
        change_.notify_all();
        lock.unlock();
      }
    } else if (!operations.empty()) {
      std::vector<Operation*> all;
      for (Operation& each : operations) all.push_back(&each);
      run(all);
    }
    lock.lock();
  }

  // ---- an operation, on its stream ----

  void run(const std::vector<Operation*>& operations) {
    Lock lock(mutex_);
    for (Operation* each : operations) {
      for (Task& task : each->tasks) {
        if (!each->comm->aborted && !task.spin) each->comm->world->arrive(each->comm->rank, task);
      }
    }
    change_.notify_all();
    await(lock, operations.front()->tasks.front().function, [&] { return finish(operations); });
    for (Operation* each : operations) --each->comm->running;
    change_.notify_all();
  }

  /// Ends what can be ended; whether all is.
  bool finish(const std::vector<Operation*>& operations) {
    bool all = true;
    for (Operation* each : operations) {
      const Communicator& comm = *each->comm;
      for (Task& task : each->tasks) {
        if (!task.done) {
          task.done = comm.aborted || (!task.spin && comm.world->take(comm.rank, task));
          if (task.done) change_.notify_all();  // whose message was taken
        }
        all = all && task.done;
      }
    }
    return all;
  }

  std::mutex mutex_;
  std::condition_variable change_;
  Enqueue enqueue_;
  int version_ = kVersion;
  int polls_ = kPolls;
  bool peers_notice_abort_ = false;
  bool abort_synchronises_ = false;
  bool destroy_waits_for_peers_ = false;
  bool eager_sends_ = false;
  std::deque<Order> orders_;
  int releases_ = 0;
  int hung_ = 0;
  std::map<std::string, int64_t> calls_;
  int unique_ids_ = 0;
  uintptr_t handles_ = 0;
  std::map<std::string, std::shared_ptr<World>> worlds_;  // not yet complete, by id
  std::map<Comm, CommunicatorPtr> communicators_;
  int64_t threads_ = 0;
  std::vector<Seen> seen_;
  std::vector<std::string> misuses_;
};

/// Never destroyed: threads may still be in it when the program ends.
Library& library() {
  static Library* const only = new Library;
  return *only;
}

Task collective(const char* function, Kind kind, const void* send, void* recv, size_t count,
                Type type, cuda::Stream stream) {
  Task task;
  task.function = function;
  task.kind = kind;
  task.send = send;
  task.recv = recv;
  task.count = count;
  task.type = type;
  task.stream = stream;
  return task;
}

}  // namespace
}  // namespace dt::test

#define DT_EXPORT extern "C" __attribute__((visibility("default")))
using namespace dt::test;
using dt::cuda::Stream;

DT_EXPORT FakeNccl* fake_nccl_helm() { return &library(); }

DT_EXPORT Answer ncclGetVersion(int* version) { return library().get_version(version); }

DT_EXPORT const char* ncclGetErrorString(Answer answer) {
  static const char* const kTexts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  const auto index = static_cast<size_t>(answer);
  return index < 8 ? kTexts[index] : "unknown result code";
}

DT_EXPORT const char* ncclGetLastError(Comm) { return t_last_error.c_str(); }

DT_EXPORT Answer ncclGetUniqueId(UniqueId* id) { return library().get_unique_id(id); }

DT_EXPORT Answer ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank,
                                        Config* config) {
  return library().init(comm, size, id, rank, config);
}

DT_EXPORT Answer ncclCommGetAsyncError(Comm comm, Answer* answer) {
  return library().get_async_error(comm, answer);
}

DT_EXPORT Answer ncclCommFinalize(Comm comm) { return library().finalize(comm); }
DT_EXPORT Answer ncclCommDestroy(Comm comm) { return library().destroy(comm); }
DT_EXPORT Answer ncclGroupStart() { return library().group_start(); }
DT_EXPORT Answer ncclGroupEnd() { return library().group_end(); }

DT_EXPORT Answer ncclAllReduce(const void* send, void* recv, size_t count, Type type, Op op,
                               Comm comm, Stream stream) {
  Task task = collective("ncclAllReduce", Kind::kAllReduce, send, recv, count, type, stream);
  task.op = op;
  return library().submit(comm, task);
}

DT_EXPORT Answer ncclBroadcast(const void* send, void* recv, size_t count, Type type, int root,
                               Comm comm, Stream stream) {
  Task task = collective("ncclBroadcast", Kind::kBroadcast, send, recv, count, type, stream);
  task.root = root;
  return library().submit(comm, task);
}

DT_EXPORT Answer ncclReduce(const void* send, void* recv, size_t count, Type type, Op op, int root,
                            Comm comm, Stream stream) {
  Task task = collective("ncclReduce", Kind::kReduce, send, recv, count, type, stream);
  task.op = op;
  task.root = root;
  return library().submit(comm, task);
}

DT_EXPORT Answer ncclAllGather(const void* send, void* recv, size_t count, Type type, Comm comm,
                               Stream stream) {
  return library().submit(
      comm, collective("ncclAllGather", Kind::kAllGather, send, recv, count, type, stream));
}

DT_EXPORT Answer ncclSend(const void* buffer, size_t count, Type type, int peer, Comm comm,
                          Stream stream) {
  Task task = collective("ncclSend", Kind::kSend, buffer, nullptr, count, type, stream);
  task.root = peer;
  return library().submit(comm, task);
}

DT_EXPORT Answer ncclRecv(void* buffer, size_t count, Type type, int peer, Comm comm,
                          Stream stream) {
  Task task = collective("ncclRecv", Kind::kRecv, nullptr, buffer, count, type, stream);
  task.root = peer;
  return library().submit(comm, task);
}

#ifndef DT_FAKE_WITHOUT_ABORT
DT_EXPORT Answer ncclCommAbort(Comm comm) { return library().abort(comm); }

DT_EXPORT Answer ncclReduceScatter(const void* send, void* recv, size_t count, Type type, Op op,
                                   Comm comm, Stream stream) {
  Task task =
      collective("ncclReduceScatter", Kind::kReduceScatter, send, recv, count, type, stream);
  task.op = op;
  return library().submit(comm, task);
}
#endif

#ifndef DT_FAKE_WITHOUT_OPTIONAL
DT_EXPORT Answer ncclMemAlloc(void** pointer, size_t bytes) {
  const Answer answer = library().count_call("ncclMemAlloc");
  if (answer != Answer::kSuccess) return answer;
  *pointer = malloc(bytes);
  if (*pointer != nullptr) return answer;
  t_last_error = "Cuda failure 2 'out of memory'";
  return Answer::kUnhandledCudaError;
}

DT_EXPORT Answer ncclMemFree(void* pointer) {
  free(pointer);
  return library().count_call("ncclMemFree");
}

DT_EXPORT Answer ncclCommRegister(Comm, void* pointer, size_t, void** handle) {
  *handle = pointer;
  return library().count_call("ncclCommRegister");
}

DT_EXPORT Answer ncclCommDeregister(Comm, void*) {
  return library().count_call("ncclCommDeregister");
}
#endif
