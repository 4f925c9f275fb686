// SPDX-License-Identifier: Apache-2.0
// Several jobs of the same ranks, one after the other, at one store.
#include <random>
#include <vector>

#include "store/server_impl.h"

namespace dt::store {

uint64_t random_session() {
  std::random_device random;
  const uint64_t session = (uint64_t{random()} << 32) | random();
  return session == 0 ? 1 : session;
}

JoinSetup Server::Impl::join_setup() const {
  JoinSetup setup;
  setup.job_id = options_.job_id;
  setup.attempt = options_.attempt;
  setup.world_size = options_.world_size;
  setup.session = random_session();
  setup.timeout_ms = options_.join_timeout_ms;
  setup.several_jobs = options_.several_jobs;
  return setup;
}

/// The first rank that comes back when all have left.
bool Server::Impl::begins_next_job(const Hello& hello) const {
  return options_.several_jobs && hello.member.rank >= 0 && joins_.is_over() && !aborted_ &&
         first_rank_.load() < 0 && joins_.check_identity(hello).ok();
}

/// Nothing of the job before is left: no key, no connection of its ranks, no word of theirs. What
/// PyTorch's clients keep here is theirs and stays.
void Server::Impl::begin_next_job() {
  std::vector<uint64_t> ended;
  for (const auto& [id, session] : sessions_) {
    if (session->welcomed && session->member.rank >= 0) ended.push_back(id);
  }
  for (const uint64_t id : ended) {
    Session* const session = sessions_.at(id).get();
    keyspace_.drop(id);
    drop_questions(id);
    session->member.rank = -1;  // its end says nothing of the rank that comes
    session->refused = true;
    session->connection->shutdown();
  }
  keyspace_.erase_of(Owner::kMembers);
  joins_ = JoinTable(join_setup());
  vitals_ = Vitals();
  orders_ = OrderTable();
  departed_.clear();
  join_deadline_ns_ = look_at_ns_ = tell_departed_ns_ = kNeverNs;
  late_rank_.store(-1);
  heeds_stop_.store(false);
}

}  // namespace dt::store
