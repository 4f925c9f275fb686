// SPDX-License-Identifier: Apache-2.0
// A tool asks all ranks to write their traces.
#include <algorithm>

#include "store/server_impl.h"

namespace dt::store {
namespace {

constexpr size_t kAbsentListed = 4096;  // bounds the answer of a job of which hardly anybody came

}  // namespace

void Server::Impl::dump_traces(Ticket asker, const std::string& directory, Patience patience) {
  if (dumping_.has_value()) {
    return reply(sessions_.at(asker.first).get(), asker.second,
                 Status(Code::kInvalidState,
                        "another request for traces is under way; ask again when it has ended"));
  }
  Dumping& dumping = dumping_.emplace();
  dumping.asker = asker;
  dumping.id = ++last_dumping_;
  dumping.deadline_ns = patience.deadline_ns;
  const std::string frame =
      encode_frame(FrameType::kDumpTrace, dumping.id, Writer().text(directory).take());
  size_t absent = 0;
  for (int32_t rank = 0; rank < options_.world_size; ++rank) {
    const uint64_t client = joins_.client_of(rank);
    const auto session = sessions_.find(client);
    if (client == 0 || session == sessions_.end()) {
      if (++absent > kAbsentListed) continue;
      dumping.answers.push_back({{rank, {}, 0},
                                 DumpAnswer::Outcome::kAbsent,
                                 "it has no connection to the store: it never came, or ended"});
      continue;
    }
    dumping.waiting.emplace(client, dumping.answers.size());
    dumping.answers.push_back({session->second->member, DumpAnswer::Outcome::kSilent, {}});
  }
  for (const auto& [client, place] : dumping.waiting) send(sessions_.at(client).get(), frame);
  if (dumping_.has_value() && dumping_->waiting.empty()) end_dumping();
}

void Server::Impl::trace_dumped(uint64_t id, const Request& request) {
  if (!dumping_.has_value() || dumping_->id != request.id) return;  // too late
  const auto found = dumping_->waiting.find(id);
  if (found == dumping_->waiting.end()) return;
  DumpAnswer& answer = dumping_->answers[found->second];
  answer.outcome =
      request.number == 1 ? DumpAnswer::Outcome::kWritten : DumpAnswer::Outcome::kFailed;
  answer.text = request.text.substr(0, kMaxKeyBytes);
  dumping_->waiting.erase(found);
  if (dumping_->waiting.empty()) end_dumping();
}

void Server::Impl::drop_dumping(uint64_t id) {
  if (!dumping_.has_value()) return;
  if (dumping_->asker.first == id) return dumping_.reset();
  const auto found = dumping_->waiting.find(id);
  if (found == dumping_->waiting.end()) return;
  DumpAnswer& answer = dumping_->answers[found->second];
  answer.outcome = DumpAnswer::Outcome::kAbsent;
  answer.text = "it ended when it was asked";
  dumping_->waiting.erase(found);
  if (dumping_->waiting.empty()) end_dumping();
}

void Server::Impl::end_dumping() {
  Dumping ended = std::move(*dumping_);
  dumping_.reset();
  const auto session = sessions_.find(ended.asker.first);
  if (session == sessions_.end()) return;
  reply(session->second.get(), ended.asker.second, encode(ended.answers));
}

}  // namespace dt::store
