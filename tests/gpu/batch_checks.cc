// SPDX-License-Identifier: Apache-2.0
#include "batch_checks.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace dt::test {
namespace {

constexpr double kBatchEpsilon = 1e-5;

float batch_number(int rank, int64_t i) {
  return static_cast<float>((7 * rank + 3 * i) % 41) + 1000.0F;
}
float batch_gradient(int rank, int64_t i) {
  return static_cast<float>((5 * rank + 11 * i) % 23 - 11);
}

/// Rank 0 has none where there are others.
int64_t samples_of(const Session& session, int rank) {
  return rank == 0 && session.ranks() > 1 ? 0 : 3 + 2 * rank;
}

struct Statistics {
  double count = 0;
  double mean = 0;
  double variance = 0;
  double sum = 0;
  double product = 0;
};

/// Calls visit(rank, index) for each element of the channel.
template <class Visit>
void for_channel(const Session& session, int64_t channels, int64_t spatial, int64_t channel,
                 Visit visit) {
  for (int rank = 0; rank < session.ranks(); ++rank) {
    for (int64_t b = 0; b < samples_of(session, rank); ++b) {
      for (int64_t s = 0; s < spatial; ++s) visit(rank, (b * channels + channel) * spatial + s);
    }
  }
}

Statistics batch_statistics(const Session& session, int64_t channels, int64_t spatial,
                            int64_t channel) {
  Statistics right;
  const auto each = [&](auto visit) { for_channel(session, channels, spatial, channel, visit); };
  each([&](int rank, int64_t i) {
    right.count += 1;
    right.mean += static_cast<double>(batch_number(rank, i));
    right.sum += static_cast<double>(batch_gradient(rank, i));
  });
  right.mean /= right.count;
  each([&](int rank, int64_t i) {
    const double off = static_cast<double>(batch_number(rank, i)) - right.mean;
    right.variance += off * off / right.count;
  });
  each([&](int rank, int64_t i) {
    right.product += static_cast<double>(batch_gradient(rank, i)) *
                     (static_cast<double>(batch_number(rank, i)) - right.mean) /
                     std::sqrt(right.variance + kBatchEpsilon);
  });
  return right;
}

void need_near(const Session& session, const char* what, int64_t channel, double found,
               double right) {
  if (std::abs(found - right) <= 1e-10 * (1 + std::abs(right))) return;
  std::fprintf(stderr, "rank %d: batch statistics: %s of channel %lld is %.17g, not %.17g\n",
               session.rank(), what, static_cast<long long>(channel), found, right);
  std::_Exit(1);
}

void check_layer(Session* session, int64_t channels, int64_t spatial) {
  const int64_t samples = samples_of(*session, session->rank());
  const int64_t elements = samples * channels * spatial;
  std::vector<float> input(static_cast<size_t>(elements));
  std::vector<float> gradient(input.size());
  for (int64_t i = 0; i < elements; ++i) {
    input[static_cast<size_t>(i)] = batch_number(session->rank(), i);
    gradient[static_cast<size_t>(i)] = batch_gradient(session->rank(), i);
  }
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  auto* const device_input = static_cast<float*>(session->memory(bytes + 4));
  auto* const device_gradient = static_cast<float*>(session->memory(bytes + 4));
  auto* const results = static_cast<double*>(session->memory((4 * channels + 1) * 8));
  if (elements > 0) session->write(device_input, input.data(), bytes);
  if (elements > 0) session->write(device_gradient, gradient.data(), bytes);
  double* const mean = results;
  double* const variance = mean + channels;
  double* const sum = variance + channels;
  double* const product = sum + channels;
  auto* const count = reinterpret_cast<int64_t*>(product + channels);
  need(dt_batch_moments(session->comm(), device_input, samples, channels, spatial, DT_F32, mean,
                        variance, count, session->stream()));
  need(dt_batch_gradient_sums(session->comm(), device_input, device_gradient, samples, channels,
                              spatial, DT_F32, mean, variance, kBatchEpsilon, sum, product,
                              session->stream()));
  need(session->finish());
  std::vector<double> found(static_cast<size_t>(4 * channels));
  int64_t found_count = 0;
  session->read(found.data(), results, 4 * channels * 8);
  session->read(&found_count, count, 8);
  const auto at = [&](int64_t array, int64_t channel) {
    return found[static_cast<size_t>(array * channels + channel)];
  };
  for (int64_t c = 0; c < channels; ++c) {
    const Statistics right = batch_statistics(*session, channels, spatial, c);
    need_near(*session, "the count", c, static_cast<double>(found_count), right.count);
    need_near(*session, "the mean", c, at(0, c), right.mean);
    need_near(*session, "the variance", c, at(1, c), right.variance);
    need_near(*session, "the sum", c, at(2, c), right.sum);
    need_near(*session, "the product", c, at(3, c), right.product);
  }
}

}  // namespace

void check_batch_statistics(Session* session) {
  for (const int64_t channels : {1, 33, 257}) {
    for (const int64_t spatial : {1, 7, 49}) check_layer(session, channels, spatial);
  }
  // An address of the host is refused, and leaves the communicator usable.
  if (session->gpu() != nullptr) {
    double host[2] = {0, 0};
    int64_t count = 0;
    const Status status = status_of(dt_batch_moments(session->comm(), nullptr, 0, 1, 1, DT_F32,
                                                     host, host + 1, &count, session->stream()));
    if (status.code() != Code::kInvalidArgument ||
        status.message().find("out_mean begins in memory of the host") == std::string::npos) {
      std::fprintf(stderr, "rank %d: batch statistics: host memory is not refused: %s\n",
                   session->rank(), status.message().c_str());
      std::_Exit(1);
    }
  }
}

}  // namespace dt::test
