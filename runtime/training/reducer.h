// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "training/bucket_plan.h"
#include "training/bucket_tuner.h"
#include "training/device_step.h"
#include "training/digester.h"
#include "training/equality.h"
#include "training/hook.h"
#include "training/power_sgd.h"
#include "training/quantized_parts.h"
#include "training/replicas.h"
#include "training/row_gradient.h"
#include "training/shard_plan.h"
#include "training/slabs.h"

namespace dt::training {

struct FileTable;

struct Param {
  int64_t count = 0;  ///< elements
  Dtype dtype = Dtype::kF32;
  std::string name;     ///< may be empty
  int32_t uses = 1;     ///< calls of ready() that complete it in a step, each with a part
  int64_t granule = 1;  ///< as in ShardParam, like the next one; of shards only
  int32_t unit = 0;
  /// > 0: the gradient comes as some rows of a matrix with so many columns; `count` is 0 then.
  int64_t row_elements = 0;
  int64_t rows = 0;                 ///< of that matrix
  std::vector<int64_t> shape = {};  ///< in files; empty: one dimension of `count`
};

/// Reduces gradients in buckets while the backward pass goes on.
///
/// A step: ready() for every parameter, in any order and from any thread, then finish(). While it
/// accumulates, ready() only adds to the parameter's place in its bucket. The last ready() of a
/// bucket makes it full; buckets are launched in plan order, so every rank issues the
/// same operations whatever its arrival order. A rank that lacks a gradient takes part in that
/// bucket's operation as one that withholds: the operation then fails everywhere with the names,
/// and since all ranks issued the same operations the communicator stays whole. With find_unused it
/// takes part with zeros instead, and finish() exchanges which parameters anybody had one for.
///
/// With static_graph step 1 is learnt from: ready() only adds and counts there, and finish()
/// launches all buckets and exchanges who used what. From then on a bucket is full once the
/// gradients that this rank has in each step are there; launch() fills in zeros for the others.
///
/// In 8 bits a bucket has two operations: each rank gets its part of it from all, sums that, and
/// gives the result to all. The second one is submitted where the first ends; on GPUs both are
/// submitted when the bucket is full, one behind the other on the communicator's stream.
///
/// On a communicator over GPUs nothing here waits for the GPU: ready() records where the caller's
/// stream stands, what belongs to a bucket's operation is enqueued with it (DeviceStep), and
/// finish() makes a stream wait. There a rank cannot withhold; one that lacks a gradient, or cannot
/// launch a bucket, breaks the communicator with the reason, which the control plane tells to all.
///
/// On a GPU a bucket of stages 2 and 3 gives its memory away while it is reduced, where two others
/// are, too: what the next one does there comes behind it on the communicator's stream. grad(), and
/// ready() where it writes into the bucket, make the caller's stream wait.
///
/// With several replicas of a shard a bucket is reduced within each, and each rank's part of it
/// then summed over the ranks that have the same part, as soon as it is there; on GPUs the sum is
/// enqueued behind the reduction, since there all ranks must have one order. A replica that fails
/// withholds in the sums of all its buckets, so that every rank hears of it.
///
/// Threads. ready() writes a parameter's slot in the bucket under the slot's mutex; the call that
/// completes it then takes one from the bucket's `pending`; whoever brings it to zero goes on to
/// launch(). launch() runs under `launching_`, and sees the slots because the decrements of
/// `pending` are acquire-release: each is ordered before the one that read zero, and the launcher
/// reads that zero. accumulate(), finish(), rebuild(), grad(), watch() and the statistics are
/// for one thread at a time, ordered by the caller after the ready() calls before it.
class Reducer {
 public:
  struct Options {
    bool sum = false;
    int64_t bucket_cap_bytes = 0;
    int64_t first_bucket_bytes = 0;
    bool rebuild = true;
    int32_t tune_steps = 0;        ///< with each of some bucket caps; 0: they are not tuned
    bool find_unused = false;      ///< a parameter may have no gradient in a step
    bool static_graph = false;     ///< each step has the gradients of step 1; not of shards
    bool divide_by_users = false;  ///< an average is over the ranks that had a gradient
    double predivide = 0;          ///< divides gradients before they are summed; 0: nothing does
    std::vector<int32_t> order;    ///< to plan by, and not to be rebuilt; empty: reverse
    std::optional<Dtype> wire;     ///< what gradients of f32 travel as
    /// By parameter: where the caller's gradients lie, in which they are reduced; the plan stays.
    /// Empty: gradients lie in dt's memory. Not of shards.
    std::vector<char*> places;
    bool wire_8bit = false;   ///< or in blocks of 8 bits, with error feedback; no shards
    int64_t check_steps = 0;  ///< how often what is watched is compared; 0: never
    int64_t log_steps = 0;    ///< how often rank 0 logs what a step took; 0: never
    LoggerPtr logger;         ///< for that
    int32_t stage = -1;       ///< of a shard; -1: there is none
    int32_t prefetch = 0;     ///< of a shard; only compared between ranks
    /// So many ranks, one after the other, have all pieces among them: a replica. A divisor of the
    /// communicator's size; 0: all ranks.
    int32_t shard_ranks = 0;

    /// Buckets are those of plan_shards(), and are not rebuilt.
    bool by_units() const { return stage >= 0; }
    /// This rank gets its part of each bucket only.
    bool scatter() const { return stage >= 1; }
    /// A bucket has memory in its part of a step only.
    bool pooled() const { return stage >= 2; }
  };

  /// On GPUs of the steps whose events were found passed, as in StepTimes.
  struct Statistics {
    int32_t bucket_count = 0;
    int64_t steps = 0;
    int64_t bytes = 0;             ///< last step
    int64_t communication_ns = 0;  ///< last step: at least one bucket under way
    int64_t exposed_ns = 0;        ///< last step: finish(), or on GPUs its stream, waited
    int64_t total_bytes = 0;
    int64_t total_communication_ns = 0;
    int64_t total_exposed_ns = 0;
    bool rebuilt = false;
    bool tuned = false;
    int64_t bucket_cap_bytes = 0;
    int64_t memory_bytes = 0;
    int64_t total_gather_ns = 0;
  };

  /// Collective: checks that the model and the options are the same on all ranks.
  static Result<std::unique_ptr<Reducer>> create(std::shared_ptr<comm::Communicator> comm,
                                                 std::vector<Param> params, const Options& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  int32_t param_count() const { return static_cast<int32_t>(params_.size()); }
  /// Where gradient `index` lies in its bucket, if pooled in this step. `stream` will write there.
  Result<void*> grad(int32_t index, cuda::Stream stream = nullptr);
  /// Between steps. Empty: none.
  Status set_hook(Hook hook);
  Status check_hookable(const char* call, bool has_hook) const;
  /// Likewise, by PowerSGD. `rows`: of each parameter as a matrix.
  Status compress(std::span<const int64_t> rows, const PowerSgd::Options& options);
  /// Between steps: writes what this rank needs to go on with the next step, by itself.
  Status save(const std::string& path);
  /// Collective: takes what this rank's save() wrote.
  Status load(const std::string& path);
  /// The streams: of a communicator over GPUs.
  Status ready(int32_t index, void* grad, cuda::Stream stream = nullptr);
  /// Adds rows to what the parameter has of this step; of one that comes as rows.
  Status ready_rows(int32_t index, std::span<const int64_t> rows, const void* values);
  /// The average: each row that any rank gave, in ascending order. Valid until the next finish().
  Result<RowGradient*> rows(int32_t index) const;
  /// On: until it is off again, ready() adds to what the parameter has and completes nothing.
  void accumulate(bool on) { accumulating_.store(on, std::memory_order_relaxed); }
  /// This rank has none in this step; with find_unused or static_graph, where only `grad` is new.
  /// The average goes there if another rank has one.
  Status unused(int32_t index, void* grad, cuda::Stream stream = nullptr);
  Status finish(cuda::Stream stream = nullptr);
  /// Whether any rank had a gradient for it in the last step.
  Result<bool> used(int32_t index) const;
  /// Whether ranks tell each other what they used.
  bool has_users() const { return options_.find_unused || options_.static_graph; }
  /// Between steps: scales the last step's results so that their norm over all parameters is at
  /// most `max_norm`, and writes the norm of before to `norm`, on GPUs one of the GPU; may be null.
  /// Not finite: nothing is scaled.
  Status clip_norm(double max_norm, double norm_type, cuda::Stream stream, float* norm);
  /// clip_norm() without clipping, where it was not called for these results.
  Status find_norm(cuda::Stream stream);
  /// What clip_norm() found: over host memory, and on the GPU.
  float norm() const { return norm_; }
  const float* norm_on_device() const { return device_->norm(); }
  /// Ranks that had a gradient at all in the last step; with find_unused.
  Result<int32_t> active() const;
  /// finish() compares these bytes between ranks every options.check_steps steps; null: no longer.
  void watch(int32_t index, const void* data, int64_t bytes);
  /// Collective. True: pointers of grad() changed.
  Result<bool> rebuild();
  /// Parameters in the order that the plan in use was made by.
  const std::vector<int32_t>& order() const { return order_; }
  /// Elements from the bucket's start.
  int64_t start_of(int32_t index) const { return slots_[static_cast<size_t>(index)].start; }
  int32_t bucket_of(int32_t index) const { return slots_[static_cast<size_t>(index)].bucket; }
  /// What this rank gets of a parameter's gradient: valid from finish() until the next step.
  struct Part {
    int64_t offset = 0;  ///< elements from the gradient's start
    int64_t count = 0;
    void* data = nullptr;
  };
  Part result(int32_t index) const;
  /// Elements in result(), which do not change in the reducer of a shard. Of any thread.
  int64_t count(int32_t index) const { return slots_[static_cast<size_t>(index)].count; }
  bool in_step() const { return begun_.load(std::memory_order_acquire); }
  bool has_results() const { return has_results_ && !begun_.load(std::memory_order_acquire); }
  const std::vector<Param>& params() const { return params_; }
  /// The ranks that have all pieces among them.
  const std::shared_ptr<comm::Communicator>& within() const { return within_; }
  /// Whether other replicas' ranks have the same pieces, and this is not the first replica.
  bool is_further_replica() const { return comm_->rank() >= within_->size(); }
  size_t bucket_count() const { return buckets_.size(); }
  /// Where the plan in use puts parameters.
  const ShardBucket& layout(size_t bucket) const { return *buckets_[bucket]; }
  /// Collective: all ranks go on, or none does. OUT_OF_MEMORY comes on all of them or on none.
  Status agree_on_memory(const Status& mine);
  Statistics statistics();
  /// The shard counts what it allocates here as well.
  void count_memory(int64_t more_bytes) {
    statistics_.with([&](Statistics& s) { s.memory_bytes += more_bytes; });
  }
  void count_gather(int64_t waited_ns) {
    statistics_.with([&](Statistics& s) { s.total_gather_ns += waited_ns; });
  }

 private:
  /// Where a parameter lies, and its part in the current step.
  struct Slot {
    int32_t bucket = 0;
    int64_t start = 0;            // elements from the bucket's
    char* data = nullptr;         // in the bucket
    char* wire = nullptr;         // its place in what travels; null: `data` does
    char* received = nullptr;     // in 8 bits: its place in what all ranks get
    int64_t offset = 0;           // of what this rank gets the result of, in elements
    int64_t count = 0;            // of that
    char* own = nullptr;          // by_units: where that is
    void* copied_from = nullptr;  // result goes back there at the end of the step
    void* result = nullptr;       // of the last step; null: none, or it has moved
    bool unused = false;          // it arrived as zeros
    std::mutex mutex;             // of this slot's ready() calls
    bool begun = false;           // `data` holds a part of this step's gradient
    bool given = false;           // pooled: grad() gave `data` in this step
    int32_t times_ready = 0;      // in this step, while not accumulating
    // Of that, what completes it. 0: static_graph and never used, or it comes as rows.
    int32_t uses = 1;
    std::unique_ptr<RowGradient> rows;  // null: it is dense
    int64_t last_ready = -1;            // while learning: when, among all calls
    std::atomic<bool> arrived{false};
  };
  struct Bucket : ShardBucket {
    char* data = nullptr;
    char* wire = nullptr;      // null: `data` travels itself
    char* received = nullptr;  // in 8 bits: as much again as `wire`
    int64_t bytes = 0;         // of all three
    char* own = nullptr;       // by_units: what this rank gets of it; pooled apart from `data`
    std::atomic<bool> lent{};  // pooled: it has memory; set with the two above under lending_
    std::shared_ptr<backend::Work> before;  // likewise: what used that memory; null: nothing
    std::atomic<int32_t> pending{0};
    // The current step's operation; written under launching_, read by finish() after it.
    std::shared_ptr<backend::Work> work;
    std::shared_ptr<backend::Work> summed;  // what follows it, see `replicas_`; null: nothing
    int64_t launched_ns = 0;

    const std::shared_ptr<backend::Work>& last_work() const {
      return summed != nullptr ? summed : work;
    }
    HookWork hooked;  // of the last call of the hook
  };

  Reducer(std::shared_ptr<comm::Communicator> comm, std::vector<Param> params,
          const Options& options);

  Status check_model();
  /// Collective.
  Status make_replicas();
  Status make_errors();
  std::vector<ShardBucket> plan(const std::vector<int32_t>& order, int64_t cap_bytes) const;
  /// Collective.
  Status lay_out(const std::vector<int32_t>& order);
  void lay_out(int32_t bucket, char* memory);
  /// Collective: which gradients in the caller's memory are adjacent on all ranks.
  Status find_neighbours();
  std::vector<ShardBucket> plan_in_place(std::span<const PlanParam> params,
                                         std::span<const int64_t> caps,
                                         const std::vector<int32_t>& order) const;
  /// Of dt's memory for a bucket's gradients.
  int64_t data_bytes(const ShardBucket& bucket) const;
  int64_t own_bytes(const ShardBucket& bucket) const;
  /// Collective: the least or largest of the ranks' numbers.
  Result<int64_t> agree(int64_t mine, ReduceOp op, const char* name);
  /// Collective: whether the answer of every rank is yes.
  Result<bool> all_say(bool mine, const char* question);
  bool has_wire(const ShardBucket& bucket) const {
    return options_.wire.has_value() && bucket.dtype == Dtype::kF32;
  }
  bool is_quantized(Dtype dtype) const { return options_.wire_8bit && dtype == Dtype::kF32; }
  /// Whether it is sent from a buffer of dt's, as another dtype.
  bool travels_apart(Dtype dtype) const {
    return dtype == Dtype::kF32 && (options_.wire.has_value() || options_.wire_8bit);
  }
  bool travels_apart(const ShardBucket& bucket) const { return travels_apart(bucket.dtype); }
  QuantizedParts parts_of(const ShardBucket& bucket) const {
    return {8, comm_->size(), bucket.count};
  }
  /// What a step leaves for the next one.
  struct State {
    std::vector<std::vector<float>> errors;  // as `errors_`
    PowerSgd::Kept power_sgd;
  };
  struct StateTensor {
    std::string name;
    int32_t param = 0;
    float* values = nullptr;
    int64_t count = 0;
    uint8_t* is_there = nullptr;  // 0: not before the first step; null: always
    int64_t saved() const { return is_there == nullptr || *is_there != 0 ? count : 0; }
  };
  const char* kind_of_state() const;
  /// Of these two, which have room for all parameters.
  std::vector<StateTensor> list_state(std::vector<std::vector<float>>* errors,
                                      PowerSgd::Kept* kept) const;
  Status check_state(const FileTable& table) const;
  Status read_state(const std::string& path, State* state, int64_t* steps) const;
  void quantize(const Slot& slot, size_t index, const void* from, double factor);
  void sum_part(const Bucket& bucket);
  /// What all ranks have sent is multiplied by it while it is summed.
  float share_of_part() const;
  backend::Collective collective_of_sums(const Bucket& bucket) const;
  std::function<void(const Status&)> gather_parts(Bucket* bucket);
  QuantizedSteps quantized_steps(const Bucket& bucket) const;
  Status reduce_quantized(Bucket* bucket, backend::Collective parts);
  Status allocate_errors();
  /// On GPUs, between the errors there and a copy on the host. Waits for the GPU.
  Status copy_errors(std::vector<std::vector<float>>* on_host, bool up);
  /// Lays the bucket, and the slots of its parameters, into memory.
  void place(Bucket& bucket, char* memory);
  /// Pooled: gives the bucket memory for this step.
  Status lend(Bucket& bucket);
  void take_back(Bucket& bucket);
  void keep_own(const Bucket& bucket);
  Status check_lent(const Slot& slot, int32_t index, const void* grad, const char* call);
  /// Collective.
  Status reduce_rows();
  /// Likewise. `counts`: the rows of each rank.
  Status reduce_rows(size_t index, std::span<const int64_t> counts);
  Status no_memory_for_rows(size_t index) const;
  Status not_dense(int32_t index, const char* call) const;
  Status too_often(int32_t index, const char* call) const;
  Status check_on_device(const Param& param, int32_t index, const void* grad,
                         cuda::Stream stream) const;
  Status check_not_capturing(const char* call, int32_t index, cuda::Stream stream) const;
  Status arrive(int32_t index, void* grad, cuda::Stream stream, bool unused, const char* call);
  /// Null: the gradient lies in its bucket.
  static void* outside(const Slot& slot, void* grad) { return grad == slot.data ? nullptr : grad; }
  Status add_part(const Slot& slot, const Param& param, const void* part, cuda::Stream stream);
  Status add_part_on_device(const Slot& slot, const Param& param, const void* part,
                            cuda::Stream stream);
  Status deliver(Slot& slot, const Param& param, void* grad, bool unused);
  Status deliver_on_device(Slot& slot, const Param& param, void* grad, cuda::Stream stream,
                           bool unused);
  /// What has not arrived is unused, or while learning complete.
  Status take_rest_as_unused(cuda::Stream stream);
  /// In step 1 of a static graph.
  bool learning() const { return options_.static_graph && !learnt_; }
  /// Collective, at the end of that step.
  Status learn();
  /// unused() of a static graph: only where the average goes.
  Status place_unused(int32_t index, void* grad, cuda::Stream stream);
  /// Static graph: zeros for the gradients that this rank never has.
  Status bring_zeros(const Bucket& bucket, cuda::Stream stream);
  int32_t expected_in(const Bucket& bucket) const;
  /// Collective.
  Status agree_on_used();
  Status bring_unused(cuda::Stream stream);
  /// Launches full buckets in order; with `all`, also the rest, withholding those that lack
  /// gradients. `stream`: of the ready() or finish() that does so.
  Status launch(bool all, cuda::Stream stream);
  Status launch_in_order(bool all, cuda::Stream stream);
  Status launch_bucket(Bucket& bucket, bool full, cuda::Stream stream);
  void scatter(const Bucket& bucket, backend::Collective* collective) const;
  bool averages(Dtype dtype) const;
  Status reduce(Bucket* bucket, backend::Collective collective);
  /// Prepares the sum over replicas of the bucket that is being launched. The caller calls the
  /// returned function when the bucket's reduction into `reduced` has ended, or on a GPU is
  /// enqueued.
  std::function<void(const Status&)> sum_replicas(
      Bucket* bucket, void* reduced, std::shared_ptr<const collective::StreamSteps> steps);
  /// Of last_work_.
  backend::Backend& last_backend() const {
    return replicas_ != nullptr ? replicas_->comm().backend() : within_->backend();
  }
  /// Until the bucket's memory is in use no longer.
  void await(const Bucket& bucket) const;
  /// Elements of the bucket that this rank gets the result of: from, to.
  std::pair<int64_t, int64_t> result_of(const ShardBucket& bucket) const {
    if (!options_.scatter()) return {0, bucket.count};
    const auto rank = static_cast<size_t>(within_->rank());
    return {bucket.cuts[rank], bucket.cuts[rank + 1]};
  }
  /// Where the result of what has arrived in the slot belongs.
  void* result_place(const Slot& slot) const {
    if (options_.by_units()) return slot.own;
    return slot.copied_from != nullptr ? slot.copied_from : slot.data;
  }
  /// What a gradient is multiplied with before the sum, and its result after that.
  double factor_before(Dtype dtype) const;
  double factor_behind(size_t index) const;
  BucketSteps steps_around(const Bucket& bucket, bool avg) const;
  KeptResult kept_of(const Bucket& bucket) const;
  Status fail_everywhere(const Status& status);
  Status refuse_step(const Status& status);
  Status launch_hook(Bucket& bucket);
  Status start_hook(Bucket& bucket);
  Status call_hook(Bucket& bucket, int32_t stage);
  Status end_hooks(cuda::Stream stream);
  void await_hook(const HookWork& started) const;
  std::string missing_in(const Bucket& bucket) const;
  Status missing_and_broken() const;
  const char* each_step_needs() const;
  Status wait_buckets();
  Status order_buckets(cuda::Stream stream);
  void give_results();
  Status share_by_users(cuda::Stream stream);
  /// The last step has given this rank elements of it.
  bool counts_as_result(size_t index) const;
  bool counts_in_norm(size_t index) const;
  double norm_of_results(double norm_type) const;
  Result<double> norm_of_parts(double max_norm, double norm_type);
  std::vector<DeviceStep::Results> results_on_device() const;
  Status clip_on_device(double max_norm, cuda::Stream stream, float* norm);
  Status clip_parts_on_device(double max_norm, double norm_type, cuda::Stream stream, float* norm);
  /// Rows are exchanged from the one time to the other.
  void count_step(int64_t began_waiting_ns, int64_t rows_done_ns);
  int64_t take_step_bytes();
  void count_step_on_device();
  void take_times();
  void log_steps();
  void end_step();
  bool idle();
  /// Not idle, on host memory: until nothing uses the caller's gradients any more.
  void leave_places();
  /// Whether all ranks go on with the old plan, because a rank has no memory for the new one. That
  /// rank logs it, once.
  bool keeps_plan(const Status& refused);
  Status rebuild_after_first_step();
  void make_tuner();
  /// At the end of a step. Collective, where the steps with a cap have ended.
  Status tune();
  /// Until the GPU has passed what the last step enqueued.
  Status await_last_step() const;
  /// Collective: the plan by that order, and where a cap has its result by the next one. After an
  /// error the plan in use is the old one.
  Result<bool> plan_anew(const std::vector<int32_t>& order);
  Result<bool> plan_with_cap(const std::vector<int32_t>& order);
  bool can_move() const {
    return !options_.places.empty() || !memory_stays_.load(std::memory_order_relaxed);
  }
  /// Collective, where a check is due.
  Status check_watched(cuda::Stream stream);
  Status first_difference(const std::vector<char>& tables, size_t length,
                          std::vector<Exhibit>* all) const;
  Result<std::vector<int32_t>> agree_on_order();

  const std::shared_ptr<comm::Communicator> comm_;
  const std::vector<Param> params_;
  const Options options_;
  std::shared_ptr<comm::Communicator> within_;  // `comm_`, or of a replica
  // For the second operation of a bucket: over the replicas of a shard, or in 8 bits over host
  // memory over all ranks.
  std::unique_ptr<Replicas> replicas_;  // null: there is none
  // In 8 bits, by parameter: what this rank's rounding has left out, and adds to its next gradient.
  std::vector<std::vector<float>> errors_;  // over host memory
  std::vector<float*> device_errors_;       // on GPUs, in the next one; null: another dtype
  void* errors_memory_ = nullptr;           // from the communicator

  // Of all buckets, or pooled of what is kept of them; from the communicator.
  void* memory_ = nullptr;
  int64_t memory_bytes_ = 0;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<Slot> slots_;
  std::vector<int32_t> order_;          // that lay_out() was given
  std::vector<Neighbour> neighbours_;   // with options_.places: by position in `order_`
  std::vector<int32_t> arrivals_;       // parameters as they became ready in this step
  std::vector<int32_t> last_arrivals_;  // of the last complete step
  std::atomic<int32_t> arrived_{0};     // used of arrivals_
  int32_t dense_ = 0;                   // parameters that do not come as rows
  int64_t row_bytes_ = 0;               // of the last step's rows
  int64_t uncounted_row_bytes_ = 0;     // on GPUs, of steps to be counted; under statistics_
  std::atomic<bool> accumulating_{false};
  bool learnt_ = false;             // static_graph: what step 1 had; between steps
  std::atomic<int64_t> calls_{0};   // of ready() while learning
  std::atomic<bool> begun_{false};  // some slot has a part of this step
  // grad() was called, or only a bucket has an average: only rebuild() moves memory.
  std::atomic<bool> memory_stays_{false};

  // Held while a hook runs, too: one call at a time, in launch order. A hook that comes back to
  // this reducer is refused before it would take it.
  std::mutex launching_;
  std::mutex lending_;             // taken after launching_ and a slot's mutex
  Slabs slabs_;                    // under lending_
  std::deque<Bucket*> under_way_;  // under lending_: launched with memory that is lent, in order
  // Under lending_, on GPUs: what used memory last in this step.
  std::map<const char*, std::shared_ptr<backend::Work>> last_users_;
  size_t next_bucket_ = 0;  // under launching_
  Status broken_;           // under launching_: the first failed submission of this step
  std::shared_ptr<backend::Work> last_work_;  // under launching_: of this step or earlier

  Hook hook_;
  std::shared_ptr<PowerSgd> power_sgd_;  // that is the hook; null: it is not
  cuda::Stream hook_stream_ = nullptr;   // of this step
  bool hooks_lost_ = false;              // a hook on a GPU failed, which may still use the buckets
  std::shared_ptr<backend::Work> refusal_;  // under launching_: of refuse_step(); null: none yet
  std::atomic<std::thread::id> inside_hook_{};  // the thread that is in it

  std::shared_ptr<DeviceStep> device_;  // null: host memory
  int64_t step_bytes_ = 0;              // of all gradients
  // Ranks that had a gradient in the last step, by parameter, then of any parameter.
  std::vector<int32_t> users_;

  bool asked_to_rebuild_ = false;  // the one automatic rebuild was decided
  int64_t cap_bytes_ = 0;          // of the plan in use
  std::optional<BucketTuner> tuner_;
  bool lacks_memory_ = false;      // this rank, for the last plan that it was to take
  bool warned_of_memory_ = false;  // the log says so

  struct Watched {
    const void* data = nullptr;  // the caller's; null: not watched
    int64_t bytes = 0;
  };
  std::vector<Watched> watched_;  // by parameter
  bool has_results_ = false;      // the last step's, where the slots say
  bool lost_results_ = false;     // some of these, with the memory of an earlier plan
  bool has_norm_ = false;         // of the results
  float norm_ = 0;                // that norm, over host memory
  int64_t finished_steps_ = 0;
  int64_t state_steps_ = 0;  // that `errors_` and `power_sgd_` have seen, also before load()
  Digester digester_;
  mutable Guarded<Statistics> statistics_;
  Statistics logged_;  // what log_steps() has told, and when
  int64_t logged_ns_ = 0;
};

}  // namespace dt::training
