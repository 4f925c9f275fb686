// SPDX-License-Identifier: Apache-2.0
#include "job/device_watch.h"

namespace dt::job {
namespace {

constexpr int64_t kPeriodMs = 1'000;

}  // namespace

DeviceWatch::DeviceWatch(net::Loop* loop, backend::Backend* backend)
    : loop_(loop), backend_(backend) {
  loop_->run([&] {
    timer_ = std::make_unique<net::Timer>(loop_, [this] { look(); });
    timer_->start(kPeriodMs);
  });
}

DeviceWatch::~DeviceWatch() {
  loop_->run([&] { timer_ = nullptr; });
}

void DeviceWatch::look() {
  backend_->look_after();
  timer_->start(kPeriodMs);
}

}  // namespace dt::job
