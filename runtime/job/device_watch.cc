// SPDX-License-Identifier: Apache-2.0
#include "job/device_watch.h"

#include <algorithm>

namespace dt::job {
namespace {

constexpr int64_t kPeriodMs = 1'000;

}  // namespace

DeviceWatch::DeviceWatch(net::Loop* loop, backend::Backend* backend, Options options)
    : loop_(loop), backend_(backend), options_(std::move(options)) {
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
  if (const Status reason = backend_->hang(options_.abort_timeout_ms); !told_ && !reason.ok()) {
    tell_of_hang(reason);
  }
  timer_->start(std::min(kPeriodMs, options_.abort_timeout_ms));
}

void DeviceWatch::tell_of_hang(const Status& reason) {
  told_ = true;
  if (options_.logger != nullptr) {
    options_.logger->log(
        LogLevel::kError,
        "%s: the end of its communicators on %s hangs for more than %lld ms in a call of CUDA or "
        "NCCL, "
        "so this process can use its GPU no more%s. They were to be aborted because: %s",
        options_.self.c_str(), backend_->device()->device().name.c_str(),
        static_cast<long long>(options_.abort_timeout_ms),
        options_.end_process ? "; it is ended (watchdog.exit)"
                             : "; end it (watchdog.exit would do that)",
        reason.message().c_str());
  }
  if (options_.end_process) options_.end_process();
}

}  // namespace dt::job
