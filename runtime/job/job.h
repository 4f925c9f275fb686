// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/host/host.h"
#include "base/log.h"
#include "base/numa.h"
#include "base/status.h"
#include "base/wait.h"
#include "comm/communicator.h"
#include "comm/failure_board.h"
#include "comm/observer.h"
#include "config/config.h"
#include "job/background_threads.h"
#include "job/device_watch.h"
#include "job/device_world.h"
#include "job/host_links.h"
#include "job/local_store.h"
#include "job/peer_watch.h"
#include "job/routed_store.h"
#include "job/torch_meeting.h"
#include "job/tracer.h"
#include "launch/credentials.h"
#include "launch/discover.h"
#include "metrics/file_writer.h"
#include "metrics/port.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/server.h"

namespace dt::job {

/// The level that log.level names.
LogLevel log_level(const Config& config);
/// A logger of that level, which has the warnings of `config` already: they may explain an error
/// that comes next.
LoggerPtr make_logger(const Config& config, Logger::Sink sink);

/// One process's (or thread's) membership in a distributed run.
///
/// Life: discover the place, serve the store if this is its rank, connect, join (one round trip),
/// share memory with the local ranks, watch over peers; at the end a two-phase goodbye.
///
/// Threads. The I/O thread (loop_) runs the store, hears of failures and tells the board, which
/// breaks the communicators. Everything else runs on callers' threads. After start() members are
/// changed by finalize(), which takes ending_, and those in a Guarded by shrink(), too.
class Job {
 public:
  static Result<std::shared_ptr<Job>> start(const Config& config, Logger::Sink sink,
                                            Devices devices = {});
  /// Without finalize() the peers hear of a death.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const launch::Place& place() const { return place_; }
  const std::string& host_name() const { return host_name_; }
  /// All ranks, or those that are left of them once it was shrunk.
  Result<std::shared_ptr<comm::Communicator>> world() const;
  /// A communicator of those ranks of `comm` that are left. Collective over those; see shrink.cc.
  Result<std::shared_ptr<comm::Communicator>> shrink(
      const std::shared_ptr<comm::Communicator>& comm);
  /// A communicator of these world ranks, which they alone make; this rank is among them.
  /// Collective over those; see create.cc.
  Result<std::shared_ptr<comm::Communicator>> create(const std::vector<int32_t>& ranks,
                                                     const std::string& name);
  /// What this rank did so far, also of a job that failed or has ended.
  const std::shared_ptr<record::Meter>& meter() const { return tracer_->meter(); }
  const std::shared_ptr<record::Recorder>& recorder() const { return tracer_->recorder(); }
  /// The settings it was started with.
  const Config& config() const { return config_; }

  /// Calls `function` with the store of this job: a store::Client or a LocalStore, or one of them
  /// beside a store of PyTorch.
  template <class F>
  auto with_store(F&& function) -> decltype(function(std::declval<LocalStore&>())) {
    const std::shared_ptr<store::TorchClient>& torch = torch_.client();
    const std::shared_ptr<store::Client> client = control_->client();
    if (local_store_ == nullptr && client == nullptr) return ended();
    if (torch == nullptr) return client != nullptr ? function(*client) : function(*local_store_);
    if (client != nullptr) {
      RoutedStore<store::Client> routed(client.get(), torch.get(), failed());
      return function(routed);
    }
    RoutedStore<LocalStore> routed(local_store_.get(), torch.get(), failed());
    return function(routed);
  }
  /// < 0: the configured rendezvous time-out.
  Wait store_wait(int64_t timeout_ms) const;

  Status abort(const std::string& message);
  /// This rank is away on purpose for at most `max_ms`, or with 0 back: the others wait.
  Status busy(const std::string& what, int64_t max_ms);
  /// What all ranks say, reduced. Collective over host memory.
  Result<int32_t> vote(int32_t mine, ReduceOp op, const char* name);
  /// Whoever started the ranks wants them to stop. The first call says that this program will.
  bool told_to_stop();
  /// Writes this rank's trace; empty: into trace.dir.
  Result<std::string> dump_trace(const std::string& directory) {
    return tracer_->dump(directory, record::Reason::kCalled);
  }
  /// For a failure that a caller is about to hear of, who may end the process then: what others are
  /// told of it arrives first, else they would take that end for the cause; and what is being
  /// written of it is written. Waits for seconds at most. Not on the I/O thread.
  Status seen(Status status) const {
    if (status.ok()) return status;
    control_->settle();
    tracer_->settle(Tracer::kSettleMs);
    return status;
  }
  /// A call of this rank was refused. The stall reports of other ranks show the reason.
  void refused(const std::string& why) {
    refused_.with([&](Refusal& refusal) { refusal = {why, true, 0}; });
  }
  /// Their ends are called once this rank ends the job, before that waits for its operations.
  BackgroundThreads& threads() { return threads_; }
  const LoggerPtr& logger() const { return logger_; }
  /// < 0: the configured time-out. Idempotent.
  Status finalize(int64_t timeout_ms);

 private:
  Job(const Config& config, Logger::Sink sink, Devices devices);

  Status begin(const Config& config);
  Status start_alone(const Config& config);
  void heed_stop();
  Result<std::shared_ptr<store::Client>> connect_to_launcher(const Wait& wait);
  void warn_of_sudden_stop(const Status& why) const;
  /// Over the GPUs of the ranks of `on_host`, where the config asks for that.
  Result<std::shared_ptr<backend::Backend>> on_devices(const Config& config,
                                                       std::shared_ptr<backend::Backend> on_host,
                                                       const Wait& wait);
  Status start_together(const Config& config);
  Status settle_store(const Config& config, const Wait& wait);
  Status serve_store(const Config& config, const std::string& bind_address);
  bool may_meet_torch() const;
  Status serve_store_for_all(const Config& config);
  Result<std::shared_ptr<store::Client>> connect_or_meet(store::ClientOptions options,
                                                         const Wait& wait);
  void warn_of_dialect(const std::string& bind_address) const;
  Status cannot_serve(const Config& config, const Status& why) const;
  Status exchange_address(const Config& config, const Wait& wait);
  Status exchange_token(const Wait& wait);
  /// Sets the rank of a process whose launcher names only its node and its place there.
  Status settle_rank(const Wait& wait);
  store::ClientOptions client_options() const;
  Status connect(const Config& config, const Wait& wait);
  Result<store::Verdict> join(const Config& config, const shm::ArenaListener& listener,
                              const store::Reach& reach, const Wait& wait);
  /// host.progress and host.progress_cpus, before anybody else is told of this rank.
  Status settle_progress(const Config& config);
  Status settle_numa(const Config& config);
  Result<NumaHome> find_home(const store::Verdict& verdict) const;
  Status share_memory(const Config& config, const store::Verdict& verdict,
                      shm::ArenaListener listener, const Wait& wait);
  Status connect_hosts(const store::Verdict& verdict, const Wait& wait);
  /// The control plane hears of the failures of a communicator of this host.
  void tell_failures(backend::HostWorldOptions* options) const;
  backend::MultihostOptions multihost_options(const std::shared_ptr<backend::HostEngine>& engine);
  void watch_peers(const store::Verdict& verdict);
  void observe_store();
  /// As metrics.file and metrics.port say. What does not work is told, and the job goes on.
  void publish_metrics();
  void end_metrics();
  int64_t first_timeout_ms() const;

  /// What shrink() makes.
  struct Smaller {
    std::string name;
    std::vector<int32_t> ranks;  ///< world ranks
    std::shared_ptr<backend::HostEngine> engine;
    std::shared_ptr<backend::Backend> backend;
  };
  Result<bool> shrink_once(store::Client& client, comm::Communicator& comm, const std::string& what,
                           Deadline deadline, Smaller* out);
  Status withdraw_from(const std::vector<int32_t>& gone);
  Status build(comm::Communicator& comm, const store::GatherVerdict& met,
               shm::ArenaListener listener, const Wait& wait, Smaller* out);
  Result<std::shared_ptr<comm::Communicator>> create_among(store::Client& client,
                                                           const std::vector<int32_t>& ranks,
                                                           const std::string& name,
                                                           const std::string& what,
                                                           const Wait& wait);
  Result<std::shared_ptr<backend::Backend>> open_part(
      const std::shared_ptr<backend::HostEngine>& engine, backend::HostBlock block,
      const store::GatherVerdict& met, const std::string& name, const Wait& wait);
  std::shared_ptr<backend::HostEngine> engine_of(const std::vector<int32_t>& ranks);
  comm::Communicator::Options options_of(const std::string& name, const std::vector<int32_t>& ranks,
                                         std::shared_ptr<backend::Backend> backend) const;
  void forgive(store::Client& client, const std::vector<int32_t>& members,
               const std::vector<int32_t>& left);
  std::shared_ptr<comm::Communicator> present_world() const;
  /// Fired by the first failure that is not forgiven: ends waits. Lives as long as the job.
  Interrupt* failed();

  // On the I/O thread.
  store::Activity activity();
  void hear_of(const store::Failure& failure);
  void hear_of_leavers(const std::vector<int32_t>& ranks);
  void peer_ended(int32_t local_rank);
  /// `silent`: the rank is lost, and its process may still be there.
  void fail(const Status& status, bool silent = false, bool store_gone = false);
  Status lost(const store::LocalRecord& record) const;
  /// Logs version, place, backend and store at level debug.
  void tell_start() const;
  /// Adds to `info` which operation a local rank entered last.
  void add_last_operation(int32_t world_rank, ErrorInfo* info) const;

  /// Why operations on the device did not end in time.
  Status undrained() const;
  Status finish_operations(const std::vector<std::shared_ptr<comm::Communicator>>& communicators,
                           const Wait& wait);
  void join_threads(Deadline deadline);
  static Status ended();

  const Config config_;
  const LoggerPtr logger_;
  const Devices devices_;
  launch::Place place_;
  launch::Credentials credentials_;  ///< of a job with more than one rank, or of one under dt run
  std::string host_name_;
  std::string host_id_;
  int64_t rendezvous_timeout_ms_ = 0;
  int64_t finalize_timeout_ms_ = 0;
  int64_t collective_timeout_ms_ = 0;
  int64_t stall_warn_ms_ = 0;

  const std::shared_ptr<comm::FailureBoard> board_ = std::make_shared<comm::FailureBoard>();
  comm::Observer observer_{board_.get()};           // the I/O thread's
  std::pair<std::string, uint64_t> counted_stall_;  // likewise: communicator and stamp
  const std::shared_ptr<backend::OrderBook> order_book_ = std::make_shared<backend::OrderBook>();
  std::atomic<bool> stop_{false};  // set by the I/O thread
  std::atomic<bool> heeds_stop_{false};
  std::atomic<bool> aborted_{false};  // by this rank
  // A job of one rank has ended. Written by finalize(), read by abort(), which may run at the same
  // time: then either order is right.
  std::atomic<bool> over_alone_{false};
  std::shared_ptr<Tracer> tracer_;
  Guarded<std::deque<Interrupt>> failed_{std::deque<Interrupt>(1)};  // the last one counts

  /// The connection to the store, also for threads of the backend that may outlive the Job.
  class Control {
   public:
    /// Before anything can fail: hears of all that is reported.
    void trace(std::shared_ptr<Tracer> tracer) { tracer_ = std::move(tracer); }
    void connect(std::shared_ptr<store::Client> client) {
      client_.with([&](auto& mine) { mine = std::move(client); });
    }
    std::shared_ptr<store::Client> client() const {
      return client_.with([](const auto& mine) { return mine; });
    }
    /// Tells the other ranks that a communicator failed here.
    void report(const std::string& communicator, const Status& status);
    /// The same without waiting, for threads that must not. Before anybody hears of it here.
    /// `handed_over`: as for Client::report_failure_soon().
    void report_soon(const std::string& communicator, const Status& status,
                     std::function<void()> handed_over);
    /// Returns, soon in any case, when all of that has arrived. Not on the I/O thread.
    void settle();
    /// No call of these is inside afterwards, and none goes out any more.
    void disconnect();

   private:
    std::mutex reporting_;  // held during report() and settle(): bounded by their time-out
    std::mutex telling_;    // held during report_soon()
    std::atomic<uint64_t> reported_{0};  // calls of report_soon()
    std::atomic<uint64_t> arrived_{0};   // those of them that have arrived, or will not
    Guarded<std::shared_ptr<store::Client>> client_;
    std::shared_ptr<Tracer> tracer_;
  };
  /// What the I/O thread needs to name a peer's last operation.
  struct LocalPeers {
    std::shared_ptr<backend::HostEngine> engine;
    std::vector<store::LocalRecord> records;
    /// Of smaller communicators, by age. Memory that callers allocate there goes with the job.
    std::vector<std::shared_ptr<backend::HostEngine>> newer;
  };
  /// Ranks that make a communicator at this moment, and what ends that.
  struct Meeting {
    Interrupt* interrupt = nullptr;
    std::vector<int32_t> ranks;
  };

  /// Where a job of one rank hears that dt run wants it to stop.
  struct StopNews {
    std::unique_ptr<net::Loop> loop;
    std::shared_ptr<store::Client> client;
  };

  /// A call that was refused, until the rank begins or ends another operation.
  struct Refusal {
    std::string why;     ///< empty: none
    bool fresh = false;  ///< the I/O thread has not seen it yet
    uint64_t stamp = 0;  ///< of the pulse then
  };

  const std::shared_ptr<Control> control_ = std::make_shared<Control>();
  std::unique_ptr<LocalStore> local_store_;  // world size 1
  std::unique_ptr<net::Loop> loop_;          // else, like the rest; or beside a store of PyTorch
  TorchMeeting torch_;
  std::optional<store::ClientOptions> launcher_store_;  // of a job of one rank under dt run
  Guarded<StopNews> stop_news_;  // of that, once it has asked whether to stop
  std::unique_ptr<store::Server> server_;
  Guarded<LocalPeers> local_;
  bool by_caller_ = false;  ///< host.progress = caller
  std::vector<int32_t> progress_processors_;
  NumaWish numa_;                     ///< host.numa
  std::unique_ptr<HostLinks> links_;  // null on one host, once that is known
  store::Verdict verdict_;            ///< of the join; of a job with more than one rank
  std::shared_ptr<comm::Communicator> world_;
  std::mutex making_;  ///< held during shrink() and create()
  Guarded<Meeting> meeting_;
  BackgroundThreads threads_;
  Guarded<Refusal> refused_;
  Guarded<std::shared_ptr<comm::Communicator>> smaller_world_;  ///< null: it was not shrunk
  std::unique_ptr<PeerWatch> peer_watch_;
  std::unique_ptr<DeviceWatch> device_watch_;          // null without a device
  std::unique_ptr<metrics::FileWriter> metrics_file_;  // null unless asked for, like the next
  std::unique_ptr<metrics::Port> metrics_port_;

  std::mutex ending_;
  bool finalized_ = false;  // under ending_
  Status final_status_;     // under ending_
};

}  // namespace dt::job
