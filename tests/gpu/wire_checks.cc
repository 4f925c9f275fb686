// SPDX-License-Identifier: Apache-2.0
#include "wire_checks.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dt::test {
namespace {

constexpr int kWireSteps = 4;
constexpr int kSpoilt = 2;  // a step with what is not finite
constexpr int64_t kCounts[] = {70'003, 1, 64, 0, 4097, 129, 9001};
constexpr int32_t kWireParams = sizeof kCounts / sizeof *kCounts;

using Gradients = std::vector<std::vector<float>>;

/// Values whose mean has rounding errors; one of them is infinite.
std::vector<float> gradient(int step, int rank, int32_t param) {
  std::vector<float> values(static_cast<size_t>(kCounts[param]));
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) + 1000.0 * param + 37.0 * rank + 11.0 * step;
    values[i] = static_cast<float>(std::sin(x) * (1 + static_cast<double>(i % 7)));
  }
  if (step == kSpoilt && rank == 0 && param == 0) values[70] = INFINITY;
  return values;
}

/// A reducer, and gradients in the memory of its communicator: an array of each, or one of all, in
/// which they are reduced.
class Reducing {
 public:
  Reducing(Session* session, dt_comm* comm, dt_wire wire, bool on_host, bool flat)
      : session_(session), on_host_(on_host), flat_(flat) {
    std::vector<dt_param> params(kWireParams, dt_param{});
    int64_t total = 0;
    for (const int64_t count : kCounts) total += count;
    auto* next = flat ? static_cast<float*>(session->memory(total * 4)) : nullptr;
    std::vector<void*> places;
    for (int32_t p = 0; p < kWireParams; ++p) {
      params[static_cast<size_t>(p)].count = kCounts[p];
      params[static_cast<size_t>(p)].dtype = DT_F32;
      own_.emplace_back(static_cast<size_t>(kCounts[p]));
      void* const data = flat      ? next
                         : on_host ? own_.back().data()
                                   : session->memory(kCounts[p] * 4 + 4);
      gradients_.push_back(static_cast<float*>(data));
      places.push_back(data);
      if (flat) next += kCounts[p];
    }
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.wire = wire;
    options.first_bucket_bytes = 1 << 14;
    options.bucket_cap_bytes = 1 << 16;
    if (flat) options.grads = places.data();
    need(dt_reducer_create(comm, params.data(), kWireParams, &options, &reducer_));
  }
  ~Reducing() { dt_reducer_destroy(reducer_); }
  Reducing(const Reducing&) = delete;
  Reducing& operator=(const Reducing&) = delete;

  Gradients step(int number) {
    const dt_stream stream = on_host_ ? nullptr : session_->stream();
    for (int32_t p = kWireParams; p-- > 0;) {
      float* const to = gradients_[static_cast<size_t>(p)];
      const auto values = gradient(number, session_->rank(), p);
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
      if (!on_host_) session_->write(to, values.data(), bytes);
      if (on_host_ && bytes > 0) std::memcpy(to, values.data(), static_cast<size_t>(bytes));
      need(dt_reducer_ready(reducer_, p, flat_ ? nullptr : to, stream));
    }
    need(dt_reducer_finish(reducer_, stream));
    if (on_host_) return own_;
    need(session_->finish());
    Gradients results;
    for (size_t p = 0; p < gradients_.size(); ++p) {
      auto& each = results.emplace_back(own_[p].size());
      session_->read(each.data(), gradients_[p], kCounts[p] * 4);
    }
    return results;
  }

 private:
  Session* const session_;
  const bool on_host_;
  const bool flat_;
  Gradients own_;
  std::vector<float*> gradients_;
  dt_reducer* reducer_ = nullptr;
};

/// Means in an array of all gradients, and in the reducer's own memory.
void check_flat(Session* session) {
  const bool on_host = session->gpu() == nullptr;
  if (on_host) return;  // its session has no memory
  Reducing tested(session, session->comm(), DT_WIRE_SAME, on_host, /*flat=*/true);
  Reducing reference(session, session->comm(), DT_WIRE_SAME, on_host, /*flat=*/false);
  for (int step = 0; step < kWireSteps; ++step) {
    const Gradients found = tested.step(step);
    const Gradients wanted = reference.step(step);
    for (size_t p = 0; p < found.size(); ++p) {
      for (size_t i = 0; i < found[p].size(); ++i) {
        if (found[p][i] == wanted[p][i] || std::abs(found[p][i] - wanted[p][i]) < 1e-5F) continue;
        std::fprintf(stderr,
                     "rank %d: one array, step %d: element %zu of gradient %zu is %g, not %g\n",
                     session->rank(), step, i, p, static_cast<double>(found[p][i]),
                     static_cast<double>(wanted[p][i]));
        std::_Exit(1);
      }
    }
  }
}

}  // namespace

void check_wire(Session* session) {
  check_flat(session);
  dt_comm* host = nullptr;
  need(dt_comm_host(session->comm(), &host));
  {
    Reducing tested(session, session->comm(), DT_WIRE_8BIT, session->gpu() == nullptr,
                    /*flat=*/false);
    Reducing reference(session, host, DT_WIRE_8BIT, /*on_host=*/true, /*flat=*/false);
    for (int step = 0; step < kWireSteps; ++step) {
      const Gradients found = tested.step(step);
      const Gradients wanted = reference.step(step);
      for (size_t p = 0; p < found.size(); ++p) {
        const size_t bytes = found[p].size() * sizeof(float);
        if (bytes == 0 || std::memcmp(found[p].data(), wanted[p].data(), bytes) == 0) continue;
        std::fprintf(stderr, "rank %d: 8 bits, step %d: gradient %zu has not the host's bits\n",
                     session->rank(), step, p);
        std::_Exit(1);
      }
      if (std::isnan(found[0][70]) != (step == kSpoilt) || std::isnan(found[0][200])) {
        std::fprintf(stderr, "rank %d: 8 bits, step %d: NaN in a wrong place\n", session->rank(),
                     step);
        std::_Exit(1);
      }
    }
  }
  dt_comm_destroy(host);
}

}  // namespace dt::test
