// SPDX-License-Identifier: Apache-2.0
#include "training/outer_mean.h"

#include <algorithm>

#include "kernels/host/cast.h"
#include "kernels/host/quantize.h"
#include "training/file_call.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr int64_t kLastMeanMs = 1'000;  // that destruction gives to what is under way
constexpr int64_t kPageBytes = 4'096;

int64_t round_up_to_page(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Result<std::unique_ptr<OuterMean>> OuterMean::create(comm::Communicator& comm, MeanFormat format,
                                                     int64_t largest, const char* operation) {
  DT_TRY_VALUE(auto own, comm.split(0, comm.rank()));
  own->follow(comm.shared_from_this());
  std::unique_ptr<OuterMean> mean(new OuterMean(std::move(own), format));
  DT_TRY(FileCall(comm, operation).agree({mean->allocate(largest)}));
  return mean;
}

OuterMean::~OuterMean() {
  if (work_ != nullptr && !comm_->backend().wait(*work_, Wait{Deadline::after_ms(kLastMeanMs)})) {
    return;
  }
  (void)comm_->backend().release(memory_);
}

Status OuterMean::allocate(int64_t largest) {
  count_ = largest;
  const int64_t values = round_up_to_page(largest * static_cast<int64_t>(sizeof(float)));
  int64_t wire = 0;
  if (format_ == MeanFormat::kBf16) wire = largest * dtype_bytes(Dtype::kBf16);
  if (is_quantized()) wire = parts().bytes();
  wire = round_up_to_page(wire);
  const int64_t total = values + (is_quantized() ? 2 : 1) * wire;
  DT_TRY_VALUE(memory_, comm_->backend().allocate(std::max<int64_t>(total, 1)));
  values_ = static_cast<float*>(memory_);
  sent_ = static_cast<char*>(memory_) + values;
  received_ = sent_ + wire;
  return {};
}

Status OuterMean::submit(Collective collective) {
  collective.name = name_;
  collective.tag = tag_;
  const auto work = comm_->new_work();
  DT_TRY(comm_->submit(collective, work));
  work_ = work;
  return {};
}

Status OuterMean::begin(int64_t count, const std::string& name, int32_t tag) {
  count_ = count;
  name_ = name;
  tag_ = tag;
  Collective first;
  first.kind = Kind::kAllreduce;
  first.dtype = Dtype::kF32;
  first.op = ReduceOp::kAvg;
  first.send = first.recv = values_;
  first.count = count;
  if (format_ == MeanFormat::kBf16) {
    kernels::cast(Dtype::kF32, values_, Dtype::kBf16, sent_, count);
    first.dtype = Dtype::kBf16;
    first.send = first.recv = sent_;
  } else if (is_quantized()) {
    kernels::quantize(bits(), values_, count_, sent_);
    first = parts().send_parts(sent_, received_);
  }
  DT_TRY(submit(std::move(first)));
  phase_ = Phase::kFirst;
  return {};
}

void OuterMean::advance() {
  if (phase_ != Phase::kFirst || !is_quantized() || !work_->done()) return;
  failed_ = begin_second();
}

/// This rank's part of the mean, to all.
Status OuterMean::begin_second() {
  DT_TRY(work_->status());
  const auto [from, elements] = parts().part(comm_->rank());
  const float share = 1.0F / static_cast<float>(comm_->size());
  for (int32_t rank = 0; rank < comm_->size(); ++rank) {
    kernels::dequantize(bits(), received_ + rank * parts().part_bytes(), elements, share, rank > 0,
                        values_ + from);
  }
  kernels::quantize(bits(), values_ + from, elements, sent_);
  DT_TRY(submit(parts().send_result(sent_, received_)));
  phase_ = Phase::kSecond;
  return {};
}

Status OuterMean::end() {
  const Status status = go_on();
  phase_ = Phase::kIdle;
  return status;
}

Status OuterMean::go_on() {
  DT_TRY(std::exchange(failed_, {}));
  (void)comm_->backend().wait(*work_, Wait{});
  DT_TRY(work_->status());
  if (format_ == MeanFormat::kBf16) {
    kernels::cast(Dtype::kBf16, sent_, Dtype::kF32, values_, count_);
  }
  if (!is_quantized()) return {};
  if (phase_ == Phase::kFirst) {
    DT_TRY(begin_second());
    (void)comm_->backend().wait(*work_, Wait{});
    DT_TRY(work_->status());
  }
  kernels::dequantize(bits(), received_, count_, 1, false, values_);
  return {};
}

}  // namespace dt::training
