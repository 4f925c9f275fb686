// SPDX-License-Identifier: Apache-2.0
// Statistics of batches over GPUs that are made of threads. Their kernels are the host's functions,
// so these tests are of what surrounds the kernels.
#include "training/device_batch_norm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device_ranks.h"
#include "kernels/host/cast.h"
#include "training/batch_norm.h"

using namespace dt;
using namespace dt::test;
using kernels::BatchView;
using training::BatchShape;

namespace {

constexpr double kEpsilon = 1e-5;

/// Elements of a dtype; of 16 bits what these hold.
std::vector<char> numbers(Dtype dtype, int64_t count, int seed) {
  if (count == 0) return {};
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 3 + std::sin(static_cast<double>(i) * 0.7 + seed);
  }
  std::vector<char> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  if (dtype == Dtype::kF64) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  const std::vector<float> singles(values.begin(), values.end());
  if (dtype == Dtype::kF32) {
    std::memcpy(bytes.data(), singles.data(), bytes.size());
  } else {
    kernels::cast(Dtype::kF32, singles.data(), dtype, bytes.data(), count);
  }
  return bytes;
}

/// Samples of all ranks, one behind the other: rank r has batches[r] of them.
struct Layout {
  std::vector<int64_t> batches;
  int64_t channels;
  int64_t spatial;
  Dtype dtype;

  int64_t samples(int rank) const {
    int64_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += batches[static_cast<size_t>(r)];
    return sum;
  }
  int64_t sample_bytes() const { return channels * spatial * dtype_bytes(dtype); }
};

/// What a rank has of one layer on its GPU.
struct Layer {
  explicit Layer(const Layout& of, int rank)
      : layout(of),
        input(numbers(of.dtype,
                      of.samples(static_cast<int>(of.batches.size())) * of.channels * of.spatial,
                      1)),
        gradient(numbers(of.dtype, static_cast<int64_t>(input.size()) / dtype_bytes(of.dtype), 2)),
        mean(static_cast<size_t>(of.channels), -7),
        variance(mean),
        sum(mean),
        product(mean) {
    const auto before = static_cast<size_t>(of.samples(rank) * of.sample_bytes());
    view = {input.data() + before,
            gradient.data() + before,
            of.batches[static_cast<size_t>(rank)],
            of.channels,
            of.spatial,
            of.dtype};
  }

  void forward(training::DeviceBatchNorm& norm, const GpuRank& rank, cuda::Stream stream) {
    rank.expect_ok(norm.moments(view, mean.data(), variance.data(), &count, stream), "moments");
  }
  void backward(training::DeviceBatchNorm& norm, const GpuRank& rank, cuda::Stream stream) {
    rank.expect_ok(norm.gradient_sums(view, {mean.data(), variance.data(), kEpsilon}, sum.data(),
                                      product.data(), stream),
                   "gradient sums");
  }
  /// As one rank with all samples has it; the stream has ended.
  void check(const GpuRank& rank) const {
    const BatchShape whole{layout.samples(static_cast<int>(layout.batches.size())), layout.channels,
                           layout.spatial, layout.dtype};
    const training::Moments right = training::own_moments(input.data(), whole);
    rank.expect(count == right.count, "count");
    std::vector<double> right_variance = right.deviation;
    for (double& each : right_variance) each /= static_cast<double>(right.count);
    const training::GradientSums sums = training::own_gradient_sums(
        input.data(), gradient.data(), whole, {right.mean.data(), right_variance.data(), kEpsilon});
    const double size = static_cast<double>(right.count);
    rank.expect(near(mean, right.mean, 1), "mean");
    rank.expect(near(variance, right_variance, 1), "variance");
    rank.expect(near(sum, sums.sum, size), "sum");
    rank.expect(near(product, sums.product, size), "product");
  }
  static bool near(const std::vector<double>& found, const std::vector<double>& right,
                   double size) {
    for (size_t c = 0; c < right.size(); ++c) {
      if (!(std::abs(found[c] - right[c]) <= 1e-12 * size)) return false;
    }
    return true;
  }

  const Layout layout;
  std::vector<char> input;
  std::vector<char> gradient;
  std::vector<double> mean;
  std::vector<double> variance;
  std::vector<double> sum;
  std::vector<double> product;
  int64_t count = -7;
  BatchView view;
};

std::shared_ptr<Layer> layer_on(const GpuRank& rank, const Layout& layout) {
  const auto layer = std::make_shared<Layer>(layout, rank.rank);
  rank.memory->push_back(layer);
  return layer;
}

}  // namespace

TEST_CASE("batch statistics on GPUs: those of the whole batch, the same bits on all ranks") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(std::string(backend));
    std::vector<std::vector<double>> found(3);
    run_on_gpus({backend, 3}, [&](GpuRank& rank) {
      training::DeviceBatchNorm& norm = *training::DeviceBatchNorm::of(*rank.comm);
      rank.expect(training::DeviceBatchNorm::of(*rank.comm).get() == &norm, "one for all handles");
      const cuda::Stream stream = rank.new_stream();
      std::vector<double>& mine = found[static_cast<size_t>(rank.rank)];
      for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64}) {
        for (const int64_t spatial : {1, 49}) {
          const auto layer = layer_on(rank, {{5, 0, 8}, 3, spatial, dtype});
          layer->forward(norm, rank, stream);
          layer->backward(norm, rank, stream);
          rank.expect(rank.cuda->finish(stream), "the stream ends");
          layer->check(rank);
          for (const auto& each : {layer->mean, layer->variance, layer->sum, layer->product}) {
            mine.insert(mine.end(), each.begin(), each.end());
          }
        }
      }
    });
    CHECK(found[1] == found[0]);
    CHECK(found[2] == found[0]);
  }
}

TEST_CASE(
    "batch statistics on GPUs: layers on streams that stand still do not disturb each other") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    // The last ones have more channels than the first call made room for.
    const std::vector<int64_t> channels = {3, 64, 5, 5000, 9000};
    training::DeviceBatchNorm norm(*rank.comm);
    const std::vector<cuda::Stream> streams = {rank.new_stream(), rank.new_stream()};
    std::vector<std::shared_ptr<Layer>> layers;
    Gate gate;
    for (const cuda::Stream stream : streams) {
      rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
    }
    for (size_t i = 0; i < channels.size(); ++i) {
      layers.push_back(layer_on(rank, {{2, 3}, channels[i], 2, Dtype::kF32}));
      layers.back()->forward(norm, rank, streams[i % 2]);
    }
    gate.open();
    for (const cuda::Stream stream : streams) {
      rank.expect(rank.cuda->finish(stream), "the stream ends");
    }
    for (size_t i = channels.size(); i-- > 0;) layers[i]->backward(norm, rank, streams[i % 2]);
    for (const cuda::Stream stream : streams) {
      rank.expect(rank.cuda->finish(stream), "the stream ends");
    }
    for (const auto& layer : layers) layer->check(rank);
  });
}

TEST_CASE("batch statistics on GPUs: without any element the count is 0 and moments are NaN") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    training::DeviceBatchNorm norm(*rank.comm);
    const auto layer = layer_on(rank, {{0, 0}, 2, 1, Dtype::kF32});
    layer->forward(norm, rank, nullptr);
    layer->backward(norm, rank, nullptr);
    rank.expect(rank.cuda->finish(nullptr), "the stream ends");
    rank.expect(layer->count == 0 && std::isnan(layer->mean[1]) && std::isnan(layer->variance[0]),
                "moments");
    rank.expect(layer->sum[0] == 0 && layer->product[1] == 0, "sums");
  });
}

TEST_CASE("batch statistics on GPUs: other dtypes, calls and channels are named with both sides") {
  enum class Way { kDtype, kCall, kChannels };
  for (const Way way : {Way::kDtype, Way::kCall, Way::kChannels}) {
    CAPTURE(static_cast<int>(way));
    GpuWorld world{"nccl", 2};
    world.check = "strict";
    world.ranks_may_disagree = true;
    run_on_gpus(world, [way](GpuRank& rank) {
      training::DeviceBatchNorm norm(*rank.comm);
      const bool other = rank.rank == 1;
      const auto layer = layer_on(rank, {{1, 1},
                                         way == Way::kChannels && other ? 3 : 2,
                                         1,
                                         way == Way::kDtype && other ? Dtype::kF64 : Dtype::kF32});
      Status status =
          way == Way::kCall && other
              ? norm.gradient_sums(layer->view, {layer->mean.data(), layer->variance.data(), 0},
                                   layer->sum.data(), layer->product.data(), nullptr)
              : norm.moments(layer->view, layer->mean.data(), layer->variance.data(), &layer->count,
                             nullptr);
      if (status.ok()) status = rank.await_broken();
      rank.expect(status.code() == Code::kMismatch, status.message());
      rank.expect(contains(status, "\"dt_batch_moments of f32\""), status.message());
      if (way == Way::kDtype) {
        rank.expect(contains(status, "\"dt_batch_moments of f64\""), status.message());
      } else if (way == Way::kCall) {
        rank.expect(contains(status, "\"dt_batch_gradient_sums of f32\""), status.message());
      } else {
        rank.expect(contains(status, "f64 x 5") && contains(status, "f64 x 7"), status.message());
      }
      rank.meet();
    });
  }
}

TEST_CASE("batch statistics on GPUs: a rank without memory, or whose CUDA has failed, fails all") {
  for (const std::string call : {"cudaMalloc", "cudaStreamIsCapturing"}) {
    CAPTURE(call);
    run_on_gpus({"nccl", 2}, [&call](GpuRank& rank) {
      training::DeviceBatchNorm norm(*rank.comm);
      const auto layer = layer_on(rank, {{1, 1}, 2, 1, Dtype::kF32});
      const cuda::Stream stream = rank.new_stream();
      if (rank.rank == 1) rank.cuda->fail(call);
      const Status status = norm.moments(layer->view, layer->mean.data(), layer->variance.data(),
                                         &layer->count, stream);
      if (rank.rank == 1) {
        rank.expect(contains(status, call + " on device 1"), status.message());
        rank.cuda->fail(call, 0, 0);
      }
      const Status broken = rank.await_broken();
      rank.expect(!broken.ok() && broken.code() != Code::kTimeout, broken.message());
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      rank.meet();
    });
  }
}

TEST_CASE("batch statistics on GPUs: a stream that records a graph and an open group are refused") {
  run_on_gpus({"nccl", 1}, [](GpuRank& rank) {
    training::DeviceBatchNorm norm(*rank.comm);
    const auto layer = layer_on(rank, {{2}, 2, 1, Dtype::kF32});
    const cuda::Stream stream = rank.new_stream();
    const auto call = [&] {
      return norm.moments(layer->view, layer->mean.data(), layer->variance.data(), &layer->count,
                          stream);
    };
    rank.cuda->set_capturing(stream, true);
    const Status captured = call();
    rank.expect(captured.code() == Code::kInvalidArgument &&
                    contains(captured, "dt_batch_moments on comm \"world\": the stream records a"),
                captured.message());
    rank.cuda->set_capturing(stream, false);
    rank.expect_ok(rank.comm->begin_group(), "group");
    const Status grouped = call();
    rank.expect(grouped.code() == Code::kInvalidState, grouped.message());
    rank.expect_ok(rank.comm->end_group(), "group");
    layer->forward(norm, rank, stream);
    layer->backward(norm, rank, stream);
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    layer->check(rank);
  });
}
