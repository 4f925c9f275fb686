// SPDX-License-Identifier: Apache-2.0
#include "trainer.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <utility>

#include "data.h"

namespace gpt {
namespace {

// Several buckets even for a small network, so that the first travel while the backward pass runs.
constexpr int64_t kBuckets = 6;
constexpr int64_t kLeastBucketBytes = 64 << 10;
constexpr int64_t kMostBucketBytes = 25 << 20;  // as dt's default

dt_wire wire_of(const std::string& name) {
  if (name == "f16") return DT_WIRE_F16;
  if (name == "8bit") return DT_WIRE_8BIT;
  return name == "bf16" ? DT_WIRE_BF16 : DT_WIRE_SAME;
}

/// Of this process, pages of several processes divided among them: shards lie in shared memory.
/// Without files, those of programs among them, whose pages any other process may share or leave.
int64_t memory_bytes(bool with_files) {
  std::ifstream file("/proc/self/smaps_rollup");
  std::map<std::string, int64_t> kib;
  for (std::string word; file >> word;) {
    if (word.rfind("Pss", 0) == 0) file >> kib[word];
  }
  if (kib.count("Pss_Anon:") == 0) {
    throw std::runtime_error("--memory needs /proc/self/smaps_rollup of Linux 5.4 or newer");
  }
  return (with_files ? kib["Pss:"] : kib["Pss_Anon:"] + kib["Pss_Shmem:"]) * 1024;
}

const char* name_of(Precision precision) { return precision == Precision::kBf16 ? "bf16" : "f32"; }

}  // namespace

Trainer::Trainer(const Options& options, dt::Job* job, std::unique_ptr<Device> device,
                 std::string text)
    : options_(options),
      job_(job),
      place_(job->place()),
      text_(std::move(text)),
      part_batch_(options.batch / place_.world_size / options.accumulate),
      device_(std::move(device)),
      comm_(job->world()) {
  std::string error = check_exchange(options_, device_->precision());
  if (error.empty()) error = check_outer(options_, device_->is_gpu(), place_.world_size);
  if (!error.empty()) throw std::runtime_error(error);
  compare_settings();
  if (options_.memory) {
    // Ranks of one GPU, or of one memory, see what all of them have: none may have a network yet.
    dt::Comm host = comm_.host();
    host.barrier();
    first_memory_ = taken_bytes();
    host.barrier();
  }
  network_ = std::make_unique<Network>(device_.get(), options_.shape, part_batch_);
  norm_ = static_cast<float*>(device_->allocate(sizeof(float)));
  make_parameters();
}

void Trainer::make_parameters() {
  dt::ReducerOptions reducer_options;
  const int64_t gradient_bytes = network_->parameter_count() * device_->element_bytes();
  reducer_options.bucket_cap_bytes =
      options_.bucket_bytes > 0
          ? options_.bucket_bytes
          : std::clamp(gradient_bytes / kBuckets, kLeastBucketBytes, kMostBucketBytes);
  reducer_options.first_bucket_bytes = reducer_options.bucket_cap_bytes;
  const dt_wire wire = wire_of(options_.wire);
  if (options_.power_sgd == 0) reducer_options.wire = wire;
  reducer_options.tune_steps = static_cast<int32_t>(options_.tune_steps);
  // Alone in a communicator, a rank does all but the exchange.
  const auto group = static_cast<int32_t>(options_.group);
  if (options_.apart || options_.outer > 0) group_ = comm_.split(place_.rank / group, place_.rank);
  const dt::Comm& comm = group_ ? *group_ : comm_;
  if (options_.zero) {
    sharded_.emplace(comm, *network_, *device_, options_, reducer_options);
    network_->use(&*sharded_);
    reducer_ = &sharded_->reducer();
  } else {
    network_->initialise(static_cast<uint64_t>(options_.seed));
    own_reducer_.emplace(comm, params_of(*network_, device_->precision()), reducer_options);
    reducer_ = &*own_reducer_;
  }
  if (options_.power_sgd > 0) {
    dt::PowerSgdOptions power_sgd;
    power_sgd.rank = static_cast<int32_t>(options_.power_sgd);
    power_sgd.seed = static_cast<uint64_t>(options_.seed);
    power_sgd.wire = wire;
    std::vector<int64_t> rows;
    for (const Parameter& parameter : network_->layout()) rows.push_back(parameter.rows);
    reducer_->power_sgd(rows, power_sgd);
  }
  if (options_.outer > 0) make_outer();
}

/// With those that have the same place in other groups.
void Trainer::make_outer() {
  const std::optional<dt::Comm> across =
      comm_.split(place_.rank % static_cast<int32_t>(options_.group), place_.rank);
  std::vector<dt::OuterParam> params;
  for (size_t i = 0; i < network_->layout().size(); ++i) {
    const Parameter& parameter = network_->layout()[i];
    params.push_back(
        {network_->weight(static_cast<int>(i)), parameter.count, DT_F32, parameter.name});
  }
  dt::OuterOptions outer;
  outer.sync_every = options_.outer;
  outer.delay = options_.outer_delay;
  if (outer.delay > 0) outer.alpha = 0.5;
  outer.format = options_.outer_format == "4bit"   ? DT_OUTER_4BIT
                 : options_.outer_format == "8bit" ? DT_OUTER_8BIT
                 : options_.outer_format == "bf16" ? DT_OUTER_BF16
                                                   : DT_OUTER_F32;
  outer_.emplace(*across, params, outer);
}

/// Goes on where a former attempt has saved. Rank 0, which removes files, knows what there is.
void Trainer::resume() {
  if (place_.rank == 0) {
    int64_t newest = -1;
    if (outer_) {
      newest = std::filesystem::exists(options_.checkpoint) ? 0 : -1;
    } else {
      for (const int64_t step : saved_steps()) newest = std::max(newest, step);
    }
    job_->store_set(key("resume"), std::to_string(newest));
  }
  const int64_t found = std::stoll(job_->store_get(key("resume")));
  if (found < 0) return;
  if (outer_) {
    outer_->load(options_.checkpoint);
    step_ = outer_->steps();
  } else {
    sharded_->load(checkpoint_of(found));
    step_ = found;
  }
  first_step_ = interval_step_ = step_;
  say("resumed at step " + std::to_string(step_));
}

/// An outer optimizer's file has the step inside, that of a shard in its name.
std::string Trainer::checkpoint_of(int64_t step) const {
  return outer_ ? options_.checkpoint : options_.checkpoint + "." + std::to_string(step);
}

/// Of shards: the steps that there are checkpoints of.
std::vector<int64_t> Trainer::saved_steps() const {
  namespace fs = std::filesystem;
  const fs::path path = fs::absolute(options_.checkpoint);
  const std::string begin = path.filename().string() + ".";
  std::error_code error;
  std::vector<int64_t> steps;
  for (fs::directory_iterator at(path.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.compare(0, begin.size(), begin) != 0) continue;
    const int64_t step = std::atoll(name.c_str() + begin.size());
    std::error_code gone;
    if (name != begin + std::to_string(step) || !at->is_regular_file(gone)) continue;
    steps.push_back(step);
  }
  if (error) {
    throw std::runtime_error("cannot read the folder " + path.parent_path().string() + ": " +
                             error.message() + "; name a file in one that exists by --checkpoint");
  }
  return steps;
}

void Trainer::save() {
  if (outer_) {
    if (place_.rank == 0) outer_->save(options_.checkpoint);
    return;
  }
  sharded_->save(checkpoint_of(step_));  // whole, when it has that name
  if (place_.rank != 0) return;
  std::error_code stays;  // then it only takes room
  for (const int64_t step : saved_steps()) {
    if (step < step_) std::filesystem::remove(checkpoint_of(step), stays);
  }
}

/// Where groups have come together, or between two intervals: true if the job is to stop here,
/// because `dt run` was told to, or because it takes back a node.
bool Trainer::save_and_ask() {
  flush_loss_log();  // never behind the checkpoint
  if (step_ > first_step_) save();
  if (!job_->stop_requested()) return false;
  say("stopped after step " + std::to_string(step_) + "; started again, the job " +
      (step_ > 0 ? "goes on from " + checkpoint_of(step_) : "begins"));
  return true;
}

Trainer::~Trainer() {
  // The GPU may still use gradients, which go with the reducer.
  try {
    device_->synchronise();
  } catch (const std::exception&) {
    // Whoever ended the training has said why.
  }
}

void Trainer::run() {
  if (!options_.checkpoint.empty()) resume();
  open_loss_log();
  char line[200];
  std::snprintf(
      line, sizeof line, "%" PRId64 " parameters, %s on %s, %d %s, %d %s, %zu bytes of text",
      network_->parameter_count(), name_of(device_->precision()), device_->is_gpu() ? "GPU" : "CPU",
      place_.world_size, place_.world_size == 1 ? "rank" : "ranks", reducer_->stats().bucket_count,
      reducer_->stats().bucket_count == 1 ? "bucket" : "buckets", text_.size());
  say(line);
  interval_begin_ = std::chrono::steady_clock::now();
  // The first call also says to dt run that this program asks whether to stop.
  if (!options_.checkpoint.empty() && save_and_ask()) return;
  while (step_ < options_.steps) {
    train_step();
    const bool is_shown = step_ % options_.interval == 0 || step_ == options_.steps;
    // Reading waits for the GPU; without a log it goes on undisturbed between two lines.
    if (is_shown || !options_.loss_log.empty()) read_loss();
    if (is_shown) print_interval();
    if ((outer_ ? met_ : is_shown) && !options_.checkpoint.empty() && save_and_ask()) return;
  }
  flush_loss_log();
  if (outer_ && step_ > first_step_) {
    // After a turn, with no mean under way, momentum alone would move the parameters.
    if (!met_ || options_.outer_delay > 0) outer_->sync();
    if (place_.rank == 0 && !options_.checkpoint.empty()) outer_->save(options_.checkpoint);
  }
  comm_.check();
  if (!options_.apart) compare_parameters();
  if (options_.memory && step_ > first_step_) print_memory();
}

/// Rank r of W takes sequences [r, r + 1) * batch / W of the step's batch, so all ranks together
/// see the same batch whatever W is.
void Trainer::train_step() {
  const dt_stream stream = device_->stream();
  // Each gradient goes straight into its bucket, where later passes add to it. Where it lies may
  // differ from step to step.
  const auto gradient = [&](int parameter) { return reducer_->grad(parameter, stream); };
  const auto ready = [&](int parameter) {
    measure_memory(parameter);
    reducer_->ready(parameter, nullptr, stream);
  };
  for (Part part = {0, options_.accumulate}; part.index < part.count; ++part.index) {
    const std::vector<uint8_t> batch = cut_batch(
        text_, static_cast<uint64_t>(options_.seed), step_,
        (place_.rank * part.count + part.index) * part_batch_, part_batch_, options_.shape.length);
    network_->forward(batch.data(), part_batch_, part);
    // In the last pass full buckets travel while it goes on.
    reducer_->accumulate(part.index + 1 < part.count);
    network_->backward(gradient, ready);
  }
  reducer_->finish(stream);
  if (options_.clip > 0) reducer_->clip_norm(options_.clip, 2, stream, norm_);

  const double rate = learning_rate_at(options_.rate, step_, options_.steps);
  if (sharded_) {
    sharded_->step(rate);
  } else {
    // A checkpoint has no moments of AdamW: these begin anew, and so does the correction of their
    // first steps.
    network_->update({step_ - first_step_, rate, options_.decay}, gradient);
  }
  ++step_;
  met_ = outer_ && outer_->step();
  if (!sharded_) plan_buckets();  // shards keep their plan
}

/// The arrival order is known after one step. Later steps keep the plan, unless sizes are tuned.
void Trainer::plan_buckets() {
  const int64_t steps = step_ - first_step_;
  const bool is_tuning = options_.tune_steps > 0 && reducer_->stats().tuned == 0;
  const bool sized = is_tuning && steps % options_.tune_steps == 0;
  if (steps != 1 && !sized) return;
  device_->synchronise();  // the update still reads gradients that rebuild() may move
  reducer_->rebuild();
  const auto stats = reducer_->stats();
  if (!is_tuning || stats.tuned == 0) return;
  say("buckets of " + std::to_string(stats.bucket_cap_bytes) +
      " bytes are the fastest: " + std::to_string(stats.bucket_count));
}

/// The memory in use: on a GPU by all processes, else by this one.
int64_t Trainer::taken_bytes() const {
  return device_->is_gpu() ? device_->taken_bytes() : memory_bytes(!options_.offload.empty());
}

/// In the last step, with each matrix: the kernel takes a millisecond to add the pages up. On the
/// host all ranks look at one time, since a page counts the more the fewer of them have touched it.
void Trainer::measure_memory(int parameter) {
  if (!options_.memory || step_ + 1 < options_.steps) return;
  if (network_->layout()[static_cast<size_t>(parameter)].rows == 0) return;
  if (!device_->is_gpu()) comm_.barrier();
  most_memory_ = std::max(most_memory_, taken_bytes());
  if (!device_->is_gpu()) comm_.barrier();
}

/// Collective: the mean over the global batch.
void Trainer::read_loss() {
  comm_.allreduce({network_->loss(), 1}, DT_SUM, dt::on_stream(device_->stream()));
  const auto tokens = static_cast<double>(options_.batch * options_.shape.length);
  const double loss = network_->read_loss() / tokens;
  if (!std::isfinite(loss)) {
    throw std::runtime_error("the loss is no longer finite at step " + std::to_string(step_) +
                             "; choose a smaller --lr");
  }
  losses_.push_back(loss);
  if (loss_log_) std::fprintf(loss_log_.get(), "%" PRId64 ",%.9g\n", step_, loss);
}

void Trainer::print_interval() {
  const auto now = std::chrono::steady_clock::now();
  const double seconds =
      std::max(std::chrono::duration<double>(now - interval_begin_).count(), 1e-9);
  const int64_t tokens = (step_ - interval_step_) * options_.batch * options_.shape.length;
  char line[200];
  int used =
      std::snprintf(line, sizeof line, "step %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s",
                    step_, options_.steps, losses_.back(), static_cast<double>(tokens) / seconds);
  if (place_.world_size > 1 && !options_.apart) {
    const int64_t waited_ns = reducer_->stats().total_exposed_ns;
    std::snprintf(line + used, sizeof line - static_cast<size_t>(used), "  waited %.0f %%",
                  static_cast<double>(waited_ns - interval_waited_ns_) / 1e7 / seconds);
    interval_waited_ns_ = waited_ns;
  }
  say(line);
  interval_begin_ = now;
  interval_step_ = step_;
}

void Trainer::say(const std::string& line) const {
  if (place_.rank != 0 || options_.quiet) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

/// A restarted job must not find what its predecessor wrote.
std::string Trainer::key(const std::string& name) const {
  return "gpt/" + std::to_string(place_.attempt) + "/" + name;
}

/// Through the store, which works on host and GPU jobs alike.
void Trainer::compare_settings() {
  if (place_.world_size == 1) return;
  const std::string own =
      describe(options_, device_->precision(), hash_bytes(text_.data(), text_.size()));
  if (place_.rank == 0) job_->store_set(key("settings"), own);
  const std::string first = job_->store_get(key("settings"));
  if (first == own) return;
  throw std::runtime_error(
      "other settings or text than rank 0; start all ranks with the same\n  rank " +
      std::to_string(place_.rank) + ": " + own + "\n  rank 0: " + first);
}

/// Of all that ranks have in common: parameters, and moments unless each rank or group has its own.
uint64_t Trainer::hash_parameters() {
  if (!sharded_) {
    const std::vector<float> parameters = network_->read_parameters();
    const uint64_t hash = hash_bytes(parameters.data(), parameters.size() * sizeof(float));
    if (outer_) return hash;
    const std::vector<float> moments = network_->read_moments();
    return hash_bytes(moments.data(), moments.size() * sizeof(float), hash);
  }
  uint64_t hash = hash_bytes(nullptr, 0);
  for (int unit = 0; unit < network_->unit_count(); ++unit) {
    sharded_->enter(unit);
    for (size_t i = 0; i < network_->layout().size(); ++i) {
      const Parameter& parameter = network_->layout()[i];
      if (parameter.unit != unit) continue;
      std::vector<char> values(static_cast<size_t>(parameter.count * device_->element_bytes()));
      device_->download(values.data(), sharded_->weight(static_cast<int>(i)),
                        static_cast<int64_t>(values.size()));
      hash = hash_bytes(values.data(), values.size(), hash);
    }
    sharded_->leave(unit);
  }
  return hash;
}

void Trainer::compare_parameters() {
  if (place_.world_size == 1) return;
  char own[17];
  std::snprintf(own, sizeof own, "%016" PRIx64, hash_parameters());
  const std::string name = key("hash/");
  job_->store_set(name + std::to_string(place_.rank), own);
  std::string others;
  for (int32_t rank = 0; rank < place_.world_size; ++rank) {
    if (job_->store_get(name + std::to_string(rank)) == own) continue;
    others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!others.empty()) {
    throw std::runtime_error("parameters differ: rank(s) " + others + " against rank " +
                             std::to_string(place_.rank) + " after step " + std::to_string(step_) +
                             "; this is a bug");
  }
  say("parameters equal on all " + std::to_string(place_.world_size) + " ranks (hash " + own + ")");
}

/// The mean over the ranks of what each has more than without a network, on GPUs with the other
/// ranks of its GPU. Through the store, as above.
void Trainer::print_memory() {
  const std::string name = key("memory/");
  job_->store_set(name + std::to_string(place_.rank), std::to_string(most_memory_ - first_memory_));
  double sum = 0;
  for (int32_t rank = 0; rank < place_.world_size; ++rank) {
    sum += std::stod(job_->store_get(name + std::to_string(rank)));
  }
  char line[100];
  std::snprintf(line, sizeof line, "%.1f MiB of %s", sum / place_.world_size / 1048576,
                device_->is_gpu() ? "GPU memory a GPU" : "host memory a rank");
  say(line);
}

void Trainer::open_loss_log() {
  if (options_.loss_log.empty() || place_.rank != 0) return;
  // A resumed job repeats the steps after the checkpoint: their lines, and a line that was not
  // written to its end, are cut off.
  std::uintmax_t kept = 0;
  std::ifstream before(step_ > 0 ? options_.loss_log : "");
  for (std::string line; std::getline(before, line) && !before.eof(); kept += line.size() + 1) {
    if (std::atoll(line.c_str()) > step_) break;
  }
  std::error_code missing;  // fopen() says why
  if (step_ > 0) std::filesystem::resize_file(options_.loss_log, kept, missing);
  loss_log_.reset(std::fopen(options_.loss_log.c_str(), step_ > 0 ? "ae" : "we"));
  if (!loss_log_) {
    throw std::runtime_error("cannot write " + options_.loss_log + ": " + std::strerror(errno) +
                             "; name a file that you may write with --loss-log");
  }
  if (kept == 0) std::fputs("step,loss\n", loss_log_.get());
}

/// Also fails if a line before was not written.
void Trainer::flush_loss_log() {
  if (!loss_log_) return;
  errno = 0;
  if (std::fflush(loss_log_.get()) == 0 && std::ferror(loss_log_.get()) == 0) return;
  throw std::runtime_error("cannot write " + options_.loss_log + ": " +
                           (errno != 0 ? std::strerror(errno) : "an earlier line failed") +
                           "; make room there, or name another file with --loss-log");
}

}  // namespace gpt
