// SPDX-License-Identifier: Apache-2.0
// What becomes a view of dt.hpp, and how calls are written; compiled by check_headers.sh, never
// run.
#include <dt/dt.h>

// A program's own names, which the header must not take for its own.
void check(dt_status);
template <class T>
T made(void (*)(T*));

#include <array>
#include <dt/dt.hpp>
#include <string>
#include <type_traits>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace {

template <class From, class To>
constexpr bool becomes = std::is_convertible<From, To>::value;

static_assert(becomes<std::vector<float>&, dt::View>, "");
static_assert(becomes<const std::vector<float>&, dt::ConstView>, "");
static_assert(!becomes<const std::vector<float>&, dt::View>, "it may not be written");
static_assert(becomes<std::array<int, 3>&, dt::View>, "");
static_assert(becomes<double (&)[3], dt::View>, "");
static_assert(!becomes<const double (&)[3], dt::View>, "");
static_assert(becomes<const double (&)[3], dt::ConstView>, "");
static_assert(becomes<dt::View, dt::ConstView>, "");
static_assert(!becomes<dt::ConstView, dt::View>, "");
static_assert(becomes<std::vector<short>&, dt::View>, "");
static_assert(!becomes<std::vector<long double>&, dt::View>, "dt has no such dtype");
static_assert(becomes<std::string&, dt::ConstView>, "bytes");
static_assert(!becomes<float*, dt::View>, "a pointer needs a count");
static_assert(becomes<const std::vector<long>&, dt::Blocks>, "");
static_assert(!becomes<dt::View, dt::CallOptions>, "");
#if __cplusplus >= 202002L
static_assert(becomes<std::span<float>, dt::View>, "");
static_assert(!becomes<std::span<const float>, dt::View>, "");
static_assert(becomes<std::span<const float>, dt::ConstView>, "");
#endif

struct Adds {
  void operator()(const float& in, float& inout) const { inout += in; }
};
template <class Function, class = void>
struct combines : std::false_type {};
template <class Function>
struct combines<Function, std::void_t<decltype(dt::combine_by<float>(std::declval<dt_collective&>(),
                                                                     std::declval<Function>()))>>
    : std::true_type {};
static_assert(combines<Adds&>::value && combines<const Adds&>::value, "");
static_assert(!combines<Adds>::value, "it would be gone when the operation runs");

// Each is to find one overload, without a warning.
[[maybe_unused]] void calls(dt::Comm& comm, float* pointer, void* memory, dt_stream stream) {
  std::vector<float> values(3), more(6);
  const int64_t count = 3;
  comm.allreduce(values);
  comm.allreduce(values, more);
  comm.allreduce(values, DT_MAX);
  comm.allreduce(values, more, DT_MAX, dt::on_stream(stream));
  comm.allreduce({pointer, count});
  comm.allreduce({pointer, 3}, {pointer, values.size()});
  comm.allreduce({memory, count, DT_BF16}, DT_AVG, {"loss"});
  comm.allreduce({memory, count, DT_BF16}, {memory, count, DT_BF16}, DT_AVG, {"loss", 500});
  comm.reduce(values, 0);
  comm.reduce(values, 0, DT_MIN);
  comm.reduce(values, {}, 1);
  comm.reduce({pointer, count}, {pointer, count}, 1, DT_MIN, {nullptr, 500, stream});
  comm.allgather({pointer, count}, {pointer, 2 * count});
  comm.allgather(values, more, {"parts"});
  comm.allgather(dt::View(more).part(0, 3), more);
  comm.gather(values, {}, 1);
  comm.scatter({}, values, 1, {"parts", 500});
  comm.gatherv(values, {}, {}, 1);
  const std::vector<int64_t> counts{3, 3};
  comm.alltoallv(more, counts, more, {counts, counts});
  comm.send({pointer, count}, 1);
  (void)comm.barrier_async();
  struct Best {
    float value;
    int32_t rank;
  } best{1, 2};
  const auto better = [](const Best& in, Best& inout) {
    if (in.value > inout.value) inout = in;
  };
  dt_collective one;
  dt_collective_init(&one);
  one.kind = DT_KIND_ALLREDUCE;
  one.send = one.recv = &best;
  one.count = 1;
  dt::combine_by<Best>(one, better);
  comm.launch(one);
  (void)comm.launch_async(one);
#if __cplusplus >= 202002L
  comm.allreduce(std::span<float>(values), DT_SUM, {.timeout_ms = 500, .stream = stream});
#endif
}

}  // namespace
