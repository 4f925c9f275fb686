// SPDX-License-Identifier: Apache-2.0
// Source of the sums put together: Chan, Golub and LeVeque, "Updating formulae and a pairwise
// algorithm for computing sample variances", COMPSTAT 1982.
#include "training/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "kernels/host/cast.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

enum class BatchQuestion { kMoments, kGradientSums };

/// What each rank sends: this, then two numbers for each channel.
enum BatchRow : size_t { kQuestion, kDtype, kCount, kNumbers };

const char* question_name(double question) {
  return question == static_cast<double>(BatchQuestion::kMoments) ? "dt_batch_moments"
                                                                  : "dt_batch_gradient_sums";
}

/// Calls visit(channel, index) for each element in the order of memory.
template <class Visit>
void for_each_element(const BatchShape& shape, Visit&& visit) {
  size_t index = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (size_t c = 0; c < static_cast<size_t>(shape.channels); ++c) {
      for (int64_t s = 0; s < shape.spatial; ++s) visit(c, index++);
    }
  }
}

/// The sums of differences from a first mean correct it: without them, rounding of a large mean
/// would be in both results.
template <class T>
Moments moments_of(const T* input, const BatchShape& shape) {
  const auto channels = static_cast<size_t>(shape.channels);
  Moments moments{shape.count(), std::vector<double>(channels), std::vector<double>(channels)};
  if (moments.count == 0) return moments;
  const auto count = static_cast<double>(moments.count);
  for_each_element(shape, [&](size_t c, size_t i) { moments.mean[c] += input[i]; });
  for (double& mean : moments.mean) mean /= count;
  std::vector<double> rest(channels);
  for_each_element(shape, [&](size_t c, size_t i) {
    const double difference = input[i] - moments.mean[c];
    rest[c] += difference;
    moments.deviation[c] += difference * difference;
  });
  for (size_t c = 0; c < channels; ++c) {
    if (!std::isfinite(moments.mean[c])) continue;  // an infinite mean has no difference from it
    moments.mean[c] += rest[c] / count;
    moments.deviation[c] -= rest[c] * (rest[c] / count);
    if (moments.deviation[c] < 0) moments.deviation[c] = 0;
  }
  return moments;
}

template <class T>
GradientSums gradient_sums_of(const T* input, const T* gradient, const BatchShape& shape,
                              const Normalisation& by) {
  const auto channels = static_cast<size_t>(shape.channels);
  GradientSums sums{std::vector<double>(channels), std::vector<double>(channels)};
  std::vector<double> scale(channels);
  for (size_t c = 0; c < channels; ++c) scale[c] = 1 / std::sqrt(by.variance[c] + by.epsilon);
  for_each_element(shape, [&](size_t c, size_t i) {
    const double each = gradient[i];
    sums.sum[c] += each;
    sums.product[c] += each * ((input[i] - by.mean[c]) * scale[c]);
  });
  return sums;
}

/// Elements of 16 bits are widened into `wide`.
const float* as_f32(const void* elements, const BatchShape& shape, std::vector<float>* wide) {
  if (shape.dtype == Dtype::kF32) return static_cast<const float*>(elements);
  const int64_t count = shape.count() * shape.channels;
  wide->resize(static_cast<size_t>(count));
  kernels::cast(shape.dtype, elements, Dtype::kF32, wide->data(), count);
  return wide->data();
}

std::string place_of(const comm::Communicator& comm, BatchQuestion question,
                     const BatchShape& shape) {
  return format("%s of %lld channels of %s on comm \"%s\", rank %d",
                question_name(static_cast<double>(question)),
                static_cast<long long>(shape.channels), dtype_name(shape.dtype),
                comm.name().c_str(), comm.rank());
}

/// The first rank that asks something else than rank 0, with both sides.
Status check_rows(const comm::Communicator& comm, const std::vector<double>& rows, size_t width,
                  const std::string& place) {
  for (size_t rank = 1; rank < static_cast<size_t>(comm.size()); ++rank) {
    const double* const first = rows.data();
    const double* const other = first + rank * width;
    if (first[kQuestion] == other[kQuestion] && first[kDtype] == other[kDtype]) continue;
    const auto said = [](const double* row) {
      return format("%s with %s", question_name(row[kQuestion]),
                    dtype_name(static_cast<Dtype>(static_cast<int32_t>(row[kDtype]))));
    };
    return Status(Code::kMismatch,
                  format("%s: rank 0 calls %s, rank %zu %s; call the same with the same dtype on "
                         "every rank",
                         place.c_str(), said(first).c_str(), rank, said(other).c_str()));
  }
  return {};
}

/// Everyone's rows, in rank order, `width` numbers each.
Result<std::vector<double>> exchange_rows(comm::Communicator& comm, BatchQuestion question,
                                          const BatchShape& shape, const std::vector<double>& first,
                                          const std::vector<double>& second) {
  const std::string place = place_of(comm, question, shape);
  std::vector<double> row(kNumbers);
  row[kQuestion] = static_cast<double>(question);
  row[kDtype] = static_cast<double>(shape.dtype);
  row[kCount] = static_cast<double>(shape.count());
  row.insert(row.end(), first.begin(), first.end());
  row.insert(row.end(), second.begin(), second.end());
  std::vector<double> rows(row.size() * static_cast<size_t>(comm.size()));
  Collective collective;
  collective.kind = Kind::kAllgather;
  collective.dtype = Dtype::kF64;
  collective.send = row.data();
  collective.recv = rows.data();
  collective.count = static_cast<int64_t>(row.size());
  collective.name = "batch_norm";
  DT_TRY(comm.run_on_host(collective).within(place));
  DT_TRY(check_rows(comm, rows, row.size(), place));
  return rows;
}

}  // namespace

void Moments::merge(const Moments& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  const auto own_count = static_cast<double>(count);
  const auto other_count = static_cast<double>(other.count);
  const double share = other_count / (own_count + other_count);
  for (size_t c = 0; c < mean.size(); ++c) {
    // An infinite mean stays; the deviation of the rank that had it is NaN.
    const bool stays =
        other.mean[c] == mean[c] || (std::isinf(mean[c]) && std::isfinite(other.mean[c]));
    const double difference = stays ? 0 : other.mean[c] - mean[c];
    mean[c] += difference * share;
    deviation[c] += other.deviation[c] + difference * difference * (own_count * share);
  }
  count += other.count;
}

Moments own_moments(const void* input, const BatchShape& shape) {
  if (shape.dtype == Dtype::kF64) return moments_of(static_cast<const double*>(input), shape);
  std::vector<float> wide;
  return moments_of(as_f32(input, shape, &wide), shape);
}

GradientSums own_gradient_sums(const void* input, const void* gradient, const BatchShape& shape,
                               const Normalisation& by) {
  if (shape.dtype == Dtype::kF64) {
    return gradient_sums_of(static_cast<const double*>(input), static_cast<const double*>(gradient),
                            shape, by);
  }
  std::vector<float> wide;
  std::vector<float> wide_gradient;
  return gradient_sums_of(as_f32(input, shape, &wide), as_f32(gradient, shape, &wide_gradient),
                          shape, by);
}

Result<Moments> batch_moments(comm::Communicator& comm, const void* input,
                              const BatchShape& shape) {
  DT_TRY(comm.check_ungrouped("dt_batch_moments"));
  const Moments own = own_moments(input, shape);
  DT_TRY_VALUE(const auto rows,
               exchange_rows(comm, BatchQuestion::kMoments, shape, own.mean, own.deviation));
  const auto channels = static_cast<size_t>(shape.channels);
  Moments all;
  for (size_t rank = 0; rank < static_cast<size_t>(comm.size()); ++rank) {
    const double* const row = rows.data() + rank * (kNumbers + 2 * channels);
    const double* const mean = row + kNumbers;
    const double* const deviation = mean + channels;
    all.merge({static_cast<int64_t>(row[kCount]),
               {mean, mean + channels},
               {deviation, deviation + channels}});
  }
  if (all.count > 0) return all;
  return Status(
      Code::kInvalidArgument,
      place_of(comm, BatchQuestion::kMoments, shape) +
          ": no rank has an element, so there is no mean; give at least one rank a batch");
}

Result<GradientSums> batch_gradient_sums(comm::Communicator& comm, const void* input,
                                         const void* gradient, const BatchShape& shape,
                                         const Normalisation& by) {
  DT_TRY(comm.check_ungrouped("dt_batch_gradient_sums"));
  const GradientSums own = own_gradient_sums(input, gradient, shape, by);
  DT_TRY_VALUE(const auto rows,
               exchange_rows(comm, BatchQuestion::kGradientSums, shape, own.sum, own.product));
  const auto channels = static_cast<size_t>(shape.channels);
  GradientSums all{std::vector<double>(channels), std::vector<double>(channels)};
  for (size_t rank = 0; rank < static_cast<size_t>(comm.size()); ++rank) {
    const double* const sum = rows.data() + rank * (kNumbers + 2 * channels) + kNumbers;
    for (size_t c = 0; c < channels; ++c) {
      all.sum[c] += sum[c];
      all.product[c] += sum[channels + c];
    }
  }
  return all;
}

}  // namespace dt::training
