// SPDX-License-Identifier: Apache-2.0
// Random models, steps and worlds through a reducer, or that of a shard, against a plain loop:
// every rank can work out what each of them did. STEPS_SEEDS says how many models a world gets.
#include <cmath>
#include <cstdlib>

#include "../sanitizers.h"
#include "drawn.h"
#include "thread_ranks.h"

namespace dt_test::steps_test {

namespace {

using Values = std::vector<double>;

constexpr double kUntouched = -77;

/// An array of any of the dtypes that the models have.
struct Array {
  dt_dtype dtype = DT_F32;
  std::vector<char> bytes;

  Array() = default;
  Array(dt_dtype type, int64_t count)
      : dtype(type), bytes(static_cast<size_t>(count * dt_dtype_bytes(type))) {}
};

double element(dt_dtype dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DT_I32: return static_cast<const int32_t*>(data)[i];
    case DT_F64: return static_cast<const double*>(data)[i];
    case DT_BF16: {
      const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[i]} << 16;
      float value;
      memcpy(&value, &bits, sizeof value);
      return static_cast<double>(value);
    }
    default: return static_cast<double>(static_cast<const float*>(data)[i]);
  }
}

/// Of values that the dtype has.
void set_element(dt_dtype dtype, void* data, int64_t i, double value) {
  switch (dtype) {
    case DT_I32: static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
    case DT_F64: static_cast<double*>(data)[i] = value; break;
    case DT_BF16: {
      const auto narrow = static_cast<float>(value);
      uint32_t bits;
      memcpy(&bits, &narrow, sizeof bits);
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits >> 16);
      break;
    }
    default: static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

struct Model {
  std::vector<dt_param> params;
  dt_reducer_options options;
  bool views = false;  ///< gradients in place where a rank wants that
  bool flat = false;   ///< gradients lie in an array of the trainer's own
  int hook = 0;        ///< 0: none
  int stage = -1;      ///< of a shard, with the next three; -1: none
  int shard_ranks = 0;
  std::vector<int32_t> units;
  std::vector<int64_t> granules;

  explicit Model(unsigned seed) {
    Draws draws{seed};
    dt_reducer_options_init(&options);
    options.first_bucket_bytes = 1000;
    options.bucket_cap_bytes = 4000;
    options.sum = draws.one_in(3);
    options.find_unused = draws.one_in(2);
    options.static_graph = options.find_unused == 0 && draws.one_in(2);
    options.keep_plan = draws.one_in(4);
    if (options.keep_plan == 0 && draws.one_in(3)) options.tune_steps = 3;
    options.divide_by_users = knows_users() && options.sum == 0 && draws.one_in(2);
    if (draws.one_in(3)) options.predivide = 4;
    options.wire = static_cast<dt_wire>(draws.below(3));
    views = draws.one_in(2);
    if (draws.one_in(4)) {
      hook = 1 + draws.below(3);
      options.divide_by_users = 0;
      options.predivide = 0;
      options.wire = DT_WIRE_SAME;
    }
    const bool mixed = draws.one_in(2);
    for (int i = draws.below(9); i >= 0; --i) {
      constexpr dt_dtype kTypes[] = {DT_F32, DT_F64, DT_BF16, DT_I32};
      const dt_dtype dtype = mixed ? kTypes[draws.below(4)] : DT_F32;
      const int32_t uses = draws.one_in(4) ? 2 : draws.below(2);
      params.push_back({draws.below(700), nullptr, dtype, uses});
    }
    stage = options.static_graph != 0 ? -1 : draws.below(5) - 1;
    if (stage >= 0) options.tune_steps = 0;
    const bool whole_rows = draws.one_in(2);
    for (size_t p = 0; p < params.size(); ++p) {
      units.push_back(static_cast<int32_t>(p / 3));
      granules.push_back(whole_rows ? draws.below(100) : 0);
    }
    shard_ranks = draws.below(3);
    if (stage < 0 && hook == 0 && draws.one_in(3)) options.wire = DT_WIRE_8BIT;
    flat = stage < 0 && draws.one_in(3);
  }
  size_t size() const { return params.size(); }
  bool knows_users() const { return options.find_unused != 0 || options.static_graph != 0; }
  int uses(size_t param) const { return std::max(params[param].uses, 1); }
};

/// One array of all gradients: in the order of the parameters, in reverse or in any, with gaps here
/// and there, some of them on one rank alone.
class FlatArray {
 public:
  FlatArray(const Model& model, unsigned seed, int rank) {
    Draws draws{seed, 4711};
    Draws own{seed, 4711, static_cast<unsigned>(rank)};
    std::vector<size_t> order(model.size());
    for (size_t p = 0; p < order.size(); ++p) order[p] = p;
    const int kind = draws.below(3);
    if (kind == 1) std::reverse(order.begin(), order.end());
    if (kind == 2) std::shuffle(order.begin(), order.end(), draws.engine());
    std::vector<size_t> begins(model.size());
    size_t at = static_cast<size_t>(own.below(4)) * 8;
    for (const size_t p : order) {
      const auto element = static_cast<size_t>(dt_dtype_bytes(model.params[p].dtype));
      if (draws.one_in(4) || own.one_in(16)) at += element;
      at = (at + element - 1) / element * element;
      begins[p] = at;
      at += static_cast<size_t>(model.params[p].count) * element;
    }
    bytes_.assign(at + 8, kGap);
    is_gap_.assign(bytes_.size(), true);
    for (size_t p = 0; p < begins.size(); ++p) {
      const dt_param& param = model.params[p];
      const auto length = static_cast<size_t>(param.count * dt_dtype_bytes(param.dtype));
      std::fill_n(is_gap_.begin() + static_cast<std::ptrdiff_t>(begins[p]), length, false);
      grads_.push_back(length > 0 ? bytes_.data() + begins[p] : nullptr);
    }
  }
  void* const* grads() const { return grads_.data(); }
  bool holds(size_t param, const void* gradient) const {
    return grads_[param] == nullptr || grads_[param] == gradient;
  }
  /// Whether nobody has written beside the gradients.
  bool is_whole() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (is_gap_[i] && bytes_[i] != kGap) return false;
    }
    return true;
  }

 private:
  static constexpr char kGap = 0x5b;
  std::vector<char> bytes_;
  std::vector<bool> is_gap_;
  std::vector<void*> grads_;
};

/// What a rank says of a parameter in a pass.
struct Said {
  int times = 0;          ///< ready
  bool unused = false;    ///< behind that
  bool in_place = false;  ///< all of it
};

/// What a rank does in a step, for every rank to work out.
struct Step {
  std::vector<std::vector<Said>> passes;  ///< by pass, by parameter

  Step(const Model& model, unsigned seed, int step, int rank) {
    Draws draws{seed, static_cast<unsigned>(step), static_cast<unsigned>(rank)};
    passes.resize(static_cast<size_t>(draws.one_in(2) ? 1 : 1 + draws.below(3)));
    for (size_t p = 0; p < model.size(); ++p) {
      const bool in_place = model.views && draws.one_in(2);
      for (size_t pass = 0; pass < passes.size(); ++pass) {
        Said said;
        said.in_place = in_place;
        // Static graph: how often the parameter becomes ready in the last pass of each step.
        const int always =
            Draws{seed, static_cast<unsigned>(rank), static_cast<unsigned>(p)}.below(3);
        if (pass + 1 < passes.size()) {
          said.times = model.options.static_graph != 0 && always == 0 ? 0 : draws.below(3);
        } else if (model.options.static_graph != 0) {
          said.times = always;
          said.unused = always == 0 && draws.one_in(2);
        } else if (!model.options.find_unused) {
          said.times = model.uses(p);
        } else {
          said.times = draws.below(model.uses(p) + 1);
          said.unused = said.times < model.uses(p) && draws.one_in(2);
        }
        passes[pass].push_back(said);
      }
    }
  }
  int parts(size_t param) const {
    int sum = 0;
    for (const auto& pass : passes) sum += pass[param].times;
    return sum;
  }
};

/// What a rank adds, each time in a step: small enough for every dtype to hold the sums.
double part(int step, int rank, size_t param, int64_t i) {
  return static_cast<double>((step * 5 + rank * 3 + static_cast<int64_t>(param) * 7 + i) % 4);
}

/// What a reducer would do, as hooks: in one call, with a work, and with one more that changes
/// nothing.
struct BucketHook {
  dt_comm* comm = nullptr;
  const Model* model = nullptr;

  static dt_status run(void* self, const dt_bucket* bucket, int32_t stage, dt_work** out_work) {
    const auto& hook = *static_cast<const BucketHook*>(self);
    if (bucket->struct_size != sizeof *bucket || bucket->param_count < 1) return DT_ERR_INTERNAL;
    int64_t total = 0;
    for (int32_t i = 0; i < bucket->param_count; ++i) {
      total += hook.model->params[static_cast<size_t>(bucket->params[i])].count;
    }
    if (hook.model->flat && total != bucket->count) return DT_ERR_INTERNAL;  // no gaps
    if (stage > (hook.model->hook == 3 ? 1 : 0)) return DT_OK;
    const dt_reduce_op op = stage == 1 ? DT_MAX : hook.model->options.sum != 0 ? DT_SUM : DT_AVG;
    return dt_allreduce(hook.comm, bucket->data, bucket->data, bucket->count, bucket->dtype, op,
                        bucket->stream, hook.model->hook == 1 ? nullptr : out_work);
  }
};

class Trainer {
 public:
  Trainer(const Rank& rank, unsigned seed)
      : rank_(rank), seed_(seed), model_(seed), flat_(model_, seed, rank.rank) {}
  ~Trainer() {
    dt_reducer_destroy(reducer_);
    dt_shard_destroy(shard_);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  dt_status create() {
    const auto count = static_cast<int32_t>(model_.size());
    if (model_.stage >= 0) {
      dt_shard_options options;
      dt_shard_options_init(&options);
      options.stage = model_.stage;
      if (model_.shard_ranks > 0 && rank_.world_size % model_.shard_ranks == 0) {
        options.shard_ranks = model_.shard_ranks;
      }
      options.reducer = &model_.options;
      options.granules = model_.granules.data();
      options.units = model_.units.data();
      RANK_TRY(dt_shard_create(rank_.world, model_.params.data(), count, &options, &shard_));
      RANK_TRY(dt_shard_reducer(shard_, &reducer_));
    } else {
      dt_reducer_options options = model_.options;
      if (model_.flat) options.grads = flat_.grads();
      RANK_TRY(dt_reducer_create(rank_.world, model_.params.data(), count, &options, &reducer_));
    }
    hook_ = {rank_.world, &model_};
    return model_.hook == 0 ? DT_OK : dt_reducer_set_hook(reducer_, &BucketHook::run, &hook_);
  }

  dt_status step(int number) {
    const Step mine(model_, seed_, number, rank_.rank);
    arrays_.assign(model_.size(), {});
    results_.assign(model_.size(), nullptr);
    begun_.assign(model_.size(), false);
    for (size_t pass = 0; pass < mine.passes.size(); ++pass) {
      const bool last = pass + 1 == mine.passes.size();
      if (mine.passes.size() > 1) RANK_TRY(dt_reducer_accumulate(reducer_, last ? 0 : 1));
      std::vector<size_t> order(model_.size());
      for (size_t p = 0; p < order.size(); ++p) order[p] = p;
      Draws draws{seed_, static_cast<unsigned>(number), static_cast<unsigned>(rank_.rank),
                  static_cast<unsigned>(pass)};
      std::shuffle(order.begin(), order.end(), draws.engine());
      for (const size_t p : order) RANK_TRY(say(number, p, mine.passes[pass][p], last));
    }
    RANK_TRY(dt_reducer_finish(reducer_, nullptr));
    if (!flat_.is_whole()) return DT_ERR_INTERNAL;
    return check(number);
  }

 private:
  dt_status say(int step, size_t param, const Said& said, bool last) {
    const auto index = static_cast<int32_t>(param);
    for (int i = 0; i < said.times; ++i) {
      void* gradient = nullptr;
      RANK_TRY(write(step, param, said.in_place, &gradient));
      RANK_TRY(dt_reducer_ready(reducer_, index, said.in_place ? nullptr : gradient, nullptr));
      if (last) results_[param] = gradient;
    }
    if (!said.unused) return DT_OK;
    void* place = nullptr;
    if (said.in_place) {
      RANK_TRY(dt_reducer_grad(reducer_, index, nullptr, &place));
    } else {
      place = fresh(param);
    }
    results_[param] = place;
    return dt_reducer_unused(reducer_, index, said.in_place ? nullptr : place, nullptr);
  }

  void* fresh(size_t param) {
    const dt_param& known = model_.params[param];
    Array array(known.dtype, known.count + 1);  // one more, which nobody may touch
    for (int64_t i = 0; i <= known.count; ++i) {
      set_element(known.dtype, array.bytes.data(), i, kUntouched);
    }
    arrays_[param].push_back(std::move(array));
    return arrays_[param].back().bytes.data();
  }

  dt_status write(int step, size_t param, bool in_place, void** out) {
    const dt_param& known = model_.params[param];
    if (in_place) {
      RANK_TRY(dt_reducer_grad(reducer_, static_cast<int32_t>(param), nullptr, out));
      if (model_.flat && !flat_.holds(param, *out)) return DT_ERR_INTERNAL;
    } else {
      *out = fresh(param);
    }
    for (int64_t i = 0; i < known.count; ++i) {
      const double before = in_place && begun_[param] ? element(known.dtype, *out, i) : 0;
      set_element(known.dtype, *out, i, before + part(step, rank_.rank, param, i));
    }
    begun_[param] = true;
    return DT_OK;
  }

  dt_status check(int step) {
    std::vector<Step> ranks;
    for (int r = 0; r < rank_.world_size; ++r) ranks.emplace_back(model_, seed_, step, r);
    for (size_t p = 0; p < model_.size(); ++p) {
      const dt_param& known = model_.params[p];
      int users = 0;
      for (const Step& each : ranks) users += each.parts(p) > 0 ? 1 : 0;
      const bool anybody = users > 0;
      const int divisor = model_.options.sum != 0               ? 1
                          : model_.options.divide_by_users != 0 ? std::max(users, 1)
                                                                : rank_.world_size;
      const bool rounded =
          known.dtype == DT_BF16 || (known.dtype == DT_F32 && model_.options.wire != DT_WIRE_SAME);
      int32_t used = 1;
      if (model_.knows_users()) {
        RANK_TRY(dt_reducer_used(reducer_, static_cast<int32_t>(p), &used));
      }
      if (used != (anybody ? 1 : 0)) return DT_ERR_INTERNAL;
      const void* result = results_[p];
      bool outside = !arrays_[p].empty();
      int64_t offset = 0;
      int64_t count = known.count;
      if (model_.stage >= 0) {
        dt_piece piece;
        dt_piece_init(&piece);
        RANK_TRY(dt_shard_piece(shard_, static_cast<int32_t>(p), nullptr, &piece));
        result = piece.grad;
        outside = false;
        offset = piece.offset;
        count = piece.count;
      }
      const bool in_8bit = known.dtype == DT_F32 && model_.options.wire == DT_WIRE_8BIT;
      for (int64_t i = 0; in_8bit && i < known.count; ++i) {
        double sum = 0;
        for (int r = 0; r < rank_.world_size; ++r) {
          sum += ranks[static_cast<size_t>(r)].parts(p) * std::abs(part(step, r, p, i));
        }
        largest_[p] = std::max(largest_[p], sum);
      }
      if (result == nullptr) continue;  // it was not said where the result is wanted
      for (int64_t i = offset; i < offset + count; ++i) {
        double sum = 0;
        for (int r = 0; r < rank_.world_size; ++r) {
          sum += ranks[static_cast<size_t>(r)].parts(p) * part(step, r, p, i);
        }
        double wanted = sum / divisor;
        if (known.dtype == DT_I32) wanted = std::trunc(wanted);
        if (!anybody) wanted = outside ? kUntouched : 0;
        const double found = element(known.dtype, result, i - offset);
        // In 8 bits half a step of each rank and of the sum, and as much of earlier steps.
        const double error = in_8bit   ? 2.2 * largest_[p] / 127 / divisor
                             : rounded ? 0.02 * std::max(1.0, std::abs(wanted))
                                       : 1e-5 * std::max(1.0, std::abs(wanted));
        if (std::abs(found - wanted) > error) {
          MESSAGE("#", p, " of dtype ", known.dtype, ": element ", i, " is ", found, ", not ",
                  wanted);
          return DT_ERR_INTERNAL;
        }
      }
      for (const Array& each : arrays_[p]) {
        if (element(known.dtype, each.bytes.data(), known.count) != kUntouched) {
          return DT_ERR_INTERNAL;
        }
      }
    }
    return DT_OK;
  }

  const Rank& rank_;
  const unsigned seed_;
  const Model model_;
  FlatArray flat_;
  dt_shard* shard_ = nullptr;
  dt_reducer* reducer_ = nullptr;
  BucketHook hook_;
  std::vector<std::vector<Array>> arrays_;                            // by parameter, of this step
  std::vector<void*> results_;                                        // by parameter
  std::vector<double> largest_ = std::vector<double>(model_.size());  // sums of magnitudes so far
  std::vector<bool> begun_;
};

unsigned seeds() {
  const char* const asked = std::getenv("STEPS_SEEDS");
  if (asked != nullptr) return static_cast<unsigned>(std::strtoul(asked, nullptr, 10));
  return dt::test::kThreadSanitizer ? 12 : 40;
}

}  // namespace

TEST_CASE("steps: random models, orders, parts and passes, on one host and over several") {
  const std::vector<std::vector<int>> layouts = {{0},    {0, 0},    {0, 0, 0, 0},
                                                 {0, 1}, {0, 1, 1}, {0, 0, 1, 1}};
  for (const auto& hosts : layouts) {
    CAPTURE(hosts.size());
    CAPTURE(hosts.back());
    require_all_ok(run_ranks(
        static_cast<int>(hosts.size()),
        [](const Rank& rank) -> dt_status {
          for (unsigned seed = 0; seed < seeds(); ++seed) {
            Trainer trainer(rank, seed);
            RANK_TRY(trainer.create());
            for (int step = 0; step < 4; ++step) {
              const dt_status status = trainer.step(step);
              if (status == DT_OK) continue;
              MESSAGE("rank ", rank.rank, ", seed ", seed, ", step ", step);
              return status;
            }
          }
          return DT_OK;
        },
        {},
        [&](int rank) -> Settings {
          return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
        }));
  }
}

TEST_CASE("steps: what cannot be done while gradients accumulate") {
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{2, "weight", DT_F32, 2}, {1, "bias", DT_F32, 0}};
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 2, nullptr, &reducer));
    float weight[] = {1, 2};
    float bias = 3;
    RANK_TRY(dt_reducer_accumulate(reducer, 1));
    for (int i = 0; i < 3; ++i) RANK_TRY(dt_reducer_ready(reducer, 0, weight, nullptr));
    const bool refused_on = dt_reducer_finish(reducer, nullptr) == DT_ERR_INVALID_STATE &&
                            contains(dt_last_error(), "call dt_reducer_accumulate(reducer, 0)") &&
                            dt_reducer_rebuild(reducer, nullptr) == DT_ERR_INVALID_STATE;
    RANK_TRY(dt_reducer_accumulate(reducer, 0));
    RANK_TRY(dt_reducer_ready(reducer, 1, &bias, nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 0, weight, nullptr));
    const bool refused_half =
        dt_reducer_finish(reducer, nullptr) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "no gradient for #0 \"weight\" (ready 1 of 2 times)");
    RANK_TRY(dt_reducer_ready(reducer, 1, &bias, nullptr));
    for (int i = 0; i < 2; ++i) RANK_TRY(dt_reducer_ready(reducer, 0, weight, nullptr));
    const bool refused_more =
        dt_reducer_ready(reducer, 0, weight, nullptr) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "#0 \"weight\" became ready more often than its uses");
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    dt_reducer_destroy(reducer);
    return refused_on && refused_half && refused_more && weight[1] == 4 && bias == 3
               ? DT_OK
               : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("steps: ranks with different numbers of batches stop together, with equal results") {
  for (const int32_t by_users : {0, 1}) {
    CAPTURE(by_users);
    require_all_ok(run_ranks(3, [by_users](const Rank& rank) -> dt_status {
      const dt_param params[] = {{3, "weight", DT_F32, 0}};
      dt_reducer_options options;
      dt_reducer_options_init(&options);
      options.find_unused = 1;
      options.divide_by_users = by_users;
      dt_reducer* reducer = nullptr;
      RANK_TRY(dt_reducer_create(rank.world, params, 1, &options, &reducer));
      int32_t active = 0;
      RANK_TRY(dt_reducer_active(reducer, &active));
      if (active != 3) return DT_ERR_INTERNAL;
      for (int epoch = 0; epoch < 2; ++epoch) {
        float sum = 0;
        int steps = 0;
        for (;; ++steps) {
          float gradient[] = {6, 6, 6};
          if (steps < 1 + 2 * rank.rank) {  // 1, 3 and 5 batches
            RANK_TRY(dt_reducer_ready(reducer, 0, gradient, nullptr));
          } else {
            RANK_TRY(dt_reducer_unused(reducer, 0, gradient, nullptr));
          }
          RANK_TRY(dt_reducer_finish(reducer, nullptr));
          RANK_TRY(dt_reducer_active(reducer, &active));
          if (active == 0) break;
          if (active != (steps < 1 ? 3 : steps < 3 ? 2 : 1)) return DT_ERR_INTERNAL;
          sum += gradient[2];
        }
        if (steps != 5 || sum != (by_users != 0 ? 30 : 18)) return DT_ERR_INTERNAL;
      }
      dt_reducer_destroy(reducer);
      return DT_OK;
    }));
  }
}

TEST_CASE(
    "steps: the norm over all parameters is at most the limit, with the same bits everywhere") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {
        {1000, "weight", DT_F32, 0}, {3, "count", DT_I32, 0}, {5, "bias", DT_BF16, 0}};
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 3, nullptr, &reducer));
    std::vector<float> weight(1000, static_cast<float>(rank.rank + 1));
    int32_t counts[] = {1, 2, 3};
    uint16_t bias[] = {0x4080, 0x4080, 0x4080, 0x4080, 0x4080};  // 4
    RANK_TRY(dt_reducer_ready(reducer, 0, weight.data(), nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 1, counts, nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 2, bias, nullptr));
    float norm = 0;
    const bool early = dt_reducer_clip_norm(reducer, 1, 2, nullptr, &norm) == DT_ERR_INVALID_STATE;
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    const double root = std::sqrt(1000 * 2.25 + 5 * 16);
    RANK_TRY(dt_reducer_clip_norm(reducer, 1, 2, nullptr, &norm));
    const bool right = std::abs(static_cast<double>(norm) - root) < 1e-3 &&
                       std::abs(static_cast<double>(weight[7]) - 1.5 / root) < 1e-6 &&
                       counts[2] == 3;
    float cube = 0;
    RANK_TRY(dt_reducer_clip_norm(reducer, HUGE_VAL, 3, nullptr, &cube));
    const bool clipped =
        std::abs(static_cast<double>(cube) -
                 std::cbrt(1000 * std::pow(1.5 / root, 3) + 5 * std::pow(4 / root, 3))) < 1e-3;
    weight[3] = -INFINITY;
    RANK_TRY(dt_reducer_clip_norm(reducer, 1e-9, HUGE_VAL, nullptr, &norm));
    const bool left_alone = std::isinf(norm) && weight[7] > 1e-3F;
    dt_reducer_destroy(reducer);
    return early && right && clipped && left_alone ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("steps: clip_norm is refused after a rebuild has moved the gradients") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const std::vector<dt_param> params(4, dt_param{300, nullptr, DT_F32, 0});
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.bucket_cap_bytes = options.first_bucket_bytes = 2000;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), 4, &options, &reducer));
    float norm = 0;
    int32_t changed = 0;
    for (int step = 0; step < 2; ++step) {
      for (const int32_t index : {0, 3, 1, 2}) {
        void* gradient = nullptr;
        RANK_TRY(dt_reducer_grad(reducer, index, nullptr, &gradient));
        std::fill_n(static_cast<float*>(gradient), 300, 1.0F);
        RANK_TRY(dt_reducer_ready(reducer, index, nullptr, nullptr));
      }
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      if (step > 0) RANK_TRY(dt_reducer_clip_norm(reducer, HUGE_VAL, 2, nullptr, &norm));
      if (step == 0) RANK_TRY(dt_reducer_rebuild(reducer, &changed));
      const dt_status gone = dt_reducer_clip_norm(reducer, 1, 2, nullptr, nullptr);
      if (step == 0 && (gone != DT_ERR_INVALID_STATE ||
                        !contains(dt_last_error(), "and before dt_reducer_rebuild"))) {
        return DT_ERR_INTERNAL;
      }
    }
    dt_reducer_destroy(reducer);
    const bool right = std::abs(static_cast<double>(norm) - std::sqrt(1200)) < 1e-3;
    return changed == 1 && right ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("steps: a run begins with the plan that another one has learnt, the same on all ranks") {
  const auto body = [](const Rank& rank) -> dt_status {
    std::vector<dt_param> params(6, dt_param{300, nullptr, DT_F32, 0});
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.bucket_cap_bytes = options.first_bucket_bytes = 2000;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), 6, &options, &reducer));
    std::vector<float> gradient(300);
    const int32_t arrival[] = {3, 0, 5, 1, 4, 2};
    for (const int32_t index : arrival) {
      RANK_TRY(dt_reducer_ready(reducer, index, gradient.data(), nullptr));
    }
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    int32_t order[6];
    RANK_TRY(dt_reducer_order(reducer, order));
    dt_reducer_destroy(reducer);
    if (!std::equal(order, order + 6, arrival)) return DT_ERR_INTERNAL;
    options.order = order;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), 6, &options, &reducer));
    int32_t first = -1;
    int32_t last = -1;
    RANK_TRY(dt_reducer_bucket(reducer, 3, &first));
    RANK_TRY(dt_reducer_bucket(reducer, 2, &last));
    dt_reducer_destroy(reducer);
    if (first != 0 || last != 2) return DT_ERR_INTERNAL;
    std::swap(order[0], order[rank.rank]);
    return dt_reducer_create(rank.world, params.data(), 6, &options, &reducer);
  };
  for (const Outcome& outcome : run_ranks(2, body)) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(outcome.message.c_str(), "order, as a hash"), outcome.message);
  }
}

}  // namespace dt_test::steps_test
