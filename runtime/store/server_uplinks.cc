// SPDX-License-Identifier: Apache-2.0
// The sessions whose transport is a channel of an uplink. To the rest of the server they are
// sessions like any other.
#include <cerrno>

#include "store/server_impl.h"
#include "store/text.h"

namespace dt::store {

void Server::Impl::begin_uplink(uint64_t id, const Frame& frame) {
  Session* session = sessions_.at(id).get();
  UplinkHello hello;
  if (!decode(frame.payload, &hello) || session->connection->channel() != nullptr) {
    return refuse(session, Status(Code::kInvalidArgument,
                                  "the first frame of a relay's connection makes no sense"));
  }
  const char* differs = nullptr;
  if (hello.attempt != options_.attempt) differs = "belongs to another attempt; start it anew";
  if (hello.job_id != options_.job_id) differs = "belongs to another job; check the address";
  if (hello.protocol != kProtocolVersion) {
    differs = "speaks another protocol; use the same release of dt everywhere";
  }
  if (differs != nullptr) {
    return refuse(session,
                  Status(Code::kVersion, format("the store refuses the relay of host %s: it %s",
                                                quoted(hello.host).c_str(), differs)));
  }
  auto uplink = std::make_unique<Uplink>();
  uplink->host = std::move(hello.host);
  uplink->on_touched = [this, id] {
    if (touched_uplinks_.empty() && uplinks_timer_ != nullptr) uplinks_timer_->start(0);
    touched_uplinks_.push_back(id);
  };
  uplink->parser = std::move(session->parser);
  uplink->parser.set_max_payload(kMaxDataBytes);
  uplink->connection = session->connection->take_own();
  gone(*session);
  sessions_.erase(id);
  tell_if_empty();
  uplink->connection->write(encode_frame(FrameType::kReply, frame.id, {}));
  uplink->connection->release();
  uplinks_.emplace(id, std::move(uplink));
  handle_uplink(id);
}

void Server::Impl::handle_uplink(uint64_t id) {
  for (;;) {
    // Each frame may end the uplink, or what it carries.
    const auto found = uplinks_.find(id);
    if (found == uplinks_.end()) return;
    note(found->second.get());
    Uplink* uplink = found->second.get();
    Frame frame;
    Status broken;
    if (uplink->parser.next(&frame)) {
      broken = handle_channel(uplink, frame);
    } else if (broken = uplink->parser.status(); broken.ok()) {
      return;
    }
    if (!broken.ok()) return break_uplink(id, broken);
  }
}

/// Not ok: the relay has broken the rules of uplinks.
Status Server::Impl::handle_channel(Uplink* uplink, const Frame& frame) {
  const uint64_t number = frame.id;
  if (frame.type == FrameType::kOpen) {
    if (number <= uplink->last_channel || uplink->channels.size() >= kMaxChannels) {
      return Status(Code::kInvalidArgument,
                    format("channel %llu cannot be opened: numbers only grow, and no more than "
                           "%zu are open at a time",
                           static_cast<unsigned long long>(number), kMaxChannels));
    }
    open_channel(uplink, number);
    arm_timer();
    return {};
  }
  const bool fits = frame.type == FrameType::kData || frame.type == FrameType::kClose ||
                    frame.type == FrameType::kPause || frame.type == FrameType::kResume;
  if (!fits || number > uplink->last_channel) {
    return Status(Code::kInvalidArgument,
                  format("a frame of type %d for channel %llu, which was not opened",
                         static_cast<int>(frame.type), static_cast<unsigned long long>(number)));
  }
  const auto channel = uplink->channels.find(number);
  if (channel == uplink->channels.end()) return {};  // it was on its way when this side closed it
  const uint64_t session = channel->second;
  Channel* const wire = sessions_.at(session)->connection->channel();
  if (frame.type == FrameType::kClose) {
    drop(session, frame.payload == std::string(1, '\0') ? 0 : ECONNRESET);
  } else if (frame.type == FrameType::kPause) {
    wire->pause();
  } else if (frame.type == FrameType::kResume) {
    wire->resume();
    proceed(session);
  } else if (wire->paused()) {
    return Status(Code::kInvalidArgument, format("data on channel %llu, which its relay has paused",
                                                 static_cast<unsigned long long>(number)));
  } else {
    received(session, frame.payload.data(), frame.payload.size());
  }
  return {};
}

void Server::Impl::open_channel(Uplink* uplink, uint64_t number) {
  const uint64_t id = ++last_id_;
  uplink->last_channel = number;
  uplink->channels.emplace(number, id);
  Session* session = add_session(id, uplink->connection->peer_host());
  session->connection = std::make_unique<Wire>(uplink, number);
  session->relayed = true;
  settle(session, Peer::kDt);
}

/// The uplink takes bytes again. Each channel in turn sends a part of what waits for it, or, if
/// nothing waits, its next requests are answered. The next call begins with another channel, so
/// that a rank with endless requests does not keep the others waiting.
void Server::Impl::uplink_drained(uint64_t id) {
  auto found = uplinks_.find(id);
  if (found == uplinks_.end()) return;
  std::vector<std::pair<uint64_t, uint64_t>> order;
  const auto& channels = found->second->channels;
  const auto first = channels.lower_bound(found->second->next_turn);
  order.assign(first, channels.end());
  order.insert(order.end(), channels.begin(), first);
  while (!order.empty()) {
    decltype(order) again;
    for (const auto& [number, session_id] : order) {
      found = uplinks_.find(id);
      if (found == uplinks_.end()) return;
      found->second->next_turn = number;
      if (found->second->connection->congested()) return;
      const auto session = sessions_.find(session_id);
      if (session == sessions_.end()) continue;
      if (session->second->connection->channel()->send_slice()) {
        again.emplace_back(number, session_id);
      } else if (session->second->parser.has_part()) {
        proceed(session_id);
      }
    }
    order = std::move(again);
  }
}

void Server::Impl::flush_uplinks() {
  for (const uint64_t id : std::exchange(touched_uplinks_, {})) {
    const auto found = uplinks_.find(id);
    if (found == uplinks_.end()) continue;
    Uplink* uplink = found->second.get();
    uplink->touched = false;
    for (const uint64_t number : std::exchange(uplink->overflowed, {})) {
      const auto channel = uplink->channels.find(number);
      if (channel != uplink->channels.end()) drop(channel->second, ENOBUFS);
    }
    if (!uplink->touched) uplink->connection->release();
    note(uplink);
  }
}

/// The end of an uplink is the end of all that it carries.
std::unique_ptr<Uplink> Server::Impl::end_uplink(uint64_t id, int error) {
  const auto found = uplinks_.find(id);
  if (found == uplinks_.end()) return nullptr;
  std::unique_ptr<Uplink> uplink = std::move(found->second);
  uplinks_.erase(found);
  noted_bytes_[static_cast<size_t>(Owner::kMembers)] -= uplink->noted_bytes;
  uplink->ended = true;
  while (!uplink->channels.empty()) drop(uplink->channels.begin()->second, error);
  return uplink;
}

/// It is told why, like any other connection that is refused.
void Server::Impl::break_uplink(uint64_t id, const Status& why) {
  const std::unique_ptr<Uplink> uplink = end_uplink(id, EPROTO);
  if (options_.logger) {
    options_.logger->log(LogLevel::kWarning,
                         "store: ended the connection of the relay of host %s: %s",
                         quoted(uplink->host).c_str(), why.message().c_str());
  }
  Session* session = add_session(id, uplink->connection->peer_host());
  session->connection = std::make_unique<Wire>(std::move(uplink->connection));
  session->connection->release();
  settle(session, Peer::kDt);
  refuse(session, why);
  arm_timer();
}

}  // namespace dt::store
