// SPDX-License-Identifier: Apache-2.0
// The counters of a rank, for those who watch it from outside.
#include <algorithm>

#include "job/job.h"
#include "metrics/exposition.h"

namespace dt::job {
namespace {

constexpr int64_t kPortMax = 65535;

}  // namespace

/// After the start. The text is made by threads that may outlive the Job: it holds no part of it.
void Job::publish_metrics() {
  const std::string& file = config_.text("metrics.file");
  const int64_t port = config_.integer("metrics.port");
  if (file.empty() && port == 0) return;
  const std::string self = format("rank %d (%s)", place_.rank, host_name_.c_str());
  const auto warn = [&](const std::string& why) {
    logger_->log(LogLevel::kWarning, "no metrics of %s: %s", self.c_str(), why.c_str());
  };
  metrics::Snapshot fixed;
  fixed.job_id = place_.job_id;
  fixed.host = host_name_;
  fixed.rank = place_.rank;
  fixed.world_size = place_.world_size;
  fixed.restarts = place_.attempt;
  const auto text = [fixed, meter = meter(), recorder = recorder()] {
    metrics::Snapshot now = fixed;
    now.totals = meter->read();
    if (recorder != nullptr) now.uncounted = recorder->dropped();
    return metrics::exposition(now);
  };
  if (!file.empty()) {
    metrics::FileWriter::Options options;
    options.path = metrics::path_of_rank(file, place_.rank, place_.local_size > 1);
    options.interval_ms = config_.integer("metrics.interval_ms");
    options.text = text;
    options.self = self;
    options.logger = logger_;
    auto started = metrics::FileWriter::start(std::move(options));
    if (started.ok()) {
      metrics_file_ = std::move(started).value();
    } else {
      warn(started.status().message());
    }
  }
  if (port == 0) return;
  const int64_t own_port = port < 0 ? 0 : port + std::max(place_.local_rank, 0);
  if (own_port > kPortMax) {
    return warn(format("metrics.port %lld plus local rank %d is no port; choose a smaller one",
                       static_cast<long long>(port), place_.local_rank));
  }
  if (loop_ == nullptr) {  // a job of one rank
    auto loop = net::Loop::start();
    if (!loop.ok()) return warn(loop.status().message());
    loop_ = std::move(loop).value();
  }
  metrics::Port::Options options;
  options.port = static_cast<uint16_t>(own_port);
  options.text = text;
  auto opened = metrics::Port::open(loop_.get(), std::move(options));
  if (!opened.ok())
    return warn(opened.status().message() + " (metrics.port; there -1 asks for a free one)");
  metrics_port_ = std::move(opened).value();
  logger_->log(LogLevel::kInfo, "the metrics of %s are at http://%s/metrics", self.c_str(),
               metrics_port_->address().c_str());
}

void Job::end_metrics() {
  metrics_port_ = nullptr;
  metrics_file_ = nullptr;
}

}  // namespace dt::job
