// SPDX-License-Identifier: Apache-2.0
// What the server does with each request.
#include <algorithm>

#include "store/server_impl.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr size_t kLateMax = 1024;  // most communicators in late_comms_

}  // namespace

bool Server::Impl::reply_again(Session* session, const Frame& frame) {
  if (!session->welcomed || frame.type != FrameType::kMultiGet || last_read_.answer == nullptr ||
      last_read_.version != keyspace_.version() || last_read_.question != frame.payload) {
    return false;
  }
  send(session, encode_header(FrameType::kReply, frame.id, last_read_.answer->size()),
       last_read_.answer);
  return true;
}

void Server::Impl::handle(uint64_t id, Session* session, const Frame& frame) {
  if (reply_again(session, frame)) return;
  if (!session->welcomed && frame.type == FrameType::kUplink) return begin_uplink(id, frame);
  Result<Request> decoded = decode_request(frame);
  if (!session->welcomed) {
    if (!decoded.ok() || frame.type != FrameType::kHello) {
      refuse(session, decoded.ok() ? Status(Code::kInvalidArgument,
                                            "the first frame of a connection must be a hello")
                                   : decoded.status());
      return;
    }
    hello(id, session, decoded.value());
    return;
  }
  if (!decoded.ok()) {
    reply(session, frame.id, decoded.status());
    return;
  }
  Request& request = decoded.value();
  const Ticket ticket{id, request.id};
  const int64_t now_ns = monotonic_ns();
  const Patience patience = Patience::starting(now_ns, request.timeout_ms);
  Answers answers;
  switch (request.type) {
    case FrameType::kGet:
      keyspace_.wait(ticket, std::move(request.keys), WaitKind::kValue, patience, now_ns, &answers);
      break;
    case FrameType::kWait:
      keyspace_.wait(ticket, std::move(request.keys), WaitKind::kExists, patience, now_ns,
                     &answers);
      break;
    case FrameType::kBarrier:
      keyspace_.barrier(ticket, session->member.text(), request.keys[0],
                        static_cast<int32_t>(request.number), patience, now_ns, &answers);
      break;
    case FrameType::kJoin:
      joins_.join(ticket, std::move(request.join), patience, now_ns, &answers);
      if (joins_.decided() && options_.on_verdict) options_.on_verdict();
      for (auto& [key, value] : joins_.take_records()) {
        // Cannot fail for want of room in practice; a rank would then find the key absent.
        [[maybe_unused]] const Status kept = keyspace_.set(key, std::move(value), &answers);
      }
      join_deadline_ns_ = joins_.next_deadline_ns();
      begin_watch(now_ns);
      break;
    case FrameType::kGoodbye:
      vitals_.end(session->member.rank);
      if (joins_.goodbye(ticket, patience, now_ns, &answers)) {
        note_departure(session->member.rank, now_ns);
      }
      join_deadline_ns_ = joins_.next_deadline_ns();
      review_gatherings();
      break;
    case FrameType::kGather:
      gatherings_.come(
          ticket, session->member.rank,
          {std::move(request.keys[0]), std::move(request.ranks), std::move(request.values[0])},
          patience, now_ns, &answers);
      note_partings();
      break;
    case FrameType::kCancel:
      keyspace_.cancel(ticket);
      joins_.cancel(ticket);
      gatherings_.cancel(ticket);
      std::erase_if(questions_, [&](const auto& each) { return each.second.asker == ticket; });
      if (dumping_.has_value() && dumping_->asker == ticket) dumping_.reset();
      join_deadline_ns_ = joins_.next_deadline_ns();
      break;
    case FrameType::kAbort:
      reply(session, request.id, std::string());
      abort_job(id, *session, request);
      break;
    case FrameType::kReportFailure:
      reply(session, request.id, std::string());
      if (options_.on_report && options_.on_report(request.failure)) break;
      reported(id, *session, request.failure, &answers);
      break;
    case FrameType::kBeat: beat(id, session, &request, now_ns); break;
    case FrameType::kOrders: compare_orders(id, *session, request, now_ns); break;
    case FrameType::kHeedsStop:
      session->heeds_stop = true;
      if (!heeds_stop_.exchange(true) && options_.on_heed) options_.on_heed();
      reply(session, request.id, std::string());
      break;
    case FrameType::kBusy: set_busy(session, &request, now_ns); break;
    case FrameType::kDumpTraces: dump_traces(ticket, request.text, patience); break;
    case FrameType::kTraceDumped: trace_dumped(id, request); break;
    case FrameType::kAskPeer: ask_peer(ticket, request.number, patience); break;
    case FrameType::kHere:
      if (const auto found = questions_.find(request.id);
          found != questions_.end() && found->second.asked == id) {
        peer_answered(request.id, true);
      }
      break;
    case FrameType::kMultiGet: {
      Result<std::string> answer = answer_now(request, &answers);
      if (answer.ok()) {
        last_read_ = {frame.payload, keyspace_.version(),
                      keyspace_.texts(Owner::kMembers).keep(std::move(answer).value())};
        reply_again(session, frame);
      } else {
        reply(session, request.id, answer);
      }
      break;
    }
    default: reply(session, request.id, answer_now(request, &answers)); break;
  }
  deliver(answers);
}

/// A death that a rank saw on its own host counts as one that was seen here, so that those that end
/// because of it are not taken for the first: news of the dead rank's own connection may come late.
void Server::Impl::reported(uint64_t id, const Session& reporter, const Failure& failure,
                            Answers* answers) {
  const ErrorInfo& info = failure.info;
  const bool seen = failure.scope.empty() && info.code == Code::kPeerLost &&
                    info.operation.empty() && info.host == reporter.member.host;
  if (!seen) {
    Failure told = failure;
    const bool named = name_laggards(&told, reporter.member.rank, monotonic_ns());
    note_late(told);
    if (!named) return push(told, id);
    // Who reported it waits for the answer, which names more. The others need it once.
    if (late_comms_.size() < kLateMax && late_comms_.insert(told.scope).second)
      return push(told, 0);
    return send(sessions_.at(id).get(), encode_frame(FrameType::kFailure, 0, encode(told)));
  }
  const uint64_t dead = joins_.client_of(info.rank);
  const auto found = sessions_.find(dead);
  if (dead == id || found == sessions_.end()) return;  // it was seen here
  Ending ending;
  ending.what =
      format("ended or was killed, as %s saw on that host", reporter.member.text().c_str());
  add_last_words(*found->second, &ending);
  const std::optional<Failure> death = joins_.lost(dead, ending, answers);
  if (!death.has_value()) return;
  vitals_.end(info.rank);
  join_deadline_ns_ = joins_.next_deadline_ns();
  if (!aborted_) push(*death, id);
  review_gatherings();
}

void Server::Impl::hello(uint64_t id, Session* session, const Request& request) {
  // Before anything is begun or ended for it.
  if (session->relayed && request.hello.member.rank < 0) {
    return refuse(session,
                  Status(Code::kInvalidArgument,
                         "a relay brings ranks only; let this client dial the store itself"));
  }
  if (options_.any_job && request.hello.protocol == kProtocolVersion) {
    if (const Status fits = check_rank(request.hello); !fits.ok()) return refuse(session, fits);
  }
  if (options_.any_job && front_ == nullptr) {
    const Result<Impl*> other = find_other_job(request.hello);
    if (!other.ok()) return refuse(session, other.status());
    if (other.value() != nullptr && !session->relayed) return hand_over(id, other.value(), request);
  }
  if (begins_next_attempt(request.hello)) begin_next_attempt(request.hello);
  if (begins_next_job(request.hello)) begin_next_job();
  std::optional<uint64_t> superseded;
  const Status admitted = joins_.admit(request.hello, id, &superseded);
  if (!admitted.ok()) {
    refuse(session, admitted);
    return;
  }
  if (const auto old = sessions_.find(superseded.value_or(0)); old != sessions_.end()) {
    keyspace_.drop(*superseded);
    gone(*old->second);
    sessions_.erase(old);
    drop_questions(*superseded);
  }
  session->member = request.hello.member;
  noted_bytes_[static_cast<size_t>(session->owner())] -= std::exchange(session->noted_bytes, 0);
  session->welcomed = true;
  ++known_;
  if (session->relayed) ++relayed_;
  session->parser.set_max_payload(kMaxPayloadBytes);
  Welcome welcome;
  welcome.protocol = kProtocolVersion;
  welcome.job_id = options_.job_id;
  welcome.attempt = options_.attempt;
  welcome.world_size = options_.world_size;
  welcome.server = Member{options_.server_rank, options_.host, options_.pid};
  welcome.heartbeat_ms = options_.heartbeat_ms;
  welcome.heartbeat_timeout_ms = options_.heartbeat_timeout_ms;
  reply(session, request.id, encode(welcome));
}

void Server::Impl::ask_peer(Ticket asker, int64_t rank, Patience patience) {
  const auto pending = [&](const auto& each) { return each.second.asker.first == asker.first; };
  if (std::any_of(questions_.begin(), questions_.end(), pending)) {
    // Bounds what one connection can make the server keep.
    const Status status(Code::kInvalidState, "ask_peer: one question at a time");
    return reply(sessions_.at(asker.first).get(), asker.second, status);
  }
  const bool in_range = rank >= 0 && rank < options_.world_size;
  const uint64_t asked = in_range ? joins_.client_of(static_cast<int32_t>(rank)) : 0;
  const auto session = sessions_.find(asked);
  questions_[++last_question_] = {asker, asked, patience.deadline_ns};
  if (session == sessions_.end()) return peer_answered(last_question_, false);
  send(session->second.get(), encode_frame(FrameType::kPing, last_question_, {}));
}

void Server::Impl::peer_answered(uint64_t question, bool answers) {
  const Ticket asker = questions_.at(question).asker;
  questions_.erase(question);
  if (const auto session = sessions_.find(asker.first); session != sessions_.end()) {
    reply(session->second.get(), asker.second, std::string(1, answers ? '\1' : '\0'));
  }
}

/// Of a session that is gone: nobody waits for its answers, and it gives none.
void Server::Impl::drop_questions(uint64_t id) {
  std::erase_if(questions_, [id](const auto& each) { return each.second.asker.first == id; });
  end_questions([id](const Question& each) { return each.asked == id; });
  drop_dumping(id);
}

void Server::Impl::end_questions(const std::function<bool(const Question&)>& ended) {
  std::vector<uint64_t> over;
  for (const auto& [question, each] : questions_) {
    if (ended(each)) over.push_back(question);
  }
  for (const uint64_t question : over) peer_answered(question, false);
}

void Server::Impl::abort_job(uint64_t id, const Session& session, const Request& request) {
  aborted_ = true;
  Failure failure;
  failure.info.code = Code::kAborted;
  failure.info.message =
      format("%s aborted the job: %s", session.member.text().c_str(), request.text.c_str());
  failure.info.rank = session.member.rank;
  failure.info.host = session.member.host;
  failure.info.pid = session.member.pid;
  push(failure, 0);
  vitals_.end(session.member.rank);
  Answers answers;
  joins_.leave(id, &answers);
  deliver(answers);
  review_gatherings();
}

/// Behind the push of a death, so that who was gathering has heard of it.
void Server::Impl::review_gatherings() {
  Answers answers;
  gatherings_.review(&answers);
  note_partings();
  deliver(answers);
}

void Server::Impl::note_partings() {
  for (const GatherTable::Parting& parting : gatherings_.take_partings()) {
    joins_.forgive(parting.present, parting.absent);
  }
}

Result<std::string> Server::Impl::answer_now(const Request& request, Answers* answers) {
  const bool writes = request.type == FrameType::kSet || request.type == FrameType::kAdd ||
                      request.type == FrameType::kCompareSet || request.type == FrameType::kErase ||
                      request.type == FrameType::kMultiSet;
  for (const std::string& key : request.keys) {
    if (!writes) break;
    for (const char* prefix : {kJoinPrefix, kTorchBarePrefix, kTorchBarrierPrefix}) {
      if (key.rfind(prefix, 0) != 0) continue;
      return Status(Code::kInvalidArgument,
                    format("key %s: names below %s belong to the store; choose another name",
                           store::quoted(key).c_str(), store::quoted(prefix).c_str()));
    }
  }
  Writer writer;
  size_t total_bytes = 0;
  switch (request.type) {
    case FrameType::kSet: DT_TRY(keyspace_.set(request.keys[0], request.values[0], answers)); break;
    case FrameType::kAdd: {
      DT_TRY_VALUE(const int64_t sum, keyspace_.add(request.keys[0], request.number, answers));
      writer.i64(sum);
      break;
    }
    case FrameType::kCompareSet: {
      DT_TRY_VALUE(const CompareSet result, keyspace_.compare_set(request.keys[0], request.expected,
                                                                  request.values[0], answers));
      writer.u8(result.swapped ? 1 : 0).u8(result.current.has_value() ? 1 : 0);
      writer.text(result.current.value_or(""));
      break;
    }
    case FrameType::kErase: writer.u8(keyspace_.erase(request.keys[0]) ? 1 : 0); break;
    case FrameType::kList: {
      std::vector<std::string> keys = keyspace_.list(request.keys[0]);
      std::erase_if(keys, out_of_reach);
      for (const std::string& key : keys) total_bytes += key.size() + sizeof(uint32_t);
      if (total_bytes > kMaxPayloadBytes / 2) break;
      writer.u32(static_cast<uint32_t>(keys.size()));
      for (const std::string& key : keys) writer.text(key);
      break;
    }
    case FrameType::kMultiGet: {
      for (const std::string& key : request.keys) {
        const std::string* value = keyspace_.find(key);
        total_bytes += value == nullptr ? 0 : value->size();
      }
      if (total_bytes > kMaxPayloadBytes / 2) break;
      writer.u32(static_cast<uint32_t>(request.keys.size()));
      for (const std::string& key : request.keys) {
        const std::string* value = keyspace_.find(key);
        writer.u8(value == nullptr ? 0 : 1).text(value == nullptr ? "" : *value);
      }
      break;
    }
    case FrameType::kMultiSet:
      DT_TRY(keyspace_.multi_set(request.keys, request.values, answers));
      break;
    case FrameType::kPing: break;
    default:
      return Status(Code::kInvalidArgument, format("request type %d is not served at this point",
                                                   static_cast<int>(request.type)));
  }
  if (total_bytes > kMaxPayloadBytes / 2) {
    return Status(Code::kInvalidArgument,
                  format("the answer of %zu bytes is over the limit of %zu bytes; ask for fewer "
                         "keys at a time",
                         total_bytes, kMaxPayloadBytes / 2));
  }
  return writer.take();
}

// ---- PyTorch's clients ----

void Server::Impl::handle_torch(uint64_t id) {
  for (;;) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second->connection->congested()) return;
    Session* session = found->second.get();
    TorchRequest request;
    Status broken;
    if (session->torch->next(&request)) {
      Answers answers;
      Result<TorchAnswer> reply =
          torch_.handle(id, session->torch->dialect(), std::move(request), &answers);
      broken = reply.status();
      if (broken.ok()) {
        for (TorchAnswer::Piece& piece : reply.value().pieces) {
          send(session, std::move(piece.bytes), std::move(piece.shared));
        }
      }
      deliver(answers);
      keep_within_budget();
      if (broken.ok()) continue;
    } else if (broken = session->torch->status(); broken.ok()) {
      return;
    }
    if (options_.logger) {
      options_.logger->log(LogLevel::kInfo, "store: closed the connection of a PyTorch client: %s",
                           broken.message().c_str());
    }
    drop(id, EPROTO);
    return;
  }
}

}  // namespace dt::store
