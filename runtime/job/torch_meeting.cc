// SPDX-License-Identifier: Apache-2.0
#include "job/torch_meeting.h"

#include "net/interfaces.h"
#include "store/torch_service.h"

namespace dt::job {

Result<TorchMeeting> TorchMeeting::join(net::Loop* loop, const Config& config,
                                        const launch::Place& place, const LoggerPtr& logger,
                                        const Wait& wait) {
  TorchMeeting meeting;
  store::TorchClientOptions options;
  options.logger = logger;
  const std::string& given = config.text("store.torch_address");
  meeting.finds_store_ = !place.store_served && place.world_size > 1;
  const bool by_agent = place.port_taken && !place.store_served && given.empty();
  if (!given.empty()) {
    Result<net::HostPort> found = net::parse_host_port(given);
    if (!found.ok()) return found.status().within("store.torch_address");
    if (meeting.finds_store_ && place.job_id.empty()) {
      return Status(
          Code::kConfig,
          "store.torch_address needs job.id, the same on all ranks: other jobs may meet in "
          "the same store");
    }
    options.host = found.value().host;
    options.port = found.value().port;
  } else if (by_agent) {
    options.host = place.master_addr;
    options.port = static_cast<uint16_t>(place.master_port);
  } else {
    return meeting;
  }
  if (const Status met = meeting.connect(loop, options, place, wait); !met.ok()) {
    // What is no store of PyTorch is none for every rank; what does not answer may be for others.
    if (!by_agent || met.code() != Code::kUnsupported) return met;
    logger->log(LogLevel::kWarning,
                "%s; the ranks meet at port %d of %s instead, which is made of the port, the "
                "address and the job's name",
                met.message().c_str(), launch::store_port(place), place.master_addr.c_str());
  }
  return meeting;
}

Result<TorchMeeting> TorchMeeting::join_at_master(net::Loop* loop, const launch::Place& place,
                                                  const LoggerPtr& logger, const Wait& wait) {
  TorchMeeting meeting;
  meeting.finds_store_ = true;
  store::TorchClientOptions options;
  options.host = place.master_addr;
  options.port = static_cast<uint16_t>(place.master_port);
  options.logger = logger;
  DT_TRY(meeting.connect(loop, options, place, wait));
  logger->log(LogLevel::kInfo, "%s holds the port of MASTER_PORT: the ranks of dt meet there",
              meeting.client_->text().c_str());
  return meeting;
}

Status TorchMeeting::connect(net::Loop* loop, store::TorchClientOptions options,
                             const launch::Place& place, const Wait& wait) {
  DT_TRY_VALUE(client_, store::TorchClient::connect(loop, std::move(options), wait));
  key_ = store::kTorchPrefix + format("dt/%s/%d/store", place.job_id.c_str(), place.attempt);
  master_addr_ = place.master_addr;
  may_span_hosts_ = place.may_span_hosts();
  return {};
}

// The address from which rank 0 reaches the agent is one that the hosts of the job reach, unless
// the agent's name leads to loopback on its own host, as Debian's /etc/hosts has it.
TorchMeeting::Serving TorchMeeting::serving(const Config& config) const {
  const std::string& bind = config.text("store.bind");
  const std::string local = client_->local_host();
  const bool unreachable =
      net::means_loopback(local) && may_span_hosts_ && !net::means_loopback(master_addr_);
  const std::string told = unreachable ? master_addr_ : local;
  if (!bind.empty()) {
    const bool all = bind == "0.0.0.0" || bind == "::";
    return {bind, all ? told : bind};
  }
  // The agent may be known by the host's name; the ranks of one host need no more than loopback.
  if (!may_span_hosts_) return {"127.0.0.1", "127.0.0.1"};
  return {unreachable ? "" : local, told};
}

Status TorchMeeting::publish(const std::string& host, int32_t port, const Wait& wait) const {
  return client_->set(key_, net::host_port_text(host, static_cast<uint16_t>(port)), wait);
}

Result<net::HostPort> TorchMeeting::find(const Wait& wait) const {
  Result<std::string> text = client_->get(key_, wait);
  if (!text.ok()) return text.status().within("looking for dt's store, which rank 0 serves");
  return net::parse_host_port(text.value());
}

void TorchMeeting::withdraw(const Wait& wait) const {
  // Best effort: left behind it misleads nobody but another job of this name and attempt.
  (void)client_->erase(key_, wait);
}

}  // namespace dt::job
